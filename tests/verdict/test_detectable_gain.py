"""How small a gain can be shown: beside scipy, beside simulated confirmations, and whether ranges hold it."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.storage.rows import TicketRow
from tempopt.temperature import is_neutral, training_key
from tempopt.verdict.detectable_gain import (
    CONFIDENCE,
    MAX_CORRELATION,
    NoiseEstimate,
    detectable,
    estimate_noise,
    expected_pairs,
)
from tempopt.verdict.statistics.group_sequential import alpha_spending
from tempopt.verdict.statistics.paired_tests import paired_test
from tests.simulated import SimulatedStudy
from tests.verdict.verdicts import ALPHA, LR_SPACE

LR = {"search": LR_SPACE}
PLANS = {
    "search": {
        "temperature_init": {"low": 0.5, "high": 4.0},
        "temperature_final": {"low": 0.5, "high": 4.0},
        "schedule": ["constant", "linear"],
        "length_scaling": ["none", "log_n"],
    }
}


def power(effect: float, pairs: int) -> float:
    """Return the power of Student's paired test, by scipy's noncentral t."""
    limit = stats.t.isf(ALPHA / 2, pairs - 1)
    return float(stats.nct.sf(limit, pairs - 1, effect * math.sqrt(pairs)))


def test_the_smallest_gain_has_the_power_that_is_said(make_spec: Any) -> None:
    smallest_gain = detectable(make_spec(seeds={"confirm": 8}))
    assert (smallest_gain.pairs, smallest_gain.alpha, smallest_gain.comparisons) == (8, ALPHA, 1)
    assert power(smallest_gain.effect, 8) == pytest.approx(0.8, abs=1e-6)
    assert smallest_gain.in_seeds == pytest.approx(
        (smallest_gain.effect * math.sqrt(0.5), smallest_gain.effect * math.sqrt(2))
    )


def test_where_two_comparisons_have_to_show_it_both_do_with_that_chance(make_spec: Any) -> None:
    smallest_gain = detectable(make_spec(LR, seeds={"confirm": 8}))
    assert smallest_gain.comparisons == 2
    miss_rate = 1 - power(smallest_gain.effect, 8)
    # whatever the two have in common
    assert 1 - 2 * miss_rate == pytest.approx(0.8, abs=1e-6)


def confirm(rng: np.random.Generator, effect: float) -> tuple[int, bool]:
    """Return after how many of twelve pairs a simulated confirmation ends, and whether it shows a gain."""
    pairs = rng.normal(effect, 1.0, 12)
    for look in (4, 8, 12):
        looks = [(num_pairs, alpha_spending(num_pairs, 12)) for num_pairs in (4, 8, 12) if num_pairs <= look]
        test = paired_test(pairs[:look], direction="maximize", alpha=ALPHA, looks=looks)
        if test.significant or test.gain <= 0:
            return look, test.significant
    return 12, False


def test_looks_on_the_way_show_their_smallest_gain_with_that_chance(make_spec: Any) -> None:
    smallest_gain = detectable(make_spec(seeds={"confirm": {"min": 4, "max": 12}}))
    rng, studies = np.random.default_rng(3), 400
    share = sum(confirm(rng, smallest_gain.effect)[1] for _ in range(studies)) / studies
    assert share == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / studies))


@pytest.mark.parametrize("gain", [False, True])
def test_pairs_are_expected_as_simulated_confirmations_take_them(make_spec: Any, gain: bool) -> None:
    spec = make_spec(seeds={"confirm": {"min": 4, "max": 12}})
    rng, studies = np.random.default_rng(4), 400
    counts = [confirm(rng, 2.0 * gain)[0] for _ in range(studies)]
    error = float(np.std(counts)) / math.sqrt(studies)
    assert expected_pairs(spec, gain=gain) == pytest.approx(np.mean(counts), abs=4 * error)
    assert expected_pairs(make_spec(seeds={"confirm": 8}), gain=gain) == 8


# ---- what runs tell


def test_runs_that_differ_in_their_seed_alone_tell_the_deviation_between_seeds(
    make_spec: Any, make_ticket: Any
) -> None:
    values = [0.5, 0.7, 0.63]
    rows = [make_ticket("baseline", n, value) for n, value in enumerate(values)]
    noise = estimate_noise(rows, make_spec())
    assert noise == NoiseEstimate(
        source="baseline", runs=3, deviation=pytest.approx(np.std(values, ddof=1)), freedom=2
    )
    # by the definition of a chi-squared interval, with correlations from 0 to the highest
    low, high = (np.std(values, ddof=1) * math.sqrt(2 / stats.chi2.isf(side, 2)) for side in (0.1, 0.9))
    lowest = math.sqrt(2 * (1 - MAX_CORRELATION))
    assert noise.difference == pytest.approx((low * lowest, high * math.sqrt(2)))


def test_two_runs_and_runs_that_tune_tell_nothing(make_spec: Any, make_ticket: Any) -> None:
    two_tickets = [make_ticket("baseline", n, 0.5 + n) for n in range(2)]
    assert estimate_noise(two_tickets, make_spec()) is None
    tuned_tickets = [
        make_ticket("baseline", n, 0.5 + n, parameters={"temperature_init": 1.0, "lr": 0.1 * n})
        for n in range(9)
    ]
    assert estimate_noise(tuned_tickets, make_spec(LR)) is None
    equal = [make_ticket("baseline", n, 0.5) for n in range(3)]
    assert estimate_noise(equal, make_spec()) is None
    diverged_tickets = [*two_tickets, make_ticket("baseline", 2, None, outcome="diverged")]
    assert estimate_noise(diverged_tickets, make_spec()) is None


def test_choosing_runs_tell_what_seeds_and_parameters_do_not(make_spec: Any, make_ticket: Any) -> None:
    table = np.array([[0.1, 0.5, 0.2], [0.3, 0.6, 0.5], [0.2, 0.9, 0.1]])
    rows = [
        make_ticket(
            "choose", 3 * c + p, table[c, p], pair=p, candidate=c, parameters={"temperature_init": 2.0 + c}
        )
        for c in range(3)
        for p in range(3)
    ]
    # one that was dropped after a seed
    rows.append(make_ticket("choose", 9, 9.0, pair=0, candidate=3, parameters={"temperature_init": 9.0}))
    # by least squares, with a number for each parameter set and one for each seed
    design = np.array([[*np.eye(3)[c], *np.eye(3)[p][1:]] for c in range(3) for p in range(3)])
    _, squares, *_ = np.linalg.lstsq(design, table.ravel(), rcond=None)
    noise = estimate_noise(rows, make_spec())
    expected = math.sqrt(2 * float(squares[0]) / 4)
    assert noise == NoiseEstimate(source="choose", runs=9, deviation=pytest.approx(expected), freedom=4)


def test_confirmed_pairs_tell_their_differences(make_spec: Any, whole_study: Any) -> None:
    noise = estimate_noise(whole_study, make_spec())
    confirm_values = {(row.arm, row.pair): row.value for row in whole_study if row.kind == "confirm"}
    winner, baseline = (
        [value for (arm, _), value in sorted(confirm_values.items()) if name in arm.split("+")]
        for name in ("search", "baseline")
    )
    differences = np.subtract(winner, baseline)
    assert noise is not None
    assert (noise.source, noise.freedom) == ("confirm", len(differences) - 1)
    assert noise.deviation == pytest.approx(np.std(differences, ddof=1))


@pytest.mark.parametrize("correlation", [0.0, 0.75])
def test_ranges_hold_the_smallest_gain_as_often_as_they_say(make_spec: Any, correlation: float) -> None:
    # three runs at one at least tell how much seeds differ
    spec = make_spec(PLANS, trials=6, arms={"baseline": 3}, candidates=3)
    able, studies, difference = detectable(spec), 60, math.sqrt(2 * (1 - correlation))
    coverage: dict[str, list[bool]] = {"baseline": [], "choose": [], "confirm": []}
    for number in range(studies):

        def worth(row: TicketRow, number: int = number) -> float:
            key = (number, training_key(row.parameters or {}), row.kind, row.seed)
            own_noise, common = (
                random.Random(str(part)).gauss(0.0, 1.0) for part in (key, (number, row.seed))
            )
            gain = 0.0 if is_neutral(row.parameters or {}) else 3.0 * difference * (number % 2)
            return gain + math.sqrt(1 - correlation) * own_noise + math.sqrt(correlation) * common

        rows = SimulatedStudy(spec, worth).run().rows
        for kinds in (("baseline",), ("baseline", "choose"), ("baseline", "choose", "confirm")):
            noise = estimate_noise([row for row in rows if row.kind in kinds], spec)
            assert noise is not None
            low, high = able.range(noise)
            coverage[noise.source].append(low <= able.effect * difference <= high)
    for source, holds in coverage.items():
        assert len(holds) == studies, source
        assert np.mean(holds) > CONFIDENCE - 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / studies), source

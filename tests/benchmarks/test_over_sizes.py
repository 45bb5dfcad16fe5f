"""Surrogates over sizes: worlds are what is said of them, and a study in parts is the study as a whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from benchmarks.over_sizes import Enlarged, Proxy, Untold, named_last, paired, raced
from benchmarks.population import LEAST
from benchmarks.simulated.answers import Priced, asking, ways
from benchmarks.simulated.over_sizes import Joint, Larger, Pool, Trend
from tempopt.confirmation.transfer import transfer_tickets
from tempopt.records.rows import AT_PROXY, TicketRow
from tempopt.records.tickets import of_kind, usable
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import training_key

CLASS, DRAW = "two bends", 0


@pytest.fixture(scope="module")
def study() -> Proxy:
    small = Larger(CLASS, DRAW, 1.0, 0.0)
    found = Proxy(small, spec_of(small))
    assert found.searched_and_chosen()
    return found


def spec_of(small: Larger) -> StudySpec:
    return asking(small.spec, ways()["proxy"], seed=DRAW)


def full(agreement: float = 0.5, shift: float = 0.5) -> Larger:
    return Larger(CLASS, DRAW, agreement, shift)


def test_full_size_is_as_like_the_proxy_as_is_said_and_has_a_gain() -> None:
    pairs = [(Larger("line", n, 1.0, 0.0), Larger("line", n, 0.7, 0.0)) for n in range(60)]
    courses = np.array([(small._best, large._best) for small, large in pairs])
    both = courses.swapaxes(0, 1).reshape(2, -1)
    # the courses are cut off at the ends of the range, which takes off a little
    assert np.corrcoef(both)[0, 1] == pytest.approx(0.7, abs=0.15)
    assert all(large._gain >= LEAST for _, large in pairs)
    small, large = pairs[0]
    set_ = {"temperature_init": 0.4, "temperature_final": 2.0, "schedule": "linear"}
    assert Larger("line", 0, 1.0, 0.0).worth(set_) == small.worth(set_) != large.worth(set_)
    assert large.worth({}) == pytest.approx(0.0)


def test_the_best_ln_tau_is_shifted_up_in_some_draws_and_down_in_others() -> None:
    for draw, sign in ((0, -1.0), (2, 1.0)):
        small, large = (Larger("constant", draw, 1.0, shift) for shift in (0.0, 0.5))
        expected = np.clip(small._best + sign * 0.5 / math.log(4.0), -1.0, 1.0)
        np.testing.assert_allclose(large._best, expected)


def test_the_joint_surrogate_knows_both_sizes_and_forecasts_pruned_runs(study: Proxy) -> None:
    spec = study._spec
    rows = raced(study.rows, spec, full())
    small = [row for row in rows if row.kind in AT_PROXY and usable(row)]
    pruned = [row for row in rows if row.outcome == "pruned"]
    told = len(small) + len(of_kind(rows, "transfer"))
    counts = [len(Joint(rows, each, spec).surrogate._runs.values_N) for each in ([], study.reports)]
    assert counts[0] == told and pruned and told < counts[1] <= told + len(pruned)


@pytest.mark.parametrize("batches", [(1,), (1, 1), (2,)])
def test_finalists_are_named_within_the_same_runs_and_on_the_same_seeds(
    study: Proxy, batches: tuple[int, ...]
) -> None:
    spec, world = study._spec, full()
    told: list[int] = []

    def model(rows: list[TicketRow]) -> Trend:
        told.append(len(of_kind(rows, "transfer")))
        return Trend(rows, study.reports, spec)

    sets, before = Pool(spec, 0).of(study.rows), transfer_tickets(study.rows, spec)
    seen: list[TicketRow] = []

    def changed(rows: list[TicketRow]) -> list[TicketRow]:
        seen[:] = named_last(rows, model, sets, world, batches)
        return [*seen]

    raced(study.rows, spec, world, changed)
    new = of_kind(seen, "transfer")
    assert [(t.candidate, t.pair, t.seed) for t in new] == [(t.candidate, t.pair, t.seed) for t in before]
    replaced = {3 - each for each in range(1, sum(batches) + 1)}
    for old, ticket in zip(before, new, strict=True):
        same = training_key(old.parameters or {}) == training_key(ticket.parameters or {})
        assert same == (ticket.candidate not in replaced)
        assert ticket.value == float(world.train(ticket.parameters or {}, ticket.seed).final[-1])
    # the second is named when the first has been trained, and by nothing of what they replace
    left = 4 - sum(batches)
    assert told == [2 * (left + sum(batches[:n])) for n in range(len(batches))]
    assert len({training_key(t.parameters or {}) for t in new}) == 4


@pytest.mark.parametrize("how", ["", "as built"])
def test_a_study_in_parts_is_the_study_as_a_whole(study: Proxy, how: str) -> None:
    small, world = Larger(CLASS, DRAW, 1.0, 0.0), full(0.5, 0.0)
    spec = spec_of(small)
    whole = Priced(world, spec, small)
    if not how:
        whole._arms = Untold(spec, [], [])
    verdicts = list(whole.rounds(2, 24))
    first = Enlarged(world, spec, small, study)
    assert first.gone_on(how=how) == verdicts[0]
    again = Enlarged(world, spec, small, first)
    assert again.gone_on(24, how) == verdicts[1]
    assert again.rows == whole.rows


def test_full_sizes_of_one_proxy_count_as_one() -> None:
    records = [
        {"class": "line", "draw": draw, "came": {"new": (base + more, 3), "old": (base, 5)}}
        for draw, base, mores in ((1, 0.1, (0.3, 0.1)), (3, 0.4, (0.0, 0.2)), (5, 0.2, (0.6, 0.4)))
        for more in mores
    ]
    mean, half, count = paired(records, "new", "old")
    interval = ttest_1samp([0.2, 0.1, 0.5], 0.0).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((interval.low, interval.high))
    assert count == 3
    assert paired(records, "new", "old", 1)[:2] == pytest.approx((-2.0, 0.0))

"""The four answers, and whether they can be trusted: simulated studies in which nothing helps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.store.rows import Measurement, TicketRow
from tempopt.study.answers import Verdict, conclude
from tempopt.study.choose import choose_tickets, pick
from tempopt.study.confirm import confirm_tickets
from tempopt.study.spec import StudySpec

UNIT = [0.50, 0.52, 0.47, 0.55, 0.49, 0.51, 0.53, 0.48]
GAINS = [0.10, 0.12, 0.08, 0.11, 0.09, 0.13, 0.07, 0.10]


@pytest.fixture
def runs(make_ticket: Any) -> Callable[..., list[TicketRow]]:
    """Return a maker of an arm's confirm runs by pair; None diverged, "lost" was lost."""

    def make(arm: str, values: list[Any], kind: str = "confirm") -> list[TicketRow]:
        number = {"unit": 0, "constant": 100, "search": 200, "init_only": 0}[arm]
        tickets = []
        for pair, value in enumerate(values):
            fields: dict[str, Any] = {"arm": arm, "pair": pair, "parameters": {"temperature_init": arm}}
            if value == "lost":
                fields |= {"state": "failed", "outcome": "failed"}
            elif value is None:
                fields |= {"outcome": "diverged"}
            given = value if isinstance(value, float) else None
            tickets.append(make_ticket(kind, number + pair, given, **fields))
        return tickets

    return make


def plus(values: list[Any], gains: list[float]) -> list[float]:
    return [value + gain for value, gain in zip(values, gains, strict=True)]


def test_the_total_gain_is_the_paired_t_test_of_scipy(make_spec: Any, runs: Any) -> None:
    verdict = conclude([*runs("unit", UNIT), *runs("search", plus(UNIT, GAINS))], [], make_spec())
    assert verdict is not None
    expected = stats.ttest_rel(plus(UNIT, GAINS), UNIT)
    assert verdict.total.paired.p_value == pytest.approx(expected.pvalue)
    assert verdict.total.paired.gain == pytest.approx(0.1)
    assert verdict.total.significant
    assert (verdict.params, verdict.test, verdict.confirmed_on) == (
        {"temperature_init": "search"},
        "t",
        "test",
    )
    assert verdict.against_constant is None


@pytest.fixture
def rounds(runs: Any) -> Callable[..., list[TicketRow]]:
    """Return a maker of the confirm runs of rounds, given the gains of the search in each of them."""

    def make(*gains: list[float]) -> list[TicketRow]:
        return [
            dataclasses.replace(t, round=number, number=t.number + 10 * number, id=t.id + 10 * number)
            for number, of_round in enumerate(gains)
            for t in [*runs("unit", UNIT), *runs("search", plus(UNIT, of_round))]
        ]

    return make


def test_a_round_that_was_never_confirmed_was_no_look(make_spec: Any, rounds: Any) -> None:
    first = [dataclasses.replace(t, round=1) for t in rounds(GAINS)]
    verdict = conclude(first, [], make_spec())
    assert verdict is not None and (verdict.round, verdict.looks) == (1, 1)
    expected = stats.ttest_rel(plus(UNIT, GAINS), UNIT)
    assert verdict.total.paired.p_value == pytest.approx(expected.pvalue)


def test_a_second_verdict_pays_for_the_first_look(make_spec: Any, rounds: Any) -> None:
    smaller = [gain / 3 for gain in GAINS]
    verdict = conclude(rounds(GAINS, smaller), [], make_spec())
    assert verdict is not None and (verdict.round, verdict.looks) == (1, 2)
    expected = stats.ttest_rel(plus(UNIT, smaller), UNIT)
    interval = expected.confidence_interval(0.975)
    total = verdict.total.paired
    assert total.p_value == pytest.approx(2 * expected.pvalue)
    assert (total.ci_low, total.ci_high) == pytest.approx((interval.low, interval.high))


def test_what_one_look_calls_significant_three_may_not(make_spec: Any, rounds: Any) -> None:
    noisy = [0.10, 0.12, -0.06, 0.11, 0.09, 0.13, -0.04, 0.10]
    pvalue = stats.ttest_rel(plus(UNIT, noisy), UNIT).pvalue
    assert 0.05 / 3 < pvalue < 0.05
    first = conclude(rounds(noisy), [], make_spec())
    third = conclude(rounds(GAINS, GAINS, noisy), [], make_spec())
    assert first is not None and first.total.significant
    assert third is not None and not third.total.significant
    assert third.total.paired.ci_low < 0 < first.total.paired.ci_low


def test_until_a_later_round_is_confirmed_the_verdict_before_it_stands(make_spec: Any, rounds: Any) -> None:
    tickets = rounds(GAINS, [-gain for gain in GAINS])
    before = conclude(rounds(GAINS), [], make_spec())
    for state in ("waiting", "running"):
        last = dataclasses.replace(tickets[-1], state=state, outcome=None, value=None)
        assert conclude([*tickets[:-1], last], [], make_spec()) == before
    after = conclude(tickets, [], make_spec())
    assert after is not None and after.total.paired.gain < 0 and after.round == 1


def test_a_falling_loss_is_a_gain(make_spec: Any, runs: Any) -> None:
    tickets = [*runs("unit", plus(UNIT, GAINS)), *runs("search", UNIT)]
    verdict = conclude(tickets, [], make_spec(direction="minimize"))
    assert verdict is not None and verdict.total.significant
    assert verdict.total.paired.gain == pytest.approx(0.1)


def test_there_is_no_verdict_from_half_of_the_pairs(make_spec: Any, runs: Any, make_ticket: Any) -> None:
    tickets = [*runs("unit", UNIT), *runs("search", plus(UNIT, GAINS))]
    running = make_ticket("confirm", 999, None, arm="constant", pair=7, state="running")
    assert conclude([*tickets, running], [], make_spec()) is None
    assert conclude([], [], make_spec()) is None


def test_a_lost_run_drops_its_pair_and_is_counted(make_spec: Any, runs: Any) -> None:
    tickets = [*runs("unit", ["lost", *UNIT[1:]]), *runs("search", plus(UNIT, GAINS))]
    verdict = conclude(tickets, [], make_spec())
    assert verdict is not None
    assert (verdict.total.paired.n_pairs, verdict.total.dropped) == (7, 1)
    assert verdict.total.paired.gain == pytest.approx(np.mean(GAINS[1:]))


def test_a_winner_that_diverges_is_counted_with_the_worst_value_and_not_significant(
    make_spec: Any, runs: Any
) -> None:
    better = [value + 1.0 for value in plus(UNIT, GAINS)]
    tickets = [*runs("unit", UNIT), *runs("search", [None, *better[1:]])]
    verdict = conclude(tickets, [], make_spec())
    assert verdict is not None
    total = verdict.total
    differences = [min(UNIT) - UNIT[0], *(b - a for a, b in zip(UNIT[1:], better[1:], strict=True))]
    assert total.paired.gain == pytest.approx(np.mean(differences))
    assert (total.paired.n_pairs, total.dropped, total.diverged, total.reference_diverged) == (8, 0, 1, 0)
    assert total.paired.significant and not total.significant


def test_a_gain_over_runs_that_diverge_is_a_lower_bound(make_spec: Any, runs: Any) -> None:
    tickets = [*runs("unit", [None, None, *UNIT[2:]]), *runs("search", plus(UNIT, GAINS))]
    verdict = conclude(tickets, [], make_spec())
    assert verdict is not None
    assert verdict.total.reference_diverged == 2
    assert verdict.total.significant
    assert verdict.total.paired.gain < 0.2


def test_arms_that_always_diverge_are_equally_bad(make_spec: Any, runs: Any) -> None:
    verdict = conclude([*runs("unit", [None] * 8), *runs("search", [None] * 8)], [], make_spec())
    assert verdict is not None
    assert (verdict.total.paired.gain, verdict.total.paired.p_value) == (0, 1)


def measured(unit: list[TicketRow], gains: dict[str, float]) -> list[Measurement]:
    return [
        Measurement(ticket_id=t.id, step=10, name=name, value=t.value + gain + 1e-3 * (t.pair % 3))
        for t in unit
        for name, gain in gains.items()
        if t.value is not None and t.pair is not None
    ]


def inference_of(verdict: Verdict | None) -> tuple[float | None, float, float | None]:
    assert verdict is not None and verdict.inference_only is not None
    share = verdict.inference_only
    return share.temperature, share.answer.paired.gain, share.share


def test_the_larger_of_the_winners_plan_and_the_best_constant_is_the_inference_only_share(
    make_spec: Any, runs: Any
) -> None:
    unit, search = runs("unit", UNIT), runs("search", plus(UNIT, GAINS))
    validated = {"validate": 0.0, "validate:constant=0.5": 0.2, "validate:constant=2": 0.1}
    tested = {"test:constant=0.5": 0.06, "test:constant=2": 0.09, "test:winner": 0.04}
    found = conclude([*unit, *search], measured(unit, validated | tested), make_spec())
    # 0.5 is the best on the validation data, so it counts although 2 is better on the test data.
    assert inference_of(found) == (0.5, pytest.approx(0.061, abs=1e-3), pytest.approx(0.61, abs=0.01))
    tested["test:winner"] = 0.08
    found = conclude([*unit, *search], measured(unit, validated | tested), make_spec())
    assert inference_of(found) == (None, pytest.approx(0.081, abs=1e-3), pytest.approx(0.81, abs=0.01))


def test_where_no_other_temperature_helps_inference_only_gains_nothing(make_spec: Any, runs: Any) -> None:
    unit, search = runs("unit", UNIT), runs("search", plus(UNIT, GAINS))
    names = {"validate": 0.0, "test": -1e-3, "validate:constant=2": -0.1, "test:winner": -0.2}
    temperature, gain, _ = inference_of(conclude([*unit, *search], measured(unit, names), make_spec()))
    assert temperature == 1.0
    assert abs(gain) < 1e-3


def test_the_initialisation_has_its_share(make_spec: Any, runs: Any) -> None:
    tickets = [*runs("unit", UNIT), *runs("search", plus(UNIT, GAINS))]
    baked = runs("init_only", plus(UNIT, [gain / 4 for gain in GAINS]), kind="init_only")
    verdict = conclude([*tickets, *baked], [], make_spec())
    assert verdict is not None and verdict.init_only is not None
    assert verdict.init_only.share == pytest.approx(0.25)


def test_there_are_no_shares_of_a_gain_that_is_not_shown(make_spec: Any, runs: Any) -> None:
    unit = runs("unit", UNIT)
    search = runs("search", plus(UNIT, [0.1, -0.1, 0.2, -0.2, 0.1, -0.15, 0.1, -0.05]))
    baked = runs("init_only", plus(UNIT, GAINS), kind="init_only")
    verdict = conclude([*unit, *search, *baked], measured(unit, {"test:winner": 0.1}), make_spec())
    assert verdict is not None and not verdict.total.significant
    assert verdict.init_only is not None and verdict.inference_only is not None
    assert verdict.init_only.share is None and verdict.inference_only.share is None
    assert verdict.init_only.answer.significant


# ---- can the answers be trusted?

Noise = Callable[[np.random.Generator, int], Any]
NOISES: dict[str, Noise] = {
    "normal": lambda rng, size: rng.normal(0, 1, size),
    "heavy": lambda rng, size: rng.standard_t(3, size),
    "skewed": lambda rng, size: rng.exponential(1, size),
    "bimodal": lambda rng, size: rng.normal(0, 0.1, size) - 3 * (rng.random(size) < 0.25),
    "discrete": lambda rng, size: rng.binomial(50, 0.9, size) / 50,
}
Tally = tuple[int, int, int]


def simulated(
    run_ticket: Any, make_ticket: Any, spec: StudySpec, draws: Iterator[float], gain: float, naive: bool
) -> list[TicketRow]:
    """Return a whole study in which every parameter set has the same noise, the search's plus ``gain``.

    ``naive``: the winner is estimated by the very runs that made it the winner.
    """

    def value(arm: str) -> float:
        return next(draws) + (gain if arm == "search" else 0.0)

    tickets = [make_ticket("unit", number, value("unit")) for number in range(3)]
    tickets += [
        make_ticket(arm, number, value(arm), parameters={"temperature_init": 2.0 + number})
        for arm in ("constant", "search")
        for number in range(10)
    ]
    while new := choose_tickets(tickets, spec):
        tickets += [run_ticket(ticket, value(ticket.arm)) for ticket in new]
    winner = pick(tickets, spec)["search"]
    chosen = {
        t.pair: t.value for t in tickets if (t.kind, t.arm, t.parameters) == ("choose", "search", winner)
    }
    return tickets + [
        run_ticket(t, chosen[t.pair] if naive and t.arm == "search" else value(t.arm))
        for t in confirm_tickets(tickets, spec)
    ]


def tally(specs: dict[str, StudySpec], studies: Iterator[list[TicketRow]], truth: float) -> dict[str, Tally]:
    """Return by test how often a gain is claimed, and how often each of the two intervals covers."""
    counts: dict[str, Tally] = dict.fromkeys(specs, (0, 0, 0))
    for tickets in studies:
        for test, spec in specs.items():
            verdict = conclude(tickets, [], spec)
            assert verdict is not None and verdict.against_constant is not None
            intervals = [verdict.total.paired, verdict.against_constant.paired]
            # A mean of accuracies that are multiples of 1/50 is off by rounding.
            covers = [p.ci_low - 1e-9 <= truth <= p.ci_high + 1e-9 for p in intervals]
            claims, total, constant = counts[test]
            counts[test] = (claims + verdict.total.significant, total + covers[0], constant + covers[1])
    return counts


def within(misses: int, studies: int) -> bool:
    """Whether so many misses are no more than chance makes of 5 % (p > 0.001)."""
    return bool(stats.binom.sf(misses - 1, studies, 0.05) > 1e-3)


@pytest.fixture
def simulation(make_spec: Any, make_ticket: Any, run_ticket: Any) -> Callable[..., dict[str, Tally]]:
    def simulate(
        noise: str, studies: int, *, gain: float = 0.0, naive: bool = False, candidates: int = 5
    ) -> dict[str, Tally]:
        seeds = {"choose": 8 if naive else 4, "confirm": 8}
        specs = {test: make_spec(test=test, candidates=candidates, seeds=seeds) for test in ("t", "wilcoxon")}
        rng = np.random.default_rng(20250101)
        drawn = NOISES[noise](rng, 256 * studies).reshape(studies, 256).tolist()
        runs = (simulated(run_ticket, make_ticket, specs["t"], iter(draws), gain, naive) for draws in drawn)
        return tally(specs, runs, gain)

    return simulate


@pytest.mark.parametrize("noise", NOISES)
def test_where_nothing_helps_at_most_one_study_in_twenty_claims_a_gain(simulation: Any, noise: str) -> None:
    for test, (claims, covered, covered_constant) in simulation(noise, 1000).items():
        assert within(claims, 1000), (test, claims)
        assert within(1000 - covered, 1000), (test, covered)
        assert within(1000 - covered_constant, 1000), (test, covered_constant)


@pytest.mark.parametrize("noise", NOISES)
def test_the_intervals_cover_a_gain_that_is_there(simulation: Any, noise: str) -> None:
    for test, (_, covered, covered_constant) in simulation(noise, 400, gain=0.5).items():
        assert within(400 - covered, 400), (test, covered)
        assert within(400 - covered_constant, 400), (test, covered_constant)


def test_estimating_on_the_seeds_that_chose_would_be_caught(
    simulation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nobody leaves the race, so that the winner has a run on each of them
    monkeypatch.setattr("tempopt.study.race.ALPHA", 0.0)
    for claims, covered, covered_constant in simulation("normal", 600, naive=True, candidates=10).values():
        assert not within(claims, 600)
        assert not within(600 - covered, 600)
        assert not within(600 - covered_constant, 600)


def test_a_gain_of_three_times_the_noise_is_found_nearly_always(simulation: Any) -> None:
    for claims, _, _ in simulation("normal", 200, gain=3.0).values():
        assert claims > 190

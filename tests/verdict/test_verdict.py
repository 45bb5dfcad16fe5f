"""The answers of a verdict, and whether they can be trusted: simulated studies in which nothing helps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.storage.rows import TicketRow
from tempopt.verdict.verdict import compute_verdict

BASELINE = [0.50, 0.52, 0.47, 0.55, 0.49, 0.51, 0.53, 0.48]
GAINS = [0.10, 0.12, 0.08, 0.11, 0.09, 0.13, 0.07, 0.10]
NOISY = [0.10, 0.12, -0.05, 0.11, 0.09, 0.13, -0.04, 0.10]
FIRST = 0.05
"""Level of the first verdict of a study."""

PARAMETERS = {
    "search": {"temperature_init": 4.0, "temperature_final": 2.0, "schedule": "linear", "lr": 0.1},
    "baseline": {"temperature_init": 1.0, "lr": 0.3},
    "twin": {"temperature_init": 1.0, "lr": 0.1},
    "constant": {"temperature_init": 2.0, "lr": 0.2},
    "constant_twin": {"temperature_init": 3.0, "lr": 0.1},
}


@pytest.fixture
def runs(make_ticket: Any) -> Callable[..., list[TicketRow]]:
    """Return a maker of an arm's confirm runs by pair; None diverged, "lost" was lost."""

    def make(arm: str, values: list[Any], kind: str = "confirm", **extra_fields: Any) -> list[TicketRow]:
        first = arm.split("+")[0]
        number = 100 * list(PARAMETERS).index(first) if kind == "confirm" else 0
        tickets = []
        for pair, value in enumerate(values):
            fields: dict[str, Any] = {
                "arm": arm,
                "pair": pair,
                "parameters": PARAMETERS[first],
                **extra_fields,
            }
            if value == "lost":
                fields |= {"state": "failed", "outcome": "failed"}
            elif value is None:
                fields |= {"outcome": "diverged"}
            ticket_value = value if isinstance(value, float) else None
            tickets.append(make_ticket(kind, number + pair, ticket_value, **fields))
        return tickets

    return make


def plus(values: list[Any], gains: list[float]) -> list[float]:
    return [value + gain for value, gain in zip(values, gains, strict=True)]


def test_the_gain_is_the_paired_t_test_of_scipy_at_the_level_of_a_first_verdict(
    fixed_spec: Any, runs: Any
) -> None:
    verdict = compute_verdict(
        [*runs("baseline+twin", BASELINE), *runs("search", plus(BASELINE, NOISY))], [], fixed_spec()
    )
    assert verdict is not None
    expected = stats.ttest_rel(plus(BASELINE, NOISY), BASELINE)
    interval = expected.confidence_interval(1 - FIRST)
    total = verdict.total.paired
    assert total.p_value == pytest.approx(expected.pvalue)
    assert (total.ci_low, total.ci_high) == pytest.approx((interval.low, interval.high))
    assert (total.gain, total.confidence, verdict.alpha) == (pytest.approx(np.mean(NOISY)), 0.95, FIRST)
    assert verdict.total.significant and verdict.total.component_results == ()
    assert (verdict.round, verdict.looks) == (0, 1)
    assert (verdict.params, verdict.baseline_params) == (PARAMETERS["search"], PARAMETERS["baseline"])
    assert (verdict.test, verdict.confirmed_on) == ("t", "test")
    assert verdict.over_baseline == verdict.over_twin == verdict.total
    assert verdict.against_constant is verdict.constant_params is verdict.failures is None
    assert not verdict.at_one and not verdict.schedule_shown and not verdict.is_more_stable


# ---- what a gain has to hold against


def test_a_gain_is_the_more_cautious_of_baseline_and_twin(fixed_spec: Any, runs: Any) -> None:
    search = plus(BASELINE, GAINS)
    twin = plus(BASELINE, [0.06, 0.05, 0.01, 0.04, 0.07, 0.02, 0.03, 0.02])
    verdict = compute_verdict(
        [*runs("baseline", BASELINE), *runs("twin", twin), *runs("search", search)], [], fixed_spec()
    )
    assert verdict is not None and verdict.over_twin is not None
    tests = [stats.ttest_rel(search, reference) for reference in (BASELINE, twin)]
    intervals = [paired_test.confidence_interval(1 - FIRST) for paired_test in tests]
    total = verdict.total.paired
    assert total.gain == pytest.approx(np.mean(np.subtract(search, twin)))
    assert total.ci_low == pytest.approx(min(paired_test.low for paired_test in intervals))
    assert total.ci_high == pytest.approx(max(paired_test.high for paired_test in intervals))
    assert total.p_value == pytest.approx(max(paired_test.pvalue for paired_test in tests))
    assert verdict.total.significant and len(verdict.total.component_results) == 2
    assert verdict.over_baseline.paired.gain == pytest.approx(0.1)
    assert verdict.over_twin.paired.gain == total.gain
    assert verdict.twin_params == PARAMETERS["twin"]


@pytest.mark.parametrize("beaten_arm", ["baseline", "twin"])
def test_a_winner_that_beats_only_one_of_the_two_has_shown_no_gain(
    fixed_spec: Any, runs: Any, beaten_arm: str
) -> None:
    search = plus(BASELINE, GAINS)
    equal = plus(search, [0.01, -0.02, 0.02, -0.01, 0.01, 0.0, -0.01, 0.01])
    values = {"baseline": equal, "twin": equal, beaten_arm: BASELINE}
    tickets = [t for arm, of_arm in values.items() for t in runs(arm, of_arm)]
    verdict = compute_verdict([*tickets, *runs("search", search)], [], fixed_spec())
    assert verdict is not None and verdict.over_twin is not None
    assert (verdict.over_baseline.significant, verdict.over_twin.significant) == (
        beaten_arm == "baseline",
        beaten_arm == "twin",
    )
    assert not verdict.total.significant
    # one has a gain and one a loss: nothing is claimed for either side
    assert verdict.total.paired.gain < 0 and verdict.total.paired.p_value == 1.0
    assert not verdict.total.worse
    assert verdict.total.paired.ci_low < 0 < verdict.total.paired.ci_high


def test_a_winner_is_worse_only_if_it_is_worse_than_both(fixed_spec: Any, runs: Any) -> None:
    loss = [-gain for gain in GAINS]
    tickets = [*runs("baseline", BASELINE), *runs("search", plus(BASELINE, loss))]
    verdict_both = compute_verdict(
        [*tickets, *runs("twin", plus(BASELINE, [0.01, -0.01] * 4))], [], fixed_spec()
    )
    assert verdict_both is not None and verdict_both.total.worse and verdict_both.total.paired.p_value < 0.05
    verdict_one = compute_verdict([*tickets, *runs("twin", plus(BASELINE, loss))], [], fixed_spec())
    assert verdict_one is not None and not verdict_one.total.worse


def test_if_all_runs_of_the_twin_are_lost_the_baseline_says_what_there_is_to_say_and_nothing_is_shown(
    fixed_spec: Any, runs: Any
) -> None:
    tickets = [
        *runs("baseline", BASELINE),
        *runs("twin", ["lost"] * 8),
        *runs("search", plus(BASELINE, GAINS)),
    ]
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None and verdict.over_twin is None and verdict.over_baseline is not None
    assert verdict.total.paired == verdict.over_baseline.paired and verdict.over_baseline.significant
    assert verdict.total.lost == 1 and not verdict.total.significant
    tickets_lost = [
        *runs("baseline", ["lost"] * 8),
        *runs("twin", BASELINE),
        *runs("search", plus(BASELINE, GAINS)),
    ]
    verdict = compute_verdict(tickets_lost, [], fixed_spec())
    assert verdict is not None and verdict.over_baseline is None and not verdict.total.significant


def test_a_winner_at_one_shows_nothing(fixed_spec: Any, runs: Any, make_ticket: Any) -> None:
    baseline_params = PARAMETERS["baseline"]
    tickets = runs("search+baseline+twin", BASELINE, parameters=baseline_params)
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None and verdict.at_one
    total = verdict.total.paired
    assert (total.gain, total.ci_low, total.ci_high, total.p_value) == (0.0, -np.inf, np.inf, 1.0)
    assert not verdict.total.significant and not verdict.total.worse
    assert verdict.against_constant is None
    assert verdict.params == verdict.baseline_params == verdict.twin_params == baseline_params


def test_a_schedule_has_to_beat_the_best_constant_and_the_constant_of_its_own(
    fixed_spec: Any, runs: Any
) -> None:
    search = plus(BASELINE, GAINS)
    tickets = [*runs("baseline+twin", BASELINE), *runs("search", search)]
    constant = runs("constant", plus(BASELINE, [0.02, 0.01, 0.0, 0.01, 0.02, 0.01, 0.0, 0.01]))
    twin_values = plus(search, [-0.02, -0.01, -0.015, -0.02, -0.01, -0.02, -0.015, -0.01])
    verdict = compute_verdict([*tickets, *constant, *runs("constant_twin", twin_values)], [], fixed_spec())
    assert verdict is not None and verdict.against_constant is not None
    assert verdict.against_constant.paired.gain == pytest.approx(0.015)
    assert len(verdict.against_constant.component_results) == 2 and verdict.schedule_shown
    assert verdict.constant_params == PARAMETERS["constant"]
    assert verdict.constant_twin_params == PARAMETERS["constant_twin"]
    verdict_alone = compute_verdict([*tickets, *constant], [], fixed_spec())
    assert (
        verdict_alone is not None
        and verdict_alone.against_constant is not None
        and verdict_alone.schedule_shown
    )
    assert (
        verdict_alone.against_constant.component_results == () and verdict_alone.constant_twin_params is None
    )
    equal = compute_verdict(
        [*tickets, *constant, *runs("constant_twin", plus(search, [0.0] * 8))], [], fixed_spec()
    )
    assert equal is not None and equal.total.significant and not equal.schedule_shown


def test_a_winner_that_is_a_constant_is_not_worth_more_than_itself(fixed_spec: Any, runs: Any) -> None:
    constant = runs("constant", plus(BASELINE, [0.02, 0.01, 0.0, 0.01, 0.02, 0.01, 0.0, 0.01]))
    twin_fields: dict[str, Any] = {"parameters": PARAMETERS["constant_twin"]}
    winner = plus(BASELINE, GAINS)
    tickets = [
        *runs("baseline+twin", BASELINE),
        *runs("search+constant_twin", winner, **twin_fields),
        *constant,
    ]
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None and verdict.total.significant
    assert verdict.against_constant is not None and verdict.constant_twin_params == verdict.params
    assert verdict.against_constant.paired.gain == 0.0 and not verdict.schedule_shown
    # where only temperature is searched it may be better than the constants that were tuned, and is one
    verdict_alone = compute_verdict(
        [*runs("baseline+twin", BASELINE), *runs("search", winner, **twin_fields), *constant],
        [],
        fixed_spec(),
    )
    assert (
        verdict_alone is not None
        and verdict_alone.against_constant is not None
        and verdict_alone.against_constant.significant
    )
    assert verdict_alone.is_constant and not verdict_alone.schedule_shown


def test_no_schedule_is_shown_where_no_gain_is(fixed_spec: Any, runs: Any) -> None:
    # one answer is primary, and declared so in advance
    tickets = [*runs("baseline+twin", BASELINE), *runs("search", plus(BASELINE, [0.01, -0.01] * 4))]
    verdict = compute_verdict(
        [*tickets, *runs("constant", plus(BASELINE, [-g for g in GAINS]))], [], fixed_spec()
    )
    assert verdict is not None and verdict.against_constant is not None
    assert verdict.against_constant.significant and not verdict.schedule_shown


# ---- rounds


@pytest.fixture
def rounds(runs: Any, make_ticket: Any) -> Callable[..., list[TicketRow]]:
    """Return a maker of rounds, given the gains of the search; ``added``: those that added pairs alone."""

    def make(*gains: list[float], added_rounds: tuple[int, ...] = ()) -> list[TicketRow]:
        rows = []
        for number, of_round in enumerate(gains):
            baseline = BASELINE[: len(of_round)]
            tickets = [*runs("baseline+twin", baseline), *runs("search", plus(baseline, of_round))]
            if number not in added_rounds:
                tickets.append(make_ticket("search", number, 0.5))
            rows += [
                dataclasses.replace(t, round=number, number=t.number + 10 * number, id=t.id + 10 * number)
                for t in tickets
            ]
        return rows

    return make


@pytest.mark.parametrize("verdicts", [2, 3, 4])
def test_each_later_verdict_has_half_of_the_level_before_it(
    fixed_spec: Any, rounds: Any, verdicts: int
) -> None:
    smaller = [gain / 3 for gain in NOISY]
    verdict = compute_verdict(rounds(*[GAINS] * (verdicts - 1), smaller), [], fixed_spec())
    assert verdict is not None and (verdict.round, verdict.looks) == (verdicts - 1, verdicts)
    level = 0.05 / 2 ** (verdicts - 1)
    expected = stats.ttest_rel(plus(BASELINE, smaller), BASELINE)
    interval = expected.confidence_interval(1 - level)
    total = verdict.total.paired
    assert verdict.alpha == pytest.approx(level)
    assert total.p_value == pytest.approx(expected.pvalue)
    assert (total.ci_low, total.ci_high) == pytest.approx((interval.low, interval.high))


def test_until_a_later_round_is_confirmed_the_verdict_before_it_stands(fixed_spec: Any, rounds: Any) -> None:
    tickets = rounds(GAINS, [-gain for gain in GAINS])
    first_verdict = compute_verdict(rounds(GAINS), [], fixed_spec())
    last = next(index for index, t in reversed(list(enumerate(tickets))) if t.kind == "confirm")
    for state in ("waiting", "running"):
        open_one = dataclasses.replace(tickets[last], state=state, outcome=None, value=None)
        assert (
            compute_verdict([*tickets[:last], open_one, *tickets[last + 1 :]], [], fixed_spec())
            == first_verdict
        )
    second_verdict = compute_verdict(tickets, [], fixed_spec())
    assert second_verdict is not None and second_verdict.total.paired.gain < 0 and second_verdict.round == 1


def one_sided(gains: list[float]) -> float:
    return float(stats.ttest_1samp(gains, 0, alternative="greater").pvalue)


def test_pairs_that_are_added_count_with_those_before_them(fixed_spec: Any, rounds: Any) -> None:
    added_gains = [0.12, 0.08, 0.11, -0.02]
    verdict = compute_verdict(rounds(NOISY, added_gains, added_rounds=(1,)), [], fixed_spec())
    assert verdict is not None and (verdict.round, verdict.looks) == (1, 2)
    total = verdict.total.paired
    assert (total.n_pairs, total.gain) == (12, pytest.approx(np.mean([*NOISY, *added_gains])))
    # the inverse normal method with squared weights 1 : 2, at the level of a second verdict
    first_score, score = (stats.norm.isf(one_sided(gains)) for gains in (NOISY, added_gains))
    combined_score = (first_score + 2**0.5 * score) / 3**0.5
    assert total.p_value == pytest.approx(2 * stats.norm.sf(combined_score), rel=1e-6)
    assert total.alpha == 0.025
    third = compute_verdict(rounds(NOISY, added_gains, GAINS, added_rounds=(1, 2)), [], fixed_spec())
    assert third is not None and third.total.paired.n_pairs == 20
    combined_score = (first_score + 2**0.5 * score + 2 * stats.norm.isf(one_sided(GAINS))) / 7**0.5
    assert third.total.paired.p_value == pytest.approx(2 * stats.norm.sf(combined_score), rel=1e-6)
    assert third.total.paired.alpha == 0.0125


# ---- interim looks


# ---- runs that end badly


def test_a_falling_loss_is_a_gain(fixed_spec: Any, runs: Any) -> None:
    tickets = [*runs("baseline+twin", plus(BASELINE, GAINS)), *runs("search", BASELINE)]
    verdict = compute_verdict(tickets, [], fixed_spec(direction="minimize"))
    assert verdict is not None and verdict.total.significant
    assert verdict.total.paired.gain == pytest.approx(0.1)


def test_there_is_no_verdict_from_half_of_the_pairs(fixed_spec: Any, runs: Any, make_ticket: Any) -> None:
    tickets = [*runs("baseline+twin", BASELINE), *runs("search", plus(BASELINE, GAINS))]
    running_ticket = make_ticket("confirm", 999, None, arm="constant", pair=7, state="running")
    assert compute_verdict([*tickets, running_ticket], [], fixed_spec()) is None
    assert compute_verdict([], [], fixed_spec()) is None


def test_a_lost_run_drops_its_pair_and_is_counted(fixed_spec: Any, runs: Any) -> None:
    tickets = [*runs("baseline+twin", ["lost", *BASELINE[1:]]), *runs("search", plus(BASELINE, GAINS))]
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None
    assert (verdict.total.paired.n_pairs, verdict.total.dropped) == (7, 1)
    assert verdict.total.paired.gain == pytest.approx(np.mean(GAINS[1:]))


def test_a_winner_that_diverges_is_counted_with_the_worst_value_and_not_significant(
    fixed_spec: Any, runs: Any
) -> None:
    better_values = [value + 1.0 for value in plus(BASELINE, GAINS)]
    tickets = [*runs("baseline+twin", BASELINE), *runs("search", [None, *better_values[1:]])]
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None
    total = verdict.total
    differences = [
        min(BASELINE) - BASELINE[0],
        *(b - a for a, b in zip(BASELINE[1:], better_values[1:], strict=True)),
    ]
    assert total.paired.gain == pytest.approx(np.mean(differences))
    assert (total.paired.n_pairs, total.dropped, total.diverged, total.reference_diverged) == (8, 0, 1, 0)
    assert total.paired.significant and not total.significant


def test_a_gain_over_runs_that_diverge_is_a_lower_bound(fixed_spec: Any, runs: Any) -> None:
    tickets = [*runs("baseline+twin", [None, None, *BASELINE[2:]]), *runs("search", plus(BASELINE, GAINS))]
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None
    assert verdict.total.reference_diverged == 2
    assert verdict.total.significant
    assert verdict.total.paired.gain < 0.2


def test_arms_that_always_diverge_are_equally_bad(fixed_spec: Any, runs: Any) -> None:
    verdict = compute_verdict(
        [*runs("baseline+twin", [None] * 8), *runs("search", [None] * 8)], [], fixed_spec()
    )
    assert verdict is not None
    assert (verdict.total.paired.gain, verdict.total.paired.p_value) == (0, 1)


def test_pairs_on_which_both_diverge_say_nothing(fixed_spec: Any, runs: Any) -> None:
    baseline, search = [None, *BASELINE[1:]], [None, *plus(BASELINE[1:], GAINS[1:])]
    verdict = compute_verdict([*runs("baseline+twin", baseline), *runs("search", search)], [], fixed_spec())
    assert verdict is not None
    total = verdict.total
    assert (total.paired.n_pairs, total.diverged, total.reference_diverged) == (8, 1, 1)
    assert total.paired.gain == pytest.approx(sum(GAINS[1:]) / 8)


def test_failures_are_counted_beside_the_mean(fixed_spec: Any, runs: Any) -> None:
    baseline = [0.5, 0.1, None, 0.1, 0.1, 0.1, 0.1, "lost"]
    search = [0.8, 0.8, 0.8, 0.8, 0.2, 0.9, 0.8, 0.8]
    tickets = [*runs("baseline+twin", baseline), *runs("search", search)]
    # what diverged failed, whatever the spec says; what was lost is left out
    plain = compute_verdict(tickets, [], fixed_spec())
    assert plain is not None and plain.failures is not None
    assert (plain.failures.arm.failed, plain.failures.reference.failed, plain.failures.arm.runs) == (0, 1, 7)
    verdict = compute_verdict(tickets, [], fixed_spec(failure=0.3))
    assert verdict is not None and verdict.failures is not None
    rates = verdict.failures
    assert (rates.arm.failed, rates.arm.runs) == (1, 7)
    assert (rates.reference.failed, rates.reference.runs) == (6, 7)
    # of five pairs on which one of them failed it was the baseline each time
    assert rates.p_value == pytest.approx(stats.binomtest(0, 5).pvalue)
    exact = stats.binomtest(6, 7).proportion_ci(1 - FIRST, method="exact")
    assert (rates.reference.low, rates.reference.high) == pytest.approx((exact.low, exact.high))
    loss = fixed_spec(direction="minimize", failure=0.3)
    verdict = compute_verdict(tickets, [], loss)
    assert verdict is not None and verdict.failures is not None
    assert (verdict.failures.arm.failed, verdict.failures.reference.failed) == (6, 2)


def test_where_no_run_failed_there_are_no_failures(fixed_spec: Any, runs: Any) -> None:
    tickets = [*runs("baseline+twin", [*BASELINE[:7], "lost"]), *runs("search", plus(BASELINE, GAINS))]
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None and verdict.failures is None and not verdict.is_more_stable


# ---- stability

LONG = {"confirm": {"min": 4, "max": 16}}


def unstable_runs(
    runs: Any, num_diverged: int, *, gain: float = -0.05, num_pairs: int = 16
) -> list[TicketRow]:
    """Return pairs of which the runs at one diverge on some, and the winner gains nothing on the others."""
    noise = np.random.default_rng(3).normal(0.0, 0.05, (2, num_pairs))
    baseline = [None if pair < num_diverged else 0.5 + float(noise[0, pair]) for pair in range(num_pairs)]
    search = [0.5 + gain + float(value) for value in noise[1]]
    return [*runs("baseline+twin", baseline), *runs("search", search)]


@pytest.mark.parametrize(("num_diverged", "is_shown"), [(5, False), (6, True), (8, True)])
def test_a_winner_that_fails_less_often_by_mcnemars_test_is_recommended_for_its_stability(
    fixed_spec: Any, runs: Any, num_diverged: int, is_shown: bool
) -> None:
    # of pairs on which one of the two fails, each is as likely: the exact test is that of a coin
    assert (stats.binomtest(0, num_diverged).pvalue < FIRST) == is_shown
    verdict = compute_verdict(unstable_runs(runs, num_diverged), [], fixed_spec(seeds=LONG))
    assert verdict is not None and verdict.has_all_pairs and not verdict.total.significant
    assert verdict.failures is not None
    assert verdict.failures.p_value == pytest.approx(stats.binomtest(0, num_diverged).pvalue)
    assert verdict.is_more_stable == is_shown
    recommendation = verdict.recommendation
    assert recommendation is not None
    assert (recommendation.reason, recommendation.action_without_training) == (
        ("stability", "train_with_schedule") if is_shown else (None, "change_nothing")
    )
    assert recommendation.parameters == (PARAMETERS["search"] if is_shown else PARAMETERS["baseline"])


def test_failures_are_tested_on_all_pairs_alone(fixed_spec: Any, runs: Any) -> None:
    spec = fixed_spec(seeds=LONG)
    unstable_tickets = unstable_runs(runs, 8, num_pairs=8)
    # a winner that is behind and fails less often gets all of its pairs
    assert compute_verdict(unstable_tickets, [], spec) is None
    stable = unstable_runs(runs, 0, gain=-0.5, num_pairs=4)
    verdict = compute_verdict(stable, [], spec)
    assert verdict is not None and not verdict.has_all_pairs and not verdict.is_more_stable


def test_a_winner_that_fails_more_often_is_not_more_stable(fixed_spec: Any, runs: Any) -> None:
    search: list[Any] = [None] * 8
    tickets = [*runs("baseline+twin", BASELINE), *runs("search", search)]
    verdict = compute_verdict(tickets, [], fixed_spec())
    assert verdict is not None and verdict.failures is not None and verdict.failures.p_value < FIRST
    assert not verdict.is_more_stable and verdict.recommendation is not None
    assert verdict.recommendation.action_without_training == "change_nothing"


def test_a_gain_that_is_shown_is_the_reason_even_where_the_winner_is_more_stable(
    fixed_spec: Any, runs: Any
) -> None:
    verdict = compute_verdict(unstable_runs(runs, 8, gain=0.3), [], fixed_spec(seeds={"confirm": 16}))
    assert verdict is not None and verdict.total.significant and verdict.is_more_stable
    assert verdict.recommendation is not None and verdict.recommendation.reason == "gain"

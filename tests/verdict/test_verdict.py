"""The answers of a verdict, beside SciPy: what a gain has to hold against, rounds, runs that end badly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.storage.rows import TicketRow
from tempopt.verdict.verdict import compute_verdict
from tests.verdict.verdicts import ALPHA, NOTHING, PARAMETERS, numbers_of, scipys_numbers

BASELINE = [0.50, 0.52, 0.47, 0.55, 0.49, 0.51, 0.53, 0.48]
GAINS = [0.10, 0.12, 0.08, 0.11, 0.09, 0.13, 0.07, 0.10]
NOISY = [0.10, 0.12, -0.05, 0.11, 0.09, 0.13, -0.04, 0.10]
LOSSES = [-gain for gain in GAINS]
UNDECIDED = [0.01, -0.01] * 4


def plus(values: list[Any], gains: list[float]) -> list[float]:
    return [value + gain for value, gain in zip(values, gains, strict=True)]


BETTER = plus(BASELINE, GAINS)
CONSTANT = plus(BASELINE, [0.02, 0.01, 0.0, 0.01, 0.02, 0.01, 0.0, 0.01])


@pytest.fixture
def judge_runs(judge: Any, make_confirm_rows: Any) -> Any:
    """Return what gives the verdict of confirm runs by arm; ``study``: keys of the spec's section."""

    def compute(study: dict[str, Any] | None = None, **arms: Any) -> Any:
        return judge(make_confirm_rows(**arms), **(study or {}))

    return compute


def test_the_gain_is_the_paired_t_test_of_scipy_at_the_level_of_a_first_verdict(judge_runs: Any) -> None:
    verdict = judge_runs(baseline_and_twin=BASELINE, search=plus(BASELINE, NOISY))
    total = verdict.primary.paired
    assert numbers_of(total) == scipys_numbers(NOISY)
    assert (total.confidence, verdict.alpha) == (0.95, ALPHA)
    assert verdict.primary.significant and verdict.primary.component_results == ()
    assert (verdict.round, verdict.verdict_number) == (0, 1)
    assert (verdict.params, verdict.baseline_params) == (PARAMETERS["search"], PARAMETERS["baseline"])
    assert verdict.confirmed_on == "test"
    assert verdict.over_baseline == verdict.over_twin == verdict.primary
    assert verdict.against_constant is verdict.constant_params is verdict.failures is None
    assert not verdict.at_one and not verdict.schedule_shown and not verdict.is_more_stable


# ---- what a gain has to hold against


def test_a_gain_is_the_more_cautious_of_baseline_and_twin(judge_runs: Any) -> None:
    twin = plus(BASELINE, [0.06, 0.05, 0.01, 0.04, 0.07, 0.02, 0.03, 0.02])
    verdict = judge_runs(baseline=BASELINE, twin=twin, search=BETTER)
    tests = [stats.ttest_rel(BETTER, reference) for reference in (BASELINE, twin)]
    intervals = [paired_test.confidence_interval(1 - ALPHA) for paired_test in tests]
    assert numbers_of(verdict.primary.paired) == pytest.approx(
        (
            np.mean(np.subtract(BETTER, twin)),
            min(interval.low for interval in intervals),
            max(interval.high for interval in intervals),
            max(paired_test.pvalue for paired_test in tests),
        )
    )
    assert verdict.primary.significant and len(verdict.primary.component_results) == 2
    assert verdict.over_baseline.paired.gain == pytest.approx(0.1)
    assert verdict.over_twin.paired.gain == verdict.primary.paired.gain
    assert verdict.twin_params == PARAMETERS["twin"]


@pytest.mark.parametrize("beaten_arm", ["baseline", "twin"])
def test_a_winner_that_beats_only_one_of_the_two_has_shown_no_gain(judge_runs: Any, beaten_arm: str) -> None:
    equal = plus(BETTER, [0.01, -0.02, 0.02, -0.01, 0.01, 0.0, -0.01, 0.01])
    verdict = judge_runs(**{"baseline": equal, "twin": equal, beaten_arm: BASELINE}, search=BETTER)
    assert verdict.over_baseline.significant == (beaten_arm == "baseline")
    assert verdict.over_twin.significant == (beaten_arm == "twin")
    assert not verdict.primary.significant
    # one has a gain and one a loss: nothing is claimed for either side
    assert verdict.primary.paired.gain < 0 and verdict.primary.paired.p_value == 1.0
    assert not verdict.primary.worse
    assert verdict.primary.paired.ci_low < 0 < verdict.primary.paired.ci_high


def test_a_winner_is_worse_only_if_it_is_worse_than_both(judge_runs: Any) -> None:
    worse = plus(BASELINE, LOSSES)
    verdict_both = judge_runs(baseline=BASELINE, search=worse, twin=plus(BASELINE, UNDECIDED))
    assert verdict_both.primary.worse and verdict_both.primary.paired.p_value < 0.05
    assert not judge_runs(baseline=BASELINE, search=worse, twin=worse).primary.worse


def test_if_all_runs_of_the_twin_are_lost_the_baseline_says_what_there_is_to_say_and_nothing_is_shown(
    judge_runs: Any,
) -> None:
    verdict = judge_runs(baseline=BASELINE, twin=["lost"] * 8, search=BETTER)
    assert verdict.over_twin is None and verdict.over_baseline.significant
    assert verdict.primary.paired == verdict.over_baseline.paired
    assert verdict.primary.lost == 1 and not verdict.primary.significant
    verdict = judge_runs(baseline=["lost"] * 8, twin=BASELINE, search=BETTER)
    assert verdict.over_baseline is None and not verdict.primary.significant


def test_a_winner_at_one_shows_nothing(judge: Any, make_confirm_rows: Any) -> None:
    params = PARAMETERS["baseline"]
    tickets = make_confirm_rows(parameters={"search": params}, search_and_baseline_and_twin=BASELINE)
    verdict = judge(tickets)
    assert verdict.at_one and numbers_of(verdict.primary.paired) == NOTHING
    assert not verdict.primary.significant and not verdict.primary.worse
    assert verdict.against_constant is None
    assert verdict.params == verdict.baseline_params == verdict.twin_params == params


def test_a_schedule_has_to_beat_the_best_constant_and_the_constant_of_its_own(judge_runs: Any) -> None:
    arms = {"baseline_and_twin": BASELINE, "search": BETTER, "constant": CONSTANT}
    twin = plus(BETTER, [-0.02, -0.01, -0.015, -0.02, -0.01, -0.02, -0.015, -0.01])
    verdict = judge_runs(**arms, constant_twin=twin)
    assert verdict.against_constant.paired.gain == pytest.approx(0.015)
    assert len(verdict.against_constant.component_results) == 2 and verdict.schedule_shown
    assert verdict.constant_params == PARAMETERS["constant"]
    assert verdict.constant_twin_params == PARAMETERS["constant_twin"]
    verdict_alone = judge_runs(**arms)
    assert verdict_alone.schedule_shown and verdict_alone.against_constant.component_results == ()
    assert verdict_alone.constant_twin_params is None
    equal = judge_runs(**arms, constant_twin=BETTER)
    assert equal.primary.significant and not equal.schedule_shown


def test_a_winner_that_is_a_constant_is_not_worth_more_than_itself(
    judge: Any, make_confirm_rows: Any
) -> None:
    arms = {"parameters": {"search": PARAMETERS["constant_twin"]}, "baseline_and_twin": BASELINE}
    verdict = judge(make_confirm_rows(**arms, search_and_constant_twin=BETTER, constant=CONSTANT))
    assert verdict.primary.significant and verdict.constant_twin_params == verdict.params
    assert verdict.against_constant.paired.gain == 0.0 and not verdict.schedule_shown
    # where only temperature is searched it may be better than the constants that were tuned, and is one
    verdict_alone = judge(make_confirm_rows(**arms, search=BETTER, constant=CONSTANT))
    assert verdict_alone.against_constant.significant
    assert verdict_alone.is_constant and not verdict_alone.schedule_shown


def test_no_schedule_is_shown_where_no_gain_is(judge_runs: Any) -> None:
    # one answer is primary, and declared so in advance
    verdict = judge_runs(
        baseline_and_twin=BASELINE, search=plus(BASELINE, UNDECIDED), constant=plus(BASELINE, LOSSES)
    )
    assert verdict.against_constant.significant and not verdict.schedule_shown


# ---- rounds


@pytest.fixture
def rounds(make_confirm_rows: Any, make_ticket: Any) -> Callable[..., list[TicketRow]]:
    """Return a maker of rounds, given the gains of the search; ``added``: those that added pairs alone."""

    def make(*gains: list[float], added_rounds: tuple[int, ...] = ()) -> list[TicketRow]:
        rows = []
        for number, of_round in enumerate(gains):
            baseline = BASELINE[: len(of_round)]
            tickets = make_confirm_rows(baseline_and_twin=baseline, search=plus(baseline, of_round))
            if number not in added_rounds:
                tickets.append(make_ticket("search", number, 0.5))
            rows += [
                dataclasses.replace(t, round=number, number=t.number + 10 * number, id=t.id + 10 * number)
                for t in tickets
            ]
        return rows

    return make


def test_until_a_later_round_is_confirmed_the_verdict_before_it_stands(judge: Any, rounds: Any) -> None:
    tickets = rounds(GAINS, LOSSES)
    last = next(index for index, t in reversed(list(enumerate(tickets))) if t.kind == "confirm")
    for state in ("waiting", "running"):
        open_one = dataclasses.replace(tickets[last], state=state, outcome=None, value=None)
        assert judge([*tickets[:last], open_one, *tickets[last + 1 :]]) == judge(rounds(GAINS))
    second_verdict = judge(tickets)
    assert second_verdict.primary.paired.gain < 0 and second_verdict.round == 1


def score_of(gains: list[float]) -> float:
    return float(stats.norm.isf(stats.ttest_1samp(gains, 0, alternative="greater").pvalue))


def test_pairs_that_are_added_count_with_those_before_them(judge: Any, rounds: Any) -> None:
    added_gains = [0.12, 0.08, 0.11, -0.02]
    verdict = judge(rounds(NOISY, added_gains, added_rounds=(1,)))
    assert (verdict.round, verdict.verdict_number) == (1, 2)
    total = verdict.primary.paired
    assert (total.n_pairs, total.gain) == (12, pytest.approx(np.mean([*NOISY, *added_gains])))
    # the inverse normal method with squared weights 1 : 2, at the level of a second verdict
    weighted_scores = score_of(NOISY) + 2**0.5 * score_of(added_gains)
    assert total.p_value == pytest.approx(2 * stats.norm.sf(weighted_scores / 3**0.5), rel=1e-6)
    assert total.alpha == 0.025
    third = judge(rounds(NOISY, added_gains, GAINS, added_rounds=(1, 2))).primary.paired
    combined_score = (weighted_scores + 2 * score_of(GAINS)) / 7**0.5
    assert third.p_value == pytest.approx(2 * stats.norm.sf(combined_score), rel=1e-6)
    assert (third.n_pairs, third.alpha) == (20, 0.0125)


# ---- runs that end badly


def test_there_is_no_verdict_from_half_of_the_pairs(
    fixed_spec: Any, make_confirm_rows: Any, make_ticket: Any
) -> None:
    tickets = make_confirm_rows(baseline_and_twin=BASELINE, search=BETTER)
    running_ticket = make_ticket("confirm", 999, None, arm="constant", pair=7, state="running")
    assert compute_verdict([*tickets, running_ticket], [], fixed_spec()) is None
    assert compute_verdict([], [], fixed_spec()) is None


def test_a_lost_run_drops_its_pair_and_is_counted(judge_runs: Any) -> None:
    total = judge_runs(baseline_and_twin=["lost", *BASELINE[1:]], search=BETTER).primary
    assert (total.paired.n_pairs, total.dropped) == (7, 1)
    assert total.paired.gain == pytest.approx(np.mean(GAINS[1:]))


def test_a_winner_that_diverges_is_counted_with_the_worst_value_and_not_significant(judge_runs: Any) -> None:
    better_values = [value + 1.0 for value in BETTER]
    total = judge_runs(baseline_and_twin=BASELINE, search=[None, *better_values[1:]]).primary
    differences = np.subtract([min(BASELINE), *better_values[1:]], BASELINE)
    assert total.paired.gain == pytest.approx(differences.mean())
    assert (total.paired.n_pairs, total.dropped, total.diverged, total.reference_diverged) == (8, 0, 1, 0)
    assert total.paired.significant and not total.significant


def test_a_gain_over_runs_that_diverge_is_a_lower_bound(judge_runs: Any) -> None:
    total = judge_runs(baseline_and_twin=[None, None, *BASELINE[2:]], search=BETTER).primary
    assert total.reference_diverged == 2 and total.significant
    assert total.paired.gain < 0.2


def test_arms_that_always_diverge_are_equally_bad(judge_runs: Any) -> None:
    total = judge_runs(baseline_and_twin=[None] * 8, search=[None] * 8).primary
    assert (total.paired.gain, total.paired.p_value) == (0, 1)


def test_pairs_on_which_both_diverge_say_nothing(judge_runs: Any) -> None:
    total = judge_runs(baseline_and_twin=[None, *BASELINE[1:]], search=[None, *BETTER[1:]]).primary
    assert (total.paired.n_pairs, total.diverged, total.reference_diverged) == (8, 1, 1)
    assert total.paired.gain == pytest.approx(sum(GAINS[1:]) / 8)


def test_failures_are_counted_beside_the_mean(judge_runs: Any) -> None:
    arms: dict[str, Any] = {
        "baseline_and_twin": [0.5, 0.1, None, 0.1, 0.1, 0.1, 0.1, "lost"],
        "search": [0.8, 0.8, 0.8, 0.8, 0.2, 0.9, 0.8, 0.8],
    }
    # what diverged failed, whatever the spec says; what was lost is left out
    plain = judge_runs(**arms).failures
    assert (plain.arm.failed, plain.reference.failed, plain.arm.runs) == (0, 1, 7)
    rates = judge_runs({"failure": 0.3}, **arms).failures
    assert (rates.arm.failed, rates.arm.runs) == (1, 7)
    assert (rates.reference.failed, rates.reference.runs) == (6, 7)
    # of five pairs on which one of them failed it was the baseline each time
    assert rates.p_value == pytest.approx(stats.binomtest(0, 5).pvalue)
    exact = stats.binomtest(6, 7).proportion_ci(1 - ALPHA, method="exact")
    assert (rates.reference.low, rates.reference.high) == pytest.approx((exact.low, exact.high))
    falling = judge_runs({"direction": "minimize", "failure": 0.3}, **arms).failures
    assert (falling.arm.failed, falling.reference.failed) == (6, 2)


def test_where_no_run_failed_there_are_no_failures(judge_runs: Any) -> None:
    verdict = judge_runs(baseline_and_twin=[*BASELINE[:7], "lost"], search=BETTER)
    assert verdict.failures is None and not verdict.is_more_stable


# ---- stability

LONG = {"confirm": {"min": 4, "max": 16}}


def unstable_arms(num_diverged: int, *, gain: float = -0.05, num_pairs: int = 16) -> dict[str, Any]:
    """Return pairs of which the runs at one diverge on some, and the winner gains nothing on the others."""
    noise = np.random.default_rng(3).normal(0.0, 0.05, (2, num_pairs))
    baseline = [None if pair < num_diverged else 0.5 + float(noise[0, pair]) for pair in range(num_pairs)]
    return {"baseline_and_twin": baseline, "search": [0.5 + gain + float(value) for value in noise[1]]}


@pytest.mark.parametrize(("num_diverged", "is_shown"), [(5, False), (6, True), (8, True)])
def test_a_winner_that_fails_less_often_by_mcnemars_test_is_recommended_for_its_stability(
    judge_runs: Any, num_diverged: int, is_shown: bool
) -> None:
    # of pairs on which one of the two fails, each is as likely: the exact test is that of a coin
    pvalue = stats.binomtest(0, num_diverged).pvalue
    assert (pvalue < ALPHA) == is_shown
    verdict = judge_runs({"seeds": LONG}, **unstable_arms(num_diverged))
    assert verdict.has_all_pairs and not verdict.primary.significant
    assert verdict.failures.p_value == pytest.approx(pvalue)
    assert verdict.is_more_stable == is_shown
    recommendation = verdict.recommendation
    assert (recommendation.reason, recommendation.action_without_training) == (
        ("stability", "train_with_schedule") if is_shown else (None, "change_nothing")
    )
    assert recommendation.params == (PARAMETERS["search"] if is_shown else PARAMETERS["baseline"])


def test_failures_are_tested_on_all_pairs_alone(
    judge_runs: Any, fixed_spec: Any, make_confirm_rows: Any
) -> None:
    # a winner that is behind and fails less often gets all of its pairs
    unstable_tickets = make_confirm_rows(**unstable_arms(8, num_pairs=8))
    assert compute_verdict(unstable_tickets, [], fixed_spec(seeds=LONG)) is None
    verdict = judge_runs({"seeds": LONG}, **unstable_arms(0, gain=-0.5, num_pairs=4))
    assert not verdict.has_all_pairs and not verdict.is_more_stable


def test_a_winner_that_fails_more_often_is_not_more_stable(judge_runs: Any) -> None:
    verdict = judge_runs(baseline_and_twin=BASELINE, search=[None] * 8)
    assert verdict.failures.p_value < ALPHA and not verdict.is_more_stable
    assert verdict.recommendation.action_without_training == "change_nothing"


def test_a_gain_that_is_shown_is_the_reason_even_where_the_winner_is_more_stable(judge_runs: Any) -> None:
    verdict = judge_runs({"seeds": {"confirm": 16}}, **unstable_arms(8, gain=0.3))
    assert verdict.primary.significant and verdict.is_more_stable
    assert verdict.recommendation.reason == "gain"

"""What is recommended in a study with guards: what is shown to keep them, the winner or simpler."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.report.recommendation_text import recommendation_text
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.verdict.guards import NOT_THERE
from tempopt.verdict.run_evaluations import evaluations
from tests.simulated import SPACE, SimulatedStudy
from tests.verdict.test_guards import NOISE, guard_measurements, losses
from tests.verdict.test_recommendation import WIDE, with_gains
from tests.verdict.test_recommendation import at_half as gains_at_half
from tests.verdict.verdicts import noisy_gains, worth_by_part

LOSS = {"val_loss": "<= +5%"}
GAINS = gains_at_half(0.11)


def at_half(tickets: list[TicketRow], loss: float) -> list[Measurement]:
    values = {"baseline": [loss + noise for noise in NOISE]}
    return guard_measurements(tickets, values, "test:constant=0.5/guard:val_loss")


@pytest.mark.parametrize("winner", [1.0, 1.2])
def test_inference_is_recommended_where_it_keeps_the_guards_whatever_the_winner_does(
    winner: float, fixed_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    measurements = [*guard_measurements(whole_study, losses(winner)), *at_half(whole_study, 1.0)]
    measurements += measure_baseline(whole_study, GAINS)
    result = result_of(fixed_spec(WIDE, guards=LOSS), whole_study, measurements, state="done")
    recommendation = result.verdict.recommendation
    assert (recommendation.action, recommendation.plan_name) == ("inference_only", "constant=0.5")
    assert recommendation.passed_over == ()
    sentence = "The winner gains, but breaks the guard on val_loss (+20.0 %, limit +5 %)."
    assert (sentence in recommendation_text(result)) == (winner > 1.1)


@pytest.mark.parametrize(
    ("loss", "state", "words"),
    [
        (1.2, "broken", "breaks the guard on val_loss (+20.0 %, limit +5 %)."),
        (1.05, "not_shown", "is not shown to keep the guard on val_loss (+5.00 %, limit +5 %)."),
        (None, "not_measured", f"was not tested on the guard on val_loss, since {NOT_THERE}."),
    ],
)
def test_inference_that_is_not_shown_to_keep_a_guard_is_passed_over_and_named(
    loss: float | None,
    state: str,
    words: str,
    whole_study: list[TicketRow],
    fixed_spec: Any,
    measure_baseline: Any,
    result_of: Any,
) -> None:
    measurements = [*guard_measurements(whole_study, losses(1.0)), *measure_baseline(whole_study, GAINS)]
    measurements += [] if loss is None else at_half(whole_study, loss)
    spec = fixed_spec(WIDE, guards=LOSS)
    result = result_of(spec, whole_study, measurements, state="done")
    recommendation = result.verdict.recommendation
    assert recommendation.action == "train_at_constant" and recommendation.params != {}
    ((guard,),) = (passed_over.blocking_guards for passed_over in recommendation.passed_over)
    assert guard.state == state
    text = recommendation_text(result)
    assert f"Evaluating at τ = 0.5 gains as well, but {words}" in text
    # without a gain of the winner's as well
    null_study = with_gains(whole_study, noisy_gains(0.0))
    unsure = result_of(spec, null_study, measurements).verdict.recommendation
    assert unsure.action == "change_nothing" and len(unsure.passed_over) == 1


def test_without_a_gain_of_the_winner_inference_is_recommended_where_it_keeps_the_guards(
    judge: Any, whole_study: list[TicketRow], measure: Any
) -> None:
    null_study = with_gains(whole_study, noisy_gains(0.0))
    measurements = [
        *measure(null_study, baseline=GAINS),
        *guard_measurements(null_study, losses(1.0)),
        *at_half(null_study, 1.0),
    ]
    assert judge(null_study, measurements, WIDE, guards=LOSS).recommendation.action == "inference_only"


in_parts = worth_by_part(length_scaling=1.0)


@pytest.mark.parametrize("simplest", [1.0, 1.5])
def test_a_simpler_plan_is_tested_on_guards_that_its_runs_measure(
    simplest: float, fixed_spec: Any, judge: Any
) -> None:
    study = SimulatedStudy(fixed_spec({"search": SPACE}, trials=6, guards=LOSS, explain=True), in_parts).run()
    values = {arm: 1.0 for t in study.rows for arm in arms_of(t)} | {"simplest": simplest}
    measurements = [
        Measurement(ticket_id=t.id, step=10, name="test/guard:val_loss", value=value)
        for t in study.rows
        if t.kind in ("confirm", "ablation") and t.pair is not None
        # a plan may be taken apart and be the simplest in one run
        for value in [max(values[arm] for arm in arms_of(t)) + NOISE[t.pair % len(NOISE)]]
    ]
    verdict = judge(study.rows, measurements, spec=study.spec)
    recommendation = verdict.recommendation
    # what has one part more and keeps the guards is next
    expected = verdict.simplest.params if simplest == 1.0 else verdict.constant_twin_params
    assert recommendation.action_without_training == "train_at_constant"
    assert recommendation.params == expected
    assert [passed_over.params for passed_over in recommendation.passed_over] == (
        [verdict.simplest.params] if simplest > 1.0 else []
    )


def test_a_constant_that_keeps_the_guards_is_recommended_in_place_of_a_winner_that_does_not(
    fixed_spec: Any, judge: Any, whole_study: list[TicketRow]
) -> None:
    # the winner is a constant itself: nothing else was trained
    verdict = judge(whole_study, guard_measurements(whole_study, losses(1.2)), WIDE, guards=LOSS)
    assert verdict.guards_by_alternative == {} and verdict.recommendation.action == "change_nothing"
    study = SimulatedStudy(fixed_spec({"search": SPACE}, trials=6, guards=LOSS), in_parts).run()
    values = {
        arm: [(1.3 if arm == "search" else 1.0) + noise / 2 for noise in NOISE]
        for t in study.tickets_of("confirm")
        for arm in arms_of(t)
    }
    verdict = judge(study.rows, guard_measurements(study.rows, values), spec=study.spec)
    assert verdict.recommendation.action_without_training == "train_at_constant"
    assert verdict.recommendation.params == verdict.constant_twin_params


def test_what_is_guarded_is_measured_for_all_that_may_be_recommended(fixed_spec: Any) -> None:
    spec = fixed_spec(guards=LOSS)

    def guarded_plans(kind: Any, *arms: str) -> set[str]:
        plans = evaluations(kind, arms, spec, {"temperature_init": 2.0}, {"temperature_init": 1.0})
        return {plan.name for plan in plans if plan.guards}

    assert {"test", "test:constant=0.5", "test:winner"} <= guarded_plans("confirm", "baseline")
    assert not any(name.startswith("validate") for name in guarded_plans("confirm", "baseline"))
    assert guarded_plans("confirm", "search") == guarded_plans("ablation", "simplest") == {"test"}

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
from tests.verdict.test_guards import NOISE, guard_measurements, losses, verdict_of
from tests.verdict.test_recommendation import by_part, noisy_gains, with_gains

LOSS = {"val_loss": "<= +5%"}
WIDE = {"search": {"temperature_init": {"low": 0.05, "high": 80.0}}}
AT_HALF = "test:constant=0.5/guard:val_loss"
GAINS = {"validate:constant=0.5": 0.11, "test:constant=0.5": 0.11}


def at_half(tickets: list[TicketRow], loss: float) -> list[Measurement]:
    return guard_measurements(tickets, {"baseline": [loss + noise for noise in NOISE]}, AT_HALF)


@pytest.mark.parametrize("winner", [1.0, 1.2])
def test_inference_is_recommended_where_it_keeps_the_guards_whatever_the_winner_does(
    winner: float, fixed_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    measurements = [*guard_measurements(whole_study, losses(winner)), *at_half(whole_study, 1.0)]
    measurements += measure_baseline(whole_study, GAINS)
    spec = fixed_spec(WIDE, guards=LOSS)
    verdict = verdict_of(spec, whole_study, measurements)
    recommendation = verdict.recommendation
    assert recommendation is not None and (recommendation.action, recommendation.plan) == (
        "inference_only",
        "constant=0.5",
    )
    assert recommendation.passed_over == ()
    text = recommendation_text(result_of(spec, whole_study, measurements, state="done"))
    refusal_text = "but is not recommended: it breaks the guard on val_loss (+20.0 %, limit +5 %)."
    assert (f"The winner of the search gains 0.1035, {refusal_text}" in text) == (winner > 1.1)


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
    fixed_spec: Any,
    whole_study: list[TicketRow],
    measure_baseline: Any,
    result_of: Any,
) -> None:
    measurements = [*guard_measurements(whole_study, losses(1.0)), *measure_baseline(whole_study, GAINS)]
    measurements += [] if loss is None else at_half(whole_study, loss)
    spec = fixed_spec(WIDE, guards=LOSS)
    recommendation = verdict_of(spec, whole_study, measurements).recommendation
    assert (
        recommendation is not None
        and recommendation.action == "train_at_constant"
        and recommendation.parameters != {}
    )
    assert [guard.state for passed_over in recommendation.passed_over for guard in passed_over.guards] == [
        state
    ]
    text = recommendation_text(result_of(spec, whole_study, measurements, state="done"))
    assert f"Training at τ = 1 and evaluating at τ = 0.5 gains as well, but {words}" in text
    # without a gain of the winner's as well
    null_study = with_gains(whole_study, noisy_gains(0.0))
    unsure = verdict_of(spec, null_study, measurements).recommendation
    assert unsure is not None and unsure.action == "change_nothing" and len(unsure.passed_over) == 1


def test_without_a_gain_of_the_winner_inference_is_recommended_where_it_keeps_the_guards(
    fixed_spec: Any, whole_study: list[TicketRow], measure: Any
) -> None:
    null_study = with_gains(whole_study, noisy_gains(0.0))
    measurements = [
        *measure(null_study, baseline=GAINS),
        *guard_measurements(null_study, losses(1.0)),
        *at_half(null_study, 1.0),
    ]
    recommendation = verdict_of(fixed_spec(WIDE, guards=LOSS), null_study, measurements).recommendation
    assert recommendation is not None and recommendation.action == "inference_only"


def in_parts(t: TicketRow) -> float:
    return by_part(t, {"length_scaling": 1.0, "schedule": 0.0, "level": 0.0})


@pytest.mark.parametrize("simplest", [1.0, 1.5])
def test_a_simpler_plan_is_tested_on_guards_that_its_runs_measure(simplest: float, fixed_spec: Any) -> None:
    study = SimulatedStudy(fixed_spec({"search": SPACE}, trials=6, guards=LOSS, explain=True), in_parts).run()
    values = {arm: 1.0 for t in study.rows for arm in arms_of(t)} | {"simplest": simplest}
    measurements = [
        Measurement(ticket_id=t.id, step=10, name="test/guard:val_loss", value=value)
        for t in study.rows
        if t.kind in ("confirm", "ablation") and t.pair is not None
        # a plan may be taken apart and be the simplest in one run
        for value in [max(values[arm] for arm in arms_of(t)) + NOISE[t.pair % len(NOISE)]]
    ]
    verdict = verdict_of(study.spec, study.rows, measurements)
    recommendation = verdict.recommendation
    assert recommendation is not None and verdict.simplest is not None
    # what has one part more and keeps the guards is next
    expected = verdict.simplest.parameters if simplest == 1.0 else verdict.constant_twin_params
    assert (recommendation.action_without_training, recommendation.parameters) == (
        "train_at_constant",
        expected,
    )
    assert [passed_over.parameters for passed_over in recommendation.passed_over] == (
        [verdict.simplest.parameters] if simplest > 1.0 else []
    )


def test_a_constant_that_keeps_the_guards_is_recommended_in_place_of_a_winner_that_does_not(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    # the winner is a constant itself: nothing else was trained
    verdict = verdict_of(
        fixed_spec(WIDE, guards=LOSS), whole_study, guard_measurements(whole_study, losses(1.2))
    )
    assert verdict.guards_of == {}
    assert verdict.recommendation is not None and verdict.recommendation.action == "change_nothing"
    study = SimulatedStudy(fixed_spec({"search": SPACE}, trials=6, guards=LOSS), in_parts).run()
    measurements = [
        Measurement(ticket_id=t.id, step=10, name="test/guard:val_loss", value=value + NOISE[t.pair % 8] / 2)
        for t in study.rows
        if t.kind == "confirm" and t.pair is not None
        for value in [1.3 if "search" in arms_of(t) else 1.0]
    ]
    recommendation = verdict_of(study.spec, study.rows, measurements).recommendation
    assert recommendation is not None and recommendation.action_without_training == "train_at_constant"
    assert recommendation.parameters == verdict_of(study.spec, study.rows, measurements).constant_twin_params


def test_what_is_guarded_is_measured_for_all_that_may_be_recommended(fixed_spec: Any) -> None:
    spec = fixed_spec(guards=LOSS)

    def guarded_plans(kind: Any, *arms: str) -> set[str]:
        plans = evaluations(kind, arms, spec, {"temperature_init": 2.0}, {"temperature_init": 1.0})
        return {plan.name for plan in plans if plan.guards}

    assert {"test", "test:constant=0.5", "test:winner"} <= guarded_plans("confirm", "baseline")
    assert not any(name.startswith("validate") for name in guarded_plans("confirm", "baseline"))
    assert guarded_plans("confirm", "search") == guarded_plans("ablation", "simplest") == {"test"}

"""A winner whose temperatures follow the entropy: its constants, parts, evaluations and verdict in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import is_controlled
from tempopt.verdict.run_evaluations import WINNER, evaluations, inference_plans
from tests.simulated import SimulatedStudy
from tests.verdict.verdicts import worth_by_part

SPACE = {
    "entropy_control": ["none", "contrast"],
    "control_level": {"low": 0.3, "high": 0.7},
    "control_spread": {"low": 0.2, "high": 5.0},
    "temperature_init": {"low": 0.5, "high": 4.0},
    "lr": {"low": 0.1, "high": 1.0},
}
CONTROLLED = {
    "entropy_control": "contrast",
    "control_level": 0.4,
    "control_spread": 2.0,
    "temperature_init": 3.0,
}


def make_measurements(rows: list[TicketRow]) -> list[Measurement]:
    """Return where control has led: τ of layer 0 to half of its beginning, of layer 1 to twice as much."""
    measurements = []
    for row in rows:
        if row.parameters and is_controlled(row.parameters):
            first = row.parameters.get("temperature_init", 1.0)
            for step in (0, 5, 10):
                for layer, factor in enumerate((0.5, 2.0)):
                    tau = first * factor ** (step / 10)
                    measurements.append(
                        Measurement(ticket_id=row.id, name=f"controlled/{layer}", step=step, value=tau)
                    )
    return measurements


@pytest.fixture
def study(make_spec: Any) -> SimulatedStudy:
    worth = worth_by_part(control=0.5, level=0.2)
    return SimulatedStudy(make_spec({"search": SPACE}, trials=12, explain=True), worth).run()


def test_the_rivals_of_control_are_the_best_constant_and_the_one_of_its_beginning(
    study: SimulatedStudy,
) -> None:
    winner = study.tickets_of("confirm", "search")[0].parameters
    assert winner is not None and is_controlled(winner)
    twin = study.tickets_of("confirm", "constant_twin")[0].parameters
    assert twin is not None and not is_controlled(twin) and twin["lr"] == winner["lr"]
    # control has no schedule, of which it begins
    assert twin["temperature_init"] == pytest.approx(winner["temperature_init"])
    best = max(study.tickets_of("constant"), key=lambda t: t.value or 0.0).parameters
    assert study.tickets_of("confirm", "constant")[0].parameters == best


def test_the_baseline_and_the_constants_are_not_controlled(study: SimulatedStudy) -> None:
    for t in study.rows:
        if t.kind in ("baseline", "constant", "confirm") and not {"search", "simplest"} & set(arms_of(t)):
            assert t.parameters is not None and not is_controlled(t.parameters)


def test_the_verdict_names_control_a_part_and_recommends_it(
    study: SimulatedStudy, judge: Any, result_of: Any
) -> None:
    verdict = judge(study.rows, make_measurements(study.rows), spec=study.spec)
    assert verdict.primary.significant and verdict.schedule_shown and not verdict.is_constant
    by_name = {part.name: part.answer.paired.gain for part in verdict.parts}
    assert by_name == pytest.approx({"control": 0.5, "level": 0.2}, abs=0.03)
    assert verdict.recommendation.action_without_training == "train_with_control"
    first = verdict.params["temperature_init"]
    ends = {"0": (first / 2,) * 3, "1": (first * 2,) * 3}
    assert {name: pytest.approx(end) for name, end in ends.items()} == verdict.controlled
    result = result_of(study.spec, study.rows, make_measurements(study.rows), state="done")
    data = json.loads(json.dumps(result.to_json()["verdict"], allow_nan=False))
    assert data["recommendation"]["action"] == "train_with_control"
    assert data["controlled_at_end"]["1"]["mean"] == pytest.approx(first * 2)


def test_without_a_gain_of_control_a_constant_is_enough(make_spec: Any, judge: Any) -> None:
    simulated = SimulatedStudy(make_spec({"search": SPACE}, trials=12), worth_by_part(level=0.5)).run()
    verdict = judge(simulated.rows, spec=simulated.spec)
    assert verdict.recommendation.action_without_training == "train_at_constant" and not verdict.controlled
    assert not is_controlled(verdict.recommendation.params)


def test_no_plan_of_inference_is_that_of_a_controlled_winner(make_spec: Any) -> None:
    spec = make_spec({"search": SPACE})
    assert WINNER not in inference_plans(spec, CONTROLLED)
    assert WINNER in inference_plans(spec, {"temperature_init": 3.0})
    plans = evaluations("confirm", ("search",), spec, CONTROLLED, CONTROLLED)
    assert {plan.name for plan in plans} > {"test", "test_current", "validate"}
    assert not any(plan.temperature and is_controlled(plan.temperature) for plan in plans)

"""Runs whose named temperatures divide outputs of projections, beside the same trainings by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.errors import AttachError, UsageError
from tempopt.training.dry_run import check, rehearse
from tempopt.training.run import Run
from tempopt.workers.messages import LEARNED_CURVE, Evaluation, RunRequest, Stage, Started

STEPS = 24
TEST = [Evaluation(name="test", on="test")]
PLACES = {"gate": ["mixed.gate"], "head": ["head"]}
MOVING = {
    "gate.schedule": "linear",
    "gate.temperature_final": 0.25,
    "head.schedule": "linear",
    "head.temperature_final": 3.0,
}
Routed = Callable[..., RunRequest]


def linear(last: float, count: int = STEPS) -> list[float]:
    return [1.0 + (last - 1.0) * step / (STEPS - 1) for step in range(count)]


@pytest.fixture
def routed(request_for: Any) -> Routed:
    """Return a maker of requests for mixtures of experts with temperatures at these projections."""

    def make(
        places: dict[str, list[str]] | None = None,
        *,
        module: str = "Routed",
        init: dict[str, Any] | None = None,
        numbers: dict[str, str] | None = None,
        **given: Any,
    ) -> RunRequest:
        request: RunRequest = request_for(**given)
        rows = {
            name: {"value": None, "rows": patterns, "transform": None, "as_found": 1.0}
            for name, patterns in (PLACES if places is None else places).items()
        }
        values = {
            name: {"value": path, "rows": None, "transform": "identity", "as_found": None}
            for name, path in (numbers or {}).items()
        }
        program = dataclasses.replace(
            request.program,
            model={"class_path": f"routed_modules.{module}", "init_args": init or {}},
            values=rows | values,
        )
        return dataclasses.replace(request, program=program)

    return make


def assert_same(one: Run, other: Run) -> None:
    ours, theirs = one.module.state_dict(), other.module.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def seen(run: Run) -> tuple[list[float], list[float]]:
    """Return the temperatures of gate and head at each training step."""
    module: Any = run.module
    gate, head = zip(*module.seen, strict=True)
    return list(gate), list(head)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"gate.as_found": 1.0, "gate.temperature_init": 1.0, "head.schedule": "constant"},
        {"gate.schedule": "cosine", "gate.temperature_final": 1.0},
    ],
)
def test_at_one_a_run_is_bit_for_bit_that_without_it(
    routed: Routed, listener: Any, parameters: dict[str, Any]
) -> None:
    plain = Run(routed({}, compared=True, evaluations=TEST), listener())
    expected = plain.execute()
    run = Run(routed(parameters=parameters, evaluations=TEST), listener())
    finished = run.execute()
    assert finished.reports == expected.reports and finished.measurements == expected.measurements
    assert_same(run, plain)


CONSTANT = {"gate.temperature_init": 0.25, "head.temperature_init": 3.0}


@pytest.mark.parametrize(("parameters", "steps"), [(MOVING, STEPS), (CONSTANT, 0)])
def test_a_run_is_bit_for_bit_that_of_weights_divided_by_hand(
    routed: Routed, listener: Any, parameters: dict[str, Any], steps: int
) -> None:
    init = {"gate": 0.25, "head": 3.0, "steps": steps}
    by_hand = Run(routed({}, module="ByHand", init=init, compared=True, evaluations=TEST), listener())
    expected = by_hand.execute()
    channel = listener()
    run = Run(routed(parameters=parameters, evaluations=TEST), channel)
    finished = run.execute()
    assert seen(run)[0] == pytest.approx(linear(0.25) if steps else [0.25] * STEPS, rel=1e-6)
    assert seen(run)[1] == pytest.approx(linear(3.0) if steps else [3.0] * STEPS, rel=1e-6)
    assert finished.reports == expected.reports and finished.measurements == expected.measurements
    assert_same(run, by_hand)
    assert channel.of(Started)[0].layers == ["mixed.gate", "head"]


def test_validation_is_at_the_last_temperature_or_at_the_current_one(routed: Routed, listener: Any) -> None:
    run = Run(routed(parameters=MOVING, evaluations=TEST), listener())
    run.execute()
    module: Any = run.module
    assert len(module.validated) == 7
    assert all(each == pytest.approx((0.25, 3.0)) for each in module.validated)
    run = Run(routed(parameters=MOVING, validate_at="current"), listener())
    run.execute()
    module = run.module
    # validations are after steps 4, 8, ...; the temperature is that of the last step
    expected = list(zip(linear(0.25)[3::4], linear(3.0)[3::4], strict=True))
    assert module.validated[: len(expected)] == [pytest.approx(each) for each in expected]


def test_a_run_that_was_interrupted_in_mid_schedule_trains_to_the_same_bits(
    routed: Routed, listener: Any, tmp_path: Path
) -> None:
    def run(channel: Any, **given: Any) -> Run:
        request = routed(parameters=MOVING, checkpoints=str(tmp_path), evaluations=TEST, **given)
        return Run(request, channel)

    whole = run(listener())
    finished = whole.execute()
    killed, again = listener(die_at=10), listener()
    with pytest.raises(SystemExit):
        run(killed).execute()
    resumed = run(again, attempt=2, resume=killed.saved)
    last = resumed.execute()
    assert again.of(Started)[0].step == 8
    assert seen(resumed)[0] == pytest.approx(linear(0.25)[8:], rel=1e-6)
    assert last.reports == finished.reports and last.measurements == finished.measurements
    assert_same(resumed, whole)


def test_a_learned_temperature_is_what_a_parameter_of_the_module_learns(
    routed: Routed, listener: Any
) -> None:
    by_hand = Run(
        routed({}, module="LearnsByHand", init={"gate": 1.0, "head": 1.0}, compared=True), listener()
    )
    by_hand.execute()
    module: Any = by_hand.module
    run = Run(
        routed(parameters={"gate.as_found": 1.0, "head.as_found": 1.0, "learned.lr_ratio": 1.0}), listener()
    )
    finished = run.execute()
    found = [finished.curves[f"{LEARNED_CURVE}{name}"][-1][1] for name in PLACES]
    expected = module.logs.detach().exp().tolist()
    assert found == pytest.approx(expected, rel=1e-3)
    assert all(abs(each - 1.0) > 0.01 for each in expected)
    assert run.learned is not None and run.learned.without_gradient == []


def test_attention_a_number_and_rows_follow_schedules_of_their_own(routed: Routed, listener: Any) -> None:
    attach = {"layers": ["q_proj"], "way": "query_rows"}
    parameters = MOVING | {"temperature_init": 2.0}
    run = Run(routed(module="Attending", attach=attach, parameters=parameters), listener())
    run.execute()
    assert seen(run)[0] == pytest.approx(linear(0.25), rel=1e-6)
    assert run.tempered.temperatures == (2.0,)


def test_a_tempered_module_has_rows_beside_its_own_attention(routed: Routed, listener: Any) -> None:
    request = routed({"head": ["head"]}, parameters={"head.temperature_init": 2.0, "temperature_init": 4.0})
    toy = {"class_path": "toy_modules.Toy", "init_args": {}}
    run = Run(
        dataclasses.replace(request, program=dataclasses.replace(request.program, model=toy)), listener()
    )
    assert run.execute().state == "complete"
    module: Any = run.module
    assert torch.equal(module.head.weight, module.head._parameters["weight"] / 2)
    assert module.temperatures == (4.0,)


def test_a_dry_run_takes_a_loss_of_the_divided_logits_for_the_metric(routed: Routed, listener: Any) -> None:
    channel = listener()
    request = routed(parameters=MOVING, evaluations=TEST, task="rehearse", metric="val_loss")
    rehearsed = rehearse(request, channel)
    assert rehearsed.state == "complete" and rehearsed.found == {"gate": 1.0, "head": 1.0}
    assert rehearsed.evaluated == ["gate", "head"]
    assert "tested the temperatures at mixed.gate, head" in [each.what for each in channel.of(Stage)]
    program = dataclasses.replace(request.program, identity="right")
    assert check(dataclasses.replace(request, task="check", program=program)).found == rehearsed.found


def test_accuracy_reads_the_temperature_of_a_router_and_not_that_of_a_head(
    routed: Routed, listener: Any
) -> None:
    request = routed(metric="val_accuracy", task="rehearse", module="RoutedDigits")
    data = {"class_path": "routed_modules.Digits", "init_args": {}}
    program = dataclasses.replace(request.program, data=data)
    assert rehearse(dataclasses.replace(request, program=program), listener()).evaluated == ["gate"]


def test_a_trained_model_is_evaluated_at_another_temperature_than_its_own(
    routed: Routed, listener: Any
) -> None:
    other = {"gate.temperature_init": 2.0}
    asked = [*TEST, Evaluation(name="other", on="test", temperature=other)]
    run = Run(routed(parameters=MOVING, evaluations=asked), listener())
    finished = run.execute()
    module: Any = run.module
    assert module.validated[-1] == pytest.approx((2.0, 3.0))
    assert module.in_force == pytest.approx((0.25, 3.0))
    assert finished.measurements["other"] != finished.measurements["test"]


def test_that_such_a_temperature_can_be_learned_is_found_by_the_dry_run(
    routed: Routed, listener: Any
) -> None:
    assert rehearse(routed(task="rehearse", learns=True), listener()).not_learned is None


def refused(request: RunRequest, channel: Any) -> list[str]:
    """Return what a dry run says that refuses a study, a line for each thing."""
    with pytest.raises(UsageError) as caught:
        rehearse(dataclasses.replace(request, task="rehearse"), channel)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("module", "places", "message"),
    [
        (
            "Normalised",
            {"head": ["head"]},
            "temperatures.head.rows: The training loss and its gradient do not move with the temperature of",
        ),
        (
            "Tied",
            {"head": ["head"]},
            'temperatures.head.rows: "head.weight" is shared by head.weight, embedding',
        ),
        (
            "Calibrated",
            {"head": ["calibration"]},
            'temperatures.head.rows: The loss of this batch uses none of "calibration"',
        ),
        (
            "Routed",
            {"head": ["classifier"]},
            'temperatures.head.rows: Pattern "classifier" in rows matches no module. Candidates: mixed.',
        ),
        (
            "Routed",
            {"head": ["body.1"]},
            'temperatures.head.rows: Pattern "body.1" in rows matches body.1 (ReLU)',
        ),
        (
            "Routed",
            {"head": ["head"], "all": ["*"]},
            'temperatures.all.rows: "head" has a temperature of attach_rows already.',
        ),
    ],
    ids=["normalised behind", "tied", "in validation alone", "no module", "no projection", "two on one"],
)
def test_what_cannot_be_divided_in_training_is_refused_in_one_line(
    routed: Routed, listener: Any, module: str, places: dict[str, list[str]], message: str
) -> None:
    (line,) = refused(routed(places, module=module), listener())
    assert line.startswith(message)
    elsewhere = line.endswith(' Validation reads it, for "val_loss" changes with it.')
    assert elsewhere == (module in ("Normalised", "Calibrated"))


def test_what_attention_has_already_is_refused(routed: Routed, listener: Any) -> None:
    attach = {"layers": ["q_proj"], "way": "query_rows"}
    (line,) = refused(routed({"query": ["q_proj"]}, module="Attending", attach=attach), listener())
    assert line.startswith('temperatures.query.rows: "q_proj" is part of an attention that has a temperature')


def test_all_places_that_are_wrong_are_told_at_once(routed: Routed, listener: Any) -> None:
    places = {"gate": ["router"], "head": ["head"], "other": ["head", "mixed.gate"]}
    lines = refused(routed(places, numbers={"number": "criterion.tau"}), listener())
    assert [line.split(": ")[0] for line in lines] == [
        "temperatures.gate.rows",
        "temperatures.other.rows",
        "temperatures.number.value",
    ]
    lines = refused(routed({"gate": ["mixed.gate"], "one": ["calibration"]}, module="Calibrated"), listener())
    assert len(lines) == 1
    with pytest.raises(AttachError):
        Run(routed({"one": ["no.*"]}), listener())


def test_what_was_attached_before_a_fault_is_taken_off(routed: Routed, listener: Any) -> None:
    from routed_modules import Routed as Module

    from tempopt.training.named_values import NamedValues

    module = Module()
    values = routed({"gate": ["mixed.gate"], "head": ["head", "nothing"]}).program.values
    with pytest.raises(AttachError, match="matches no module"):
        NamedValues(module, values, {}, validate_at="final")
    assert {type(each) for each in itertools.chain((module.head, module.mixed.gate))} == {torch.nn.Linear}


def test_a_copy_that_training_makes_of_a_divided_projection_is_refused(routed: Routed, listener: Any) -> None:
    with pytest.raises(AttachError, match='"follower" is a copy of a projection, made after its temperature'):
        rehearse(routed(module="Follower", task="rehearse", metric="val_accuracy"), listener())

"""Runs with named temperatures: numbers of the module that follow schedules, while nothing else changes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.errors import AttachError, SpecError, UsageError
from tempopt.training.dry_run import check, dry_run
from tempopt.training.messages import Evaluation, Finished, RunRequest, Stage
from tempopt.training.ranks import ALONE
from tempopt.training.run import LightningRun
from tempopt.training.worker import _carry_out
from tests.training.shared_trainings import assert_same_state, check_resume

STEPS = 24
WAYS = [
    ("temperature", "identity"),
    ("scale", "inverse"),
    ("tau", "identity"),
    ("logit_scale", "log_inverse"),
]
"""What the loss reads, and how that keeps the temperature."""

TEST = [Evaluation(name="test", on="test")]
LINEAR = {"contrast.as_found": 0.5, "contrast.schedule": "linear", "contrast.temperature_final": 0.1}
MOVING = {"contrast.schedule": "linear", "contrast.temperature_final": 0.2}
RequestMaker = Callable[..., RunRequest]


def linear(first: float = 0.5, last: float = 0.1, count: int = STEPS) -> list[float]:
    return [first + (last - first) * step / (STEPS - 1) for step in range(count)]


@pytest.fixture
def make_request(request_for: Any) -> RequestMaker:
    """Return a maker of requests for contrastive modules, whose loss has the temperature ``contrast``."""

    def make(values: dict[str, Any] | None = None, *, module: str = "Contrast", **options: Any) -> RunRequest:
        contrast = {"contrast": {"value": "criterion.temperature"}}
        options = {"metric": "val_gap", "values": contrast if values is None else values, **options}
        request: RunRequest = request_for(f"contrast_modules.{module}", **options)
        return request

    return make


def at(reads: str, transform: str, **options: Any) -> dict[str, Any]:
    """Return the section of a temperature that the loss reads at a place of the criterion."""
    return {"contrast": {"value": f"criterion.{reads}", "transform": transform, **options}}


def step_taus(run: LightningRun, which: int = 0) -> list[float]:
    """Return the temperature of each training step: that of the contrast, or the other one."""
    module: Any = run.module
    return [taus[which] for taus in module.trained]


def refusal_message(request: RunRequest, channel: Any) -> str:
    """Return what a dry run says that refuses a study."""
    with pytest.raises(UsageError) as excinfo:
        dry_run(dataclasses.replace(request, task="dry_run", evaluations=TEST), channel)
    return str(excinfo.value)


def validation_taus(run: LightningRun) -> list[tuple[float, float]]:
    """Return both temperatures of each batch that was evaluated."""
    module: Any = run.module
    temperatures: list[tuple[float, float]] = module.validated
    return temperatures


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_at_the_temperature_as_found_a_run_is_bit_for_bit_that_without_it(
    make_request: RequestMaker, listener: Any, reads: str, transform: str
) -> None:
    plain = LightningRun(make_request({}, init={"reads": reads}, compared=True, evaluations=TEST), listener())
    expected = plain.execute()
    named_run = LightningRun(make_request(at(reads, transform), init={"reads": reads}), listener())
    assert named_run.values.initial_temperatures["contrast"] == pytest.approx(0.5, rel=1e-6)
    # 0.5 is what a person writes of a logarithm in single precision
    for written, parameters in (
        (None, {}),
        (0.5, {"contrast.as_found": 0.5, "contrast.schedule": "cosine", "contrast.temperature_final": 0.5}),
    ):
        values = at(reads, transform, as_found=written)
        request = make_request(values, init={"reads": reads}, parameters=parameters, evaluations=TEST)
        run = LightningRun(request, listener())
        finished = run.execute()
        assert finished.reports == expected.reports
        assert finished.measurements == expected.measurements
        assert_same_state(run.module, plain.module)
    # a learned temperature was learned
    scale = run.module.state_dict()["criterion.logit_scale"].item()
    learned = scale != pytest.approx(math.log(2), rel=1e-6)
    assert learned == (reads == "logit_scale")


def test_two_temperatures_follow_schedules_of_their_own(make_request: RequestMaker, listener: Any) -> None:
    values = {
        "contrast": {"value": "criterion.temperature"},
        "gate": {"value": "gate.temperature", "as_found": 2.0},
    }
    parameters = LINEAR | {"gate.as_found": 2.0, "gate.temperature_final": 4.0, "gate.schedule": "linear"}
    run = LightningRun(make_request(values, parameters=parameters), listener())
    run.execute()
    assert step_taus(run) == pytest.approx(linear())
    assert step_taus(run, 1) == pytest.approx(linear(2.0, 4.0))


@pytest.mark.parametrize("attention", [{}, {"temperature_init": 4.0, "schedule": "linear"}])
def test_a_tempered_module_has_named_temperatures_beside_its_own(
    make_request: RequestMaker, listener: Any, attention: dict[str, Any]
) -> None:
    attention_plan = attention | ({"temperature_final": 1.0} if attention else {})
    run = LightningRun(make_request(module="Attending", parameters=LINEAR | attention_plan), listener())
    run.execute()
    assert step_taus(run) == pytest.approx(linear())
    expected = linear(4.0, 1.0) if attention else [1.0] * STEPS
    assert step_taus(run, 1) == pytest.approx(expected)
    assert set(validation_taus(run)) == {(0.1, 1.0)}


def test_an_attached_module_has_named_temperatures_beside_its_attention(
    make_request: RequestMaker, listener: Any
) -> None:
    options = {"module": "StockContrast", "attach": {"layers": "auto"}}
    run = LightningRun(make_request(parameters=LINEAR | {"temperature_init": 2.0}, **options), listener())
    run.execute()
    assert step_taus(run) == pytest.approx(linear())
    assert run.tempered.temperatures == (2.0,)
    assert run.values.attachments["contrast"].temperatures == pytest.approx((0.1,))


@pytest.mark.parametrize("ends_early", [False, True])
def test_an_evaluation_says_at_which_temperature_it_is(
    make_request: RequestMaker, listener: Any, ends_early: bool
) -> None:
    evaluations = [
        Evaluation(name="final", on="validate"),
        Evaluation(name="current", on="validate", at="current"),
    ]
    stop = {
        "class_path": "lightning.pytorch.callbacks.EarlyStopping",
        "init_args": {"monitor": "val_gap", "mode": "min", "patience": 1, "min_delta": 10.0},
    }
    trainer = {"callbacks": [stop]} if ends_early else {}
    run = LightningRun(
        make_request(parameters=LINEAR, evaluations=evaluations, metric="val_loss", trainer=trainer),
        listener(),
    )
    finished = run.execute()
    assert (finished.step < STEPS) == ends_early
    assert finished.measurements["final"] == finished.measurements["validate"]
    # at the end of a schedule the current temperature is the final one
    differ = finished.measurements["current"] != finished.measurements["final"]
    assert differ == ends_early
    assert validation_taus(run)[-1][0] == pytest.approx(linear()[finished.step - 1]) or not ends_early


@pytest.mark.parametrize(("reads", "transform"), [WAYS[0], WAYS[-1]])
def test_a_run_that_was_interrupted_in_mid_schedule_trains_to_the_same_bits(
    make_request: RequestMaker, tmp_path: Path, reads: str, transform: str
) -> None:
    values, init = at(reads, transform), {"reads": reads}
    request = make_request(values, init=init, parameters=LINEAR, evaluations=TEST)
    _, _, resumed_run = check_resume(request, tmp_path)
    # the module's list of them is in the checkpoint, too
    assert step_taus(resumed_run) == pytest.approx(linear(), rel=1e-6)


def test_a_learned_temperature_that_stays_as_found_is_learned_on_after_a_resume(
    make_request: RequestMaker, tmp_path: Path
) -> None:
    check_resume(make_request(at("logit_scale", "log_inverse"), init={"reads": "logit_scale"}), tmp_path)


def test_a_temperature_that_is_not_the_one_expected_is_refused(
    make_request: RequestMaker, listener: Any
) -> None:
    with pytest.raises(SpecError) as excinfo:
        LightningRun(make_request(at("temperature", "identity", as_found=0.7)), listener())
    message = str(excinfo.value)
    assert 'temperatures.contrast: the module has the temperature 0.5 at "criterion.temperature"' in message
    assert "0.7 as found" in message and "temperatures.contrast.as_found" in message
    # an argument that is searched and changes it, too
    request = make_request(at("temperature", "identity", as_found=0.5), parameters={"temperature": 0.3})
    with pytest.raises(SpecError, match=r"the module has the temperature 0\.3"):
        LightningRun(request, listener())
    # a single-precision buffer holds what is nearest to it
    LightningRun(make_request(at("tau", "identity", as_found=0.3), init={"temperature": 0.3}), listener())


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_a_check_finds_the_temperature_that_the_module_has(
    make_request: RequestMaker, listener: Any, reads: str, transform: str
) -> None:
    request = make_request(at(reads, transform), init={"reads": reads, "temperature": 0.07}, evaluations=TEST)
    program = dataclasses.replace(request.program, identity="right")
    initial_taus = check(dataclasses.replace(request, task="check", program=program)).initial_temperatures
    assert initial_taus == {"contrast": pytest.approx(0.07, rel=1e-6)}
    channel = listener()
    moving = {"contrast.schedule": "linear", "contrast.temperature_final": 0.01}
    finished = dry_run(dataclasses.replace(request, task="dry_run", parameters=moving), channel)
    assert finished.initial_temperatures == initial_taus
    assert f"tested the temperatures at criterion.{reads}" in [
        stage.what for stage in channel.messages_of(Stage)
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("criterion.temprature", "temprature"),
        ("loss_function.temperature", "loss_function"),
        ("criterion..temperature", '"criterion..temperature" is no path'),
        ("criterion.label", '"criterion.label" is .*not one real number'),
        ("one.0.weight", '"one.0.weight" is .*not one real number'),
        ("criterion", '"criterion" is .*not one real number'),
    ],
)
def test_a_place_that_is_no_temperature_is_refused_before_the_study(
    make_request: RequestMaker, listener: Any, path: str, message: str
) -> None:
    assert re.search(message, refusal_message(make_request({"contrast": {"value": path}}), listener()))


def test_a_transform_that_gives_no_temperature_is_refused(make_request: RequestMaker, listener: Any) -> None:
    values = at("logit_scale", "identity")
    request = make_request(values, init={"temperature": 2.0, "reads": "logit_scale"})
    assert "log_inverse" in refusal_message(request, listener())


def test_a_metric_that_reads_the_temperature_is_refused_unless_that_is_meant(
    make_request: RequestMaker, listener: Any
) -> None:
    message = refusal_message(make_request(metric="val_loss"), listener())
    assert message.startswith('study.metric: "val_loss" changes with the temperature contrast alone')
    assert "metric_reads_temperature: true" in message
    loss_request = make_request(metric="val_loss", reads_temperature=True, task="dry_run", evaluations=TEST)
    assert dry_run(loss_request, listener()).evaluated == ["contrast"]
    assert dry_run(make_request(task="dry_run", evaluations=TEST), listener()).evaluated == []


def test_a_trained_model_is_evaluated_at_another_temperature_and_is_afterwards_at_its_own(
    make_request: RequestMaker, listener: Any
) -> None:
    values = {"gate": {"value": "gate.temperature"}, "contrast": {"value": "criterion.temperature"}}
    contrast_schedule = {name: value for name, value in LINEAR.items() if name != "contrast.as_found"}
    plans = {
        "own": None,
        "gate": {"gate.temperature_init": 0.3},
        "winner": {**contrast_schedule, "contrast.temperature_final": 0.7, "gate.temperature_init": 0.4},
    }
    evaluations = [Evaluation(name=name, on="test", temperature=plan) for name, plan in plans.items()]
    request = make_request(
        values, metric="val_loss", reads_temperature=True, parameters=LINEAR, evaluations=evaluations
    )
    run = LightningRun(request, listener())
    seen_NN: list[torch.Tensor] = []
    similarity = run.module.similarity
    run.module.similarity = lambda batch: seen_NN.append(similarity(batch)) or seen_NN[-1]
    measured = run.execute().measurements
    at = [(0.1, 2.0), (0.1, 0.3), (0.7, 0.4)]
    assert validation_taus(run)[-3:] == [pytest.approx(taus) for taus in at]
    for name, taus, similarity_NN in zip(plans, at, seen_NN[-3:], strict=True):
        label = torch.arange(len(similarity_NN))
        losses = [torch.nn.functional.cross_entropy(similarity_NN / tau, label) for tau in taus]
        assert measured[name] == pytest.approx(float(losses[0] + 0.1 * losses[1]))
    assert run.evaluate(evaluations[0])["val_loss"] == measured["own"]


@pytest.mark.parametrize("module", ["ManualContrast", "Backward"])
def test_a_module_that_optimizes_by_itself_is_tested_and_follows_its_schedule(
    make_request: RequestMaker, listener: Any, module: str
) -> None:
    dry_run(make_request(module=module, task="dry_run", parameters=LINEAR, evaluations=TEST), listener())
    run = LightningRun(make_request(module=module, parameters=LINEAR), listener())
    assert run.execute().state == "complete"
    followed = step_taus(run) if module == "ManualContrast" else [run.module.criterion.temperature]  # type: ignore[union-attr]
    # a batch takes two steps
    assert followed[-1] == pytest.approx(linear()[-2])
    unread = make_request(at("tau", "identity"), module=module)
    assert 'nothing reads "criterion.tau" in training' in refusal_message(unread, listener())


def test_runs_that_share_a_loss_leave_it_as_it_was(make_request: RequestMaker, listener: Any) -> None:
    for _ in range(2):
        answer = _carry_out(make_request(module="SharedLossContrast", parameters=LINEAR), listener(), ALONE)
        assert isinstance(answer, Finished) and answer.state == "complete"


def test_what_was_learned_is_kept_while_another_temperature_is_evaluated(
    make_request: RequestMaker, listener: Any
) -> None:
    values = at("logit_scale", "log_inverse") | {"gate": {"value": "gate.temperature"}}
    elsewhere = Evaluation(name="gate", on="validate", temperature={"gate.temperature_init": 0.7})
    request = make_request(
        values, init={"reads": "logit_scale"}, evaluations=[elsewhere], reads_temperature=True
    )
    run = LightningRun(request, listener())
    assert run.execute().state == "complete"
    learned = 1 / run.module.state_dict()["criterion.logit_scale"].exp().item()
    assert learned != pytest.approx(0.5, rel=1e-3)
    assert validation_taus(run)[-1] == pytest.approx((learned, 0.7), rel=1e-6)


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_a_dry_run_finds_which_temperature_the_module_trains_itself(
    make_request: RequestMaker, listener: Any, reads: str, transform: str
) -> None:
    values = at(reads, transform) | {"gate": {"value": "gate.temperature"}}
    request = make_request(values, init={"reads": reads}, parameters=LINEAR, task="dry_run")
    assert dry_run(request, listener()).trained == (["contrast"] if reads == "logit_scale" else [])


@pytest.mark.parametrize("learns", [True, False])
def test_a_parameter_that_no_gradient_reaches_is_not_trained_by_the_module(
    make_request: RequestMaker, listener: Any, learns: bool
) -> None:
    values = at("logit_scale", "log_inverse") | {"gate": {"value": "gate.temperature"}}
    init = {"reads": "logit_scale", "detached": True}
    request = make_request(values, init=init, parameters=LINEAR, task="dry_run", learns=learns)
    finished = dry_run(request, listener())
    assert finished.trained == []
    assert (finished.not_learned is not None) == learns


# ---- modules whose own code has something to say


@pytest.mark.parametrize("layers", ["auto", ["towers.*"]])
def test_a_module_without_attention_is_told_how_its_other_temperatures_are_searched(
    request_for: Any, make_request: RequestMaker, listener: Any, layers: Any
) -> None:
    attach = {"layers": layers}
    message = refusal_message(make_request({}, attach=attach), listener())
    assert "No attention was found in Contrast" in message or "in layers matches no module" in message
    assert "temperatures: {contrast: {value: criterion.temperature}}" in message
    assert "criterion.logit_scale, criterion.tau, gate.temperature, gate.logit_scale, gate.tau" in message
    # who searches one already needs no word on it, nor does a module that has none
    for request in (make_request(attach=attach), request_for("PooledStock", attach=attach)):
        assert "To search another" not in refusal_message(request, listener())


@pytest.mark.parametrize(
    ("module", "path", "is_validated"),
    [("ReadOnce", "temperature", False), ("ValidationContrast", "calibration.temperature", True)],
)
def test_a_number_that_training_does_not_read_is_refused(
    make_request: RequestMaker, listener: Any, module: str, path: str, is_validated: bool
) -> None:
    request = make_request({"contrast": {"value": path}}, module=module)
    message = refusal_message(request, listener())
    assert f'nothing reads "{path}" in training' in message
    assert ('Validation reads it, for "val_gap" changes with it.' in message) == is_validated


def test_two_names_of_one_number_are_refused(make_request: RequestMaker, listener: Any) -> None:
    values = {"contrast": {"value": "criterion.temperature"}, "same": {"value": "same.temperature"}}
    message = refusal_message(make_request(values, module="Twice"), listener())
    assert message.startswith('temperatures.same.value: "same.temperature" is the number at "criterion.tem')


def test_a_metric_that_moves_by_rounding_alone_is_none_that_contains_the_temperature(
    make_request: RequestMaker, listener: Any
) -> None:
    request = make_request(module="RoundingContrast", evaluations=TEST)
    run = LightningRun(request, listener())
    run.execute()
    validate = Evaluation(name="validate", on="validate")
    moved = {run.evaluate(validate)["val_gap"] for _ in run.values.perturb_each(["contrast"])}
    assert len(moved) > 1
    assert max(moved) == pytest.approx(min(moved), rel=1e-5)
    assert dry_run(dataclasses.replace(request, task="dry_run"), listener()).state == "complete"


@pytest.mark.parametrize("parameters", [MOVING, {}], ids=["under a schedule", "as found"])
@pytest.mark.parametrize(
    ("module", "reads", "actual_value"), [("InHook", "temperature", "0.25"), ("InStep", "tau", "0.45")]
)
def test_a_module_that_writes_the_number_in_each_step_is_refused_by_the_dry_run(
    make_request: RequestMaker,
    listener: Any,
    module: str,
    reads: str,
    actual_value: str,
    parameters: dict[str, Any],
) -> None:
    request = make_request(at(reads, "identity"), module=module, parameters=parameters)
    due = "0.2" if parameters else "0.5"
    assert (
        f'The code of {module} itself changes "criterion.{reads}" in training: {due} was set, and '
        f"{actual_value} is there."
    ) in refusal_message(request, listener())


@pytest.mark.parametrize("parameters", [MOVING, {}], ids=["under a schedule", "as found"])
def test_a_module_that_writes_the_number_in_later_epochs_ends_the_run(
    make_request: RequestMaker, listener: Any, parameters: dict[str, Any]
) -> None:
    request = make_request(module="ByEpoch", parameters=parameters, evaluations=TEST)
    run = LightningRun(request, listener())
    with pytest.raises(AttachError, match=r"was set, and 0\.4 is there"):
        run.execute()
    assert run.trainer.current_epoch == 1


@pytest.mark.parametrize("final", [0.2, 0.05])
def test_a_clamp_is_met_by_the_schedules_that_go_beyond_it(
    make_request: RequestMaker, listener: Any, final: float
) -> None:
    def run(parameters: dict[str, Any]) -> LightningRun:
        values = at("logit_scale", "log_inverse")
        return LightningRun(make_request(values, module="ClampedContrast", parameters=parameters), listener())

    schedule = run(MOVING | {"contrast.temperature_final": final})
    if final == 0.2:
        assert schedule.execute().state == "complete"
    else:
        with pytest.raises(AttachError, match=r"and 2\.30258 is there\. Then .* clamp that is narrower"):
            schedule.execute()
    # as found it is learned, and clamped as it always was
    assert run({}).execute().state == "complete"

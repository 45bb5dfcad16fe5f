"""What is said of a named temperature that a study cannot search, word for word."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tempopt.errors import AttachError, UsageError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, RunRequest
from tempopt.training.run import Run

MOVING = {"named.schedule": "linear", "named.temperature_final": 0.2}
CONTRAST = "contrast_modules.Contrast"
MODULES = "self_tempering_modules"
CRITERION_PATH = "criterion.temperature"
NUMBERS = [
    "criterion.temperature",
    "criterion.logit_scale",
    "criterion.tau",
    "gate.temperature",
    "gate.logit_scale",
    "gate.tau",
]


@pytest.fixture
def make_request(request_for: Any) -> Any:
    """Return a maker of requests for a module and the paths of its temperatures."""

    def make(module: str, *paths: str, transform: str = "identity", **options: Any) -> RunRequest:
        values = {
            name: {"value": path, "transform": transform}
            for name, path in zip(["named", "other"], paths, strict=False)
        }
        options = {"metric": "val_gap", "evaluations": [Evaluation(name="test", on="test")], **options}
        request: RunRequest = request_for(
            module if "." in module else f"{MODULES}.{module}", values=values, **options
        )
        return request

    return make


def refusal_message(request: RunRequest, channel: Any) -> str:
    """Return what a dry run says that refuses a study."""
    with pytest.raises(UsageError) as excinfo:
        dry_run(dataclasses.replace(request, task="dry_run"), channel)
    return str(excinfo.value)


def with_attach(request: RunRequest, layers: Any = "auto") -> RunRequest:
    """Return the request with attention that is attached to, in place of named temperatures."""
    attach = {"layers": layers, "method": "query_rows"}
    return dataclasses.replace(request, program=dataclasses.replace(request.program, attach=attach))


@pytest.mark.parametrize("layers", ["auto", ["towers.*"]])
def test_a_module_without_attention_is_told_how_its_other_temperatures_are_searched(
    make_request: Any, listener: Any, layers: Any
) -> None:
    message = refusal_message(with_attach(make_request(CONTRAST), layers), listener())
    assert "No attention was found in Contrast" in message or "in layers matches no module" in message
    assert message.endswith(
        " To search another temperature than attention's, give the path of its number: temperatures: "
        f"{{contrast: {{value: {CRITERION_PATH}}}}}. "
        f"By their names, {', '.join(NUMBERS[1:])} may be temperatures, too."
    )
    # who searches one already needs no word on it
    assert "To search another" not in refusal_message(
        with_attach(make_request(CONTRAST, CRITERION_PATH), layers), listener()
    )
    plain = refusal_message(
        with_attach(make_request("toy_modules.PooledStock", metric="val_loss"), layers), listener()
    )
    assert "temperatures:" not in plain


def change_message(module: str, path: str, due: str, actual_value: str) -> str:
    """Return what is said of a number that the module writes itself."""
    return (
        f'The code of {module} itself changes "{path}" in training: {due} was set, and {actual_value} is '
        "there. Then neither a schedule nor the temperature as found is what training reads. Take out what "
        "writes it: a schedule of the model's own, as in training_step or on_train_batch_start, or a clamp "
        "that is narrower than the schedule."
    )


@pytest.mark.parametrize(
    ("module", "path", "is_validated"),
    [("ReadOnce", "temperature", False), ("ValidationContrast", "calibration.temperature", True)],
)
def test_a_number_that_training_does_not_read_is_refused(
    make_request: Any, listener: Any, module: str, path: str, is_validated: bool
) -> None:
    message = refusal_message(make_request(module, path), listener())
    assert f'nothing reads "{path}" in training' in message
    assert ('Validation reads it, for "val_gap" changes with it.' in message) == is_validated


def test_two_names_of_one_number_are_refused(make_request: Any, listener: Any) -> None:
    message = refusal_message(make_request("Twice", CRITERION_PATH, "same.temperature"), listener())
    assert message == (
        'temperatures.other.value: "same.temperature" is the number at "criterion.temperature", which is the '
        "temperature named already. Take one of them out."
    )


def test_a_metric_that_moves_by_rounding_alone_is_none_that_contains_the_temperature(
    make_request: Any, listener: Any
) -> None:
    request = make_request("RoundingContrast", CRITERION_PATH)
    run = Run(request, listener())
    run.execute()
    validate = Evaluation(name="validate", on="validate")
    moved = {run.evaluate(validate)["val_gap"] for _ in run.values.perturbed(list(run.values.attachments))}
    assert len(moved) > 1
    assert max(moved) == pytest.approx(min(moved), rel=1e-5)
    assert dry_run(dataclasses.replace(request, task="dry_run"), listener()).state == "complete"


@pytest.mark.parametrize("parameters", [MOVING, {}], ids=["under a schedule", "as found"])
@pytest.mark.parametrize(
    ("module", "path", "actual_value"),
    [("InHook", CRITERION_PATH, "0.25"), ("InStep", "criterion.tau", "0.45")],
)
def test_a_module_that_writes_the_number_in_each_step_is_refused_by_the_dry_run(
    make_request: Any, listener: Any, module: str, path: str, actual_value: str, parameters: dict[str, Any]
) -> None:
    message = refusal_message(make_request(module, path, parameters=parameters), listener())
    assert message == change_message(module, path, "0.2" if parameters else "0.5", actual_value)


@pytest.mark.parametrize("parameters", [MOVING, {}], ids=["under a schedule", "as found"])
def test_a_module_that_writes_the_number_in_later_epochs_ends_the_run(
    make_request: Any, listener: Any, parameters: dict[str, Any]
) -> None:
    request = make_request("ByEpoch", CRITERION_PATH, parameters=parameters, trainer={"max_steps": 24})
    # two steps of one epoch do not show it
    assert dry_run(dataclasses.replace(request, task="dry_run"), listener()).state == "complete"
    run = Run(request, listener())
    with pytest.raises(AttachError) as excinfo:
        run.execute()
    last = run.values.attachments["named"].temperatures[0]
    assert str(excinfo.value) == change_message("ByEpoch", CRITERION_PATH, f"{last:.6g}", "0.4")
    assert run.trainer.current_epoch == 1


@pytest.mark.parametrize("final", [0.2, 0.05])
def test_a_clamp_is_met_by_the_schedules_that_go_beyond_it(
    make_request: Any, listener: Any, final: float
) -> None:
    def run(parameters: dict[str, Any]) -> Run:
        request = make_request(
            "ClampedContrast", "criterion.logit_scale", transform="log_inverse", parameters=parameters
        )
        return Run(request, listener())

    schedule = run(MOVING | {"named.temperature_final": final})
    if final == 0.2:
        assert schedule.execute().state == "complete"
    else:
        with pytest.raises(AttachError, match=r"and 2\.30258 is there\. Then .* clamp that is narrower"):
            schedule.execute()
    # as found it is learned, and clamped as it always was
    assert run({}).execute().state == "complete"


def test_layers_that_are_none_are_named_with_those_there_are(make_request: Any, listener: Any) -> None:
    request = make_request("contrast_modules.StockContrast", CRITERION_PATH, attach={"layers": ["tower.*"]})
    message = refusal_message(request, listener())
    assert '"tower.*"' in message and "attention" in message

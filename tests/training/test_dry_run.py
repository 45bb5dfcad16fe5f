"""What can only be seen by running is seen before a study begins."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import AttachError, SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, Stage, Started

TEST = [Evaluation(name="test", on="test")]


def dry_run_request(request_for: Any, *args: Any, **kwargs: Any) -> Any:
    return request_for(*args, task="dry_run", **{"evaluations": TEST, **kwargs})


@pytest.mark.parametrize("module", ["Toy", "Stock"])
def test_each_part_of_a_dry_run_is_told(request_for: Any, listener: Any, module: str) -> None:
    channel = listener()
    attach = {"layers": "auto"} if module == "Stock" else None
    dry_run(dry_run_request(request_for, module, attach=attach), channel)
    stage_names = [stage.what for stage in channel.messages_of(Stage)]
    tested = ["tested the temperatures of 2 layers"] if attach else []
    assert stage_names == [
        "checked classes and arguments",
        "made model and data",
        "trained two steps and validated",
        *tested,
        "evaluated as a confirming run",
        "trained a step with the Trainer of the spec",
    ]
    assert all(stage.seconds >= 0 for stage in channel.messages_of(Stage))


@pytest.mark.parametrize("trainer", [{}, {"max_steps": -1, "max_epochs": 2}], ids=["steps", "epochs"])
@pytest.mark.parametrize("module", ["Manual", "Adversarial"])
def test_a_module_that_steps_by_itself_is_note_stage(
    request_for: Any, listener: Any, module: str, trainer: dict[str, Any]
) -> None:
    channel = listener()
    finished = dry_run(dry_run_request(request_for, module, trainer=trainer), channel)
    assert (finished.state, finished.step) == ("complete", 2)
    (started,) = channel.messages_of(Started)
    # the toy data have ten batches an epoch
    assert started.total_steps == (24 if not trainer else 20)


def test_a_dry_run_leaves_no_checkpoint(request_for: Any, listener: Any, tmp_path: Any) -> None:
    dry_run(dry_run_request(request_for, folder=str(tmp_path)), listener())
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_is_never_logged_is_found(request_for: Any, listener: Any) -> None:
    with pytest.raises(SpecError, match='Unknown metric "val_accuracy".*Known: val_loss.*self.log'):
        dry_run(dry_run_request(request_for, metric="val_accuracy"), listener())


def test_a_module_that_never_attends_is_found(request_for: Any, listener: Any) -> None:
    with pytest.raises(AttachError, match=r"num_layers=1, but layers \[0\] never called"):
        dry_run(dry_run_request(request_for, init={"attends": False}), listener())


def test_missing_test_data_are_found(request_for: Any, listener: Any) -> None:
    with pytest.raises(SpecError, match="confirm_on: validate"):
        dry_run(dry_run_request(request_for, data={"test": False}), listener())


def test_a_layer_that_does_not_follow_its_temperature_is_named(request_for: Any, listener: Any) -> None:
    with pytest.raises(AttachError, match="q_proj"):
        dry_run(dry_run_request(request_for, "NormedStock", attach={"layers": ["q_proj"]}), listener())

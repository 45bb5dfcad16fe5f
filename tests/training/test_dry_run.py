"""What can only be seen by running is seen before a study begins."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import AttachError, SpecError
from tempopt.training.dry_run import check, dry_run
from tempopt.training.messages import Evaluation, Stage, Started

TEST = [Evaluation(name="test", on="test")]


def dry_run_request(request_for: Any, *args: Any, **kwargs: Any) -> Any:
    return request_for(*args, task="dry_run", **{"evaluations": TEST, **kwargs})


def test_a_dry_run_trains_two_steps_and_names_the_layers(request_for: Any, listener: Any) -> None:
    channel = listener()
    finished = dry_run(dry_run_request(request_for), channel)
    assert (finished.state, finished.step) == ("complete", 2)
    (started,) = channel.messages_of(Started)
    assert started.layers == ["layer 0"]


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


def test_an_attached_module_is_proved_to_follow_its_temperature(request_for: Any, listener: Any) -> None:
    channel = listener()
    dry_run(dry_run_request(request_for, "Stock", attach={"layers": "auto"}), channel)
    (started,) = channel.messages_of(Started)
    assert started.layers == ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]


def test_a_layer_that_does_not_follow_its_temperature_is_named(request_for: Any, listener: Any) -> None:
    with pytest.raises(AttachError, match="q_proj"):
        dry_run(dry_run_request(request_for, "NormedStock", attach={"layers": ["q_proj"]}), listener())


@pytest.mark.parametrize(
    ("space", "complaint"),
    [
        ({"lerning_rate": [0.1, 1.0]}, 'Unknown argument .*"lerning_rate"'),
        ({"data.worker": [0, 1]}, '"worker".*Did you mean "workers"'),
        ({"trainer.max_step": [1, 2]}, '"max_step".*Did you mean "max_steps"'),
        ({"lr": ["high"]}, "lr"),
    ],
)
def test_a_searched_name_that_nothing_takes_is_found(
    request_for: Any, space: dict[str, list[Any]], complaint: str
) -> None:
    with pytest.raises(SpecError, match=complaint):
        check(request_for(task="check", space=space))


def test_what_attaching_cannot_deliver_is_refused_with_the_reason(request_for: Any) -> None:
    request = request_for(
        "Stock", attach={"layers": "auto"}, task="check", space={"length_scaling": ["none", "log_n"]}
    )
    with pytest.raises((SpecError, AttachError), match="TemperedModule"):
        check(request)

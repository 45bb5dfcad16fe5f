"""What can only be seen by running is seen before a study begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tempopt.errors import UsageError
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
        *tested,
        "trained two steps and validated",
        "evaluated as a confirming run",
        "trained a step with the Trainer of the spec",
        "resumed a training from a checkpoint",
    ]
    assert all(stage.seconds >= 0 for stage in channel.messages_of(Stage))


@pytest.mark.parametrize("trainer", [{}, {"max_steps": -1, "max_epochs": 2}], ids=["steps", "epochs"])
@pytest.mark.parametrize("module", ["Manual", "Adversarial"])
def test_a_module_that_steps_by_itself_is_tested(
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "val_accuracy"}, 'Unknown metric "val_accuracy".*Known: val_loss.*self.log'),
        (
            {
                "module": "TradeoffToy",
                "metric": "score",
                "evaluations": [Evaluation(name="test", on="test", guards=["val_los"])],
            },
            r'study.guards: Unknown metric "val_los". Did you mean "val_loss"\? Known: score, val_loss',
        ),
        ({"init": {"attends": False}}, r"num_layers=1, but layers \[0\] never called"),
        ({"data": {"test": False}}, "confirm_on: validate"),
        ({"module": "NormedStock", "attach": {"layers": ["q_proj"]}}, "q_proj"),
    ],
    ids=["metric", "guard", "no attention", "no test data", "a layer that does not follow"],
)
def test_what_a_study_would_fail_on_is_named(
    request_for: Any, listener: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        dry_run(dry_run_request(request_for, **options), listener())


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"attn_temperature_tuning": True}, "attn_temperature_tuning=1"),
        ({"rope_parameters": {"rope_type": "yarn", "attention_factor": 1.25}}, "attention_factor=1.25"),
        ({"rope_parameters": {"rope_type": "default", "attention_factor": 1.0}}, None),
    ],
)
def test_a_models_own_length_scaling_is_told_beside_one_that_is_attached(
    request_for: Any, listener: Any, monkeypatch: Any, config: dict[str, Any], named: str | None
) -> None:
    request = dry_run_request(
        request_for,
        "Stock",
        attach={"layers": "auto"},
        parameters={"length_scaling": "log_n"},
        evaluations=[],
    )
    import toy_modules

    monkeypatch.setattr(toy_modules.Stock, "config", SimpleNamespace(**config), raising=False)
    channel = listener()
    dry_run(request, channel)
    (started,) = channel.messages_of(Started)
    assert bool(started.notes) == (named is not None)
    assert all(named in note and "length_scaling" in note for note in started.notes)

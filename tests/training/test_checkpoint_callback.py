"""A run that was broken off and taken up again ends as one that was left alone, wherever that was."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.training.messages import (
    CheckpointSaved,
    Evaluation,
    Finished,
    Progress,
    Report,
    RunRequest,
    Started,
)
from tempopt.training.run import LightningRun
from tests.tiers import long_but

HOT = {"temperature_init": 4.0, "temperature_final": 1.0, "schedule": "exponential", "entropy_lambda": 0.01}
EPOCHS = {"max_steps": -1, "check_val_every_n_epoch": 1}
FOUR_OF_FIVE = {**EPOCHS, "max_epochs": 4, "limit_train_batches": 5}
IMPATIENT = {
    "class_path": "lightning.pytorch.callbacks.EarlyStopping",
    "init_args": {"monitor": "val_loss", "patience": 1, "min_delta": 10.0},
}
# An epoch of the toy data has ten batches.
TRAINERS: dict[str, dict[str, Any]] = {
    "by steps": {},
    "by steps that divide the epoch": {"val_check_interval": 5},
    "several times an epoch": {"val_check_interval": 0.3, "check_val_every_n_epoch": 1},
    "by epoch": {"val_check_interval": 1.0, "check_val_every_n_epoch": 1},
    "a number of epochs": {"max_epochs": 3, "val_check_interval": 0.5, **EPOCHS},
    "every second epoch": {
        **EPOCHS,
        "max_epochs": 4,
        "val_check_interval": 1.0,
        "check_val_every_n_epoch": 2,
    },
    "accumulating": {"accumulate_grad_batches": 2, "max_steps": 12},
    "accumulating across validations": {"accumulate_grad_batches": 3, "max_steps": 8},
    "accumulating less at the end": {"accumulate_grad_batches": 4, "max_epochs": 2, **EPOCHS},
    "a part of the data": {"limit_train_batches": 7},
    "in 64 bits": {"precision": "64-true"},
    "in 16 bits": {"precision": "bf16-true"},
    "until it gets no better": {"callbacks": [IMPATIENT], "max_steps": 40},
    "not before a minimum": {"callbacks": [IMPATIENT], "val_check_interval": 5, "min_steps": 12},
    "not before an epoch": {"callbacks": [IMPATIENT], "max_epochs": 4, "min_epochs": 2, **EPOCHS},
}
MODULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a rate by epochs": ("ScheduledToy", {"rate": "epoch"}, {}),
    "a rate by a metric at each epoch": (
        "ScheduledToy",
        {"rate": "plateau epoch"},
        {**FOUR_OF_FIVE, "val_check_interval": 3},
    ),
    "a rate by a metric at the end of each epoch": (
        "ScheduledToy",
        {"rate": "plateau epoch"},
        {**FOUR_OF_FIVE, "val_check_interval": 1.0},
    ),
    "a rate by a metric at each step": (
        "ScheduledToy",
        {"rate": "plateau step"},
        {"val_check_interval": 1, "check_val_every_n_epoch": 1, "max_steps": 9},
    ),
    "steps of its own": ("Manual", {}, {"max_steps": 7}),
    "two optimizers, by steps": ("Adversarial", {}, {}),
    "two optimizers, by epochs": ("Adversarial", {}, {**EPOCHS, "max_epochs": 2, "val_check_interval": 3}),
}


FEW = {
    "accumulating across validations",
    "a rate by a metric at each step",
    "two optimizers, by epochs",
}
"""Those of them that are tried whenever tests are run."""


def batches(run: LightningRun) -> int:
    return int(run.trainer.fit_loop.epoch_loop.batch_progress.total.ready)


def same(value: Any, other_value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return torch.equal(value, other_value)
    if isinstance(value, dict):
        return value.keys() == other_value.keys() and all(same(value[key], other_value[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(value) == len(other_value) and all(map(same, value, other_value))
    return bool(value == other_value)


def full_state(run: LightningRun, finished: Finished) -> dict[str, Any]:
    """All that a run leaves behind."""
    trainer = run.trainer
    return {
        "weights": run.module.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "rates": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "callbacks": {type(callback).__name__: callback.state_dict() for callback in trainer.callbacks},
        "counters": (trainer.global_step, trainer.current_epoch, batches(run)),
        "logged at": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "reports": finished.reports,
        "measurements": finished.measurements,
        "metrics": finished.metrics,
    }


def assert_exact_from_every_checkpoint(request: RunRequest, listener: Any, stride: int = 1) -> list[int]:
    """Resume from checkpoints all over a run, and return the batches behind which a run could write one."""
    evaluations = [Evaluation(name="test", on="test", at="current")]
    request = dataclasses.replace(request, evaluations=evaluations)
    undisturbed = LightningRun(dataclasses.replace(request, checkpoints=None), listener())
    expected = full_state(undisturbed, undisturbed.execute())
    channel = listener()
    run = LightningRun(dataclasses.replace(request, checkpoint_every=0.0), channel)
    behind: list[int] = []
    send = channel.send
    channel.send = lambda message: (
        behind.append(batches(run)) if isinstance(message, CheckpointSaved) else 0,
        send(message),
    )
    assert same(full_state(run, run.execute()), expected)
    for saved in channel.saved[::stride]:
        resumed_channel = listener()
        resumed_run = LightningRun(dataclasses.replace(request, attempt=2, resume=[saved]), resumed_channel)
        resumed_state = full_state(resumed_run, resumed_run.execute())
        assert resumed_channel.messages_of(Started)[0].step == saved.step
        assert [name for name in expected if not same(resumed_state[name], expected[name])] == [], saved.step
    return behind


@pytest.mark.parametrize("trainer", [long_but(name, FEW, options) for name, options in TRAINERS.items()])
def test_every_checkpoint_is_exact_however_a_training_is_divided(
    request_for: Any, listener: Any, tmp_path: Path, trainer: dict[str, Any]
) -> None:
    request = request_for(trainer=trainer, parameters=HOT, checkpoints=str(tmp_path))
    behind = assert_exact_from_every_checkpoint(request, listener)
    wait = max(after - before for before, after in zip([0, *behind], behind, strict=False))
    # the end of an epoch is passed over, and so is a batch whose gradient is not applied yet
    assert wait <= 2 * trainer.get("accumulate_grad_batches", 1)


@pytest.mark.parametrize(
    ("module", "init", "trainer"), [long_but(name, FEW, *case) for name, case in MODULES.items()]
)
def test_every_checkpoint_is_exact_whatever_the_module_goes_by(
    request_for: Any,
    listener: Any,
    tmp_path: Path,
    module: str,
    init: dict[str, Any],
    trainer: dict[str, Any],
) -> None:
    request = request_for(module, init=init, trainer=trainer, parameters=HOT, checkpoints=str(tmp_path))
    assert assert_exact_from_every_checkpoint(request, listener, stride=3)


def test_every_checkpoint_is_exact_for_a_stream_that_knows_its_position(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    options = {"data_class": "StreamData", "trainer": {"max_steps": 12}}
    request = request_for(parameters=HOT, checkpoints=str(tmp_path), **options)
    assert assert_exact_from_every_checkpoint(request, listener, stride=2)


@pytest.mark.parametrize(
    "trainer", [{}, TRAINERS["accumulating across validations"]], ids=["plain", "accumulating"]
)
def test_a_run_that_is_told_to_leave_at_any_batch_is_gone_on_with_exactly(
    request_for: Any, listener: Any, tmp_path: Path, trainer: dict[str, Any]
) -> None:
    request = request_for(trainer=trainer, parameters=HOT)
    reference_run = LightningRun(request, listener())
    expected = full_state(reference_run, reference_run.execute())
    # the first one, at a validation, at the end of an epoch, and one that is none of them
    for batch in (1, 4, 10, 17):
        keep = dataclasses.replace(request, checkpoints=str(tmp_path / str(batch)), checkpoint_every=3600.0)
        channel = listener(stop_at=0, keep=True)
        leaving = LightningRun(keep, channel)
        stop = channel.find_stop
        channel.find_stop = lambda r, run=leaving, ask=stop, at=batch: ask(r) if batches(run) >= at else None
        finished = leaving.execute()
        (saved,) = channel.saved
        assert (finished.state, finished.step) == ("stopped", saved.step)
        assert 0 <= batches(leaving) - batch <= trainer.get("accumulate_grad_batches", 1)
        resumed_run = LightningRun(dataclasses.replace(keep, attempt=2, resume=[saved]), listener())
        assert same(full_state(resumed_run, resumed_run.execute()), expected)


def steps_kept(request: RunRequest, channel: Any) -> list[int]:
    finished = LightningRun(request, channel).execute()
    assert finished.checkpoint_seconds > 0
    assert finished.checkpoint_seconds < finished.seconds
    return [message.saved.step for message in channel.messages_of(CheckpointSaved)]


def test_by_default_a_checkpoint_is_written_at_every_validation_but_the_last(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    channel = listener()
    assert steps_kept(request_for(checkpoints=str(tmp_path)), channel) == [4, 8, 12, 16, 20]
    messages = [message for message in channel.received if not isinstance(message, Progress | Started)]
    # what is in the checkpoint is known to the agent before it
    assert [type(message) for message in messages] == [Report, CheckpointSaved] * 5 + [Report]


def test_by_default_checkpoints_are_five_minutes_apart_where_validations_are_rare(
    request_for: Any, listener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a clock by which a batch takes two minutes
    trained: list[LightningRun] = []
    clock = "tempopt.training.ranks.time.monotonic"
    monkeypatch.setattr(clock, lambda: 120.0 * batches(trained[0]) if trained else 0.0)
    channel = listener()
    run = LightningRun(request_for(checkpoints=str(tmp_path), trainer={"val_check_interval": 12}), channel)
    trained.append(run)
    run.execute()
    # not behind 24, the end
    assert [message.saved.step for message in channel.messages_of(CheckpointSaved)] == [
        3,
        6,
        9,
        12,
        15,
        18,
        21,
    ]


def test_with_seconds_of_ones_own_validations_write_nothing_by_themselves(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    channel = listener()
    request = request_for(checkpoints=str(tmp_path), checkpoint_every=3600.0)
    LightningRun(request, channel).execute()
    assert channel.messages_of(CheckpointSaved) == []


def test_a_validation_within_an_accumulated_gradient_is_kept_after_the_step(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    request = request_for(
        checkpoints=str(tmp_path),
        trainer={"accumulate_grad_batches": 3, "max_steps": 7, "val_check_interval": 5},
    )
    # validations behind batches 5, 10 (where an epoch, and so a gradient, ends), 15 and 20
    assert steps_kept(request, listener()) == [2, 4, 6]


def test_a_run_on_a_stream_that_does_not_know_its_position_begins_again_and_says_so(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    request = request_for(checkpoints=str(tmp_path), data_class="StreamData", data={"positioned": False})
    channel, restarted_channel = listener(stop_at=6, keep=True), listener()
    with pytest.warns(UserWarning, match="do not know their position"):
        finished = LightningRun(request, channel).execute()
    assert (finished.state, finished.step, channel.saved) == ("stopped", 7, [])
    with pytest.warns(UserWarning, match="do not know their position"):
        LightningRun(dataclasses.replace(request, attempt=2), restarted_channel).execute()
    (started,) = restarted_channel.messages_of(Started)
    assert started.step == 0
    (note,) = started.notes
    assert "starts again from its first step" in note

"""What tests of trainings have in common: a quiet Trainer, checkpoints, equal weights, interrupted runs."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn

from tempopt.training.messages import Finished, RunRequest, Started
from tempopt.training.run import LightningRun
from tests.training_fixtures import Listener


def quiet_trainer(*callbacks: L.Callback, **options: Any) -> L.Trainer:
    """Return a Trainer on the CPU that shows and writes nothing by itself."""
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        **options,
    }
    return L.Trainer(callbacks=list(callbacks), **settings)


class SaveAt(L.Callback):
    """Writes a checkpoint after a step.

    Args:
        step: The step.
        path: Where.
        options: Further arguments of ``Trainer.save_checkpoint``.
    """

    def __init__(self, step: int, path: str | Path, **options: Any) -> None:
        self.step, self.path, self.options = step, path, options

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path, **self.options)


def assert_same_state(module: nn.Module, other_module: nn.Module) -> None:
    """Require that two modules have the same parameters and buffers to the last bit."""
    state, other_state = module.state_dict(), other_module.state_dict()
    assert state.keys() == other_state.keys()
    assert [name for name, value in state.items() if not torch.equal(value, other_state[name])] == []


def check_resume(
    request: RunRequest, folder: Path, *, die_at: int = 10, interrupted: Listener | None = None
) -> tuple[LightningRun, Finished, LightningRun]:
    """Interrupt a run, resume it, and require that it ends as one that was left alone.

    Args:
        request: The run.
        folder: Where its checkpoints go.
        die_at: The step that it is killed at.
        interrupted: A channel that interrupts it otherwise.

    Returns:
        The run that was left alone, its result, and the run that was resumed.
    """
    request = dataclasses.replace(request, checkpoints=str(folder))
    channel, resumed_channel = interrupted or Listener(die_at=die_at), Listener()
    reference_run = LightningRun(request, Listener())
    reference_result = reference_run.execute()
    with contextlib.suppress(SystemExit):
        assert LightningRun(request, channel).execute().state == "stopped"
    assert bool(channel.saved) == (request.program.not_resumed is None)
    resumed_request = dataclasses.replace(request, attempt=2, resume=channel.saved)
    resumed_run = LightningRun(resumed_request, resumed_channel)
    resumed_result = resumed_run.execute()
    (started,) = resumed_channel.messages_of(Started)
    assert started.step == (channel.saved[0].step if channel.saved else 0)
    for name in ("state", "step", "reports", "measurements", "metrics", "curves", "maps"):
        assert getattr(resumed_result, name) == getattr(reference_result, name), name
    assert_same_state(resumed_run.module, reference_run.module)
    return reference_run, reference_result, resumed_run

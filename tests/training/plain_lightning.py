"""What tests of trainings without a study have in common: a quiet Trainer, checkpoints, equal weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn


def quiet_trainer(*callbacks: L.Callback, **options: Any) -> L.Trainer:
    """Return a Trainer on the CPU that shows and writes nothing by itself."""
    settings = {
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

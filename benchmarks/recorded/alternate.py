"""A callback that has every second validation of a training run under the temperature of the moment."""

from __future__ import annotations

import lightning as L

from tempopt.training.callbacks import TemperatureCallback


class Alternate(L.Callback):
    """Validate under the plan's last temperature and under that of the moment by turns.

    The last validation, and every second one before it, is under the last temperature. Training is not
    touched by it.

    Args:
        every: Optimizer steps between validations; divides the number of steps.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        num_remaining = (trainer.max_steps - trainer.global_step) // self.every
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            # behind this one in the order of callbacks
            if isinstance(callback, TemperatureCallback):
                callback.validate_at = "current" if num_remaining % 2 else "final"

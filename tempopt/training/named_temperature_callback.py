"""What moves a named temperature over training, and notices a module that moves its number itself."""

from __future__ import annotations

from typing import Any

import lightning as L
from torch import Tensor

from tempopt.attention.attach.values import ValueAttachment
from tempopt.training.callbacks import TemperatureCallback

# To read a tensor of a GPU waits for all that it has to do.
_READ_ON_GPU = 2


class ValueTemperatureCallback(TemperatureCallback):
    """Move one number of a module with the optimizer step, and end a training whose own code moves it, too.

    Args:
        attachment: The schedule on the number; None until there is one.
        validate_at: As for :class:`tempopt.training.callbacks.TemperatureCallback`.
        as_found: Whether a number at which nothing is written has to stay as found.
    """

    def __init__(
        self, attachment: ValueAttachment | None = None, *, validate_at: str, as_found: bool = False
    ) -> None:
        super().__init__(validate_at=validate_at, tempered=attachment)
        self.attachment = attachment
        self._as_found = as_found
        self._began = False
        self._batch = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        # a checkpoint that was loaded has brought the number that validation was at
        self._began = False
        self._batch = 0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._began:
            self._require_kept(batch_idx)
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._began, self._batch = True, batch_idx

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        """Look at what the loss was computed with."""
        self._require_kept(self._batch)

    def _require_kept(self, batch: int) -> None:
        attachment = self.attachment
        if attachment is None or not attachment.attached:
            return
        tensor = attachment.tensor
        if tensor is None or tensor.device.type == "cpu" or batch < _READ_ON_GPU:
            attachment.require_kept(as_found=self._as_found)

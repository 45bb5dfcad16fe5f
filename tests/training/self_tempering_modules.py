"""Contrastive toys whose own code has something to say about the temperature of their loss."""

from __future__ import annotations

from typing import Any

import torch
from contrast_modules import Contrast
from torch import Tensor, nn


class InHook(Contrast):
    """Has a schedule of its own, in a hook before each batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.criterion.temperature = 0.5 / (1 + self.global_step)


class InStep(Contrast):
    """Has one in the step itself, and keeps it in the buffer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reads="tau", **kwargs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.criterion.tau.fill_(0.5 * 0.9**self.global_step)
        return super().training_step(batch, batch_idx)


class ByEpoch(Contrast):
    """Has one over epochs, which begins at what is found."""

    def on_train_epoch_start(self) -> None:
        self.criterion.temperature = 0.5 - 0.1 * self.current_epoch


class ClampedContrast(Contrast):
    """Learns the logarithm of the inverse, which it clamps after each step as CLIP does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reads="logit_scale", **kwargs)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            # temperatures from 0.1 to 1
            self.criterion.logit_scale.clamp_(0.0, 2.302585)


class ReadOnce(Contrast):
    """Has copied its temperature when it was made."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = 0.5
        self.criterion.temperature = self.temperature


class RoundingContrast(Contrast):
    """Adds its temperature to what it logs, and takes it off again: that moves by rounding alone."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        tau = self.criterion.temperature
        similarity_NN = self.similarity(batch) + tau - tau
        self.log("val_gap", similarity_NN.diagonal().mean() - similarity_NN.mean())


class ValidationContrast(Contrast):
    """Reads a temperature in validation alone."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.calibration = nn.Module()
        self.calibration.temperature = 2.0

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        similarity_NN = self.similarity(batch)
        own_N = torch.arange(len(similarity_NN))
        loss = nn.functional.cross_entropy(similarity_NN / self.calibration.temperature, own_N)
        self.log("val_gap", loss)


class Twice(Contrast):
    """Has one criterion under two names."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.same = self.criterion

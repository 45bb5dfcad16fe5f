"""A LightningModule around a family of transformers; imports nothing of tempopt, so that it loads without."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.attach_models import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}


class FamilyModule(L.LightningModule):
    """A tiny model, whose attention is far from uniform, that is drawn towards small outputs."""

    def __init__(self, family: str, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.family = BY_NAME[family]
        self.model = self.family.make()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                fan = max(parameter[0].numel(), 1) if parameter.ndim > 1 else 100
                parameter.add_(noise * 1.5 / fan**0.5 if parameter.ndim > 1 else 0.1 * noise)

    def outputs(self) -> Tensor:
        """Return what the model makes of a fixed batch."""
        return self.family.run(self.model)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.outputs().square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.outputs().square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])

    def train_dataloader(self) -> Any:
        return DataLoader(range(8))

    def val_dataloader(self) -> Any:
        return DataLoader(range(1))

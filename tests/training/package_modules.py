"""One module and its data, written twice: for lightning, and for pytorch_lightning."""

from __future__ import annotations

from typing import Any

import lightning.pytorch
import pytorch_lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def define(package: Any) -> tuple[Any, Any]:
    class Attender(package.LightningModule):
        """One attention layer, dropout and two losses that are logged."""

        def __init__(self, lr: float = 0.01) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.dropout = nn.Dropout(0.2)
            self.head = nn.Linear(8, 3)

        def forward(self, items: Any) -> Any:
            attended, _ = self.attention(items, items, items, need_weights=False)
            return self.head(self.dropout(attended.mean(1)))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])

    class AttenderData(package.LightningDataModule):
        """Random items whose class is a part of them; shuffled."""

        def items(self, seed: int) -> Any:
            items = torch.randn(60, 4, 8, generator=torch.Generator().manual_seed(seed))
            return TensorDataset(3 * items, items[:, 0, :3].argmax(-1))

        def train_dataloader(self) -> Any:
            return DataLoader(self.items(1), batch_size=6, shuffle=True)

        def val_dataloader(self) -> Any:
            return DataLoader(self.items(2), batch_size=60)

        def test_dataloader(self) -> Any:
            return DataLoader(self.items(3), batch_size=60)

    return Attender, AttenderData


Attender, AttenderData = define(lightning.pytorch)
_Attending, _AttenderData = define(pytorch_lightning)


class PLAttender(_Attending):
    """The module on pytorch_lightning."""


class PLAttenderData(_AttenderData):
    """The data on pytorch_lightning."""

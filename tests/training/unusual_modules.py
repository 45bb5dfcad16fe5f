"""Trainings that do what few do: other weights at the end, metrics that are logged now and then."""

from __future__ import annotations

import copy
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Words(Dataset[tuple[Tensor, Tensor]]):
    """Items of five tokens; the class is that of the largest mark."""

    def __init__(self, size: int = 48, seed: int = 1) -> None:
        self.x = torch.randn(size, 5, 8, generator=torch.Generator().manual_seed(seed))
        self.y = self.x[:, :, 0].argmax(1) % 3

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class WordData(L.LightningDataModule):
    """Four batches an epoch, in another order in each."""

    def train_dataloader(self) -> Any:
        return DataLoader(Words(), batch_size=12, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Words(24, 3), batch_size=24)

    def test_dataloader(self) -> Any:
        return DataLoader(Words(24, 4), batch_size=24)


class Net(L.LightningModule):
    """A stock encoder and a head, both of which train."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.backbone = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x).mean(1))
        return logits

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.lr)


class BestRestoringNet(Net):
    """Ends with the weights of its first epoch."""

    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 0:
            self.first_weights = copy.deepcopy(self.state_dict())

    def on_train_end(self) -> None:
        self.load_state_dict(self.first_weights)


class HeadZeroing(L.Callback):
    """Sets the head to zero when the fit has ended, past the version counters of its tensors."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for param in pl_module.head.parameters():
            param.data.zero_()


class SparseNet(Net):
    """Logs its metric at every second validation, from the first or the second on."""

    def __init__(self, first: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = 1 - first

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("often", loss)
        if self.count % 2 == 0:
            self.log("val_loss", loss)

    def on_validation_epoch_end(self) -> None:
        self.count += 1


class EpochwiseNet(Net):
    """Logs its metric in even epochs of a training alone."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("often", loss)
        if self.current_epoch % 2 == 0:
            self.log("val_loss", loss)


class HugeMetricNet(Net):
    """Logs a metric with which nothing could be computed."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", torch.tensor(1e120, dtype=torch.float64))


class NormedNet(Net):
    """Has a batch norm, for whose statistics averaging trains another epoch, without steps."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = nn.BatchNorm1d(5)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self(self.norm(batch[0])), batch[1])


class SkippingNet(Net):
    """Skips what is left of its epochs, from a batch on."""

    def __init__(self, batch: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == self.batch and self.current_epoch else None


class ShrinkingData(WordData):
    """Gives less from epoch to epoch, as it is loaded again for each."""

    def train_dataloader(self) -> Any:
        epoch = self.trainer.current_epoch if self.trainer is not None else 0
        return DataLoader(Words(48 - 12 * min(epoch, 2)), batch_size=12, shuffle=True)


class SkippingFirstNet(Net):
    """Skips what is left of each epoch behind its first batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx else None

"""Small modules and data that tests train by class path: every kind of randomness that a run may have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from tempopt import TemperedModule


class Augmented(Dataset[tuple[Tensor, int]]):
    """Items with noise from each of the three generators."""

    def __init__(self, size: int = 100) -> None:
        self.items = torch.randn(size, 4, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = 0.1 * torch.randn(4, 8) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return self.items[index] + noise, index % 3


class ToyData(L.LightningDataModule):
    """Shuffled, augmented training data; a split that is drawn in setup."""

    def __init__(self, workers: int = 0, test: bool = True) -> None:
        super().__init__()
        self.workers = workers
        self.test = test

    def setup(self, stage: str) -> None:
        self.parts = torch.utils.data.random_split(Augmented(), [60, 20, 20])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            self.parts[0],
            batch_size=6,
            shuffle=True,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts[1], batch_size=20)

    def test_dataloader(self) -> Any:
        return DataLoader(self.parts[2], batch_size=20) if self.test else None


class Toy(TemperedModule):
    """One attention layer with dropout; diverges at a step, or raises, if it is told to."""

    def __init__(
        self,
        lr: float = 0.01,
        diverge_at: int = -1,
        raise_at: int = -1,
        logs: str = "val_loss",
        attends: bool = True,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=1, **temperature)
        self.lr = lr
        self.diverge_at = diverge_at
        self.raise_at = raise_at
        self.logs = logs
        self.attends = attends
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, 3)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, label = batch
        if self.attends:
            q, k = self.q_proj(x)[:, None], self.k_proj(x)[:, None]
            x = self.attend(q, k, x[:, None], layer=0)[:, 0]
        return F.cross_entropy(self.head(self.dropout(x.mean(1))), label)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.raise_at:
            raise RuntimeError("the toy breaks")
        loss = self.loss(batch)
        return loss * float("nan") if self.global_step == self.diverge_at else loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log(self.logs, self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Scheduled(Toy):
    """Learns at a rate that goes by epochs, or by a metric at each epoch or step; averages its weights."""

    def __init__(self, rate: str = "epoch", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.register_buffer("mean", torch.zeros(3, 8))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.mean.lerp_(self.head.weight.detach(), 0.1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        if self.rate == "epoch":
            return {
                "optimizer": optimizer,
                "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
            }
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1.0)
        by = {"scheduler": plateau, "monitor": "val_loss", "interval": self.rate.removeprefix("plateau ")}
        return {"optimizer": optimizer, "lr_scheduler": by}


class Manual(Toy):
    """Steps by itself, at every third batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.manual_backward(self.loss(batch))
        if batch_idx % 3 == 2:
            self.optimizers().step()
            self.optimizers().zero_grad()


class Positioned:
    """Batches without a length, from a loader that knows its position."""

    def __init__(self, items: Any) -> None:
        self.items = items
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.items):
            first, self.position = self.position, self.position + 6
            yield default_collate([self.items[index] for index in range(first, self.position)])
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class StreamData(ToyData):
    """Training data without a length, in the same order in every epoch."""

    def __init__(self, positioned: bool = True) -> None:
        super().__init__()
        self.positioned = positioned

    def train_dataloader(self) -> Any:
        return (
            Positioned(self.parts[0]) if self.positioned else DataLoader(Unsized(self.parts[0]), batch_size=6)
        )


class Unsized(IterableDataset[Any]):
    """The items of a dataset, one after another."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return (self.items[index] for index in range(len(self.items)))


class Stock(L.LightningModule):
    """A stock transformer that knows nothing of temperatures."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.head(self.encoder(batch[0]).mean(1)), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Normed(Stock):
    """Attention that normalises its queries after projecting them, so that scaled rows change nothing."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__(lr)
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, label = batch
        q, k = F.normalize(self.q_proj(x), dim=-1), F.normalize(self.k_proj(x), dim=-1)
        return F.cross_entropy(self.head(F.scaled_dot_product_attention(q, k, x).mean(1)), label)


class SplitsAtOnce(ToyData):
    """Splits in its constructor, where many people do."""

    def __init__(self, workers: int = 0, root: Path | None = None) -> None:
        super().__init__(workers)
        self.save_hyperparameters()
        self.parts = torch.utils.data.random_split(Augmented(), [60, 20, 20])

    def setup(self, stage: str) -> None:
        pass


class OwnCallbacks(Toy):
    """Brings callbacks of its own, and hyperparameters that are no plain data."""

    def __init__(self, root: Path = Path("somewhere"), **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def configure_callbacks(self) -> list[L.Callback]:
        return [EarlyStopping("val_loss", patience=1, min_delta=10.0)]

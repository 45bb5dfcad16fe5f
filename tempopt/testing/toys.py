"""Module and data for the tests of launchers, which record the environment of their worker."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tempopt.training.module import TemperedModule

WORDS = "TEMPOPT_TESTING_"
"""Prefixes of the environment variables that are recorded."""
PROBE = f"{WORDS}PROBE"
"""Variable with the path of a file into which a model writes its environment."""
PACE = f"{WORDS}PACE"
"""Variable with the minimal seconds of a training step; it does not change results."""


class ToyData(L.LightningDataModule):
    """Random items with a class each; the same in every process."""

    def setup(self, stage: str) -> None:
        generator = torch.Generator().manual_seed(1)
        items = torch.randn(60, 4, 8, generator=generator)
        self.items = TensorDataset(items, items[:, 0, :3].argmax(-1))

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.items, batch_size=6, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.items, batch_size=30)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.items, batch_size=20)


class Toy(TemperedModule):
    """One attention layer."""

    def __init__(self, **temperature: Any) -> None:
        super().__init__(num_layers=1, **temperature)
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        if probe_file := os.environ.get(PROBE):
            _write(Path(probe_file))

    def _loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x_BNM, label_B = batch
        q_B1NM, k_B1NM = self.q_proj(x_BNM)[:, None], self.k_proj(x_BNM)[:, None]
        seen_BNM = self.attend(q_B1NM, k_B1NM, x_BNM[:, None], layer=0)[:, 0]
        return F.cross_entropy(self.head(seen_BNM.mean(1)), label_B)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        time.sleep(float(os.environ.get(PACE, 0)))
        return self._loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def _write(path: Path) -> None:
    probe = {
        "folder": str(Path.cwd()),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(WORDS)},
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
    # written atomically, since a test waits for it
    writing = path.with_name(f"{path.name}.{os.getpid()}")
    writing.write_text(json.dumps(probe), encoding="utf-8")
    writing.replace(path)

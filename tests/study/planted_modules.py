"""A classifier whose best temperatures can be planted: it labels a point by the labels of its neighbours.

Points lie on a circle, of which each class has a sector. A query attends over labelled points; as labels
are noisy, attention that is too cold trusts a few of them and attention that is too hot mixes the
classes, so the validation loss has one minimum over the temperature, inside.

Shapes: B queries, N points, M model dimension, C classes.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tempopt import TemperedModule

NUM_CLASSES = 6
WRONG_LABELS = 0.4
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(num_queries: int, num_points: int, *, seed: int) -> Batch:
    """Return queries (B, 2), points (B, N, 2), noisy one-hot labels (B, N, C) and the queries' labels (B)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_queries, 1 + num_points)
    turn_BN = torch.rand(shape, generator=generator)
    wrong_BN = torch.rand(shape, generator=generator) < WRONG_LABELS
    noise_BN = torch.randint(NUM_CLASSES, shape, generator=generator)
    label_BN = torch.where(wrong_BN, noise_BN, (NUM_CLASSES * turn_BN).long())
    angle_BN = 2 * torch.pi * turn_BN
    place_BN2 = torch.stack([angle_BN.cos(), angle_BN.sin()], dim=-1)
    return place_BN2[:, 0], place_BN2[:, 1:], F.one_hot(label_BN[:, 1:], NUM_CLASSES).float(), label_BN[:, 0]


class PlantedData(L.LightningDataModule):
    """Trains on 16 points and validates on 64, always the same ones."""

    def train_dataloader(self) -> DataLoader[Any]:
        batches: Any = [draw(64, 16, seed=1 + number) for number in range(32)]
        return DataLoader(batches, batch_size=None)

    def val_dataloader(self) -> DataLoader[Any]:
        batches: Any = [draw(512, 64, seed=0)]
        return DataLoader(batches, batch_size=None)


class Planted(TemperedModule):
    """One attention head over labelled points and a linear layer on what it retrieves."""

    def __init__(self, output_temperature: float = 1.0, **temperature: Any) -> None:
        super().__init__(num_layers=1, **temperature)
        self.output_temperature = output_temperature
        self.q_proj = nn.Linear(2, 8)
        self.k_proj = nn.Linear(2, 8)
        self.classify = nn.Linear(NUM_CLASSES, NUM_CLASSES)

    def forward(self, query_B2: Tensor, points_BN2: Tensor, labels_BNC: Tensor) -> Tensor:
        """Return class logits (B, C), not divided by the output temperature."""
        q_B11M, k_B1NM = self.q_proj(query_B2)[:, None, None], self.k_proj(points_BN2)[:, None]
        retrieved_B11C = self.attend(q_B11M, k_B1NM, labels_BNC[:, None], layer=0)
        logits_BC: Tensor = self.classify(retrieved_B11C[:, 0, 0])
        return logits_BC

    def _loss(self, batch: Batch) -> Tensor:
        *given, label_B = batch
        return F.cross_entropy(self(*given) / self.output_temperature, label_B)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._loss(batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.03)

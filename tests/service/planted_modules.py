"""Modules whose best temperatures can be planted: a classifier that looks at neighbours, and a student.

Points lie on a circle, of which each class has a sector. A query of the classifier attends over labelled
points; as labels are noisy, attention that is too cold trusts a few of them and attention that is too hot
mixes the classes, so the validation loss has one minimum over the temperature, inside.

The student learns from a teacher that is too sure of itself. Divided by the temperature τ its logits become
the teacher's, so they end at τ times those, and are right where τ is the factor by which the teacher is sure.

Shapes: B queries or inputs, N points, M model dimension, C classes.
"""

from __future__ import annotations

import math
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


class PlantedModule(TemperedModule):
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
        *inputs, label_B = batch
        return F.cross_entropy(self(*inputs) / self.output_temperature, label_B)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._loss(batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.03)


TOO_SURE = 0.4
"""What makes the teacher's logits right when they are multiplied by it: the student's best temperature."""
AS_FOUND = 1.0
NUM_STEPS = 120
"""Length of a training of the student, at whose end its learning rate is 0."""
_STORED_VALUES = {"identity": AS_FOUND, "inverse": 1 / AS_FOUND, "log_inverse": -math.log(AS_FOUND)}


class Teaching(L.LightningDataModule):
    """Inputs with the logits of the teacher; 32 batches to train on, and others to validate and to test."""

    def loader(self, num_batches: int, *, seed: int, shuffle: bool = False) -> DataLoader[Any]:
        """Return batches of 16 inputs (B, 4) with logits (B, C)."""
        teacher_CE = torch.randn(NUM_CLASSES, 4, generator=torch.Generator().manual_seed(0))
        inputs_BE = torch.randn(16 * num_batches, 4, generator=torch.Generator().manual_seed(seed))
        pairs: Any = list(zip(inputs_BE, inputs_BE @ teacher_CE.T, strict=True))
        return DataLoader(pairs, batch_size=16, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader(32, seed=1, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader(8, seed=2)

    def test_dataloader(self) -> DataLoader[Any]:
        return self.loader(8, seed=3)


class Student(L.LightningModule):
    """A linear classifier; what its loss divides by is its temperature over a divisor.

    Args:
        transform: How it keeps the temperature; 1/τ is in a buffer, ln(1/τ) in a parameter, as CLIP has it.
        divisor: By what the temperature is divided before it is used.
    """

    def __init__(self, transform: str = "identity", divisor: float = 1.0) -> None:
        super().__init__()
        self.transform, self.divisor = transform, divisor
        self.student = nn.Linear(4, NUM_CLASSES, bias=False)
        stored_tau: Any = _STORED_VALUES[transform]
        if transform == "inverse":
            self.register_buffer("stored_tau", torch.tensor(stored_tau))
        elif transform == "log_inverse":
            self.stored_tau = nn.Parameter(torch.tensor(stored_tau))
        else:
            self.stored_tau = stored_tau

    def tau(self) -> Any:
        """Return what the loss divides the logits by."""
        if self.transform == "log_inverse":
            return (-self.stored_tau).exp() / self.divisor
        return (1 / self.stored_tau if self.transform == "inverse" else self.stored_tau) / self.divisor

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs_BE, teacher_BC = batch
        return F.cross_entropy(self.student(inputs_BE) / self.tau(), teacher_BC.softmax(-1))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        inputs_BE, teacher_BC = batch
        right_BC = (TOO_SURE * teacher_BC).log_softmax(-1)
        self.log("val_error", (self.student(inputs_BE).log_softmax(-1) - right_BC).square().mean().sqrt())

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

"""Small mixtures of experts: the outputs of a router's gate and of a classifier's head are logits."""

from __future__ import annotations

import copy
from typing import Any

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Experts(nn.Module):
    """Adds up what the two experts of the largest logits return, weighed by the softmax of these."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x_NE: Tensor) -> Tensor:
        """Return the mixture; every expert computes, so that each has a gradient."""
        logits_NX = self.gate(x_NE)
        top_N2, which_N2 = logits_NX.topk(2, dim=-1)
        weights_NX = torch.zeros_like(logits_NX).scatter(-1, which_N2, top_N2.softmax(-1))
        outputs_NXE = torch.stack([expert(x_NE) for expert in self.experts], dim=1)
        return x_NE + (weights_NX[..., None] * outputs_NXE.relu()).sum(1)


class Routed(L.LightningModule):
    """A classifier behind experts, with dropout so that the random numbers of a training count."""

    def __init__(self, lr: float = 0.01, features: int = 32, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.body = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Dropout(0.2))
        self.mixed = Experts(width)
        self.head = nn.Linear(width, classes)
        self.seen: list[tuple[float, float]] = []
        self.validated: list[tuple[float, float]] = []

    @property
    def in_force(self) -> tuple[float, float]:
        """The temperatures of gate and head: what is kept in ratio to what is read."""
        found = []
        for each in (self.mixed.gate, self.head):
            kept: Any = each._parameters["weight"]
            found.append(float(kept.detach().flatten()[0] / each.weight.detach().flatten()[0]))
        return found[0], found[1]

    def forward(self, x_NTE: Tensor) -> Tensor:
        """Return the logits of the classes."""
        logits: Tensor = self.head(self.mixed(self.body(x_NTE.flatten(1))))
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.seen.append(self.in_force)
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validated.append(self.in_force)
        logits = self(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(-1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Follower(Routed):
    """Validates a copy of its head that it makes when training begins."""

    def on_fit_start(self) -> None:
        """Copy the head."""
        self.follower = copy.deepcopy(self.head)


class ByHand(Routed):
    """Divides weight and bias of gate and head by hand, by temperatures that go evenly from 1 to these.

    They are these all the time where the training has no steps. Validation is at the last.
    """

    def __init__(self, gate: float, head: float, steps: int = 24) -> None:
        super().__init__()
        self.last = (gate, head)
        self.steps = steps

    @property
    def inverses(self) -> tuple[Any, Any]:
        """1/τ of gate and head."""
        reached = self.global_step / (self.steps - 1) if self.training and self.steps else 1.0
        gate, head = (1.0 / (1.0 + (last - 1.0) * reached) for last in self.last)
        return gate, head

    def forward(self, x_NTE: Tensor) -> Tensor:
        """Return the logits of the classes."""
        divided = {
            f"{name}.{key}": value * inverse
            for name, inverse in zip(("mixed.gate", "head"), self.inverses, strict=True)
            for key, value in self.get_submodule(name).named_parameters()
        }
        with torch.nn.utils.stateless._reparametrize_module(self, divided):
            return super().forward(x_NTE)


class LearnsByHand(ByHand):
    """Learns the two temperatures as parameters of its own."""

    def __init__(self, gate: float, head: float) -> None:
        super().__init__(gate, head)
        self.logs = nn.Parameter(torch.tensor([gate, head], dtype=torch.float64).log())

    @property
    def inverses(self) -> tuple[Any, Any]:
        """1/τ of gate and head."""
        gate, head = (-self.logs).exp().float()
        return gate, head

    def configure_optimizers(self) -> Any:
        others = [value for name, value in self.named_parameters() if name != "logs"]
        return torch.optim.AdamW(
            [{"params": others}, {"params": [self.logs], "weight_decay": 0.0}], lr=self.lr
        )


class Normalised(Routed):
    """Normalises what its head returns, which undoes a temperature."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.norm = nn.LayerNorm(3)

    def forward(self, x_NTE: Tensor) -> Tensor:
        """Return the logits of the classes."""
        logits: Tensor = self.norm(super().forward(x_NTE))
        return logits


class Tied(Routed):
    """Shares the weight of its head with an embedding."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.embedding = nn.Embedding(3, 8)
        self.embedding.weight = self.head.weight


class Calibrated(Routed):
    """Has a head of which training knows nothing."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.calibration = nn.Linear(3, 3)

    def forward(self, x_NTE: Tensor) -> Tensor:
        """Return the logits of the classes."""
        logits = super().forward(x_NTE)
        return logits if self.training else self.calibration(logits)


class Attending(Routed):
    """Attention before the experts."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x_NTE: Tensor) -> Tensor:
        """Return the logits of the classes."""
        q, k, v = (each(x_NTE)[:, None] for each in (self.q_proj, self.k_proj, self.v_proj))
        logits: Tensor = super().forward(F.scaled_dot_product_attention(q, k, v)[:, 0])
        return logits


class RoutedDigits(Routed):
    """The classifier for digits."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__(lr=lr, features=64, width=16, classes=10)
        self.hparams.clear()
        self.save_hyperparameters()


class Digits(L.LightningDataModule):
    """sklearn's digits under noise: 600 to train with, 300 to validate, 897 to test."""

    def setup(self, stage: str) -> None:
        drawn = torch.Generator().manual_seed(0)
        images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
        images += 0.4 * torch.randn(images.shape, generator=drawn)
        labels = torch.tensor(load_digits().target)
        order = torch.randperm(len(labels), generator=drawn)
        parts = order[:600], order[600:900], order[900:]
        self.parts = [TensorDataset(images[each], labels[each]) for each in parts]

    def train_dataloader(self) -> Any:
        return DataLoader(self.parts[0], batch_size=50, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.parts[1], batch_size=300)

    def test_dataloader(self) -> Any:
        return DataLoader(self.parts[2], batch_size=897)

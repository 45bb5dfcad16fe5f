"""Attention in two layers, which need not be in the order of their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tempopt import TemperedModule


class Layered(TemperedModule):
    """Two layers of attention: the second may normalise its query, or come before the first."""

    def __init__(self, second: str = "as it is", **temperature: Any) -> None:
        super().__init__(num_layers=2, **temperature)
        self.second = second
        self.layers_of = nn.ModuleList(
            nn.ModuleDict({f"{n}_proj": nn.Linear(8, 8) for n in "qk"}) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, label = batch
        for layer, each in enumerate(reversed(self.layers_of) if self.second == "first" else self.layers_of):
            q, k = each["q_proj"](x), each["k_proj"](x)
            q = F.normalize(q, dim=-1) if layer == 1 and self.second == "normed" else q
            x = x + self.attend(q[:, None], k[:, None], x[:, None], layer=layer)[:, 0]
        return F.cross_entropy(self.head(x.mean(1)), label)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)

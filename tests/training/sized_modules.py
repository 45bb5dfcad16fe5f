"""A toy in several sizes, whose best temperature at each size is planted."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from toy_modules import Toy

SMALL = 4
"""Width up to which a model counts as small."""


class SizedToy(Toy):
    """One attention layer of a width of its own; the loss rises as ln τ leaves its best place.

    Args:
        width: Dimension of its one head.
        small_best: The best temperature of a small model.
        best: The best one of any other.
        middle_best: The best one at the width up to which a model is small; None: as of a small one.
    """

    def __init__(
        self,
        width: int = 8,
        small_best: float = 0.5,
        best: float = 0.5,
        middle_best: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.best_tau = small_best if width <= SMALL else best
        if width == SMALL and middle_best is not None:
            self.best_tau = middle_best
        self.q_proj = nn.Linear(8, width)
        self.k_proj = nn.Linear(8, width)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        off = math.log(self.plan.temperatures(1.0)[0] / self.best_tau)
        self.log("val_loss", self.loss(batch) + 3.0 * off**2)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)

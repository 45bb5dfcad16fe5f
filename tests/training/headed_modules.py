"""A model whose heads do one thing each, by position, or nothing at all."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tempopt import TemperedModule

LENGTH, WIDTH = 32, 8
HEADS = ("previous_token", "first_token", "diagonal", "uniform", "content")


class HeadedData(L.LightningDataModule):
    """Items whose first numbers tell their class."""

    def loader(self, number: int) -> DataLoader[Any]:
        """Return a loader of so many items, always the same."""
        items = torch.randn(number, LENGTH, WIDTH, generator=torch.Generator().manual_seed(number))
        return DataLoader(TensorDataset(items, items[:, 0, :3].argmax(-1)), batch_size=10)

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader(60)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader(20)

    def test_dataloader(self) -> DataLoader[Any]:
        return self.loader(30)


class HeadedModule(TemperedModule):
    """Attention whose logits are planted, plus a little of what it reads; or of small random weights alone.

    Args:
        planted: Whether heads do what :data:`HEADS` says.
        lr: Learning rate of the head of the model; its attention does not learn.
    """

    def __init__(self, planted: bool = True, lr: float = 0.01, **temperature: Any) -> None:
        super().__init__(num_layers=1, **temperature)
        self.lr = lr
        self.q_proj, self.k_proj = nn.Linear(WIDTH, len(HEADS) * 4), nn.Linear(WIDTH, len(HEADS) * 4)
        self.head = nn.Linear(WIDTH, 3)
        logits = torch.zeros(len(HEADS), LENGTH, LENGTH)
        if planted:
            positions = torch.arange(LENGTH)
            logits[0, positions[1:], positions[:-1]] = 8.0
            logits[1, :, 0] = 8.0
            logits[2, positions, positions] = 8.0
            logits[4] = 2.0 * torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(0))
        self.register_buffer("logits", logits)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, label = batch
        count = len(x)
        q, k = (
            0.1 * projection(x).detach().unflatten(-1, (len(HEADS), 4)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj)
        )
        # logits q k + planted, as the product of longer queries and keys
        identity = torch.eye(LENGTH, device=x.device).expand(count, len(HEADS), -1, -1)
        queries = torch.cat([q, self.logits.expand(count, -1, -1, -1)], dim=-1)  # type: ignore[operator]
        keys = torch.cat([k, identity], dim=-1)
        values = x[:, None].expand(-1, len(HEADS), -1, -1)
        output = self.attend(queries, keys, values, layer=0, scale=1.0)
        return F.cross_entropy(self.head(output.mean((1, 2))), label)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.head.parameters(), lr=self.lr)

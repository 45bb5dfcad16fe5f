"""A small module without any randomness but its initial weights, and what it does, written by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tempopt import TemperedModule

STEPS = 6


def batches(seed: int, count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 4, 8, generator=generator), torch.randint(3, (count,), generator=generator)
    )


class Data(L.LightningDataModule):
    """Four steps of six items in a fixed order, by as many processes as make a step."""

    def __init__(self, batch_size: int = 6) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(batches(1, 24), batch_size=self.batch_size)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(batches(2, 20), batch_size=20)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(batches(3, 20), batch_size=20)


class Body(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, width), nn.Linear(8, width)


class Model(TemperedModule):
    """One layer of attention over a body, and a head."""

    def __init__(self, lr: float = 0.5, width: int = 8, classes: int = 3, **temperature: Any) -> None:
        super().__init__(num_layers=1, **temperature)
        self.lr = lr
        self.body = Body(width)
        self.head = nn.Linear(8, classes)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x_BND, label_B = batch
        q, k = self.body.query(x_BND)[:, None], self.body.key(x_BND)[:, None]
        return F.cross_entropy(self.head(self.attend(q, k, x_BND[:, None], layer=0)[:, 0].mean(1)), label_B)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def weights(seed: int = 7, **given: Any) -> dict[str, Tensor]:
    """Return weights that no seed of a run draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return {name: 2.0 * each for name, each in Model(**given).state_dict().items()}


def loss_by_hand(state: Mapping[str, Tensor], data: tuple[Tensor, Tensor], tau: float) -> Tensor:
    """Return the loss of these weights at a temperature, from the definition of attention."""
    x_BND, label_B = data
    q = x_BND @ state["body.query.weight"].T + state["body.query.bias"]
    k = x_BND @ state["body.key.weight"].T + state["body.key.bias"]
    attended = (q @ k.transpose(1, 2) / (math.sqrt(q.shape[-1]) * tau)).softmax(-1) @ x_BND
    logits = attended.mean(1) @ state["head.weight"].T + state["head.bias"]
    return -logits.log_softmax(-1)[torch.arange(len(label_B)), label_B].mean()


def trained_by_hand(
    state: Mapping[str, Tensor], *, lr: float = 0.5, steps: int = STEPS, tau: float = 1.0
) -> dict[str, Tensor]:
    """Return the weights after some steps of SGD with momentum 0.9 from others, in double precision."""
    found = {name: each.double().requires_grad_() for name, each in state.items()}
    moments = {name: torch.zeros_like(each) for name, each in found.items()}
    x, label = batches(1, 24).tensors
    for step in range(steps):
        part = slice(6 * (step % 4), 6 * (step % 4) + 6)
        loss = loss_by_hand(found, (x[part].double(), label[part]), tau)
        for name, gradient in zip(found, torch.autograd.grad(loss, list(found.values())), strict=True):
            moments[name] = 0.9 * moments[name] + gradient
            found[name] = (found[name] - lr * moments[name]).detach().requires_grad_()
    return {name: each.detach() for name, each in found.items()}


def value_by_hand(state: Mapping[str, Tensor], on: str, tau: float) -> float:
    x, label = batches({"validate": 2, "test": 3}[on], 20).tensors
    return float(
        loss_by_hand({name: each.double() for name, each in state.items()}, (x.double(), label), tau)
    )

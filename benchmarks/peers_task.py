"""What peers.py has trained: a module and data that are functions of their arguments alone.

A tool that sets the random generators, or leaves them as they are, changes nothing: initial weights and
data come from generators of their own, their order is fixed, and nothing is drawn in training.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightning_modules.batches import Stored, batches
from lightning_modules.max_retrieval import MaxRetrieval, Sets, draw_sets


class Peer(MaxRetrieval):
    """Max retrieval whose initial weights are the same each time, and whose metric tells one weight apart."""

    def __init__(self, **arguments: Any) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(**arguments)

    def validation_step(self, batch: Sets, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", F.cross_entropy(self(batch), batch.label_B), batch_size=len(batch.label_B))

    def on_validation_epoch_end(self) -> None:
        """Log no accuracies: the loss is the finer measure."""


class PeerData(L.LightningDataModule):
    """Sets that are drawn once and trained on in the same order in every epoch.

    Args:
        num_batches: Batches of an epoch, >= 1.
        batch_size: Sets of a batch, >= 1.
    """

    def __init__(self, num_batches: int = 40, batch_size: int = 64) -> None:
        super().__init__()
        self.num_batches = num_batches
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self._train = self._draw(self.num_batches * self.batch_size, seed=0)
        self._validation = self._draw(512, seed=1)

    def _draw(self, count: int, *, seed: int) -> Stored[Sets]:
        generator = torch.Generator().manual_seed(seed)
        return Stored(draw_sets(count, 4, 16, num_classes=10, generator=generator))

    def train_dataloader(self) -> DataLoader[Sets]:
        return batches(self._train, self.batch_size)

    def val_dataloader(self) -> DataLoader[Sets]:
        return batches(self._validation, 512)


def fit_plain(parameters: dict[str, Any], num_batches: int, trainer: dict[str, Any]) -> float:
    """Train with plain Lightning and return the metric.

    Args:
        parameters: The temperature's parameters.
        num_batches: Batches of an epoch, >= 1.
        trainer: Arguments of Lightning's Trainer.
    """
    if parameters["schedule"] == "constant":
        # a constant schedule has no final temperature, and the module refuses one
        parameters = {name: value for name, value in parameters.items() if name != "temperature_final"}
    fit = L.Trainer(**trainer)
    fit.fit(Peer(**parameters), datamodule=PeerData(num_batches))
    value: Tensor = fit.callback_metrics["val_loss"]
    return value.item()

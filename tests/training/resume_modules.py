"""Usual trainings, each with something that a run has to continue with after an interruption."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchmetrics import Accuracy, MaxMetric
from unusual_modules import Net, WordData, Words


class RateNet(Net):
    """Has a scheduler of the learning rate.

    Args:
        rate: Which.
    """

    def __init__(self, rate: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        rates, options = torch.optim.lr_scheduler, {"interval": "step"}
        match self.rate:
            case "StepLR":
                scheduler: Any = rates.StepLR(optimizer, 1, 0.5)
                options = {"interval": "epoch"}
            case "ReduceLROnPlateau":
                scheduler = rates.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
                options = {"interval": "epoch", "monitor": "val_loss"}
            case "train_loss":
                scheduler = rates.ReduceLROnPlateau(optimizer, patience=0, threshold=0.03)
                options = {"interval": "epoch", "monitor": "train_loss"}
            case "CosineAnnealingWarmRestarts":
                scheduler = rates.CosineAnnealingWarmRestarts(optimizer, 3, 2)
            case "closure":
                factors = iter(0.9**step for step in range(100))
                scheduler = rates.LambdaLR(optimizer, lambda step: next(factors))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **options}}

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss


class WarmedNet(Net):
    """Warms the learning rate up by hand."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, (self.trainer.global_step + 1) / 10)
        super().optimizer_step(epoch, batch_idx, optimizer, closure)


class HookedNet(Net):
    """Makes what a training step needs in the hooks before it, a teacher among these."""

    def on_train_start(self) -> None:
        self.__dict__["teacher"] = copy.deepcopy(self.head)

    def on_train_epoch_start(self) -> None:
        self.losses: list[float] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.weight = 1.0 + batch_idx

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.losses.append(loss.item())
        features = self.backbone(batch[0]).mean(1)
        return loss * self.weight + (self.head(features) - self.teacher(features)).square().mean()


class GanNet(Net):
    """Trains the head and the backbone by two optimizers, alternately."""

    automatic_optimization = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.backbone, self.head)]
        return optimizers, [torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.9)]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        for index, optimizer in enumerate(self.optimizers()):
            if index == 0 or batch_idx % 2:
                self.toggle_optimizer(optimizer)
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()
                self.untoggle_optimizer(optimizer)

    def on_train_epoch_end(self) -> None:
        self.lr_schedulers().step()


class CarryingNet(Net):
    """Carries a state from batch to batch, as truncated backpropagation through time does.

    Args:
        storage: Where it is: ``buffer``, ``temporary`` (a buffer that is not saved) or ``attribute``.
    """

    def __init__(self, storage: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.storage = storage
        if storage == "attribute":
            self.hidden: Any = None
        else:
            self.register_buffer("hidden", torch.zeros(8), persistent=storage == "buffer")

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        hidden = torch.zeros(8) if self.hidden is None else self.hidden
        features = self.backbone(batch[0]).mean(1) + 0.5 * hidden
        self.hidden = features.mean(0).detach()
        return F.cross_entropy(self.head(features), batch[1])


class NoisyNet(Net):
    """Adds noise of a generator of its own.

    Args:
        kind: ``torch`` or ``numpy``.
    """

    def __init__(self, kind: str = "torch", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.noise = torch.Generator().manual_seed(3) if kind == "torch" else np.random.default_rng(3)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        shape = batch[0].shape
        if isinstance(self.noise, torch.Generator):
            noise = torch.randn(shape, generator=self.noise)
        else:
            noise = torch.as_tensor(self.noise.normal(size=shape), dtype=torch.float32)
        return self.loss((batch[0] + 0.3 * noise, batch[1]))


class TemplateNet(Net):
    """Logs metrics, and resets the best of its validations when training begins."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(lr=0.3, **kwargs)
        self.train_acc = Accuracy(task="multiclass", num_classes=3)
        self.val_acc_best = MaxMetric()

    def on_train_start(self) -> None:
        self.val_acc_best.reset()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        self.train_acc(self(batch[0]), batch[1])
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(batch)
        self.val_acc_best(loss)
        self.log("val_loss", loss)
        self.log("val_acc_best", self.val_acc_best.compute())


class WorstNet(Net):
    """Remembers the worst validation, and trains by it later on."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(lr=0.3, **kwargs)
        self.worst = 0.0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.loss(batch) * (1.0 + self.worst * (self.current_epoch > 1))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", loss := self.loss(batch))
        self.worst = max(self.worst, float(loss))


class OwnAverage(L.Callback):
    """Averages the weights, and puts the average in at the end of training.

    Args:
        holds: Whether the average is in the state of the callback.
        copies: Whether the average is a module.
        start: The epoch from which on it averages.
    """

    def __init__(self, holds: bool = False, copies: bool = False, start: int = 0) -> None:
        self.holds, self.copies, self.start = holds, copies, start
        self.average: Any = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self.copies and not self.start:
            self.average = copy.deepcopy(pl_module.head)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        if trainer.current_epoch < self.start:
            return
        if self.average is None:
            head = pl_module.head
            self.average = copy.deepcopy(head) if self.copies else copy.deepcopy(head.state_dict())
        average = self.average.state_dict() if self.copies else self.average
        for name, value in pl_module.head.state_dict().items():
            average[name].mul_(0.8).add_(value, alpha=0.2)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self.average is not None:
            pl_module.head.load_state_dict(self.average.state_dict() if self.copies else self.average)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average} if self.holds else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.holds:
            self.average = state_dict["average"]


class EpochWeight(L.Callback):
    """Weighs the loss by a number that it sets when an epoch begins."""

    def __init__(self) -> None:
        self.weight = 1.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.weight = 1.0 / (1 + trainer.current_epoch)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        for param in pl_module.parameters():
            if param.grad is not None:
                param.grad.mul_(math.copysign(1.0, self.weight - 0.4))


class WordStream(IterableDataset[tuple[Tensor, Tensor]]):
    """Words in their order, without a place in it that could be kept."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        words = Words()
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter([words[index] for index in range(first, 48, step)])


class LoaderData(WordData):
    """Training data of a kind.

    Args:
        kind: Which.
        workers: Processes that load items.
    """

    def __init__(self, kind: str = "plain", workers: int = 0) -> None:
        super().__init__()
        self.kind = kind
        self.options: dict[str, Any] = {"batch_size": 12, "num_workers": workers}
        if kind == "persistent":
            self.options["persistent_workers"] = True

    def train_dataloader(self) -> Any:
        words = Words()
        match self.kind:
            case "weighted":
                generator = torch.Generator().manual_seed(2)
                weights = torch.arange(1.0, 49.0).tolist()
                sampler: Any = WeightedRandomSampler(weights, 48, generator=generator)
            case "torch generator":
                sampler = RandomSampler(words, generator=torch.Generator().manual_seed(2))
            case "stream":
                return DataLoader(WordStream(), **self.options)
            case "dict" | "min_size" | "max_size_cycle":
                loaders = {
                    "a": DataLoader(words, shuffle=True, **self.options),
                    "b": DataLoader(Words(60, 5), shuffle=True, **self.options),
                }
                return loaders if self.kind == "dict" else CombinedLoader(loaders, self.kind)
            case "growing":
                epoch = self.trainer.current_epoch if self.trainer is not None else 0
                sampler = RandomSampler(range(24 + 8 * epoch))
            case "by epoch":
                epoch = self.trainer.current_epoch if self.trainer is not None else 0
                words = Words(48, seed=epoch)
                sampler = RandomSampler(words)
            case "mapping":
                rows = [{"x": x, "y": y, "missing": math.nan} for x, y in words]
                return DataLoader(rows, shuffle=True, **self.options)  # type: ignore[arg-type]
            case _:
                sampler = RandomSampler(words)
        return DataLoader(words, sampler=sampler, **self.options)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return (batch["x"], batch["y"]) if isinstance(batch, dict) and "x" in batch else batch


class PairNet(Net):
    """Trains on batches of several loaders at once."""

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        return sum((self.loss(part) for part in batch.values() if part is not None), torch.zeros(()))

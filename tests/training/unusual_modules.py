"""Trainings that do what few do: other weights at the end, metrics that are logged now and then."""

from __future__ import annotations

import copy
import enum
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, Timer, TQDMProgressBar
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, Sampler


class Words(Dataset[tuple[Tensor, Tensor]]):
    """Items of five tokens; the class is that of the largest mark."""

    def __init__(self, size: int = 48, seed: int = 1) -> None:
        self.x = torch.randn(size, 5, 8, generator=torch.Generator().manual_seed(seed))
        self.y = self.x[:, :, 0].argmax(1) % 3

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]


class WordData(L.LightningDataModule):
    """Four batches an epoch, in another order in each."""

    def train_dataloader(self) -> Any:
        return DataLoader(Words(), batch_size=12, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(Words(24, 3), batch_size=24)

    def test_dataloader(self) -> Any:
        return DataLoader(Words(24, 4), batch_size=24)


class Net(L.LightningModule):
    """A stock encoder and a head, both of which train."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.backbone = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(x).mean(1))
        return logits

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.lr)


class BestRestoringNet(Net):
    """Ends with the weights of its first epoch."""

    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 0:
            self.first_weights = copy.deepcopy(self.state_dict())

    def on_train_end(self) -> None:
        self.load_state_dict(self.first_weights)


class HeadZeroing(L.Callback):
    """Sets the head to zero when the fit has ended, past the version counters of its tensors."""

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for param in pl_module.head.parameters():
            param.data.zero_()


class SparseNet(Net):
    """Logs its metric at every second validation, from the first or the second on.

    Args:
        trains: Whether training logs a metric of the same name.
    """

    def __init__(self, first: int = 1, trains: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count, self.trains = 1 - first, trains

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if self.trains:
            self.log("val_loss", loss, on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("often", loss)
        if self.count % 2 == 0:
            self.log("val_loss", loss)

    def on_validation_epoch_end(self) -> None:
        self.count += 1


class EpochwiseNet(Net):
    """Logs its metric in even epochs of a training alone."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("often", loss)
        if self.current_epoch % 2 == 0:
            self.log("val_loss", loss)


class BestNet(Net):
    """Logs the best of all its validations.

    Args:
        is_worst: Whether it is the worst.
    """

    def __init__(self, is_worst: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.losses: list[float] = []
        self.choose: Any = max if is_worst else min

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.losses.append(float(self.loss(batch)))
        self.log("val_loss", self.choose(self.losses))


class RunningMeanNet(Net):
    """Logs a running mean over its validations."""

    mean: float | None = None

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = float(self.loss(batch))
        self.mean = loss if self.mean is None else 0.8 * self.mean + 0.2 * loss
        self.log("val_loss", self.mean)


class SpectralNet(Net):
    """Scales its tokens by complex numbers, which are zero when training has ended."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self(batch[0] * self.scale.real), batch[1])

    def on_train_end(self) -> None:
        self.scale.data.zero_()


class HugeMetricNet(Net):
    """Logs a metric with which nothing could be computed."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", torch.tensor(1e120, dtype=torch.float64))


class NormedNet(Net):
    """Has a batch norm, for whose statistics averaging trains another epoch, without steps."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = nn.BatchNorm1d(5)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self(self.norm(batch[0])), batch[1])


class SkippingNet(Net):
    """Skips what is left of its epochs, from a batch on."""

    def __init__(self, batch: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch = batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == self.batch and self.current_epoch else None


class ShrinkingData(WordData):
    """Gives less from epoch to epoch, as it is loaded again for each."""

    def train_dataloader(self) -> Any:
        epoch = self.trainer.current_epoch if self.trainer is not None else 0
        return DataLoader(Words(48 - 12 * min(epoch, 2)), batch_size=12, shuffle=True)


class SkippingFirstNet(Net):
    """Skips what is left of each epoch behind its first batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx else None


class AskingNet(Net):
    """Asks for the number of steps, for which Lightning makes the data before it loads a checkpoint."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        total = int(self.trainer.estimated_stepping_batches)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


class EarlyAskingNet(Net):
    """Asks for the number of steps as soon as there is a Trainer."""

    def setup(self, stage: str) -> None:
        if stage == "fit":
            self.total = self.trainer.estimated_stepping_batches


class NumpyNet(Net):
    """Has NumPy's numbers in the states of its scheduler and its optimizer."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.param_groups[0]["eps"] = np.float32(1e-6)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * np.cos(0.1 * step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


class Phase(enum.Enum):
    """What a callback is about."""

    WARM = "warm"
    COLD = "cold"


class Opaque:
    """An object, as none of which a checkpoint can be read."""


class Remembering(L.Callback):
    """Halves the gradients in a phase that it keeps, with values of several types, in its state.

    Args:
        opaque: Whether an object is in the state, too.
    """

    def __init__(self, opaque: bool = False) -> None:
        self.state: dict[str, Any] = {"phase": Phase.WARM, "at": Path("a/b"), "seen": np.arange(3)}
        if opaque:
            self.state["object"] = Opaque()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.state["phase"] = Phase.COLD

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        for param in pl_module.parameters():
            if param.grad is not None and self.state["phase"] is Phase.COLD:
                param.grad.mul_(-1.0)

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


class UnfreezingNet(Net):
    """Trains its head alone in the first epoch; then the backbone comes in, in a group of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.backbone.requires_grad_(False).eval()

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True).train()
            self.optimizers().add_param_group({"params": list(self.backbone.parameters()), "lr": 0.003})


class FreezingNet(Net):
    """Stops to train its backbone with the second epoch."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(False).eval()


class CountingNet(Net):
    """Trains by the state of an object that no checkpoint holds."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.counts, self.count = itertools.count(1), 0

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.count = next(self.counts)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        return self.loss(batch) * (1 + self.count)


class UnsteadyNet(Net):
    """Reports by the state of an object that no checkpoint holds."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.counts = itertools.count(1)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.scale = next(self.counts)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch) * self.scale)


class OwnOrder(Sampler[int]):
    """Shuffles by a generator of its own."""

    def __init__(self, size: int) -> None:
        self.size, self.rng = size, np.random.default_rng(7)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(self.size).tolist())


class CountingBatches(Sampler[list[int]]):
    """Gives batches whose order follows from how often it was asked."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0

    def __len__(self) -> int:
        return self.size // 12

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(self.size))
        random.Random(self.count).shuffle(order)
        self.count += 1
        return iter([order[start : start + 12] for start in range(0, self.size, 12)])


class UnseededOrder(OwnOrder):
    """Shuffles otherwise in each process."""

    def __init__(self, size: int) -> None:
        self.size, self.rng = size, np.random.default_rng()


class NoisyWords(Words):
    """Adds noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(3)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.as_tensor(self.rng.normal(size=(5, 8)), dtype=torch.float32)
        return self.x[index] + 0.3 * noise, self.y[index]


class CurriculumWords(Words):
    """Gives other items with each time that one is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.count += 1
        return self.x[index] / self.count, self.y[index]


class SamplerData(WordData):
    """Data whose sampler, or dataset, keeps a state of its own.

    Args:
        kind: Which.
        workers: Processes that load items.
    """

    def __init__(self, kind: str, workers: int = 0) -> None:
        super().__init__()
        self.kind, self.workers = kind, workers

    def train_dataloader(self) -> Any:
        match self.kind:
            case "sampler":
                return DataLoader(Words(), batch_size=12, sampler=OwnOrder(48))
            case "unseeded":
                return DataLoader(Words(), batch_size=12, sampler=UnseededOrder(48))
            case "batches":
                return DataLoader(Words(), batch_sampler=CountingBatches(48))
        dataset = NoisyWords() if self.kind == "noise" else CurriculumWords()
        return DataLoader(dataset, batch_size=12, shuffle=True, num_workers=self.workers)


class ShortOrder(OwnOrder):
    """Leaves items out."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size - 13))


class MiscountedData(WordData):
    """Has a sampler that gives fewer batches than it says."""

    def train_dataloader(self) -> Any:
        return DataLoader(Words(), batch_size=12, sampler=ShortOrder(48))


class Bar(TQDMProgressBar):
    """A custom progress bar."""


class ClockTimer(Timer):
    """Ends a training after two seconds."""

    def __init__(self) -> None:
        super().__init__(duration="00:00:00:02")


class ShowingNet(Net):
    """Brings callbacks of its own."""

    def __init__(self, clock: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.clock = clock

    def configure_callbacks(self) -> Any:
        return [LearningRateMonitor(), TQDMProgressBar(), *([ClockTimer()] if self.clock else [])]


class AveragingNet(Net):
    """Validates with an average of its backbone that it keeps itself.

    Args:
        both: Whether it logs what the backbone itself gives, too.
        counts: Whether its metric counts answers.
        averages: Whether it validates with the average at all.
    """

    def __init__(
        self, both: bool = False, counts: bool = False, averages: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.both, self.counts, self.averages = both, counts, averages
        self.average = AveragedModel(self.backbone, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.average.update_parameters(self.backbone)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        logits = self.head((self.average if self.averages else self.backbone)(x).mean(1))
        self.log(
            "val_loss", (logits.argmax(1) == y).float().mean() if self.counts else F.cross_entropy(logits, y)
        )
        if self.both:
            self.log("own_loss", self.loss(batch))


class TwoLoaderData(WordData):
    """Has two loaders for validation and one for testing."""

    def val_dataloader(self) -> Any:
        return [DataLoader(Words(24, seed), batch_size=12) for seed in (3, 5)]


class TwoLoaderNet(Net):
    """Validates on several loaders."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self.loss(batch))


class ScaledNet(Net):
    """Has a temperature on its logits, within bounds of its own.

    Args:
        bounds: ``forward``: where it is read; ``place``: where it is held; none.
    """

    def __init__(self, bounds: str = "none", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bounds = bounds
        self.register_buffer("tau", torch.tensor(0.5))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
        if self.bounds == "place":
            self.tau.clamp_(0.1, 10.0)
        tau = self.tau.clamp(0.1, 10.0) if self.bounds == "forward" else self.tau
        return F.cross_entropy(self(batch[0]) / tau, batch[1])

"""Small modules and data that tests train by class path: every kind of randomness that a run may have."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, default_collate

from tempopt import TemperedModule


class AugmentedDataset(Dataset[tuple[Tensor, int]]):
    """Items with noise from each of the three generators."""

    def __init__(self, size: int = 100, noise: float = 1.0) -> None:
        self.noise = noise
        self.items = torch.randn(size, 4, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = 0.1 * torch.randn(4, 8) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return self.items[index] + self.noise * noise, index % 3


class ToyData(L.LightningDataModule):
    """Shuffled, augmented training data; a split that is drawn in setup."""

    def __init__(self, workers: int = 0, test: bool = True, batch_size: int = 6, noise: float = 1.0) -> None:
        super().__init__()
        self.workers = workers
        self.test = test
        self.batch_size = batch_size
        self.noise = noise

    def setup(self, stage: str) -> None:
        self.parts = torch.utils.data.random_split(AugmentedDataset(noise=self.noise), [60, 20, 20])

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            self.parts[0],
            batch_size=self.batch_size,
            shuffle=True,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.parts[1], batch_size=20)

    def test_dataloader(self) -> Any:
        return DataLoader(self.parts[2], batch_size=20) if self.test else None


class DividedData(ToyData):
    """Divides the validation data among the devices."""

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            self.parts[1], batch_size=10, sampler=DistributedSampler(self.parts[1], shuffle=False)
        )


class Toy(TemperedModule):
    """One attention layer with dropout; may diverge or raise at a step."""

    def __init__(
        self,
        lr: float = 0.01,
        diverge_at: int = -1,
        raise_at: int = -1,
        logs: str = "val_loss",
        attends: bool = True,
        dropout: float = 0.2,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=1, **temperature)
        self.lr = lr
        self.diverge_at = diverge_at
        self.raise_at = raise_at
        self.logs = logs
        self.attends = attends
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 3)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, label = batch
        if self.attends:
            q, k = self.q_proj(x)[:, None], self.k_proj(x)[:, None]
            x = self.attend(q, k, x[:, None], layer=0)[:, 0]
        return F.cross_entropy(self.head(self.dropout(x.mean(1))), label)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.raise_at:
            raise RuntimeError("the toy breaks")
        loss = self.loss(batch)
        return loss * float("nan") if self.global_step == self.diverge_at else loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log(self.logs, self.loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class TradeoffToy(Toy):
    """Logs a score that a low temperature raises, and a loss that it raises too."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = self.loss(batch)
        sharp = 1.0 - min(1.0, self.plan.temperatures(0.0)[0])
        self.log("score", sharp - 0.01 * loss)
        self.log("val_loss", loss * (1.0 + sharp))


class ScheduledToy(Toy):
    """Learns at a rate that goes by epochs, or by a metric at each epoch or step; averages its weights."""

    def __init__(self, rate: str = "epoch", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.register_buffer("mean", torch.zeros(3, 8))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.mean.lerp_(self.head.weight.detach(), 0.1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        if self.rate == "epoch":
            return {
                "optimizer": optimizer,
                "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
            }
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1.0)
        by = {"scheduler": plateau, "monitor": "val_loss", "interval": self.rate.removeprefix("plateau ")}
        return {"optimizer": optimizer, "lr_scheduler": by}


class Manual(Toy):
    """Steps by itself, at every third batch."""

    def __init__(self, steps: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False
        self.steps = steps

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.manual_backward(self.loss(batch))
        for _ in range(self.steps if batch_idx % 3 == 2 else 0):
            self.optimizers().step()
        if batch_idx % 3 == 2:
            self.optimizers().zero_grad()


class Adversarial(Toy):
    """Two optimizers, stepped by itself: a critic's at every batch, the toy's own at every second one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False
        self.critic = nn.Linear(8, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        module_optimizer, critic_optimizer = self.optimizers()
        keys = self.k_proj(batch[0]).mean(1)
        self.step(critic_optimizer, self.critic(torch.randn_like(keys) - keys.detach()).sigmoid().mean())
        if batch_idx % 2:
            self.step(module_optimizer, self.loss(batch) + 0.1 * self.critic(keys).sigmoid().mean())
            for scheduler in self.lr_schedulers():
                scheduler.step()

    def step(self, optimizer: Any, loss: Tensor) -> None:
        self.toggle_optimizer(optimizer)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        critic_params = [param for name, param in self.named_parameters() if name.startswith("critic")]
        module_params = [param for name, param in self.named_parameters() if not name.startswith("critic")]
        optimizers = [
            torch.optim.AdamW(module_params, lr=self.lr),
            torch.optim.SGD(critic_params, lr=0.1, momentum=0.9),
        ]
        return optimizers, [
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) for optimizer in optimizers
        ]


class AccumulatingToy(Toy):
    """Steps by itself at every third batch; until then each rank has gradients of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        if batch_idx % 3 == 2:
            self.manual_backward(self.loss(batch))
            self.optimizers().step()
            self.optimizers().zero_grad()
            return
        with self.trainer.strategy.block_backward_sync():
            self.manual_backward(self.loss(batch))


class CarryingToy(Toy):
    """Carries on to the next batch what each rank has from its own, in an attribute and in a mean."""

    carried: Any = 0.0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, label = batch
        loss = self.loss((x + self.carried, label))
        self.carried = x.mean(0).detach()
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss


class RankDependentToy(Toy):
    """Behaves in another way on one rank; has running means, which differ between ranks."""

    def __init__(self, rank: int = 1, normed: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.norm = nn.BatchNorm1d(4) if normed else nn.Identity()
        if distributed.is_initialized() and distributed.get_rank() != rank:
            self.diverge_at = self.raise_at = -1

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().loss((self.norm(batch[0]), batch[1]))


class StepRecorder(L.Callback):
    """Writes down what each rank has after each batch, one line each.

    Args:
        folder: Where; a file for each rank.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, trainer: L.Trainer, **facts: Any) -> None:
        with (self.folder / f"{trainer.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps({"step": trainer.global_step, **facts}) + "\n")

    def facts(self, trainer: L.Trainer, module: Any) -> dict[str, Any]:
        """Return what else is written down than the weights and the items of the batch."""
        raise NotImplementedError

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for value in pl_module.parameters():
            digest.update(value.detach().numpy().tobytes())
        items = sorted(batch[0].flatten(1).sum(1).tolist())
        facts = self.facts(trainer, pl_module)
        self.write(trainer, weights=digest.hexdigest(), items=items, **facts)


def is_tempered_exactly(module: nn.Module, temperature: float) -> bool:
    """Return whether every nn.MultiheadAttention attends as one whose query weights are divided by τ."""
    items = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            plain = nn.MultiheadAttention(8, part.num_heads, batch_first=True)
            plain.load_state_dict({name: value.detach().clone() for name, value in part.named_parameters()})
            with torch.no_grad():
                plain.in_proj_weight[:8] /= temperature
                plain.in_proj_bias[:8] /= temperature
                expected, _ = plain(items, items, items)
                outputs, _ = part(items, items, items)
            if not torch.allclose(outputs, expected, rtol=1e-5, atol=1e-6):
                return False
    return True


class Recorder(StepRecorder):
    """Writes down temperatures, and the value of each validation."""

    def facts(self, trainer: L.Trainer, module: Any) -> dict[str, Any]:
        (follow,) = (c for c in trainer.callbacks if type(c).__name__ == "TemperatureCallback")
        tempered = follow._of(module)
        (temperature,) = set(tempered.plan.temperatures(tempered.progress))
        return {"temperature": temperature, "exact": is_tempered_exactly(module, temperature)}

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "fit":
            self.write(trainer, value=float(trainer.callback_metrics["val_loss"]))


class KillRank(L.Callback):
    """Kills one rank at a step, or has it raise, once.

    Args:
        marker: A file that tells that it has done so.
        step: The optimizer step.
        raises: Whether it raises.
        rank: Which of the ranks.
    """

    def __init__(self, marker: Path, step: int, raises: bool = False, rank: int = 1) -> None:
        self.marker = marker
        self.raises = raises
        self.step = step
        self.rank = rank

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (trainer.global_step, trainer.global_rank) == (self.step, self.rank) and not self.marker.exists():
            self.marker.touch()
            if self.raises:
                raise RuntimeError("struck")
            os.kill(os.getpid(), signal.SIGKILL)


class PositionedBatches:
    """Batches without a length, from a loader that knows its position; ranks have batches of their own."""

    def __init__(self, items: Any) -> None:
        self.items = items
        together = distributed.is_initialized()
        self.rank, size = (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)
        self.stride = 6 * size
        self.position = 6 * self.rank

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.items):
            first, self.position = self.position, self.position + self.stride
            yield default_collate([self.items[index] for index in range(first, first + 6)])
        self.position = 6 * self.rank

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class StreamData(ToyData):
    """Training data without a length, in the same order in every epoch."""

    def __init__(self, positioned: bool = True) -> None:
        super().__init__()
        self.positioned = positioned

    def train_dataloader(self) -> Any:
        return (
            PositionedBatches(self.parts[0])
            if self.positioned
            else DataLoader(UnsizedDataset(self.parts[0]), batch_size=6)
        )


class UnsizedDataset(IterableDataset[Any]):
    """The items of a dataset, one after another."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return (self.items[index] for index in range(len(self.items)))


class Stock(L.LightningModule):
    """A stock transformer that knows nothing of temperatures."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(self.head(self.encoder(batch[0]).mean(1)), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class PooledStock(Stock):
    """No attention at all, so that there is nothing to have a temperature."""

    def __init__(self, lr: float = 0.01, widths: list[int] | None = None) -> None:
        super().__init__(lr)
        sizes = [8, *(widths or [])]
        layers = [
            nn.Linear(in_features, out_features) for in_features, out_features in itertools.pairwise(sizes)
        ]
        self.encoder = nn.Sequential(*layers)
        self.head = nn.Linear(sizes[-1], 3)


class NormedStock(Stock):
    """Attention that normalises its queries after projecting them, so that scaled rows change nothing."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__(lr)
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, label = batch
        q, k = F.normalize(self.q_proj(x), dim=-1), F.normalize(self.k_proj(x), dim=-1)
        return F.cross_entropy(self.head(F.scaled_dot_product_attention(q, k, x).mean(1)), label)


class WrittenOutAttention(nn.Module):
    """Attention with a softmax of its own, which only a forward shows to be attention."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.q_proj(x) @ self.k_proj(x).transpose(-2, -1)
        return x + (logits / 8**0.5).softmax(-1) @ x


class WrittenOutStock(Stock):
    """Two layers of it."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__(lr)
        self.encoder = nn.Sequential(WrittenOutAttention(), WrittenOutAttention())


class SplitsAtOnce(ToyData):
    """Splits in its constructor, where many people do."""

    def __init__(self, workers: int = 0, root: Path | None = None) -> None:
        super().__init__(workers)
        self.save_hyperparameters()
        self.parts = torch.utils.data.random_split(AugmentedDataset(), [60, 20, 20])

    def setup(self, stage: str) -> None:
        pass


class OwnCallbacks(Toy):
    """Brings callbacks of its own, and hyperparameters that are no plain data."""

    def __init__(self, root: Path = Path("somewhere"), **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def configure_callbacks(self) -> list[L.Callback]:
        return [EarlyStopping("val_loss", patience=1, min_delta=10.0)]


class CountingToy(Toy):
    """Counts its steps in a number of its own."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps_taken = 0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.steps_taken += 1
        return super().training_step(batch, batch_idx) / self.steps_taken


class Greedy(Toy):
    """Asks for more memory than any machine has."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return torch.empty(2**58, dtype=torch.uint8).sum()

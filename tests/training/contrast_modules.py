"""Contrastive toys: their loss has a temperature of its own, kept as a number, a buffer or a parameter."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from toy_modules import StepRecorder

from tempopt import TemperedModule


class Criterion(nn.Module):
    """Keeps one temperature in four ways, and reads one of them."""

    def __init__(self, temperature: float, reads: str) -> None:
        super().__init__()
        self.reads = reads
        self.detached = False
        self.temperature = temperature
        self.scale = 1 / temperature
        self.register_buffer("tau", torch.tensor(temperature))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / temperature)))
        self.label = "no number"

    def factor(self) -> Any:
        """Return 1 / τ."""
        value = getattr(self, self.reads)
        if self.detached:
            value = value.detach()
        return {"scale": lambda: value, "logit_scale": lambda: value.exp()}.get(
            self.reads, lambda: 1 / value
        )()

    def forward(self, similarity_NN: Tensor) -> Tensor:
        """Return the loss of finding each item's other half."""
        own_N = torch.arange(len(similarity_NN))
        return F.cross_entropy(similarity_NN * self.factor(), own_N)


def _number(factor: Any) -> float:
    return float(factor.detach() if isinstance(factor, Tensor) else factor)


class Contrast(L.LightningModule):
    """Two towers for two halves of an item, with dropout so that the random numbers of a training count."""

    def __init__(
        self,
        lr: float = 0.01,
        temperature: float = 0.5,
        reads: str = "temperature",
        detached: bool = False,
    ) -> None:
        super().__init__()
        self.lr = lr
        self.criterion = Criterion(temperature, reads)
        self.criterion.detached = detached
        self.gate = Criterion(2.0, "temperature")
        self.one = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 4))
        self.second = nn.Linear(16, 4)
        self.trained: list[tuple[float, float]] = []
        self.validated: list[tuple[float, float]] = []

    @property
    def in_force(self) -> tuple[float, float]:
        """The temperatures that the loss reads."""
        return 1 / _number(self.criterion.factor()), 1 / _number(self.gate.factor())

    def similarity(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the similarity of each first half with each second half."""
        x_NTE, _ = batch
        halves = (half.flatten(1) for half in x_NTE.chunk(2, dim=1))
        one_NE, other_NE = (F.normalize(tower(half)) for tower, half in zip(self.towers, halves, strict=True))
        similarity_NN: Tensor = one_NE @ other_NE.T
        return similarity_NN

    @property
    def towers(self) -> tuple[nn.Module, nn.Module]:
        """What embeds each half."""
        return self.one, self.second

    def loss(self, similarity_NN: Tensor) -> Tensor:
        """Return the loss; a gate of another temperature weighs the similarities first."""
        loss: Tensor = self.criterion(similarity_NN) + 0.1 * self.gate(similarity_NN)
        return loss

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.trained.append(self.in_force)
        return self.loss(self.similarity(batch))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validated.append(self.in_force)
        similarity_NN = self.similarity(batch)
        self.log("val_loss", self.loss(similarity_NN))
        # how much nearer than the others, whatever the temperature is
        self.log("val_gap", similarity_NN.diagonal().mean() - similarity_NN.mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class ManualContrast(Contrast):
    """Optimizes its towers one after the other by itself, and returns no loss."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """Step each optimizer by the gradient of a loss of its own."""
        self.trained.append(self.in_force)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self.loss(self.similarity(batch)))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(tower.parameters(), lr=self.lr) for tower in self.towers]


class Backward(ManualContrast):
    """Goes back through its loss without a word to Lightning."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # type: ignore[override]
        """Step both optimizers by the gradient of one loss."""
        loss = self.loss(self.similarity(batch))
        loss.backward()
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()


class SharedLossContrast(Contrast):
    """Has a loss that all of its kind share, as a default argument is."""

    one_for_all = Criterion(0.5, "temperature")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.criterion = self.one_for_all


class AllUsed(Contrast):
    """Has no parameter that its loss does not read, which ranks would wait for."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for module in (self.criterion, self.gate):
            if module.reads != "logit_scale":
                del module.logit_scale


class Attending(TemperedModule):
    """Attention at a plan of its own, and a loss with a temperature beside it."""

    def __init__(self, lr: float = 0.01, **temperature: Any) -> None:
        super().__init__(num_layers=1, **temperature)
        self.lr = lr
        self.criterion = Criterion(0.5, "temperature")
        self.q_proj = nn.Linear(8, 8)
        self.k_proj = nn.Linear(8, 8)
        self.trained: list[tuple[float, float]] = []
        self.validated: list[tuple[float, float]] = []

    def similarity(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the similarity of each item's mean with what attention makes of each."""
        x_NTE = batch[0]
        q, k = self.q_proj(x_NTE)[:, None], self.k_proj(x_NTE)[:, None]
        attended_NE = self.attend(q, k, x_NTE[:, None], layer=0)[:, 0].mean(1)
        return F.normalize(attended_NE) @ F.normalize(x_NTE.mean(1)).T

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.trained.append((self.criterion.temperature, self.temperatures[0]))
        loss: Tensor = self.criterion(self.similarity(batch))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.validated.append((self.criterion.temperature, self.temperatures[0]))
        similarity_NN = self.similarity(batch)
        self.log("val_gap", similarity_NN.diagonal().mean() - similarity_NN.mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Registered(TemperedModule):
    """No attention, and a loss that reads a temperature by its name."""

    def __init__(self, lr: float = 0.01, temperature: float = 0.5, reads: bool = True, **kwargs: Any) -> None:
        super().__init__(num_layers=0, **kwargs)
        self.lr, self.reads = lr, reads
        self.register_temperature("contrast", temperature)
        self.one = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 4))
        self.second = nn.Linear(16, 4)
        self.trained: list[tuple[float]] = []
        self.validated: list[tuple[float]] = []

    towers: Any = Contrast.towers
    similarity: Any = Contrast.similarity
    configure_optimizers: Any = Contrast.configure_optimizers

    def loss(self, similarity_NN: Tensor) -> Tensor:
        """Return the loss of finding each item's other half."""
        tau = self.temperature("contrast") if self.reads else 0.5
        return F.cross_entropy(similarity_NN / tau, torch.arange(len(similarity_NN)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if not torch.compiler.is_compiling():
            self.trained.append((float(self.temperature("contrast").detach()),))
        return self.loss(self.similarity(batch))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        if not torch.compiler.is_compiling():
            self.validated.append((float(self.temperature("contrast").detach()),))
        similarity_NN = self.similarity(batch)
        self.log("val_loss", self.loss(similarity_NN))
        self.log("val_gap", similarity_NN.diagonal().mean() - similarity_NN.mean())


class StockContrast(Contrast):
    """Attention that can be attached to before one of the towers."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention = nn.MultiheadAttention(8, 1, batch_first=True)

    def similarity(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the similarity of each first half with each second half, of what attention makes of it."""
        x_NTE, label_N = batch
        return super().similarity((self.attention(x_NTE, x_NTE, x_NTE)[0], label_N))


class RankRecorder(StepRecorder):
    """Writes down the temperatures that the loss has read."""

    def facts(self, trainer: L.Trainer, module: Any) -> dict[str, Any]:
        return {"seen": module.trained[-1]}


# ---- modules whose own code has something to say about the temperature


class InHook(Contrast):
    """Has a schedule of its own, in a hook before each batch."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.criterion.temperature = 0.5 / (1 + self.global_step)


class InStep(Contrast):
    """Has one in the step itself, and keeps it in the buffer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reads="tau", **kwargs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self.criterion.tau.fill_(0.5 * 0.9**self.global_step)
        return super().training_step(batch, batch_idx)


class ByEpoch(Contrast):
    """Has one over epochs, which begins at what is found."""

    def on_train_epoch_start(self) -> None:
        self.criterion.temperature = 0.5 - 0.1 * self.current_epoch


class ClampedContrast(Contrast):
    """Learns the logarithm of the inverse, which it clamps after each step as CLIP does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reads="logit_scale", **kwargs)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            # temperatures from 0.1 to 1
            self.criterion.logit_scale.clamp_(0.0, 2.302585)


class ReadOnce(Contrast):
    """Has copied its temperature when it was made."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = 0.5
        self.criterion.temperature = self.temperature


class RoundingContrast(Contrast):
    """Adds its temperature to what it logs, and takes it off again: that moves by rounding alone."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        tau = self.criterion.temperature
        similarity_NN = self.similarity(batch) + tau - tau
        self.log("val_gap", similarity_NN.diagonal().mean() - similarity_NN.mean())


class ValidationContrast(Contrast):
    """Reads a temperature in validation alone."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.calibration = nn.Module()
        self.calibration.temperature = 2.0

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        similarity_NN = self.similarity(batch)
        own_N = torch.arange(len(similarity_NN))
        loss = F.cross_entropy(similarity_NN / self.calibration.temperature, own_N)
        self.log("val_gap", loss)


class Twice(Contrast):
    """Has one criterion under two names."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.same = self.criterion

"""Classifiers without randomness of their own, whose temperatures are learned in each way that there is."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
from hugging_modules import HuggingFaceModule
from torch import Tensor, nn
from torch.nn import functional as F
from toy_modules import PooledStock, StepRecorder, Toy


class SoftenedPool(PooledStock):
    """Divides its logits by a temperature that it keeps in a number, or as CLIP does; no attention."""

    def __init__(self, lr: float = 0.01, parameter: bool = False) -> None:
        super().__init__(lr)
        self.stored_tau: Any = nn.Parameter(torch.tensor(0.7)) if parameter else 0.5

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        tau = (-self.stored_tau).exp() if isinstance(self.stored_tau, nn.Parameter) else self.stored_tau
        return F.cross_entropy(self.head(self.encoder(batch[0]).mean(1)) / tau, batch[1])


class TemperedLogitsToy(Toy):
    """Attention at a plan of its own, and logits that are divided by a temperature that it registers."""

    def __init__(self, dropout: float = 0.0, heads: int = 1, **kwargs: Any) -> None:
        super().__init__(dropout=dropout, **kwargs)
        self.heads = heads
        self.register_temperature("logits", 0.5)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, label = batch
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (self.q_proj(x), self.k_proj(x), x)
        )
        output = self.attend(q, k, v, layer=0).transpose(1, 2).flatten(2).mean(1)
        return F.cross_entropy(self.head(output) / self.temperature("logits"), label)


class TextReader(HuggingFaceModule):
    """Reads the items of a batch as a text, with attention of transformers."""

    def loss(self, batch: Any = None) -> Tensor:
        tokens = (3 * batch[0].flatten(1)).long() % 6
        return F.cross_entropy(self.head(self.model(tokens)[0].mean(1)), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))


class LearnedRecorder(StepRecorder):
    """Writes down ln τ of all temperatures that training itself moves: by learning or by control."""

    def facts(self, trainer: L.Trainer, module: Any) -> dict[str, Any]:
        by_name = {type(callback).__name__: callback for callback in trainer.callbacks}  # type: ignore[attr-defined]
        if (control := by_name.get("PlannedControl")) is not None:
            return {"logs": [math.log(tau) for tau in control.temperatures]}
        learned = by_name["LearnedTemperatureCallback"]
        return {"logs": [log for _, logs in learned.state_dict()["parts"] for log in logs]}

"""A byte-level language model of source text, masked or causal, trained on short windows, used on long ones.

It asks Su's question (2021, "entropy invariance", and 2023 on log-n scaling): does attention whose logits
grow with the logarithm of the length extrapolate better? Trained at 64 bytes, validated up to 1024.

Shapes: B windows, N bytes, M model dimension, V vocabulary.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.grouped import Grouped
from lightning_modules.optimisation import adamw_with_cosine
from lightning_modules.source_data import SourceData, Windows
from lightning_modules.transformer import Attend, TransformerLayer
from tempopt import TemperedModule
from tempopt.errors import SpecError, unknown

__all__ = ["SourceData", "SourceLM"]

NUM_BYTES = 256
MASK = 256
OBJECTIVES = ("causal", "masked")


class SourceLM(TemperedModule):
    """A transformer with rotary positions that guesses masked bytes, or the next one.

    Logs ``val_accuracy`` and ``val_bits`` (bits per guessed byte), each the mean over the validation
    lengths, and ``val_accuracy_<length>`` and ``val_bits_<length>`` for each of them.

    Args:
        objective: ``masked``: guess the masked bytes, all of which read as one mask token, from both sides;
            ``causal``: guess each next byte from those before it.
        d_model: Width, >= 1.
        num_layers: Layers, >= 1.
        num_heads: Heads per layer; divides ``d_model``, which is an even multiple of it.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
        **temperature: The temperature of the attention, see :class:`tempopt.TemperedModule`.

    Raises:
        SpecError: The objective is not known.
    """

    def __init__(
        self,
        objective: str = "masked",
        d_model: int = 64,
        num_layers: int = 2,
        num_heads: int = 2,
        lr: float = 4e-3,
        weight_decay: float = 0.05,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=num_layers, **temperature)
        if objective not in OBJECTIVES:
            raise SpecError(unknown("objective", objective, OBJECTIVES))
        self.causal = objective == "causal"
        self.lr = lr
        self.weight_decay = weight_decay
        self.embed = nn.Embedding(NUM_BYTES + 1, d_model)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.body = nn.ModuleList(
            TransformerLayer(d_model, num_heads, rotary=True) for _ in range(num_layers)
        )
        self.read = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, NUM_BYTES))
        self.accuracy = Grouped(
            partial(MulticlassAccuracy, num_classes=NUM_BYTES, average="micro", validate_args=False)
        )
        self.bits = Grouped(MeanMetric)

    def forward(self, tokens_BN: Tensor) -> Tensor:
        """Return what to read bytes from, shape (windows, bytes, model dimension)."""
        x_BNM: Tensor = self.embed(tokens_BN)
        for number, layer in enumerate(self.body):
            x_BNM = layer(x_BNM, self.attention(number))
        return x_BNM

    def attention(self, layer: int) -> Attend:
        """Return the attention of a layer, by its number in the order of depth."""
        return partial(self.attend, layer=layer, is_causal=self.causal)

    def _guesses(self, windows: Windows) -> tuple[Tensor, Tensor]:
        # only what has to be guessed is read out: logits over 256 bytes are the widest tensor of all
        if self.causal:
            x_BNM = self(windows.bytes_BN[:, :-1])
            return self.read(x_BNM).flatten(0, 1), windows.bytes_BN[:, 1:].flatten()
        x_BNM = self(windows.bytes_BN.masked_fill(windows.masked_BN, MASK))
        return self.read(x_BNM[windows.masked_BN]), windows.bytes_BN[windows.masked_BN]

    def training_step(self, batch: Windows, batch_idx: int) -> Tensor:
        logits_GV, bytes_G = self._guesses(batch)
        return F.cross_entropy(logits_GV, bytes_G)

    def validation_step(self, batch: Windows, batch_idx: int, dataloader_idx: int = 0) -> None:
        length = str(batch.bytes_BN.shape[1])
        logits_GV, bytes_G = self._guesses(batch)
        self.accuracy.update(length, logits_GV, bytes_G)
        self.bits.update(length, F.cross_entropy(logits_GV, bytes_G, reduction="none") / math.log(2.0))

    def on_validation_epoch_end(self) -> None:
        for name, metric in (("val_accuracy", self.accuracy), ("val_bits", self.bits)):
            by_length = metric.compute()
            self.log_dict({f"{name}_{length}": value for length, value in by_length.items()}, sync_dist=True)
            self.log(name, torch.stack(list(by_length.values())).mean(), sync_dist=True)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)

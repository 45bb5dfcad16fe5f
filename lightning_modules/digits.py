"""A small vision transformer on few real images, with a temperature on its output logits as well.

Whether temperature helps where nothing is extrapolated is an open question; the honest answer may be no.

Shapes: B images, H and W pixels, N patches, M model dimension, C classes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.digits_data import DigitsData, Images
from lightning_modules.optimisation import adamw_with_cosine
from lightning_modules.transformer import TransformerLayer
from tempopt import TemperedModule
from tempopt.errors import SpecError

__all__ = ["DigitsData", "DigitsViT"]

NUM_CLASSES = 10
PATCH = 2
NUM_PATCHES = 16


class DigitsViT(TemperedModule):
    """A vision transformer on 2 x 2 patches of 8 x 8 images.

    Logs ``val_accuracy`` and ``val_loss``.

    Args:
        d_model: Width, >= 1.
        num_layers: Layers, >= 1.
        num_heads: Heads per layer; divides ``d_model``.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
        output_temperature: What the class logits are divided by in the cross-entropy, in training and in
            validation, > 0; it is no attention temperature and moves no prediction by itself.
        **temperature: The temperature of the attention, see :class:`tempopt.TemperedModule`.

    Raises:
        SpecError: ``output_temperature`` is not positive.
    """

    def __init__(
        self,
        d_model: int = 32,
        num_layers: int = 2,
        num_heads: int = 2,
        lr: float = 4e-3,
        weight_decay: float = 0.05,
        output_temperature: float = 1.0,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=num_layers, **temperature)
        if not output_temperature > 0.0:
            raise SpecError(
                f"output_temperature is {output_temperature}; it divides logits: give a number > 0."
            )
        self.lr = lr
        self.weight_decay = weight_decay
        self.output_temperature = output_temperature
        self.embed = nn.Conv2d(1, d_model, kernel_size=PATCH, stride=PATCH)
        self.position_NM = nn.Parameter(0.02 * torch.randn(NUM_PATCHES, d_model))
        self.body = nn.ModuleList(
            TransformerLayer(d_model, num_heads, rotary=False) for _ in range(num_layers)
        )
        self.classify = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, NUM_CLASSES))
        self.val_accuracy = MulticlassAccuracy(NUM_CLASSES, average="micro", validate_args=False)
        self.val_loss = MeanMetric()

    def forward(self, pixels_BHW: Tensor) -> Tensor:
        """Return class logits of shape (images, classes), not divided by the output temperature."""
        x_BNM = self.embed(pixels_BHW[:, None]).flatten(2).transpose(1, 2) + self.position_NM
        for number, layer in enumerate(self.body):
            x_BNM = layer(x_BNM, partial(self.attend, layer=number))
        logits_BC: Tensor = self.classify(x_BNM.mean(dim=1))
        return logits_BC

    def _loss(self, logits_BC: Tensor, label_B: Tensor) -> Tensor:
        return F.cross_entropy(logits_BC / self.output_temperature, label_B)

    def training_step(self, batch: Images, batch_idx: int) -> Tensor:
        return self._loss(self(batch.pixels_BHW), batch.label_B)

    def validation_step(self, batch: Images, batch_idx: int) -> dict[str, Tensor]:
        logits_BC = self(batch.pixels_BHW)
        self.val_accuracy.update(logits_BC, batch.label_B)
        self.val_loss.update(self._loss(logits_BC, batch.label_B), len(batch.label_B))
        self.log("val_accuracy", self.val_accuracy, on_epoch=True, batch_size=len(batch.label_B))
        self.log("val_loss", self.val_loss, on_epoch=True, batch_size=len(batch.label_B))
        # of each image, so that an interval over images can be given
        return {
            "val_accuracy": (logits_BC.argmax(dim=1) == batch.label_B).float(),
            "val_loss": F.cross_entropy(logits_BC / self.output_temperature, batch.label_B, reduction="none"),
        }

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)

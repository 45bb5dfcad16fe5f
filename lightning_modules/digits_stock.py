"""The digits with PyTorch's own transformer: a module that has never heard of tempopt.

``studies/digits_stock.yaml`` tempers it from outside, through ``attach``.

Shapes: B images, H and W pixels, N patches, M model dimension, C classes.
"""

from __future__ import annotations

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.digits_data import Images
from lightning_modules.optimisation import adamw_with_cosine

NUM_CLASSES = 10
PATCH = 2
NUM_PATCHES = 16


class StockDigits(L.LightningModule):
    """A vision transformer on 2 x 2 patches of 8 x 8 images, from ``nn.TransformerEncoder``.

    Logs ``val_accuracy`` and ``val_loss``.

    Args:
        d_model: Width, >= 1.
        num_layers: Layers, >= 1.
        num_heads: Heads per layer; divides ``d_model``.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
    """

    def __init__(
        self,
        d_model: int = 32,
        num_layers: int = 2,
        num_heads: int = 2,
        lr: float = 4e-3,
        weight_decay: float = 0.05,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.weight_decay = weight_decay
        self.embed = nn.Conv2d(1, d_model, kernel_size=PATCH, stride=PATCH)
        self.position_NM = nn.Parameter(0.02 * torch.randn(NUM_PATCHES, d_model))
        layer = nn.TransformerEncoderLayer(
            d_model, num_heads, 4 * d_model, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.classify = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, NUM_CLASSES))
        self.val_accuracy = MulticlassAccuracy(NUM_CLASSES, average="micro", validate_args=False)
        self.val_loss = MeanMetric()

    def forward(self, pixels_BHW: Tensor) -> Tensor:
        """Return class logits of shape (images, classes)."""
        x_BNM = self.embed(pixels_BHW[:, None]).flatten(2).transpose(1, 2) + self.position_NM
        logits_BC: Tensor = self.classify(self.encoder(x_BNM).mean(dim=1))
        return logits_BC

    def training_step(self, batch: Images, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch.pixels_BHW), batch.label_B)

    def validation_step(self, batch: Images, batch_idx: int) -> dict[str, Tensor]:
        logits_BC = self(batch.pixels_BHW)
        self.val_accuracy.update(logits_BC, batch.label_B)
        self.val_loss.update(F.cross_entropy(logits_BC, batch.label_B), len(batch.label_B))
        self.log("val_accuracy", self.val_accuracy, on_epoch=True, batch_size=len(batch.label_B))
        self.log("val_loss", self.val_loss, on_epoch=True, batch_size=len(batch.label_B))
        # of each image, so that an interval over images can be given
        return {
            "val_accuracy": (logits_BC.argmax(dim=1) == batch.label_B).float(),
            "val_loss": F.cross_entropy(logits_BC, batch.label_B, reduction="none"),
        }

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)

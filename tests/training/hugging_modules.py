"""A LightningModule around a model of transformers, for runs that attach by its attention interface."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertModel


class HuggingFaceModule(L.LightningModule):
    """Counts a token in a short text with two small layers."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        sizes: dict[str, Any] = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "vocab_size": 6,
        }
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.model: Any = BertModel(BertConfig(**sizes, **dropout), add_pooling_layer=False)
        self.head = torch.nn.Linear(16, 4)

    def loss(self) -> Tensor:
        tokens = torch.randint(0, 6, (4, 8), generator=torch.Generator().manual_seed(self.global_step))
        counts = (tokens == 0).sum(-1).clamp(max=3)
        return F.cross_entropy(self.head(self.model(tokens)[0].mean(1)), counts)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)

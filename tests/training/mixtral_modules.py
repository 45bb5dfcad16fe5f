"""A small Mixtral of random weights as a LightningModule, and texts of which it predicts the tokens."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import MixtralConfig, MixtralForCausalLM

TOKENS = 32


class Mixtral(L.LightningModule):
    """Two layers of four experts, of which two are chosen for each token."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        config = MixtralConfig(
            vocab_size=TOKENS,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
        self.model: Any = MixtralForCausalLM(config)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(input_ids=batch, labels=batch).loss
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class MixtralTexts(L.LightningDataModule):
    """Texts whose next token is three times the last one and seven, but for one in five, which is any."""

    def _loader(self, count: int, seed: int) -> DataLoader[Tensor]:
        draw = torch.Generator().manual_seed(seed)
        tokens = [torch.randint(0, TOKENS, (count,), generator=draw)]
        for _ in range(11):
            random_tokens = torch.randint(0, TOKENS, (count,), generator=draw)
            follows = torch.rand(count, generator=draw) < 0.8
            tokens.append(torch.where(follows, (3 * tokens[-1] + 7) % TOKENS, random_tokens))
        texts: Any = torch.stack(tokens, dim=1)
        return DataLoader(texts, batch_size=32)

    def train_dataloader(self) -> DataLoader[Tensor]:
        return self._loader(256, 1)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return self._loader(64, 2)

    def test_dataloader(self) -> DataLoader[Tensor]:
        return self._loader(64, 3)

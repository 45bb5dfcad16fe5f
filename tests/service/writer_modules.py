"""A small GPT-2 with random weights and its data, for studies of a trained model."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel


class Writer(L.LightningModule):
    """Logs the loss of the next token, and returns that of each text."""

    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=11)
        self.model: Any = GPT2LMHeadModel(config)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        (tokens_BT,) = batch
        logits_BTV = self.model(tokens_BT).logits[:, :-1]
        loss_BT = F.cross_entropy(logits_BTV.transpose(1, 2), tokens_BT[:, 1:], reduction="none")
        self.log("val_loss", loss_BT.mean())
        return {"val_loss": loss_BT.mean(dim=1)}


class Texts(L.LightningDataModule):
    """Random texts."""

    def __init__(self, is_tested: bool = True) -> None:
        super().__init__()
        self.tested = is_tested

    def loader(self, seed: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(seed)
        tokens_BT = torch.randint(11, (48, 12), generator=generator)
        return DataLoader(TensorDataset(tokens_BT), batch_size=16)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader(1)

    def test_dataloader(self) -> Any:
        return self.loader(2) if self.tested else None

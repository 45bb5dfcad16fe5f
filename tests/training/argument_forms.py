"""Modules with constructors of forms that LightningModules have elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from unusual_modules import Net


class ConfiguredNet(Net):
    """Makes its layers in ``configure_model``."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = None  # type: ignore[assignment]

    def configure_model(self) -> None:
        if self.backbone is None:
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            self.backbone = nn.TransformerEncoder(layer, 1)


class SetUpNet(ConfiguredNet):
    """Makes its layers in ``setup``."""

    def configure_model(self) -> None:
        pass

    def setup(self, stage: str) -> None:
        super().configure_model()


class PoppingNet(Net):
    """Takes arguments out of its keywords."""

    def __init__(self, **kwargs: Any) -> None:
        self.width = kwargs.pop("width")
        self.depth = kwargs["depth"] if "depth" in kwargs else 1
        super().__init__(lr=kwargs.get("lr", 0.01))


class NamespaceNet(Net):
    """Takes all its settings in one object."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(lr=args.lr)


class UntypedNet(Net):
    """Does not say what its settings are."""

    def __init__(self, hparams: Any) -> None:
        super().__init__(lr=hparams.lr)


class OptimizerNet(Net):
    """Is given its optimizer, and does not say what makes one."""

    def __init__(self, optimizer: Callable = torch.optim.AdamW) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.make_optimizer = optimizer


class LayerNet(Net):
    """Is given its layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.backbone = nn.TransformerEncoder(layer, 1)


class ModeNet(Net):
    """Logs in a method of its own, by the mode."""

    def step(self, batch: Any, mode: str) -> Tensor:
        loss = self.loss(batch)
        self.log(f"{mode}_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.step(batch, "val")

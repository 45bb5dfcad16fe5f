"""Plain Trainers that write and show nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import pytest
import torch

Fit = Callable[..., L.Trainer]
Validate = Callable[..., tuple[float, torch.Tensor]]


@pytest.fixture
def fit() -> Fit:
    """Train a module for some steps from a seed, with a validation every ``every`` steps and at the end."""

    def train(
        module: L.LightningModule,
        data: L.LightningDataModule,
        *,
        steps: int,
        every: int | None = None,
        seed: int = 0,
        callbacks: Sequence[L.Callback] = (),
    ) -> L.Trainer:
        L.seed_everything(seed, verbose=False)
        options: dict[str, Any] = {"logger": False, "enable_checkpointing": False}
        trainer = L.Trainer(
            max_steps=steps,
            accelerator="cpu",
            val_check_interval=every or steps,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=1.0,
            callbacks=list(callbacks),
            **options,
        )
        trainer.fit(module, datamodule=data)
        return trainer

    return train


class Items(L.Callback):
    """Keeps what a validation step returns."""

    def __init__(self) -> None:
        self.returned: list[dict[str, torch.Tensor]] = []

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self.returned.append(args[0])


@pytest.fixture
def validate() -> Validate:
    """Return a metric as a validation logs it, and its value for each item of the validation split."""

    def measure(
        module: L.LightningModule, data: L.LightningDataModule, metric: str
    ) -> tuple[float, torch.Tensor]:
        items = Items()
        quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "callbacks": [items]}
        trainer = L.Trainer(accelerator="cpu", inference_mode=False, enable_model_summary=False, **quiet)
        (logged,) = trainer.validate(module, datamodule=data, verbose=False)
        return logged[metric], torch.cat([output[metric] for output in items.returned])

    return measure

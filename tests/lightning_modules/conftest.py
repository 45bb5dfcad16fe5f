"""A plain Trainer that writes and shows nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest

Fit = Callable[..., L.Trainer]


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
            **options,
        )
        trainer.fit(module, datamodule=data)
        return trainer

    return train

"""The optimizer and learning rate that all modules here share; it knows nothing of temperature."""

from __future__ import annotations

import math
from functools import partial

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig


def warmup_cosine(step: int, *, total_steps: int, warmup_fraction: float) -> float:
    """Return the share of the peak learning rate at an optimizer step.

    Args:
        step: Optimizer steps taken, >= 0.
        total_steps: Optimizer steps of the whole training, >= 1.
        warmup_fraction: Share of training in which the rate rises linearly, in [0, 1).

    Returns:
        A number in [0, 1]: up to 1 at the end of the warm-up, then down to 0 along half a cosine.
    """
    warmup = round(total_steps * warmup_fraction)
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def adamw_with_cosine(
    module: L.LightningModule, *, lr: float, weight_decay: float = 0.05, warmup_fraction: float = 0.1
) -> OptimizerLRSchedulerConfig:
    """Return AdamW (0.9, 0.98) with a warmed-up cosine learning rate, for ``configure_optimizers``.

    Args:
        module: The module to optimise, with its trainer attached.
        lr: Peak learning rate, > 0.
        weight_decay: Decoupled weight decay, >= 0.
        warmup_fraction: Share of training in which the rate rises, in [0, 1).
    """
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay, fused=True
    )
    total_steps = max(1, int(module.trainer.estimated_stepping_batches))
    rate = partial(warmup_cosine, total_steps=total_steps, warmup_fraction=warmup_fraction)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

"""Trains two ranks by Lightning alone: named_under_ddp.py FOLDER NUMBER SCHEDULE, that as JSON or null."""

from __future__ import annotations

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from contrast_modules import AllUsed, RankRecorder
from toy_modules import ToyData

WAYS: dict[str, Any] = {"temperature": "identity", "tau": "identity", "logit_scale": "log_inverse"}


def seed(number: int) -> None:
    """Seed each of the generators that the data draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


class Draw(L.Callback):
    """Seeds each step by its number and its rank."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        seed(2 * trainer.global_step + trainer.global_rank)


def train(folder: Path, reads: str, schedule: dict[str, Any] | None) -> None:
    """Train for 12 steps, and write down what each rank had."""
    seed(3)
    callbacks: list[L.Callback] = [RankRecorder(folder), Draw()]
    if schedule is not None:
        from tempopt import ValueCallback

        callbacks.append(ValueCallback(f"criterion.{reads}", schedule, WAYS[reads]))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=12,
        limit_val_batches=0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = AllUsed(reads=reads)
    trainer.fit(module, ToyData(batch_size=3))
    trainer.save_checkpoint(folder / "trained.ckpt", weights_only=True)
    if trainer.is_global_zero:
        torch.save(module.state_dict(), folder / "state.pt")
    # the threads of a group that is left open end a process that leaves
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))

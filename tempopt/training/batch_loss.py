"""The training loss of one batch, outside of a training: what the dry run proves temperatures on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import lightning as L
from torch import Tensor

from tempopt.training.callbacks import seed_generators
from tempopt.training.run import Run


def make_single_batch_loss(run: Run) -> Callable[[], Any]:
    """Return what computes the loss of one fixed batch, with the same random numbers each time.

    Of a module that optimizes by itself it returns the losses that the step would go back through; no
    optimizer steps.
    """
    batch = next(iter(_first(run.owner.train_dataloader())))
    batch = run.trainer.strategy.batch_to_device(batch)

    def forward() -> Any:
        seed_generators(run.request.seed, "self-test")
        with _silent(run.module), _collected(run) as losses:
            loss: Any = run.module.training_step(batch, 0)
        return losses or (loss["loss"] if isinstance(loss, dict) else loss)

    return forward


def _first(loaders: Any) -> Any:
    if isinstance(loaders, dict):
        return next(iter(loaders.values()))
    return loaders[0] if isinstance(loaders, list | tuple) else loaders


@contextlib.contextmanager
def _silent(module: L.LightningModule) -> Iterator[None]:
    """Let a step be called outside of a loop, where Lightning would not let it log."""
    names = ("log", "log_dict")
    for name in names:
        module.__dict__[name] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        for name in names:
            del module.__dict__[name]


@contextlib.contextmanager
def _collected(run: Run) -> Iterator[list[Tensor]]:
    """Collect what a step under manual optimization would go back through, and let no optimizer step."""
    losses: list[Tensor] = []
    if run.module.automatic_optimization:
        yield losses
        return

    def collect(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        losses.append(loss)

    def no_step(optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        return None if closure is None else closure()

    with (
        mock.patch.object(Tensor, "backward", collect),
        mock.patch.object(run.module, "manual_backward", collect),
        mock.patch.object(run.trainer.strategy, "optimizer_step", no_step),
    ):
        yield losses

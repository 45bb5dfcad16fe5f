"""A training step on the first batch of the data, outside of a loop, as the example for attaching."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import lightning as L
from lightning.pytorch.utilities import CombinedLoader as LightningCombinedLoader
from torch import Tensor

from tempopt.attention.attach.preserve_state import preserve_attributes
from tempopt.attention.functional.logits import full_precision
from tempopt.training.lightning_package import CombinedLoader, MixedPrecision


def first_batch(loaders: Any) -> Any:
    """Return the first batch of training dataloaders, as a training step gets it from several of them."""
    if not isinstance(loaders, CombinedLoader):
        loaders = LightningCombinedLoader(loaders, "max_size_cycle")
    batch, _, _ = next(iter(loaders))
    return batch


def _silence_logging(module: L.LightningModule) -> AbstractContextManager[object]:
    """Ignore logging in a step, which Lightning refuses outside of a loop."""
    return mock.patch.multiple(module, log=_ignore, log_dict=_ignore)


def _ignore(*args: Any, **kwargs: Any) -> None:
    pass


def training_step(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> Callable[[], Any]:
    """Return a function that runs a training step on the first batch of the training data, read once.

    Args:
        module: The module, on its present device.
        datamodule: The data, which are set up for it; None if the module has its own loaders.
    """

    @functools.cache
    def batch() -> Any:
        if datamodule is not None:
            datamodule.prepare_data()
            datamodule.setup("fit")
        owner: Any = datamodule or module
        return module.transfer_batch_to_device(first_batch(owner.train_dataloader()), module.device, 0)

    def forward() -> Any:
        with _silence_logging(module), preserve_attributes(module):
            return _step(module, batch())

    return forward


def batch_loss(trainer: L.Trainer, module: L.LightningModule, batch: Any) -> Callable[[], Any]:
    """Return a function that computes the loss of a batch while a Trainer trains, outside of its loop.

    For manual optimization it returns the losses that the step would backpropagate; no optimizer steps.
    Mixed precision is off: rounding to 16 bits would hide what a temperature does.

    Args:
        trainer: The Trainer.
        module: What it trains.
        batch: A batch on the module's device.
    """

    def forward() -> Any:
        with (
            _silence_logging(module),
            preserve_attributes(module),
            _collect_losses(trainer, module) as losses,
            _precision(trainer),
        ):
            loss = _step(module, batch)
        return losses or (loss["loss"] if isinstance(loss, dict) else loss)

    return forward


def _precision(trainer: L.Trainer) -> AbstractContextManager[Any]:
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision):
        return full_precision(plugin.device)
    return plugin.train_step_context()


def _step(module: L.LightningModule, batch: Any) -> Any:
    takes_index = len(inspect.signature(module.training_step).parameters) > 1
    return module.training_step(batch, *([0] if takes_index else []))


@contextlib.contextmanager
def _collect_losses(trainer: L.Trainer, module: L.LightningModule) -> Iterator[list[Tensor]]:
    """Collect the losses that a manual optimization would backpropagate, without optimizer steps."""
    losses: list[Tensor] = []
    if module.automatic_optimization:
        yield losses
        return

    def collect(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        losses.append(loss)

    def no_step(optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        return None if closure is None else closure()

    with (
        mock.patch.object(Tensor, "backward", collect),
        mock.patch.object(module, "manual_backward", collect),
        mock.patch.object(trainer.strategy, "optimizer_step", no_step),
    ):
        yield losses

"""A training step on the first batch of the data, outside of a loop, as the example for attaching."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import lightning as L
import torch
from lightning.pytorch.utilities import CombinedLoader as LightningCombinedLoader
from torch import Tensor, nn

from tempopt.training.attribute_state import preserve_attributes
from tempopt.training.lightning_package import CombinedLoader


def first_batch(loaders: Any) -> Any:
    """Return the first batch of training dataloaders, as a training step gets it from several of them."""
    if not isinstance(loaders, CombinedLoader):
        loaders = LightningCombinedLoader(loaders, "max_size_cycle")
    batch, _, _ = next(iter(loaders))
    return batch


@contextlib.contextmanager
def silence_logging(module: L.LightningModule) -> Iterator[None]:
    """Ignore logging in a step, which Lightning refuses outside of a loop."""
    names = ("log", "log_dict")
    for name in names:
        module.__dict__[name] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        for name in names:
            del module.__dict__[name]


def _step_tensors(module: nn.Module) -> list[Tensor]:
    """Return the tensors that a training step may change: buffers, and averages of the trained weights.

    Averages, as of a momentum encoder, are parameters without gradients that have the shape of a trained one.
    """
    shapes = {parameter.shape for parameter in module.parameters() if parameter.requires_grad}
    averages = [p for p in module.parameters() if not p.requires_grad and p.shape in shapes]
    return [*module.buffers(), *averages]


@contextlib.contextmanager
def _preserve_state(module: nn.Module, tensors: list[Tensor]) -> Iterator[None]:
    """Put back what a training step changes by itself: attributes of the module, and the tensors."""
    saved_values = [tensor.detach().clone() for tensor in tensors]
    with preserve_attributes(module):
        try:
            yield
        finally:
            for tensor, value in zip(tensors, saved_values, strict=True):
                if not torch.equal(tensor, value):
                    # not to the tensor itself, which could not be differentiated any more
                    tensor.data.copy_(value)


def training_step(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> Callable[[], Any]:
    """Return a function that runs a training step on the first batch of the training data, read once.

    Args:
        module: The module, on its present device.
        datamodule: The data, which are set up for it; None if the module has its own loaders.
    """
    tensors = _step_tensors(module)

    @functools.cache
    def batch() -> Any:
        if datamodule is not None:
            datamodule.prepare_data()
            datamodule.setup("fit")
        owner: Any = datamodule or module
        return module.transfer_batch_to_device(first_batch(owner.train_dataloader()), module.device, 0)

    def forward() -> Any:
        with silence_logging(module), _preserve_state(module, tensors):
            return _step(module, batch())

    return forward


def batch_loss(trainer: L.Trainer, module: L.LightningModule, batch: Any) -> Callable[[], Any]:
    """Return a function that computes the loss of a batch while a Trainer trains, outside of its loop.

    For manual optimization it returns the losses that the step would backpropagate; no optimizer steps.

    Args:
        trainer: The Trainer.
        module: What it trains.
        batch: A batch on the module's device.
    """
    tensors = _step_tensors(module)

    def forward() -> Any:
        with (
            silence_logging(module),
            _preserve_state(module, tensors),
            _collect_losses(trainer, module) as losses,
            trainer.precision_plugin.train_step_context(),
        ):
            loss = _step(module, batch)
        return losses or (loss["loss"] if isinstance(loss, dict) else loss)

    return forward


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

"""A training step on the first batch of the data, outside of a loop, as the example for attaching."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
from lightning.pytorch.utilities import CombinedLoader as LightningCombinedLoader

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


def training_step(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> Callable[[], Any]:
    """Return a function that runs a training step on the first batch of the training data.

    Args:
        module: The module, on its present device.
        datamodule: The data, which are set up for it; None if the module has its own loaders.
    """
    if datamodule is not None:
        datamodule.prepare_data()
        datamodule.setup("fit")
    owner: Any = datamodule or module
    batch = module.transfer_batch_to_device(first_batch(owner.train_dataloader()), module.device, 0)

    def forward() -> Any:
        with silence_logging(module):
            return module.training_step(batch, 0)

    return forward

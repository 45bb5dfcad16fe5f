"""The identity of the code that a run was trained with."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from importlib.metadata import PackageNotFoundError, version

import lightning as L

_PACKAGES = ("tempopt", "torch", "lightning", "torchmetrics", "numpy")


@functools.cache
def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        # defined at a prompt or in a notebook: the name is all there is
        return module


@functools.cache
def _versions() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} from source")
    return ", ".join(found)


def code_identity(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> str:
    """Return a short hash of the modules' source files and the versions of the packages that train them."""
    text = _versions() + _source(type(module).__module__)
    if datamodule is not None:
        text += _source(type(datamodule).__module__)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

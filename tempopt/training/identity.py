"""The identity of the code that a run was trained with."""

from __future__ import annotations

import functools
import hashlib
import inspect
from importlib.metadata import version

import lightning as L

_PACKAGES = ("tempopt", "torch", "lightning", "torchmetrics", "numpy")


@functools.cache
def _source(kind: type) -> str:
    try:
        return inspect.getsource(inspect.getmodule(kind) or kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _versions() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except Exception:
            found.append(f"{name} from source")
    return ", ".join(found)


def code_identity(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> str:
    """Return a short hash of the modules' source files and the versions of the packages that train them."""
    text = _versions() + _source(type(module)) + (_source(type(datamodule)) if datamodule else "")
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

"""Which of its two packages Lightning is taken from: ``lightning``, or ``pytorch_lightning``.

They have the same code, and the Trainer of one refuses modules and callbacks of the other.
``pytorch_lightning`` is used where a person's code has imported it, and is never imported here.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import model_helpers

__all__ = [
    "CSVLogger",
    "ClusterEnvironment",
    "CombinedLoader",
    "DoublePrecision",
    "LightningCallback",
    "LightningCheckpoint",
    "LightningDataModule",
    "LightningModule",
    "Logger",
    "MLFlowLogger",
    "MixedPrecision",
    "ModelCheckpoint",
    "TensorBoardLogger",
    "WandbLogger",
    "in_either_package",
    "is_overridden",
    "lightning_package",
]

_PYTORCH_LIGHTNING = "pytorch_lightning"


class _EitherPackage(type):
    """Type of classes that stand for the class of their name in both packages."""

    def __subclasscheck__(cls, subclass: type) -> bool:
        return any(base.__name__ == cls.__name__ and _package_name(base) for base in subclass.__mro__)

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)


def in_either_package(cls: type) -> Any:
    """Return a stand-in for ``isinstance`` that covers one of Lightning's classes in both packages."""
    return _EitherPackage(cls.__name__, (), {})


if TYPE_CHECKING:
    from lightning.fabric.plugins import ClusterEnvironment
    from lightning.pytorch import LightningDataModule, LightningModule
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
    from lightning.pytorch.plugins import DoublePrecision, MixedPrecision
    from lightning.pytorch.utilities import CombinedLoader
else:
    # for isinstance and issubclass alone
    ClusterEnvironment = _EitherPackage("ClusterEnvironment", (), {})
    LightningDataModule = _EitherPackage("LightningDataModule", (), {})
    LightningModule = _EitherPackage("LightningModule", (), {})
    ModelCheckpoint = _EitherPackage("ModelCheckpoint", (), {})
    CSVLogger = _EitherPackage("CSVLogger", (), {})
    Logger = _EitherPackage("Logger", (), {})
    MLFlowLogger = _EitherPackage("MLFlowLogger", (), {})
    TensorBoardLogger = _EitherPackage("TensorBoardLogger", (), {})
    WandbLogger = _EitherPackage("WandbLogger", (), {})
    DoublePrecision = _EitherPackage("DoublePrecision", (), {})
    CombinedLoader = _EitherPackage("CombinedLoader", (), {})
    MixedPrecision = _EitherPackage("MixedPrecision", (), {})


def _package_name(cls: type) -> str | None:
    """Return the name of the package that a class is of; None: it is not Lightning's."""
    names = {
        "lightning": L.__name__,
        _PYTORCH_LIGHTNING: _PYTORCH_LIGHTNING,
        "lightning_fabric": _PYTORCH_LIGHTNING,
    }
    return names.get(cls.__module__.partition(".")[0])


def lightning_package(cls: type) -> Any:
    """Return the package, as ``lightning.pytorch``, that a module or data module is derived from."""
    name = next(name for base in cls.__mro__ if (name := _package_name(base)))
    # the import of pytorch_lightning has set its own
    logging.getLogger(name).setLevel(logging.getLogger(L.__name__).level)
    return sys.modules[name]


def is_overridden(name: str, module: LightningModule) -> bool:
    """Return whether a module has a method of its own in place of Lightning's."""
    return model_helpers.is_overridden(name, module, parent=lightning_package(type(module)).LightningModule)


class LightningCallback(L.Callback):
    """A callback for the Trainers of both packages."""

    def __init__(self) -> None:
        super().__init__()
        # it may have been imported since
        _derive_from_both()


class LightningCheckpoint(LightningCallback, Checkpoint):
    """One that Lightning calls behind all callbacks that are not of its class ``Checkpoint``."""


def _derive_from_both() -> None:
    """Make the callbacks callbacks of ``pytorch_lightning``, too, if that has been imported."""
    package = sys.modules.get(_PYTORCH_LIGHTNING)
    if package is not None and not issubclass(LightningCallback, package.Callback):
        LightningCallback.__bases__ = (L.Callback, package.Callback)
        LightningCheckpoint.__bases__ = (LightningCallback, Checkpoint, package.callbacks.Checkpoint)


_derive_from_both()

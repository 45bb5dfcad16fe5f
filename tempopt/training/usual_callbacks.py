"""Callbacks of usual configurations that a run leaves out, and those that no run may have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    DeviceStatsMonitor,
    LearningRateFinder,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)

from tempopt.class_loading import load_class
from tempopt.errors import SpecError
from tempopt.training.lightning_package import in_either_package

_FOR_SCREENS = tuple(map(in_either_package, (ProgressBar, ModelSummary)))
_FOR_LOGGERS = tuple(map(in_either_package, (LearningRateMonitor, DeviceStatsMonitor, ThroughputMonitor)))
_REFUSED: dict[type[L.Callback], str] = {
    LearningRateFinder: "chooses a learning rate for each run anew, so that runs differ in more than is "
    "searched. Take it out, and search the argument of the module, as in "
    "lr: {low: 0.0001, high: 0.01, log: true}.",
    BatchSizeFinder: "chooses a batch size by the memory that is free. Take it out, and write the size under "
    "data.init_args, or search it, as in data.batch_size: [32, 64].",
    Timer: "ends a run by the clock, and that is not the same run twice. Take it out, and give "
    "trainer.max_steps or max_epochs; study.limits.hours limits the search.",
}


def without_screens(value: Any) -> Any:
    """Return ``trainer.callbacks`` of a spec without callbacks for screens.

    Raises:
        SpecError: A callback is not allowed in runs.
    """
    if value is None:
        return None
    classes = {id(entry): _class_of(entry) for entry in as_list(value)}
    for cls in classes.values():
        _refuse(cls)
    return [entry for entry in as_list(value) if not issubclass(classes[id(entry)], _FOR_SCREENS)]


def usual_callbacks(callbacks: Iterable[L.Callback], *, has_logger: bool) -> list[L.Callback]:
    """Return the callbacks that a run has, of those that its spec or its module gives.

    Raises:
        SpecError: As for :func:`without_screens`.
    """
    left_out = _FOR_SCREENS if has_logger else (*_FOR_SCREENS, *_FOR_LOGGERS)
    callbacks = list(callbacks)
    for callback in callbacks:
        _refuse(type(callback))
    return [callback for callback in callbacks if not isinstance(callback, left_out)]


def prepare_own_callbacks(module: L.LightningModule, *, has_logger: bool) -> None:
    """Limit ``configure_callbacks`` of a module to the callbacks that a run has."""
    configure_callbacks = module.configure_callbacks

    def configure() -> list[L.Callback]:
        return usual_callbacks(as_list(configure_callbacks()), has_logger=has_logger)

    module.configure_callbacks = configure  # type: ignore[method-assign]


def as_list(value: Any) -> list[Any]:
    """Return callbacks or plugins as a list; None is an empty one."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _class_of(entry: Any) -> type:
    path = entry.get("class_path") if isinstance(entry, Mapping) else entry
    if not isinstance(path, str):
        return object
    try:
        full_path = path if "." in path else f"lightning.pytorch.callbacks.{path}"
        return load_class(full_path, base=object, where="trainer.callbacks")
    except SpecError:
        # the check of the Trainer's arguments reports it, with its line
        return object


def _refuse(cls: type) -> None:
    for refused_class, reason in _REFUSED.items():
        if issubclass(cls, in_either_package(refused_class)):
            raise SpecError(f"trainer.callbacks: {cls.__name__} {reason}")

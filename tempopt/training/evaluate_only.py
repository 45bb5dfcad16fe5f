"""Evaluate a trained model: load its weights, and record the metric per item or per batch.

``tempopt.service.evaluation`` computes intervals from these. A ``validation_step`` that returns a mapping
with the metric's name and one value per item of its batch gives values per item. Otherwise the logged values
per batch are used.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from tempopt.attention.attach.checkpoints import load_as_trained
from tempopt.errors import AttachError, SpecError, UsageError
from tempopt.training.lightning_internals import last_of_metric, size_of_batch
from tempopt.training.lightning_package import LightningCallback
from tempopt.training.messages import UnitKind, sizes_name, units_name

MAX_UNITS = 1000
"""Largest number of stored units; beyond it neighbours are merged."""

_REL_TOLERANCE = 1e-4


def load_trained(module: L.LightningModule, path: str) -> None:
    """Load the weights to evaluate.

    Raises:
        SpecError: They cannot be read as data, or are of another model.
        AttachError: They contain a temperature.
    """
    try:
        load_as_trained(module, path)
    except AttachError:
        raise
    except UsageError as error:
        raise SpecError(f"--weights: {error}") from error


class PerItemMetricCallback(LightningCallback):
    """Collects the metric per item and per batch while a Trainer validates.

    Args:
        metric: Name of the metric in validation.

    Attributes:
        curves: Name to index and value of each unit.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self.curves: dict[str, list[list[float]]] = {}
        self._loader = 0
        self._batch: Any = None
        self._in_batch = False
        self._items: list[float] = []
        self._batches: list[tuple[float, float]] = []

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._items, self._batches = [], []

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._loader, self._batch, self._in_batch = dataloader_idx, batch, True

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._in_batch, self._batch = False, None
        if isinstance(outputs, Mapping):
            for metric_value in (value for name, value in outputs.items() if self._is_metric(name)):
                if isinstance(metric_value, Tensor) and metric_value.dim() == 1:
                    self._items += metric_value.detach().double().tolist()

    def _is_metric(self, name: object) -> bool:
        """Return whether a value logged under this name in this batch contributes to the metric."""
        return name == self._metric or f"{name}/dataloader_idx_{self._loader}" == self._metric

    @contextlib.contextmanager
    def record_metric(self, module: L.LightningModule) -> Iterator[None]:
        """Record the module's logged values until the end of the context."""
        original_log, instance_log = module.log, module.__dict__.get("log")

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            original_log(name, value, *args, **kwargs)
            if self._in_batch and self._is_metric(name):
                self._record(value, kwargs.get("batch_size"))

        # must stay uncompiled if steps are compiled
        module.__dict__["log"] = torch.compiler.disable(log)
        try:
            yield
        finally:
            del module.__dict__["log"]
            if instance_log is not None:
                module.__dict__["log"] = instance_log

    def _record(self, value: Any, size: int | None) -> None:
        value = last_of_metric(value)
        if value is None or (isinstance(value, Tensor) and value.numel() != 1):
            return
        self._batches.append((float(value), float(size_of_batch(self._batch) if size is None else size)))

    def take(self, split: str, metric: float) -> None:
        """Add the units of the newest validation to the curves, if there are any.

        Args:
            split: The data: ``validate`` or ``test``.
            metric: The metric over all of them.
        """
        kind_units = self._units(metric)
        if kind_units is None:
            return
        kind, units = kind_units
        self.curves[units_name(split, kind)] = [[index, value] for index, (value, _) in enumerate(units)]
        sizes = {size for _, size in units}
        if sizes != {1.0}:
            self.curves[sizes_name(split)] = [[index, size] for index, (_, size) in enumerate(units)]

    def _units(self, metric: float) -> tuple[UnitKind, list[tuple[float, float]]] | None:
        """Return the kind of the units, and value and number of items of each; None if there are none.

        Args:
            metric: The metric of the whole validation; units with another mean are not its parts.
        """
        units_by_kind: dict[UnitKind, list[tuple[float, float]]] = {
            "items": [(value, 1.0) for value in self._items],
            "batches": self._batches,
        }
        for kind, units in units_by_kind.items():
            if units and _is_mean(units, metric):
                return kind, _group_units(units)
        return None


def _is_mean(units: list[tuple[float, float]], metric: float) -> bool:
    total = sum(size for _, size in units)
    if total <= 0 or not all(math.isfinite(value) for value, _ in units):
        return False
    mean = sum(value * size for value, size in units) / total
    spread = max(abs(value) for value, _ in units)
    return math.isclose(mean, metric, rel_tol=_REL_TOLERANCE, abs_tol=_REL_TOLERANCE * 1e-3 * spread)


def _group_units(units: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most ``MAX_UNITS`` units; neighbours are merged if there are more."""
    if len(units) <= MAX_UNITS:
        return units
    group_size = math.ceil(len(units) / MAX_UNITS)
    grouped_units = []
    for start in range(0, len(units), group_size):
        group = units[start : start + group_size]
        size = sum(size for _, size in group)
        grouped_units.append((sum(value * size for value, size in group) / size, size))
    return grouped_units

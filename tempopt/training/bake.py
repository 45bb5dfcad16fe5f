"""Writes a temperature into initial query weights: the arm that asks whether no more than that was needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L

from tempopt.attention.attach.query_rows import QueryRows, query_rows
from tempopt.errors import AttachError
from tempopt.temperature import TemperatureParameters
from tempopt.training.callbacks import Tempered
from tempopt.training.module import TemperedModule


def bake(
    module: L.LightningModule,
    tempered: Tempered,
    parameters: Mapping[str, Any],
    *,
    way: str,
    layers: Sequence[str] | str,
) -> None:
    """Multiply the plan at step 0 into the query weights and biases of each layer.

    Args:
        module: Whose weights they are.
        tempered: Its layers.
        parameters: Temperature parameters of the plan.
        way: Way of attaching, for a module that is attached to.
        layers: Layers that it is attached to: patterns, or ``auto``.

    Raises:
        AttachError: There are not as many query projections as layers.
    """
    rows = _rows(module, tempered, way=way, layers=layers)
    if len(rows) != len(tempered.layers):
        raise AttachError(
            f"{type(module).__name__} has {len(tempered.layers)} tempered layers, but query "
            f"projections were found in {[row.name for row in rows]}; an initial temperature cannot be "
            "baked into their weights."
        )
    plan = TemperatureParameters.from_mapping(parameters).plan(len(rows))
    for row, temperature in zip(rows, plan.temperatures(0.0), strict=True):
        row.scale_(1.0 / temperature)


def _rows(
    module: L.LightningModule, tempered: Tempered, *, way: str, layers: Sequence[str] | str
) -> list[QueryRows]:
    if isinstance(module, TemperedModule) or way == "query_rows":
        return query_rows(module, layers)
    # by the interface the layers are the attention modules, which hold their projections
    return [row for name in tempered.layers for row in query_rows(module, [name])]

"""Writes a temperature into initial query weights: the arm that asks whether no more than that was needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L

from tempopt.attention.attach.query_rows import query_rows
from tempopt.attention.attach.scalings import Scaling, of_rows, scalings, write
from tempopt.errors import AttachError
from tempopt.temperature import TemperatureParameters
from tempopt.training.callbacks import Tempered
from tempopt.training.module import TemperedModule


def bake_initial(
    module: L.LightningModule,
    tempered: Tempered,
    parameters: Mapping[str, Any],
    *,
    layers: Sequence[str] | str,
) -> None:
    """Multiply the plan at step 0 into what makes the queries of each layer.

    Args:
        module: Whose weights they are: a TemperedModule, or one with a temperature attached, which stays.
        tempered: Its layers.
        parameters: Temperature parameters of the plan.
        layers: Layers of a TemperedModule: patterns, or ``auto``.

    Raises:
        AttachError: There are not as many query projections as layers, or they cannot hold a temperature.
    """
    plan = TemperatureParameters.from_mapping(parameters).plan(len(tempered.layers))
    temperatures = plan.temperatures(0.0)
    tells = isinstance(module, TemperedModule)
    write(_of_projections(module, temperatures, layers) if tells else scalings(module, at=temperatures))


def _of_projections(
    module: L.LightningModule, temperatures: Sequence[float], layers: Sequence[str] | str
) -> list[Scaling]:
    rows = query_rows(module, layers)
    if len(rows) != len(temperatures):
        raise AttachError(
            f"{type(module).__name__} has {len(temperatures)} tempered layers, but query "
            f"projections were found in {[row.name for row in rows]}; an initial temperature cannot be "
            "baked into their weights."
        )
    return [
        scaling for row, each in zip(rows, temperatures, strict=True) for scaling in of_rows(row, 1.0 / each)
    ]

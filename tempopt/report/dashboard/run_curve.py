"""What a picture of one run shows: its value and its temperature over steps; draws nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tempopt.records.rows import RunRow
from tempopt.temperature import TemperatureParameters, own_parameters, progress, temperatures_of

_POINTS = 200

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurve:
    """One run over its steps.

    Args:
        name: What people call the run, as in ``search-12``.
        metric: Name of the validation metric.
        direction: Which values of it are better.
        end: How the run ended, in words.
        steps: Optimizer steps that it did.
        total_steps: Steps it would have done to the end, at least 1.
        values: Step and reported value, finite, by step.
        temperatures: By name, τ being attention's: step and temperature of the plan from the first step to
            the last that was planned, in the geometric mean over the layers.
    """

    name: str
    metric: str
    direction: Literal["maximize", "minimize"]
    end: str
    steps: int
    total_steps: int
    values: Points
    temperatures: Mapping[str, Points]


def run_curve(run: RunRow) -> RunCurve:
    """Return what the picture of a run shows."""
    ticket, study = run.ticket, run.study.spec["study"]
    steps = max(ticket.steps or 0, *run.reports, 0)
    total = max(ticket.total_steps or steps, 1)
    parameters = ticket.parameters or {}
    points = min(total, _POINTS)
    at = [total * point // points for point in range(points + 1)]
    temperatures = {}
    for name in temperatures_of(parameters):
        level = TemperatureParameters.from_mapping(own_parameters(parameters, name)).plan(1).schedule
        temperatures[name or "τ"] = tuple((step, level(progress(step, total))) for step in at)
    return RunCurve(
        name=ticket.name,
        metric=study["metric"],
        direction=study["direction"],
        end=ticket.outcome or ticket.state,
        steps=steps,
        total_steps=total,
        values=tuple((step, value) for step, value in run.reports.items() if math.isfinite(value)),
        temperatures=temperatures,
    )

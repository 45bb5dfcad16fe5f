"""The shape of a piecewise schedule: where it bends, and how it goes in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from tempopt.temperature import Piecewise, TemperatureParameters, parameters_of_temperature

_STRAIGHT = 1e-9


def schedule_points(parameters: Mapping[str, Any], temperature: str = "") -> tuple[tuple[float, float], ...]:
    """Return where a piecewise schedule begins, bends and ends: training progress in [0, 1], and τ there.

    Between two of these ln τ is linear. Empty for other schedules, and for one without a bend.

    Args:
        parameters: A parameter set.
        temperature: Name of the temperature; empty for attention's.
    """
    schedule_params = parameters_of_temperature(parameters, temperature)
    if schedule_params.get("schedule") != Piecewise.name:
        return ()
    schedule = TemperatureParameters.from_mapping(schedule_params).plan(1).schedule
    if not isinstance(schedule, Piecewise):
        return ()
    knots = list(schedule.knots)
    # constant before the first knot and behind the last
    if knots[0][0] > 0.0:
        knots.insert(0, (0.0, knots[0][1]))
    if knots[-1][0] < 1.0:
        knots.append((1.0, knots[-1][1]))
    points = [knots[0]]
    for knot, following in itertools.pairwise(knots[1:]):
        if abs(_slope(points[-1], knot) - _slope(knot, following)) > _STRAIGHT:
            points.append(knot)
    return (*points, knots[-1]) if len(points) > 1 else ()


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return math.log(end[1] / start[1]) / (end[0] - start[0])


def describe_schedule(parameters: Mapping[str, Any], temperature: str = "") -> str:
    """Return how a piecewise schedule goes: ``1 until 70 % of training, 0.487 at 85 %, 0.885 at the end``.

    Empty where :func:`shape` is.
    """
    knots = schedule_points(parameters, temperature)
    parts: list[str] = []
    index = 0
    while index < len(knots):
        (progress, tau), last_index = knots[index], index
        while last_index + 1 < len(knots) and knots[last_index + 1][1] == tau:
            last_index += 1
        parts.append(f"{tau:.4g} {_when(progress, knots[last_index][0], first=not parts)}")
        index = last_index + 1
    return ", ".join(parts)


def _when(start: float, end: float, *, first: bool) -> str:
    suffix = " of training" if first else ""
    if start == end:
        return (
            "at first" if start == 0.0 else "at the end" if start == 1.0 else f"at {_percent(start)}{suffix}"
        )
    if start == 0.0:
        return f"until {_percent(end)}{suffix}"
    return f"from {_percent(start)} on" if end == 1.0 else f"from {_percent(start)} to {_percent(end)}"


def _percent(progress: float) -> str:
    return f"{100 * progress:.3g} %"

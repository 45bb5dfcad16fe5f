"""The shape of a piecewise schedule: where it bends, and how it goes in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from tempopt.temperature import Piecewise, TemperatureParameters, own_parameters

_STRAIGHT = 1e-9


def shape(parameters: Mapping[str, Any], temperature: str = "") -> tuple[tuple[float, float], ...]:
    """Return where a piecewise schedule begins, bends and ends: training progress in [0, 1], and τ there.

    Between two of these ln τ is linear. Empty for other schedules, and for one without a bend.

    Args:
        parameters: A parameter set.
        temperature: Name of the temperature; empty for attention's.
    """
    own = own_parameters(parameters, temperature)
    if own.get("schedule") != Piecewise.name:
        return ()
    schedule = TemperatureParameters.from_mapping(own).plan(1).schedule
    if not isinstance(schedule, Piecewise):
        return ()
    knots = list(schedule.knots)
    # constant before the first knot and behind the last
    if knots[0][0] > 0.0:
        knots.insert(0, (0.0, knots[0][1]))
    if knots[-1][0] < 1.0:
        knots.append((1.0, knots[-1][1]))
    found = [knots[0]]
    for knot, following in itertools.pairwise(knots[1:]):
        if abs(_slope(found[-1], knot) - _slope(knot, following)) > _STRAIGHT:
            found.append(knot)
    return (*found, knots[-1]) if len(found) > 1 else ()


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    return math.log(other[1] / one[1]) / (other[0] - one[0])


def course_text(parameters: Mapping[str, Any], temperature: str = "") -> str:
    """Return how a piecewise schedule goes: ``1 until 70 % of training, 0.487 at 85 %, 0.885 at the end``.

    Empty where :func:`shape` is.
    """
    knots = shape(parameters, temperature)
    parts: list[str] = []
    place = 0
    while place < len(knots):
        (at, tau), last = knots[place], place
        while last + 1 < len(knots) and knots[last + 1][1] == tau:
            last += 1
        parts.append(f"{tau:.4g} {_when(at, knots[last][0], first=not parts)}")
        place = last + 1
    return ", ".join(parts)


def _when(at: float, until: float, *, first: bool) -> str:
    of = " of training" if first else ""
    if at == until:
        return "at first" if at == 0.0 else "at the end" if at == 1.0 else f"at {_percent(at)}{of}"
    if at == 0.0:
        return f"until {_percent(until)}{of}"
    return f"from {_percent(at)} on" if until == 1.0 else f"from {_percent(at)} to {_percent(until)}"


def _percent(progress: float) -> str:
    return f"{100 * progress:.3g} %"

"""Knots of a piecewise schedule: which lists of knots are allowed, and the positions of parameter knots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tempopt.errors import SpecError
from tempopt.temperature.ranges import RANGES

Knot = tuple[float, float]
"""Training progress in [0, 1], and the temperature at it."""

KNOTS = "temperature_knots"
"""Name of the parameter that holds a complete schedule as a list of knots."""

INNER_KNOTS = tuple(f"temperature_knot_{number}" for number in range(1, 5))
"""Names of the temperatures of the inner knots, in order."""

MIN_KNOTS = 2
MAX_KNOTS = 16


def check_knots(value: object) -> None:
    """Refuse a value that is not a list of knots.

    Args:
        value: 2 to 16 pairs ``[progress, temperature]``, progress in [0, 1] and ascending, temperatures from
            1e-6 to 1e6.

    Raises:
        SpecError: The value is something else; the message names the first wrong pair.
    """
    if not (isinstance(value, list | tuple) and MIN_KNOTS <= len(value) <= MAX_KNOTS):
        raise SpecError(
            f"{KNOTS}={value!r} is not a list of knots. Give {MIN_KNOTS} to {MAX_KNOTS} pairs "
            f"[progress, temperature], as in [[0, 2.0], [0.7, 2.0], [1, 0.5]]."
        )
    previous_progress = -math.inf
    for index, knot in enumerate(value):
        if not (isinstance(knot, list | tuple) and len(knot) == 2 and all(map(_is_number, knot))):
            raise SpecError(
                f"{KNOTS}[{index}]={knot!r} is not a pair of numbers. Give [progress, temperature], as in "
                f"[0.7, 2.0]."
            )
        progress, temperature = knot
        if not (0.0 <= progress <= 1.0 and progress > previous_progress):
            raise SpecError(
                f"{KNOTS}[{index}] is at progress {progress!r}. Give shares of training from 0 to 1, each "
                "once, in ascending order."
            )
        if not RANGES["temperature"].accepts(temperature):
            raise SpecError(
                f"{KNOTS}[{index}] has the temperature {temperature!r}. Give {RANGES['temperature'].allowed}."
            )
        previous_progress = progress


def to_knots(value: Sequence[Sequence[float]]) -> tuple[Knot, ...]:
    """Return a checked list of knots as immutable floats."""
    return tuple((float(progress), float(temperature)) for progress, temperature in value)


def num_inner_knots(parameters: Mapping[str, Any]) -> int:
    """Return the number of inner knots: ``num_knots``, or the last knot with a temperature; 0 for none."""
    knot_numbers = [number for number, name in enumerate(INNER_KNOTS, 1) if parameters.get(name) is not None]
    count = parameters.get("num_knots")
    return count if count is not None else max(knot_numbers, default=0)


def unused_piecewise_params(parameters: Mapping[str, Any]) -> set[str]:
    """Return the parameters of knots that a piecewise schedule with these values does not use.

    A list of knots is the complete schedule. Without one, an inner knot counts if it has a temperature and
    its number is at most ``num_knots``.
    """
    if parameters.get(KNOTS) is not None:
        return {"temperature_init", "temperature_final", "hold_fraction", "num_knots", *INNER_KNOTS}
    num_inner = num_inner_knots(parameters)
    active_knots = [name for name in INNER_KNOTS[:num_inner] if parameters.get(name) is not None]
    unused_names = {KNOTS, *INNER_KNOTS} - set(active_knots)
    # without inner knots, num_knots positions nothing
    if not active_knots or parameters.get("num_knots") is None:
        unused_names.add("num_knots")
    return unused_names


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

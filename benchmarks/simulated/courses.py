"""What a simulated world looks at of a temperature plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

from tempopt.temperature import (
    PLAN_PARAMETERS,
    TemperatureParameters,
    as_found,
    own_parameters,
    progress,
)

_PLACES = 9


@dataclass(frozen=True, slots=True)
class Course:
    """A temperature over training: logarithms of its ratio to that of the baseline, which is 0 everywhere.

    Args:
        mean: Mean over training.
        first: At its beginning.
        last: At its end.
        scaled: Whether it follows the length.
    """

    mean: float
    first: float
    last: float
    scaled: bool


def course(parameters: Mapping[str, Any], temperature: str = "") -> Course:
    """Return what a world looks at of a temperature of a parameter set; attention's, if none is named."""
    return _course(tuple((n, value) for n, value in parameters.items() if n in PLAN_PARAMETERS), temperature)


@lru_cache(maxsize=100_000)
def _course(parameters: tuple[tuple[str, Any], ...], temperature: str) -> Course:
    plan = own_parameters(dict(parameters), temperature)
    found = as_found(dict(parameters)).get(temperature, 1.0)
    made = TemperatureParameters.from_mapping(plan).plan(1)
    along = [math.log(made.temperatures(progress(place, _PLACES))[0] / found) for place in range(_PLACES)]
    scaled = plan.get("length_scaling", "none") != "none"
    return Course(mean=math.fsum(along) / _PLACES, first=along[0], last=along[-1], scaled=scaled)


def together(courses: Sequence[Course]) -> Course:
    """Return the mean of several temperatures' courses."""
    return Course(
        mean=fmean(each.mean for each in courses),
        first=fmean(each.first for each in courses),
        last=fmean(each.last for each in courses),
        scaled=any(each.scaled for each in courses),
    )

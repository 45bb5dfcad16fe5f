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
    initial_named_temperatures,
    parameters_of_temperature,
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
    plan = parameters_of_temperature(dict(parameters), temperature)
    as_found_tau = initial_named_temperatures(dict(parameters)).get(temperature, 1.0)
    temperature_plan = TemperatureParameters.from_mapping(plan).plan(1)
    log_ratios = [
        math.log(temperature_plan.temperatures(progress(index, _PLACES))[0] / as_found_tau)
        for index in range(_PLACES)
    ]
    is_scaled = plan.get("length_scaling", "none") != "none"
    return Course(
        mean=math.fsum(log_ratios) / _PLACES, first=log_ratios[0], last=log_ratios[-1], scaled=is_scaled
    )


def mean_course(courses: Sequence[Course]) -> Course:
    """Return the mean of several temperatures' courses."""
    return Course(
        mean=fmean(course.mean for course in courses),
        first=fmean(course.first for course in courses),
        last=fmean(course.last for course in courses),
        scaled=any(course.scaled for course in courses),
    )

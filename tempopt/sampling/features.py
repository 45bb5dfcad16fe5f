"""What a surrogate knows of a parameter set: τ over training, and what else is searched.

Schedules of different names that make nearly the same curve are nearly the same to it, and a parameter
that a plan does not read is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from tempopt.sampling.unit_cube import sorted_choices, to_unit
from tempopt.temperature import (
    GROUPS,
    NEUTRAL,
    PLAN_PARAMETERS,
    ParameterNames,
    TemperatureParameters,
    drop_unused_params,
    hashable,
    initial_named_temperatures,
    join_name,
    parameters_of_temperature,
    split_name,
)
from tempopt.temperature.knots import INNER_KNOTS
from tempopt.temperature.plan import CUSTOM_NUMBER_PREFIX

if TYPE_CHECKING:
    from tempopt.spec.search_space import SamplingArm
    from tempopt.spec.study_spec import StudySpec

_CURVE = ParameterNames(GROUPS["schedule"] | GROUPS["level"])
_DEPTH = GROUPS["layers"]
_PLACES = 24
_LAYERS = 5
_BEYOND = 0.5
# between a quarter of a temperature and four times it
_SPAN = math.log(16.0)


class Features:
    """Turns parameter sets of one arm into vectors whose entries have a range of about 1.

    Args:
        spec: The study's spec.
        arm: The arm.
    """

    def __init__(self, spec: StudySpec, arm: SamplingArm = "search") -> None:
        self._fixed = spec.fixed_temperatures
        space = spec.space(arm)
        self._curves = list(dict.fromkeys(split_name(name)[0] for name in space if name in _CURVE))
        self._inner = {name: _inner_places(name, space, self._fixed) for name in self._curves}
        self._depth = any(name in space for name in _DEPTH)
        self._others = {
            name: distribution
            for name, distribution in space.items()
            if name not in _CURVE and name not in _DEPTH
        }

    def __call__(self, parameters: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the vector of a whole parameter set."""
        all_params = {**self._fixed, **parameters}
        entries: list[float] = []
        for name in dict.fromkeys((*([""] if self._depth else []), *self._curves)):
            neutral, inner = initial_named_temperatures(all_params).get(name, 1.0), self._inner.get(name, ())
            curve, depth = _of_plan(_plan(all_params, name), neutral, inner)
            entries += [
                *(curve if name in self._curves else ()),
                *(depth if self._depth and not name else ()),
            ]
        for name, distribution in self._others.items():
            entries += _entries(distribution, parameters.get(name, NEUTRAL.get(name)))
        return np.array(entries)


def _inner_places(
    temperature: str, space: Mapping[str, BaseDistribution], fixed: Mapping[str, Any]
) -> tuple[float, ...]:
    """Return where in training a curve is asked besides: near the inner knots that are searched.

    Each of them can go where it wants, which the means over parts of training do not tell.
    """
    count = sum(join_name(temperature, knot) in space for knot in INNER_KNOTS)
    name = join_name(temperature, "hold_fraction")
    match space.get(name):
        case CategoricalDistribution(choices=choices):
            hold = min((choice for choice in choices if isinstance(choice, int | float)), default=0.0)
        case FloatDistribution(low=low):
            hold = low
        case _:
            hold = fixed.get(name) or 0.0
    return tuple(hold + (1.0 - hold) * number / (count + 1) for number in range(1, count + 1))


def _plan(parameters: Mapping[str, Any], temperature: str) -> tuple[tuple[str, Any], ...]:
    """Return what decides the plan of a temperature."""
    temperature_params = parameters_of_temperature(parameters, temperature)
    named_values = [
        (name, hashable(temperature_params[name])) for name in PLAN_PARAMETERS if name in temperature_params
    ]
    return (
        *named_values,
        *(
            (name, value)
            for name, value in temperature_params.items()
            if name.startswith(CUSTOM_NUMBER_PREFIX)
        ),
    )


@lru_cache(maxsize=50_000)
def _of_plan(
    plan: tuple[tuple[str, Any], ...], neutral: float, inner: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the entries of τ over training, and of τ over depth; the same plans are asked for again."""
    # of what is fixed, some may not go with what is searched
    layer_plan = TemperatureParameters.from_mapping(drop_unused_params(dict(plan))).plan(_LAYERS)
    level = np.log([layer_plan.schedule(index / (_PLACES - 1)) / neutral for index in range(_PLACES)]) / _SPAN
    at_knots = np.log([layer_plan.schedule(progress) / neutral for progress in inner]) / _SPAN
    factors = np.log(layer_plan.layers.factors(_LAYERS)) / _SPAN
    return (
        # the beginning, the middle, and what is validated and exported
        (level[: _PLACES // 3].mean(), level[_PLACES // 3 :].mean(), level[-1], *at_knots),
        (factors[-1] - factors[0], factors[_LAYERS // 2] - (factors[0] + factors[-1]) / 2),
    )


def _of_choice(choices: Sequence[Any], value: Any) -> list[float]:
    """Return a choice as entries in which any two are as far from each other: the square of that is ½."""
    if len(choices) > 2:
        return [0.5 * (value == choice) for choice in choices]
    if value not in choices:
        return [math.sqrt(0.5) / 2.0] * (len(choices) - 1)
    return [math.sqrt(0.5) * (value == choice) for choice in choices[1:]]


def _entries(distribution: BaseDistribution, value: Any) -> list[float]:
    """Return a searched value as entries; one that is not read counts as the middle of its range."""
    if isinstance(distribution, CategoricalDistribution):
        return _of_choice(sorted_choices(distribution), value)
    if not isinstance(value, int | float):
        return [0.5]
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if distribution.log:  # type: ignore[attr-defined]
        # another study may have gone further, even below 0
        value = max(value, low * low / high)
    position = to_unit(distribution, value)
    return [min(max(position, -_BEYOND), 1 + _BEYOND)]

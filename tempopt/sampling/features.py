"""Features of a parameter set for a surrogate: τ over training, and the other searched parameters.

Schedules of different names with nearly the same curve have nearly the same features, and a parameter that a
plan does not use has no effect on them.
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
_PLACES = 24  # of progress, at which schedules are compared
_NUM_LAYERS = 5
_MAX_EXCESS = 0.5
# from a quarter of a temperature to four times it
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
            curve, depth = _plan_entries(_plan(all_params, name), neutral, inner)
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
    """Return further points of a curve: those near the searched inner knots.

    The means over parts of training do not determine each of these.
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
    """Return the parameters of the plan of a temperature."""
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
def _plan_entries(
    plan: tuple[tuple[str, Any], ...], neutral: float, inner: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the entries of τ over training and of τ over depth; cached, since plans recur."""
    # fixed parameters may be inconsistent with searched ones
    layer_plan = TemperatureParameters.from_mapping(drop_unused_params(dict(plan))).plan(_NUM_LAYERS)
    level = np.log([layer_plan.schedule(index / (_PLACES - 1)) / neutral for index in range(_PLACES)]) / _SPAN
    at_knots = np.log([layer_plan.schedule(progress) / neutral for progress in inner]) / _SPAN
    factors = np.log(layer_plan.layers.factors(_NUM_LAYERS)) / _SPAN
    return (
        # the beginning, the middle, and the value that is validated and exported
        (level[: _PLACES // 3].mean(), level[_PLACES // 3 :].mean(), level[-1], *at_knots),
        (factors[-1] - factors[0], factors[_NUM_LAYERS // 2] - (factors[0] + factors[-1]) / 2),
    )


def _choice_entries(choices: Sequence[Any], value: Any) -> list[float]:
    """Return a choice as entries in which any two are equally far apart: the squared distance is ½."""
    if len(choices) > 2:
        return [0.5 * (value == choice) for choice in choices]
    if value not in choices:
        return [math.sqrt(0.5) / 2.0] * (len(choices) - 1)
    return [math.sqrt(0.5) * (value == choice) for choice in choices[1:]]


def _entries(distribution: BaseDistribution, value: Any) -> list[float]:
    """Return a searched value as entries; an inactive one counts as the middle of its range."""
    if isinstance(distribution, CategoricalDistribution):
        return _choice_entries(sorted_choices(distribution), value)
    if not isinstance(value, int | float):
        return [0.5]
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if distribution.log:  # type: ignore[attr-defined]
        # the value of another study may be outside of this range, even below 0
        value = max(value, low * low / high)
    position = to_unit(distribution, value)
    return [min(max(position, -_MAX_EXCESS), 1 + _MAX_EXCESS)]

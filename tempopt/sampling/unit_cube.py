"""Position of a value in its distribution: 0 is the lowest value, 1 the highest, with uniform probability."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

_SIGNIFICANT_DIGITS = 4


def sorted_choices(distribution: CategoricalDistribution) -> list[Any]:
    """Return the choices in an order that is independent of their order in the spec."""
    return sorted(distribution.choices, key=repr)


def count_values(distribution: BaseDistribution) -> float:
    """Return the number of values of a distribution; inf for a continuous range."""
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if distribution.low == distribution.high:
        return 1
    if distribution.step is None:
        return math.inf
    return float(round((distribution.high - distribution.low) / distribution.step) + 1)


def configurations(space: Mapping[str, BaseDistribution], *, max_count: int) -> list[dict[str, Any]]:
    """Return every combination of values of a space; empty if there are more than ``max_count``.

    Args:
        space: Optuna's distributions by name.
        max_count: Largest number of listed combinations, >= 1.
    """
    if math.prod(count_values(distribution) for distribution in space.values()) > max_count:
        return []
    return [
        dict(zip(space, values, strict=True)) for values in itertools.product(*map(_values, space.values()))
    ]


def _values(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return sorted_choices(distribution)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    step = distribution.step or 0
    steps = range(int(count_values(distribution)))
    # the rounding of from_unit, so that equal values are the same number
    return [min(distribution.low + step * index, distribution.high) for index in steps]


def from_unit(distribution: BaseDistribution, position: float) -> Any:
    """Return the value at a position; numbers of a continuous range have four significant digits.

    Args:
        position: Position in [0, 1].
        position: In [0, 1].
    """
    if isinstance(distribution, CategoricalDistribution):
        choices = sorted_choices(distribution)
        return choices[min(int(position * len(choices)), len(choices) - 1)]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    value = low * (high / low) ** position if distribution.log else low + position * (high - low)
    if distribution.step is not None:
        value = low + distribution.step * round((value - low) / distribution.step)
    if isinstance(distribution, IntDistribution):
        return int(min(max(round(value), distribution.low), distribution.high))
    if distribution.step is None:
        value = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    return float(min(max(value, distribution.low), distribution.high))


def to_unit(distribution: BaseDistribution, value: Any) -> float:
    """Return the position of a value; for a choice, the middle of the interval that gives it."""
    if isinstance(distribution, CategoricalDistribution):
        return (sorted_choices(distribution).index(value) + 0.5) / len(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = float(distribution.low), float(distribution.high)
    if low == high:
        return 0.5
    if distribution.log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def from_unit_vector(space: Mapping[str, BaseDistribution], places: Sequence[float]) -> dict[str, Any]:
    """Return the values at positions, one for each name of the space in its order."""
    return {
        name: from_unit(distribution, position)
        for (name, distribution), position in zip(space.items(), places, strict=True)
    }


def nearest(space: Mapping[str, BaseDistribution], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a space that are nearest to these; the middle where a value is missing."""
    nearest_values = {}
    for name, distribution in space.items():
        value = values.get(name)
        if isinstance(distribution, CategoricalDistribution):
            # a choice of this space, since 1, 1.0 and True are equal
            equal_choices = (
                choice for choice in distribution.choices if choice == value and type(choice) is type(value)
            )
            nearest_values[name] = next(equal_choices, from_unit(distribution, 0.5))
            continue
        assert isinstance(distribution, FloatDistribution | IntDistribution)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        clipped_value = min(max(value, distribution.low), distribution.high) if is_number else None  # type: ignore[type-var]
        nearest_values[name] = from_unit(
            distribution, 0.5 if clipped_value is None else to_unit(distribution, clipped_value)
        )
    return nearest_values

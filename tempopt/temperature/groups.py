"""The parts of a temperature plan that can be taken away one at a time, each with what remains without it.

A part is one idea a person would keep or drop: the schedule, the level, the length scaling, the layers, the
entropy term. Names of parameters are those of :mod:`tempopt.temperature.parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from statistics import fmean
from typing import Any

from tempopt.temperature.alike import same_training, training_key
from tempopt.temperature.entropy import ENTROPY_PARAMETERS
from tempopt.temperature.layers import LAYER_PATTERNS
from tempopt.temperature.length import LENGTH_SCALINGS
from tempopt.temperature.normalisers import NORMALISERS
from tempopt.temperature.own_schedules import schedule_class
from tempopt.temperature.parameters import NEUTRAL, TEMPERATURE_PARAMETERS, ParameterNames, effective
from tempopt.temperature.plan import TemperatureParameters
from tempopt.temperature.schedules import SCHEDULES, Constant


def _fields_of(registry: Mapping[str, type[Any]]) -> frozenset[str]:
    return frozenset(each.name for kind in registry.values() for each in fields(kind))


NORMALISATION: frozenset[str] = frozenset({"normaliser"}) | _fields_of(NORMALISERS)
"""Parameters of the plan that are no temperature: what makes weights of the logits over the temperature."""

CREDITED = ParameterNames(name for name in TEMPERATURE_PARAMETERS if name not in NORMALISATION)
"""Parameters whose gain is temperature's."""

_LEVELS = frozenset({"temperature_init", "temperature_final", "warmup_start"})
_SHAPE = (_fields_of(SCHEDULES) | {"schedule", "schedule_args"}) - {"temperature_init"}

GROUPS: dict[str, frozenset[str]] = {
    "schedule": _SHAPE,
    "level": _LEVELS,
    "layers": frozenset({"layer_pattern"}) | _fields_of(LAYER_PATTERNS),
    "length_scaling": frozenset({"length_scaling"}) | _fields_of(LENGTH_SCALINGS),
    "entropy": frozenset(ENTROPY_PARAMETERS),
    "output_temperature": frozenset({"output_temperature"}),
}
"""Part of a plan to the parameters that it consists of. ``level`` is the mean of the schedule."""

_POINTS = 101
_LEVEL_POINTS = 5
_FLAT = 1e-9


def mean_level(parameters: Mapping[str, Any]) -> float:
    """Return the geometric mean of the schedule's temperature over training."""
    levels = _levels(parameters)
    return levels[0] if _is_flat(levels) else math.exp(fmean(map(math.log, levels)))


def constant_levels(parameters: Mapping[str, Any]) -> list[float]:
    """Return up to five constant temperatures that span a schedule, evenly spaced in ratio, ascending.

    The geometric mean of the schedule over training is one of them: it stands in for the nearest of those in
    between. A schedule that does not move has one level, its own.
    """
    levels = _levels(parameters)
    low, high, middle = min(levels), max(levels), mean_level(parameters)
    if _is_flat(levels):
        return [levels[0]]
    steps = _LEVEL_POINTS - 1
    spread = [low * (high / low) ** (index / steps) for index in range(_LEVEL_POINTS)]
    inner = range(1, steps)
    nearest = min(inner, key=lambda index: abs(math.log(spread[index] / middle)))
    spread[nearest] = middle
    return sorted([low, *spread[1:-1], high])


def at_constant(parameters: Mapping[str, Any], level: float) -> dict[str, Any]:
    """Return the parameters with a constant temperature in place of the schedule, all else as it is."""
    rest = {name: value for name, value in parameters.items() if name not in _SHAPE | _LEVELS}
    return effective({**rest, "temperature_init": level, "schedule": Constant.name})


def active_groups(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a plan that are not neutral, in the order of ``GROUPS``."""
    own = training_key(parameters)
    return tuple(group for group in GROUPS if training_key(without(parameters, group)) != own)


def moves(parameters: Mapping[str, Any]) -> bool:
    """Return whether the temperature of a plan changes during training."""
    return bool(effective({**NEUTRAL, **parameters})["schedule"] != Constant.name)


def without(parameters: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the parameters with one part of the plan neutral.

    Without its schedule a plan is constant at the schedule's geometric mean; without its level the whole
    schedule is divided by that mean.

    Args:
        parameters: Flat parameters; those that are no part of a plan stay.
        group: Name in ``GROUPS``.
    """
    if group == "schedule":
        return at_constant(parameters, mean_level(parameters))
    if group == "level":
        return _divided(parameters, mean_level(parameters))
    neutral = {name: NEUTRAL[name] for name in GROUPS[group] if name in parameters}
    return effective({**parameters, **neutral})


def only(parameters: Mapping[str, Any], groups: Collection[str]) -> dict[str, Any]:
    """Return the parameters with every part of the plan neutral but those that are named."""
    found = dict(parameters)
    for group in GROUPS:
        if group not in groups:
            found = without(found, group)
    return found


def neutral(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters at temperature 1: all that is temperature's neutral, everything else as it is."""
    return effective({name: NEUTRAL[name] if name in CREDITED else v for name, v in parameters.items()})


def is_neutral(parameters: Mapping[str, Any]) -> bool:
    """Return whether parameters train at temperature 1 already: :func:`neutral` changes nothing."""
    return same_training(parameters, neutral(parameters))


def _levels(parameters: Mapping[str, Any]) -> list[float]:
    schedule = TemperatureParameters.from_mapping(parameters).plan(1).schedule
    return [schedule(index / (_POINTS - 1)) for index in range(_POINTS)]


def _is_flat(levels: list[float]) -> bool:
    return math.log(max(levels) / min(levels)) < _FLAT


def _divided(parameters: Mapping[str, Any], level: float) -> dict[str, Any]:
    if abs(math.log(level)) < _FLAT:
        return dict(parameters)
    if _is_flat(_levels(parameters)):
        # dividing would round
        return at_constant(parameters, 1.0)
    read = {each.name for each in fields(schedule_class(parameters["schedule"]))} & _LEVELS
    scaled = {name: value / level for name in read if (value := parameters.get(name, NEUTRAL[name]))}
    return effective({**parameters, **scaled})

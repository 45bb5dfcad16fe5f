"""The parts of a temperature plan that can be removed one at a time, and the plan without each of them.

A part is one element that a person would keep or drop: the schedule, the level, the length scaling, the
layers, the heads, entropy control, the entropy term. Names of parameters are those of
:mod:`tempopt.temperature.parameters`. A named temperature has two parts, schedule and level:
``contrast.schedule``, ``contrast.level``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from statistics import fmean
from typing import Any

from tempopt.temperature.custom_schedules import schedule_class
from tempopt.temperature.entropy import ENTROPY_PARAMETERS
from tempopt.temperature.entropy_control import CONTROL_PARAMETERS, is_controlled
from tempopt.temperature.generation import GENERATION
from tempopt.temperature.heads import HEAD_PATTERNS, LocalHeads
from tempopt.temperature.knots import INNER_KNOTS, KNOTS
from tempopt.temperature.layers import LAYER_PATTERNS
from tempopt.temperature.length import LENGTH_SCALINGS
from tempopt.temperature.named import (
    AS_FOUND,
    group_by_temperature,
    initial_named_temperatures,
    join_name,
    parameters_of_temperature,
)
from tempopt.temperature.normalisers import NORMALISERS
from tempopt.temperature.parameters import (
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    ParameterNames,
    drop_unused_params,
    neutral_values,
)
from tempopt.temperature.plan import CUSTOM_NUMBER_PREFIX, MOVING, TemperatureParameters
from tempopt.temperature.schedules import Constant
from tempopt.temperature.training_equivalence import same_training, training_key


def _registry_fields(registry: Mapping[str, type[Any]]) -> frozenset[str]:
    return frozenset(field.name for kind in registry.values() for field in fields(kind))


NORMALISATION: frozenset[str] = (
    frozenset({"normaliser"}) | _registry_fields(NORMALISERS) | {field.name for field in fields(LocalHeads)}
)
"""Parameters of the plan that are not temperatures: the map from logits to weights, and the keys that heads
see.
"""

CREDITED = ParameterNames(
    name for name in TEMPERATURE_PARAMETERS if name not in NORMALISATION and name not in GENERATION
)
"""Parameters whose gain is credited to temperature."""

_LEVELS = frozenset({"temperature_init", "temperature_final", "warmup_start", *INNER_KNOTS, KNOTS})

GROUPS: dict[str, frozenset[str]] = {
    "schedule": MOVING,
    "control": frozenset(CONTROL_PARAMETERS),
    "level": _LEVELS,
    "layers": frozenset({"layer_pattern"}) | _registry_fields(LAYER_PATTERNS),
    "heads": frozenset({"head_pattern"}) | _registry_fields(HEAD_PATTERNS),
    "length_scaling": frozenset({"length_scaling"}) | _registry_fields(LENGTH_SCALINGS),
    "entropy": frozenset(ENTROPY_PARAMETERS),
    "output_temperature": frozenset({"output_temperature"}),
}
"""Part of a plan to the parameters that it consists of. ``level`` is the geometric mean of the schedule."""

_OF_NAMED = ("schedule", "level")
_NUM_PROGRESS_POINTS = 101
_FLAT_TOLERANCE = 1e-9


def possible_parts(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of all parts that a parameter set could have: those of ``GROUPS``, then named ones."""
    named_parts = (
        f"{name}.{group}" for name in initial_named_temperatures(parameters) for group in _OF_NAMED
    )
    return (*GROUPS, *named_parts)


def part_parameters(part: str) -> frozenset[str]:
    """Return the names of the parameters that a part consists of."""
    temperature, _, group = part.rpartition(".")
    return frozenset(join_name(temperature, name) for name in GROUPS[group])


def mean_level(parameters: Mapping[str, Any], temperature: str = "") -> float:
    """Return the geometric mean of a temperature over training; that of attention by default."""
    levels = _sample_schedule(parameters, temperature)
    if _is_flat(levels):
        return levels[0]
    level = math.exp(fmean(map(math.log, levels)))
    target = initial_named_temperatures(parameters).get(temperature, 1.0)
    # return the temperature as found exactly, without the rounding of the logarithms
    return target if abs(math.log(level / target)) < _FLAT_TOLERANCE else level


def make_constant(parameters: Mapping[str, Any], level: float, temperature: str = "") -> dict[str, Any]:
    """Return the parameters with a constant temperature in place of the schedule, otherwise unchanged.

    In attention it also replaces entropy control.
    """
    moving_names = {join_name(temperature, name) for name in GROUPS["schedule"] | _LEVELS}
    own_number = join_name(temperature, CUSTOM_NUMBER_PREFIX)
    plan = {
        name: value
        for name, value in parameters.items()
        if name not in moving_names and not name.startswith(own_number)
    }
    if not temperature:
        plan |= {name: NEUTRAL[name] for name in CONTROL_PARAMETERS if name in plan}
    plan[join_name(temperature, "temperature_init")] = level
    plan[join_name(temperature, "schedule")] = Constant.name
    return drop_unused_params(plan)


def list_temperatures(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the temperatures of a parameter set: the named ones, and attention's as the empty text.

    Attention's is left out of a set with named temperatures and no parameter of attention.
    """
    named_temperatures = initial_named_temperatures(parameters)
    attention_names = GROUPS["schedule"] | GROUPS["control"] | _LEVELS
    has_attention = not named_temperatures or any(name in attention_names for name in parameters)
    return (*("",) * has_attention, *named_temperatures)


def named_schedule_params(parameters: Mapping[str, Any], temperature: str) -> dict[str, Any]:
    """Return the parameters of a named temperature under their bare names; empty if it stays as found."""
    group = group_by_temperature(parameters).get(temperature, {})
    named_group = {join_name(temperature, name): value for name, value in group.items()}
    if AS_FOUND in group and is_neutral(named_group):
        return {}
    return drop_unused_params({name: value for name, value in group.items() if name != AS_FOUND})


def active_groups(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of a plan that are not neutral, in the order of :func:`possible_parts`."""
    full_key = training_key(parameters)
    return tuple(
        part for part in possible_parts(parameters) if training_key(remove_part(parameters, part)) != full_key
    )


def is_scheduled(parameters: Mapping[str, Any]) -> bool:
    """Return whether a temperature of a plan changes during training, by a schedule or under control."""
    effective_parameters = drop_unused_params({**neutral_values(parameters), **parameters})
    return is_controlled(effective_parameters) or any(
        effective_parameters[join_name(name, "schedule")] != Constant.name
        for name in ("", *initial_named_temperatures(parameters))
    )


def remove_part(parameters: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the parameters with one part of the plan set to neutral.

    Without its schedule a plan is constant at the schedule's geometric mean. Without its level the whole
    schedule is divided by that mean, relative to the temperature as found where there is one. Without entropy
    control it is constant at the temperature that control begins with.

    Args:
        parameters: Flat parameters; those outside the plan stay.
        part: One of :func:`possible_parts`.
    """
    temperature, _, group = part.rpartition(".")
    if not any(name in part_parameters(part) for name in parameters):
        return dict(parameters)
    has_control = _is_under_control(parameters, temperature)
    if group == "schedule" and has_control:
        # the part "control" changes the temperature, not the schedule
        return dict(parameters)
    if group == "schedule" or (group == "control" and has_control):
        return make_constant(parameters, mean_level(parameters, temperature), temperature)
    if group == "level":
        return _remove_level(parameters, temperature)
    neutral_parameters = {name: NEUTRAL[name] for name in GROUPS[group] if name in parameters}
    return drop_unused_params({**parameters, **neutral_parameters})


def to_neutral(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters at the baseline: attention at temperature 1, every named temperature as found."""
    values = neutral_values(parameters)
    return drop_unused_params(
        {name: values[name] if name in CREDITED else v for name, v in parameters.items()}
    )


def is_neutral(parameters: Mapping[str, Any]) -> bool:
    """Return whether parameters train at the baseline: :func:`to_neutral` changes nothing."""
    return same_training(parameters, to_neutral(parameters))


def _is_under_control(parameters: Mapping[str, Any], temperature: str) -> bool:
    return not temperature and is_controlled(parameters)


def _sample_schedule(parameters: Mapping[str, Any], temperature: str) -> list[float]:
    temperature_parameters = parameters_of_temperature(parameters, temperature)
    if is_controlled(temperature_parameters):
        temperature_parameters = drop_unused_params(temperature_parameters)
    schedule = TemperatureParameters.from_mapping(temperature_parameters).plan(1).schedule
    return [schedule(index / (_NUM_PROGRESS_POINTS - 1)) for index in range(_NUM_PROGRESS_POINTS)]


def _is_flat(levels: list[float]) -> bool:
    return math.log(max(levels) / min(levels)) < _FLAT_TOLERANCE


def _remove_level(parameters: Mapping[str, Any], temperature: str) -> dict[str, Any]:
    target = initial_named_temperatures(parameters).get(temperature, 1.0)
    level = mean_level(parameters, temperature) / target
    if abs(math.log(level)) < _FLAT_TOLERANCE:
        return dict(parameters)
    if _is_flat(_sample_schedule(parameters, temperature)):
        # set it directly: dividing would round
        if _is_under_control(parameters, temperature):
            return drop_unused_params({**parameters, "temperature_init": target})
        return make_constant(parameters, target, temperature)
    group = parameters_of_temperature(parameters, temperature)
    names = {field.name for field in fields(schedule_class(group["schedule"]))}
    scaled_levels = {
        join_name(temperature, name): _divide_by_level(value, level)
        for name in names & _LEVELS
        if (value := group.get(name, NEUTRAL[name]))
    }
    return drop_unused_params({**parameters, **scaled_levels})


def _divide_by_level(value: Any, level: float) -> Any:
    """Divide a temperature, or each of those of a list of knots, by a level."""
    if isinstance(value, list | tuple):
        return [[progress, temperature / level] for progress, temperature in value]
    return value / level

"""All temperature parameters: neutral values, allowed values, and which of them have an effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tempopt.temperature.entropy import (
    ENTROPY_PARAMETERS,
    EntropyParameters,
    canonicalize_entropy,
    unused_entropy_params,
)
from tempopt.temperature.entropy_control import (
    CONTROL_PARAMETERS,
    ControlParameters,
    canonicalize_control,
    check_control_parameter,
    is_controlled,
    unused_control_params,
)
from tempopt.temperature.generation import GenerationParameters, unused_generation_params
from tempopt.temperature.knots import KNOTS
from tempopt.temperature.named import (
    AS_FOUND,
    FROM_FOUND,
    VALUE_FIELDS,
    group_by_temperature,
    initial_named_temperatures,
    join_name,
    split_name,
)
from tempopt.temperature.normalisers import SoftmaxNormaliser
from tempopt.temperature.plan import (
    MOVING,
    TemperatureParameters,
    canonicalize,
    check_value,
    is_custom_number,
    unused_plan_params,
)
from tempopt.temperature.ranges import RANGES
from tempopt.temperature.schedules import Constant


class ParameterNames(tuple[str, ...]):
    """Names of temperature parameters.

    With ``schedule_args`` it also contains ``schedule_args.knee``, and with ``schedule`` that of every named
    temperature, such as ``contrast.schedule``.
    """

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        temperature, bare_name = split_name(name) if isinstance(name, str) else ("", name)
        if is_custom_number(bare_name):
            bare_name = "schedule_args"
        elif temperature and bare_name == AS_FOUND:
            bare_name = "temperature_init"
        return super().__contains__(bare_name)


class _Neutral(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        temperature, bare_name = split_name(name)
        if is_custom_number(bare_name):
            return None
        if temperature and bare_name in VALUE_FIELDS - FROM_FOUND:
            return self[bare_name]
        raise KeyError(name)


PLAN_PARAMETERS = ParameterNames(TemperatureParameters.names())
"""Names of the parameters of the plan."""

NEUTRAL: dict[str, Any] = _Neutral(
    {
        field.name: field.default
        for group in (TemperatureParameters, EntropyParameters, ControlParameters, GenerationParameters)
        for field in fields(group)
        if field.init
    }
    | {"output_temperature": 1.0}
)
"""Name of every temperature parameter to the value at which it changes nothing."""

TEMPERATURE_PARAMETERS = ParameterNames(NEUTRAL)
"""Names of all temperature parameters."""


def check_parameter(name: str, value: object) -> None:
    """Refuse a value that the temperature parameter cannot have.

    Args:
        name: One of ``TEMPERATURE_PARAMETERS``.
        value: Its new value.

    Raises:
        SpecError: The value is of the wrong type, out of range, or an unknown name.
    """
    temperature, name = split_name(name)
    if temperature and name == AS_FOUND:
        name = "temperature_init"
    if name in CONTROL_PARAMETERS:
        check_control_parameter(name, value)
    else:
        check_value(name, value)


def drop_unused_params(parameters: Mapping[str, Any], *, should_read_custom: bool = True) -> dict[str, Any]:
    """Return the parameters without those that have no effect, so that equal plans compare equal.

    Parameters that a strategy does not use are dropped, such as ``layer_ratio`` under ``uniform``. A strategy
    whose values make it flat is renamed: a schedule that stays at its start is ``constant``, a pattern of
    ratio 1 is ``uniform``, a length scaling that does not grow is ``none``. A parameter whose strategy is not
    in the mapping stays, since its effect is unknown. Under the normaliser ``linear`` no temperature has an
    effect, and under any but ``softmax`` neither the entropy term nor entropy control. Under control the
    schedule is ``constant``: temperatures begin at ``temperature_init`` and follow the target. Other names
    are returned unchanged.

    Each named temperature is treated in the same way.

    Args:
        parameters: Flat parameters.
        should_read_custom: Whether to look up the numbers of imported schedules outside tempopt.

    Raises:
        SpecError: A strategy is unknown.
    """
    result: dict[str, Any] = {}
    for name, group in group_by_temperature(parameters).items():
        effective_parameters = _drop_unused_of_group(group, should_read_custom=should_read_custom)
        result |= {join_name(name, bare_name): value for bare_name, value in effective_parameters.items()}
    return result


def _drop_unused_of_group(parameters: Mapping[str, Any], *, should_read_custom: bool) -> dict[str, Any]:
    if is_controlled(parameters):
        # a constant list of knots would become temperature_init, which under control is no part of a schedule
        parameters = {name: value for name, value in parameters.items() if name != KNOTS}
    result = canonicalize_control(canonicalize_entropy(canonicalize(parameters)))
    unused_names = set[str]()
    if result.get("normaliser", SoftmaxNormaliser.name) != SoftmaxNormaliser.name:
        unused_names |= {*ENTROPY_PARAMETERS, *CONTROL_PARAMETERS}
    elif is_controlled(result):
        unused_names |= {n for n in result if n != "schedule" and (n in MOVING or is_custom_number(n))}
        result |= {"schedule": Constant.name} if "schedule" in result else {}
    unused_names |= unused_plan_params(result, should_read_custom=should_read_custom) | unused_entropy_params(
        result
    )
    unused_names |= unused_control_params(result) | unused_generation_params(result)
    return {name: value for name, value in result.items() if name not in unused_names}


def is_float_param(name: str) -> bool:
    """Return whether a temperature parameter is a number that need not be an integer, so that 2 means 2.0."""
    bare_name = split_name(name)[1]
    return name in TEMPERATURE_PARAMETERS and bare_name in RANGES and not RANGES[bare_name].is_integer


def neutral_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every temperature parameter at which it changes nothing, for one parameter set.

    For a named temperature this is the temperature as found, which the set holds (``contrast.as_found``).
    """
    values: dict[str, Any] = _Neutral(NEUTRAL)
    for name, found_temperature in initial_named_temperatures(parameters).items():
        neutral_group = {
            bare_name: found_temperature if bare_name in FROM_FOUND else NEUTRAL[bare_name]
            for bare_name in VALUE_FIELDS
        }
        values |= {
            join_name(name, bare_name): value
            for bare_name, value in {**neutral_group, AS_FOUND: found_temperature}.items()
        }
    return values

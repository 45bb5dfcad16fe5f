"""All temperature parameters together: their neutral values, what they may be, and which of them count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tempopt.temperature.entropy import (
    ENTROPY_PARAMETERS,
    EntropyParameters,
    canonicalize_entropy,
    unread_entropy,
)
from tempopt.temperature.entropy_control import (
    CONTROL_PARAMETERS,
    ControlParameters,
    canonicalize_control,
    check_control_parameter,
    is_controlled,
    unread_control,
)
from tempopt.temperature.generation import GenerationParameters, unread_generation
from tempopt.temperature.knots import KNOTS
from tempopt.temperature.named import (
    AS_FOUND,
    FROM_FOUND,
    VALUE_FIELDS,
    groups_of,
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
    is_own_number,
    unused_plan_params,
)
from tempopt.temperature.ranges import RANGES
from tempopt.temperature.schedules import Constant


class ParameterNames(tuple[str, ...]):
    """Names of temperature parameters.

    With ``schedule_args`` it contains ``schedule_args.knee``, too, and with ``schedule`` that of every named
    temperature, as ``contrast.schedule``.
    """

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        temperature, bare_name = split_name(name) if isinstance(name, str) else ("", name)
        if is_own_number(bare_name):
            bare_name = "schedule_args"
        elif temperature and bare_name == AS_FOUND:
            bare_name = "temperature_init"
        return super().__contains__(bare_name)


class _Neutral(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        temperature, bare_name = split_name(name)
        if is_own_number(bare_name):
            return None
        if temperature and bare_name in VALUE_FIELDS - FROM_FOUND:
            return self[bare_name]
        raise KeyError(name)


PLAN_PARAMETERS = ParameterNames(TemperatureParameters.names())
"""Names of the parameters that decide the plan."""

NEUTRAL: dict[str, Any] = _Neutral(
    {
        field.name: field.default
        for group in (TemperatureParameters, EntropyParameters, ControlParameters, GenerationParameters)
        for field in fields(group)
        if field.init
    }
    | {"output_temperature": 1.0}
)
"""The value of every temperature parameter at which it changes nothing, by name."""

TEMPERATURE_PARAMETERS = ParameterNames(NEUTRAL)
"""Names of all temperature parameters."""


def check_parameter(name: str, value: object) -> None:
    """Refuse a value that the temperature parameter cannot have.

    Args:
        name: One of ``TEMPERATURE_PARAMETERS``.
        value: What it is to be.

    Raises:
        SpecError: if the value is of the wrong type, out of range, or a name that is not known.
    """
    temperature, name = split_name(name)
    if temperature and name == AS_FOUND:
        name = "temperature_init"
    if name in CONTROL_PARAMETERS:
        check_control_parameter(name, value)
    else:
        check_value(name, value)


def drop_unused_params(parameters: Mapping[str, Any], *, own_known: bool = True) -> dict[str, Any]:
    """Return the parameters without those that have no effect, so that equal plans compare equal.

    What a strategy does not read is dropped, as ``layer_ratio`` under ``uniform``. A strategy that its
    values make flat is named so: a schedule that stays where it starts is ``constant``, a pattern of
    ratio 1 is ``uniform``, a length scaling that does not grow is ``none``. A parameter whose strategy is
    not in the mapping is kept, for it is then not known whether it counts. Under the normaliser ``linear``
    no temperature counts, and under any but ``softmax`` no entropy term and no control of the entropy. Under
    control the schedule is ``constant``: temperatures begin at ``temperature_init`` and follow the target.
    Other names are left alone.

    Named temperatures are treated so each by itself.

    Args:
        parameters: Flat parameters.
        own_known: Whether to ask schedules outside tempopt which numbers they have, where they are imported.

    Raises:
        SpecError: if a strategy is not known.
    """
    result: dict[str, Any] = {}
    for name, group in groups_of(parameters).items():
        effective_parameters = _effective(group, own_known=own_known)
        result |= {join_name(name, bare_name): value for bare_name, value in effective_parameters.items()}
    return result


def _effective(parameters: Mapping[str, Any], *, own_known: bool) -> dict[str, Any]:
    if is_controlled(parameters):
        # a drawn constant would become the temperature to begin with, which no schedule decides under control
        parameters = {name: value for name, value in parameters.items() if name != KNOTS}
    result = canonicalize_control(canonicalize_entropy(canonicalize(parameters)))
    unread_names = set[str]()
    if result.get("normaliser", SoftmaxNormaliser.name) != SoftmaxNormaliser.name:
        unread_names |= {*ENTROPY_PARAMETERS, *CONTROL_PARAMETERS}
    elif is_controlled(result):
        unread_names |= {n for n in result if n != "schedule" and (n in MOVING or is_own_number(n))}
        result |= {"schedule": Constant.name} if "schedule" in result else {}
    unread_names |= unused_plan_params(result, own_known=own_known) | unread_entropy(result)
    unread_names |= unread_control(result) | unread_generation(result)
    return {name: value for name, value in result.items() if name not in unread_names}


def is_float_param(name: str) -> bool:
    """Return whether a temperature parameter is a number that need not be whole, so that 2 means 2.0."""
    bare_name = split_name(name)[1]
    return name in TEMPERATURE_PARAMETERS and bare_name in RANGES and not RANGES[bare_name].is_integer


def neutral_values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every temperature parameter at which it changes nothing, in a parameter set.

    Those of a named temperature are the temperature as found, which the set says (``contrast.as_found``).
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

"""Names of temperatures other than attention's: ``contrast.temperature_init`` belongs to ``contrast``.

Attention's parameters have bare names. Those of any other temperature begin with its name. A parameter set
holds in ``contrast.as_found`` the temperature that the module had; at that value nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from tempopt.temperature.plan import is_custom_number
from tempopt.temperature.schedules import SCHEDULES

AS_FOUND = "as_found"
"""Bare name of the module's own temperature, from which a named temperature begins."""

FROM_FOUND = frozenset({"temperature_init", "warmup_start"})
"""Parameters of a named temperature whose default is the temperature as found."""

VALUE_FIELDS = frozenset(
    {field.name for kind in SCHEDULES.values() for field in fields(kind)} | {"schedule", "schedule_args"}
)
"""Parameters of a named temperature: those of a schedule."""

NOT_NAMES = ("model", "data", "trainer", "schedule_args")
"""Words before a dot that are not names of temperatures."""

_OF_NAMED = VALUE_FIELDS | {AS_FOUND}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def name_problem(name: str) -> str | None:
    """Return what is wrong with a name for a temperature, or None if it is valid."""
    if _NAME.fullmatch(name) and name not in NOT_NAMES and name not in VALUE_FIELDS:
        return None
    return (
        f'"{name}" is not a name of a temperature. Give lower-case letters, digits and underscores, as in '
        f"contrast, and none of {', '.join(NOT_NAMES)}."
    )


def registered_path(name: str) -> str:
    """Return the name of the buffer that holds a temperature which a TemperedModule registers."""
    return f"{name}_temperature"


@lru_cache(maxsize=10_000)
def split_name(name: str) -> tuple[str, str]:
    """Return the temperature of a parameter and its bare name; both are empty for any other parameter."""
    temperature, dot, bare_name = name.partition(".")
    if dot and temperature not in NOT_NAMES and (bare_name in _OF_NAMED or is_custom_number(bare_name)):
        return temperature, bare_name
    return "", name


def join_name(temperature: str, bare_name: str) -> str:
    """Return the name of a parameter of a temperature; attention's temperature is the empty text."""
    return f"{temperature}.{bare_name}" if temperature else bare_name


def group_by_temperature(parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return parameters by temperature, under their bare names; all others are with those of attention."""
    groups: dict[str, dict[str, Any]] = {"": {}}
    for name, value in parameters.items():
        temperature, bare_name = split_name(name)
        groups.setdefault(temperature, {})[bare_name] = value
    return groups


def initial_named_temperatures(parameters: Mapping[str, Any]) -> dict[str, float]:
    """Return the named temperatures of a parameter set, each with the temperature as found.

    The temperature is 1 where the set does not hold it, as before the module was inspected.
    """
    names = dict.fromkeys(split_name(name)[0] for name in parameters)
    return {name: parameters.get(join_name(name, AS_FOUND), 1.0) for name in names if name}


def parameters_of_temperature(parameters: Mapping[str, Any], temperature: str) -> dict[str, Any]:
    """Return all parameters of one temperature under their bare names, starts at the temperature as found."""
    if not temperature:
        return {name: value for name, value in parameters.items() if not split_name(name)[0]}
    group = group_by_temperature(parameters).get(temperature, {})
    found_temperature = group.pop(AS_FOUND, 1.0)
    return dict.fromkeys(sorted(FROM_FOUND), found_temperature) | group

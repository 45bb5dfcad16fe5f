"""The names of temperatures beside attention's: ``contrast.temperature_init`` is that of ``contrast``.

Attention's parameters have bare names. Those of any other temperature begin with its name, and a parameter
set says in ``contrast.as_found`` which temperature the module had: there it changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from tempopt.temperature.plan import is_own_number
from tempopt.temperature.schedules import SCHEDULES

AS_FOUND = "as_found"
"""What the temperature of the module is called that a named one begins from."""

FROM_FOUND = frozenset({"temperature_init", "warmup_start"})
"""Parameters of a named temperature that are the temperature as found unless they are given."""

VALUE_FIELDS = frozenset(
    {field.name for kind in SCHEDULES.values() for field in fields(kind)} | {"schedule", "schedule_args"}
)
"""The parameters that a named temperature has: those of a schedule."""

NOT_NAMES = ("model", "data", "trainer", "schedule_args")
"""Words before a dot that are no names of temperatures."""

_OF_NAMED = VALUE_FIELDS | {AS_FOUND}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def name_problem(name: str) -> str | None:
    """Return what is wrong with a name for a temperature, or None."""
    if _NAME.fullmatch(name) and name not in NOT_NAMES and name not in VALUE_FIELDS:
        return None
    return (
        f'"{name}" is no name of a temperature. Give lower-case letters, digits and underscores, as in '
        f"contrast, and none of {', '.join(NOT_NAMES)}."
    )


def registered_path(name: str) -> str:
    """Return the name of the buffer in which a TemperedModule keeps a temperature that it registers."""
    return f"{name}_temperature"


@lru_cache(maxsize=10_000)
def split_name(name: str) -> tuple[str, str]:
    """Return the temperature that a parameter belongs to and its bare name; empty for any other parameter."""
    temperature, dot, bare_name = name.partition(".")
    if dot and temperature not in NOT_NAMES and (bare_name in _OF_NAMED or is_own_number(bare_name)):
        return temperature, bare_name
    return "", name


def join_name(temperature: str, bare_name: str) -> str:
    """Return the name of a parameter of a temperature; that of attention is the empty text."""
    return f"{temperature}.{bare_name}" if temperature else bare_name


def groups_of(parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return parameters by temperature, under their bare names; all others with those of attention."""
    groups: dict[str, dict[str, Any]] = {"": {}}
    for name, value in parameters.items():
        temperature, bare_name = split_name(name)
        groups.setdefault(temperature, {})[bare_name] = value
    return groups


def initial_named_temperatures(parameters: Mapping[str, Any]) -> dict[str, float]:
    """Return the named temperatures of a parameter set, each with the temperature that was found.

    It is 1 where the set does not say it, as before a module was looked into.
    """
    names = dict.fromkeys(split_name(name)[0] for name in parameters)
    return {name: parameters.get(join_name(name, AS_FOUND), 1.0) for name in names if name}


def parameters_of_temperature(parameters: Mapping[str, Any], temperature: str) -> dict[str, Any]:
    """Return the parameters of one temperature under their bare names, whole where it begins as found."""
    if not temperature:
        return {name: value for name, value in parameters.items() if not split_name(name)[0]}
    group = groups_of(parameters).get(temperature, {})
    found_temperature = group.pop(AS_FOUND, 1.0)
    return dict.fromkeys(sorted(FROM_FOUND), found_temperature) | group

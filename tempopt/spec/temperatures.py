"""The section ``temperatures:``: named temperatures of a module besides attention's.

A worker looks them up in the module.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

from pydantic import Field

from tempopt.errors import unknown
from tempopt.spec.sections import SpecSection
from tempopt.temperature.knots import INNER_KNOTS
from tempopt.temperature.named import AS_FOUND, VALUE_FIELDS, split_name
from tempopt.temperature.plan_parts import CREDITED
from tempopt.temperature.ranges import HIGHEST, LOWEST

MAX_TEMPERATURES = 7
"""Largest number of named temperatures, without attention's."""
LEVELS = ("temperature_init", "temperature_final", *INNER_KNOTS)
"""Parameters that are values of a temperature, the initial one first."""


class TemperatureSection(SpecSection):
    """One entry of ``temperatures:``: a temperature of a module other than attention's.

    Args:
        value: Dotted path from the module to a number that is the temperature, such as
            ``criterion.temperature``. Without it, the temperature is one that the module, a TemperedModule,
            registers under the entry's name.
        transform: How the number stores the temperature τ: ``identity`` τ, ``inverse`` 1/τ, ``log_inverse``
            ln(1/τ).
        as_found: The temperature that the module has, at which the baseline trains. None: it is looked up
            before the study begins.
        evaluated: Whether the metric reads it when a trained model is evaluated; None: this is determined
            before the study begins.
        trained: Whether the module's own optimizers train it where it stays as found; None: this is
            determined before the study begins.
    """

    value: Annotated[
        str | None,
        Field(min_length=1, description="a path, as in criterion.temperature, or leave it out"),
    ] = None
    transform: Annotated[
        Literal["identity", "inverse", "log_inverse"],
        Field(description="identity, inverse or log_inverse"),
    ] = "identity"
    as_found: Annotated[
        float | None,
        Field(ge=LOWEST, le=HIGHEST, description=f"a number from {LOWEST:g} to {HIGHEST:g}, or null"),
    ] = None
    evaluated: Annotated[bool | None, Field(description="true, false or null")] = None
    trained: Annotated[bool | None, Field(description="true, false or null")] = None


def check_unknown_temperature_name(name: str, temperatures: Collection[str] | None) -> str | None:
    """Return what is wrong with a searched name of the form TEMPERATURE.PARAMETER, or None.

    Args:
        name: The searched name.
        temperatures: Names in the section ``temperatures:``; None if that section is invalid.
    """
    if temperatures is None:
        return None
    temperature, bare_name = split_name(name)
    if not temperature:
        prefix, dot, parameter = name.partition(".")
        if dot and prefix in temperatures:
            return unknown(f"parameter of {prefix}", parameter, sorted(VALUE_FIELDS - {"schedule_args"}))
        return None
    if bare_name == AS_FOUND:
        return f"the temperature as found is not searched. It is written temperatures.{temperature}.as_found."
    if temperature in temperatures:
        return None
    hint = f"The named temperatures are {', '.join(temperatures)}." if temperatures else "None has a name."
    return (
        f'there is no temperature "{temperature}". {hint} Name one as in temperatures: {{{temperature}: '
        f"{{value: criterion.temperature}}}}; what is inside of an init argument is written model.{name}."
    )


def searched_temperatures(search: Collection[str]) -> list[str]:
    """Return the temperatures with a searched parameter, sorted by name; attention's is the empty text."""
    return list(dict.fromkeys(split_name(name)[0] for name in search if name in CREDITED))

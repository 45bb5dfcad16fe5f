"""Schedules outside tempopt: lookup by name, declared numbers, and checks of the contract of schedules.

Imports none of them. A schedule can be looked up after a person who trusts its module has imported it.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from tempopt.errors import ScheduleNotImported, SpecError, unknown
from tempopt.temperature.ranges import FINITE, ParameterRange, check_number, declared_range
from tempopt.temperature.schedules import CUSTOM_SCHEDULES, SCHEDULES, Schedule

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_ENDS = ("temperature_init", "temperature_final")
_NUM_CHECKED_POINTS = 33
CLOSE = 1e-9
"""Tolerance for rounding of a schedule outside tempopt, as a share of the larger temperature."""


def is_custom_schedule(name: object) -> bool:
    """Return whether a name has the form of a schedule outside tempopt: ``package.module:Class``."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def schedule_class(name: str) -> type[Schedule]:
    """Return the class of a schedule.

    Raises:
        ScheduleNotImported: It is outside tempopt, and its module was not imported.
        SpecError: The schedule does not exist, or the class is not declared as a schedule.
    """
    if name in SCHEDULES:
        return SCHEDULES[name]
    if not is_custom_schedule(name):
        raise SpecError(unknown("schedule", name, SCHEDULES, CUSTOM_SCHEDULE_HINT))
    module, _, cls = name.partition(":")
    if name not in CUSTOM_SCHEDULES:
        if module in sys.modules:
            raise SpecError(f'schedule "{name}" does not exist: {module} has no schedule {cls}.')
        raise ScheduleNotImported(
            f'schedule "{name}" is not imported: reading a study runs none of its code. If you trust '
            f"{module}, import it: tempopt --import {module} COMMAND, in Python import {module}."
        )
    custom_schedule_fields(name)
    return CUSTOM_SCHEDULES[name]


CUSTOM_SCHEDULE_HINT = "Or give a class of your own, as in my_package.my_module:MySchedule."
"""End of a message about an unknown schedule."""


def custom_schedule_fields(name: str) -> dict[str, Field[Any]] | None:
    """Return the number fields that a schedule outside tempopt declares; None if it is not imported.

    Raises:
        SpecError: The class is not declared as :class:`Schedule` requires.
    """
    kind = CUSTOM_SCHEDULES.get(name)
    if kind is None:
        return None
    if "__dataclass_fields__" not in vars(kind) or not is_dataclass(kind):
        raise SpecError(f"{name} is not a dataclass. Write @dataclass(frozen=True, kw_only=True) above it.")
    if inspect.isabstract(kind):
        raise SpecError(f"{name} has no method _at. Write one: progress in [0, 1] to temperature.")
    fields_by_name = {field.name: field for field in fields(kind) if field.init}
    for end in _ENDS:
        if end not in fields_by_name:
            raise SpecError(f"{name} has no field {end}. Add {end}: float.")
    for field in fields_by_name.values():
        if field.name not in _ENDS and declared_range(field) is None:
            raise SpecError(
                f"{name}.{field.name} has no range. Declare it by number, as in "
                f"{field.name}: float = number(0.5, low=0.0, high=1.0)."
            )
    return {field_name: field for field_name, field in fields_by_name.items() if field_name not in _ENDS}


def check_custom_numbers(name: str, values: Mapping[str, object]) -> None:
    """Refuse numbers that a schedule outside tempopt does not have, or that are out of their range.

    If the schedule is not imported, only finiteness is checked.

    Raises:
        SpecError: A number is unknown or out of its range.
    """
    known_fields = custom_schedule_fields(name)
    for field, value in values.items():
        if known_fields is None:
            number_range: ParameterRange | None = FINITE
        elif field in known_fields:
            number_range = declared_range(known_fields[field])
        else:
            raise SpecError(unknown(f"number of {name}", field, known_fields or ["none"]))
        check_number(f"schedule_args.{field}", value, number_range)


def check_schedule_contract(name: str, low: float, high: float) -> None:
    """Refuse a schedule outside tempopt that breaks the contract of schedules somewhere on a coarse grid.

    The schedule is constructed with its numbers at their defaults and at the ends of their ranges: rising and
    falling between two temperatures, and with both equal. It is evaluated at 33 points of training. Within
    rounding it has to stay between the two temperatures, begin at the first and end at the second.

    Args:
        name: Name of the schedule; its module is imported.
        low: Lower temperature, > 0.
        high: Higher temperature.

    Raises:
        SpecError: The class is not declared as a schedule, raises an error, or breaks the contract.
    """
    kind, numbers = schedule_class(name), custom_schedule_fields(name) or {}
    changes: list[dict[str, Any]] = [{}]
    for field in numbers.values():
        number_range = declared_range(field)
        assert number_range is not None
        changes += [{field.name: number_range.low}, {field.name: number_range.high}]
    for (init, final), change in itertools.product([(high, low), (low, high), (high, high)], changes):
        try:
            schedule = kind(temperature_init=init, temperature_final=final, **change)  # type: ignore[call-arg]
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(f"{name} cannot be constructed: {type(error).__name__}: {error}") from error
        _check_values(schedule, init, final)


def _check_values(schedule: Schedule, init: float, final: float) -> None:
    low, high = min(init, final), max(init, final)
    tolerance = CLOSE * high
    for point in range(_NUM_CHECKED_POINTS):
        progress = point / (_NUM_CHECKED_POINTS - 1)
        temperature = schedule(progress)
        if not low - tolerance <= temperature <= high + tolerance:
            raise SpecError(
                f"{schedule!r} is {temperature!r} at progress {progress!r}. A schedule stays between "
                "temperature_init and temperature_final."
            )
    for progress, end, field in ((0.0, init, "temperature_init"), (1.0, final, "temperature_final")):
        if not math.isclose(schedule(progress), end, rel_tol=0.0, abs_tol=tolerance):
            raise SpecError(
                f"{schedule!r} is {schedule(progress)!r} at progress {progress!r}. A schedule has to be at "
                f"{field} there."
            )

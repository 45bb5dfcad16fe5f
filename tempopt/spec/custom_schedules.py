"""Schedules outside tempopt that a spec names: imported and checked here.

Called where a study is searched, never where a spec is read: importing runs the module's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tempopt.class_loading import load_schedule
from tempopt.errors import SpecError
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature.custom_schedules import (
    check_custom_numbers,
    check_schedule_contract,
    custom_schedule_fields,
    is_custom_schedule,
)
from tempopt.temperature.named import split_name
from tempopt.temperature.plan import CUSTOM_NUMBER_PREFIX, is_custom_number
from tempopt.temperature.schedules import CUSTOM_SCHEDULES


def custom_schedules(spec: StudySpec) -> dict[str, str]:
    """Return the schedules outside tempopt that a spec names, each with the key that names it."""
    keys_by_schedule: dict[str, str] = {}
    for key, name, values in _written_values(spec):
        if split_name(name)[1] == "schedule":
            for schedule in filter(is_custom_schedule, values):
                keys_by_schedule.setdefault(schedule, key)
    return keys_by_schedule


def _written_values(spec: StudySpec) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield key, name and values of all searched, compared and fixed parameters."""
    yield from spec.written_parameters()
    for name, value in spec.fixed_temperatures.items():
        yield f"model.init_args.{name}", name, (value,)


def import_schedules(spec: StudySpec) -> None:
    """Import the schedules outside tempopt that a spec names, and check their numbers.

    Raises:
        SpecError: A schedule cannot be imported or is invalid, or a number is not one of its own or out of
        range.
    """
    for name, key in custom_schedules(spec).items():
        load_schedule(name, where=key)
        _check_promises(name, key, spec)
    _check_numbers(spec)


def check_schedules(spec: StudySpec) -> None:
    """Check the schedules outside tempopt that a spec names, without importing them.

    Raises:
        SpecError: A schedule was not imported in this process, or as for :func:`import_schedules`.
    """
    for name, key in custom_schedules(spec).items():
        if name not in CUSTOM_SCHEDULES:
            raise SpecError(
                f'{key}: the schedule "{name}" is outside tempopt, and a server runs no code of its users. '
                "Take one of tempopt's, or have the person who runs the server import this one: "
                f"tempopt --import {name.partition(':')[0]} serve"
            )
        _check_promises(name, key, spec)
    _check_numbers(spec)


def _check_promises(name: str, key: str, spec: StudySpec) -> None:
    low, high = _temperatures(spec)
    try:
        check_schedule_contract(name, low, high)
    except SpecError as error:
        raise SpecError(f"{key}: {error}") from error


def _check_numbers(spec: StudySpec) -> None:
    schedules = list(custom_schedules(spec))
    faults: list[str] = []
    for key, name, values in _written_values(spec):
        bare_name = split_name(name)[1]
        if is_custom_number(bare_name):
            faults += _faults(schedules, key, bare_name.removeprefix(CUSTOM_NUMBER_PREFIX), values)
    if faults:
        raise SpecError("\n".join(faults))


def _temperatures(spec: StudySpec) -> tuple[float, float]:
    """Return two temperatures in the range of a study, for the check of its schedules."""
    levels = [domain for name, domain in spec.search.items() if split_name(name)[1] == "temperature_init"]
    temperatures = [
        float(probe) for level in levels for probe in level.probes if isinstance(probe, int | float)
    ]
    low, high = (min(temperatures), max(temperatures)) if temperatures else (0.25, 4.0)
    return (low, high) if low < high else (low, 2 * low)


def _faults(schedules: list[str], key: str, number: str, values: Sequence[object]) -> Iterator[str]:
    """Yield the errors in the values of a number, for the schedules that declare it."""
    owners = [name for name in schedules if number in (custom_schedule_fields(name) or {})]
    if not owners:
        known_numbers = sorted(
            {own_number for name in schedules for own_number in custom_schedule_fields(name) or {}}
        )
        hint = f"These have {', '.join(known_numbers) or 'none'}."
        yield f"{key}: none of {', '.join(schedules) or 'the schedules'} has a number {number}. {hint}"
    for name in owners:
        try:
            for value in values:
                check_custom_numbers(name, {number: value})
        except SpecError as error:
            yield f"{key}: {error}"

"""Schedules that are not tempopt's own: what a spec names of them is imported and checked here.

Called where a study is searched, never where it is read: importing runs the module's code.
"""

from __future__ import annotations

from tempopt.class_loading import load_schedule
from tempopt.errors import SpecError
from tempopt.spec.domains import Choices
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature.custom_schedules import (
    check_own_numbers,
    check_schedule_contract,
    is_custom_schedule,
    own_numbers,
)
from tempopt.temperature.named import split_name
from tempopt.temperature.plan import OWN_NUMBER, is_own_number
from tempopt.temperature.schedules import CUSTOM_SCHEDULES


def custom_schedules(spec: StudySpec) -> dict[str, str]:
    """Return the schedules outside tempopt that a spec names, each with the key that names it."""
    keys_by_schedule: dict[str, str] = {}
    for name, domain in spec.search.items():
        if _is_schedule(name) and isinstance(domain, Choices):
            keys_by_schedule |= {
                choice: f"search.{name}" for choice in domain.choices if choice not in keys_by_schedule
            }
    if fixed := spec.fixed_temperatures.get("schedule"):
        keys_by_schedule.setdefault(fixed, "model.init_args.schedule")
    for compared_set in spec.compare or ():
        for parameter, schedule in compared_set.parameters.items():
            if _is_schedule(parameter) and isinstance(schedule, str):
                keys_by_schedule.setdefault(schedule, f"compare.{compared_set.name}.{parameter}")
    return {name: key for name, key in keys_by_schedule.items() if is_custom_schedule(name)}


def _is_schedule(name: str) -> bool:
    return split_name(name)[1] == "schedule"


def import_schedules(spec: StudySpec) -> None:
    """Import the schedules outside tempopt that a spec names, and check their numbers.

    Raises:
        SpecError: One does not import or is no schedule, or a number is none of theirs or out of range.
    """
    for name, key in custom_schedules(spec).items():
        load_schedule(name, where=key)
        _check_promises(name, key, spec)
    _check_numbers(spec)


def check_schedules(spec: StudySpec) -> None:
    """Check the schedules outside tempopt that a spec names; none is imported.

    Raises:
        SpecError: One was not imported in this process, or as :func:`import_schedules`.
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
    numbers = {f"search.{name}": (name, domain.probes) for name, domain in spec.search.items()}
    numbers |= {
        f"model.init_args.{name}": (name, (value,)) for name, value in spec.fixed_temperatures.items()
    }
    numbers |= {
        f"compare.{compared_set.name}.{name}": (name, (value,))
        for compared_set in spec.compare or ()
        for name, value in compared_set.parameters.items()
    }
    faults = []
    for key, (name, values) in numbers.items():
        bare_name = split_name(name)[1]
        if is_own_number(bare_name):
            faults += _faults(schedules, key, bare_name.removeprefix(OWN_NUMBER), values)
    if faults:
        raise SpecError("\n".join(faults))


def _temperatures(spec: StudySpec) -> tuple[float, float]:
    """Return two temperatures that the schedules of a study may go between."""
    levels = [domain for name, domain in spec.search.items() if split_name(name)[1] == "temperature_init"]
    temperatures = [
        float(probe) for level in levels for probe in level.probes if isinstance(probe, int | float)
    ]
    low, high = (min(temperatures), max(temperatures)) if temperatures else (0.25, 4.0)
    return (low, high) if low < high else (low, 2 * low)


def _faults(schedules: list[str], key: str, number: str, values: tuple[object, ...]) -> list[str]:
    """Return what is wrong with the values of a number, for the schedules that have it."""
    owners = [name for name in schedules if number in (own_numbers(name) or {})]
    if not owners:
        known_numbers = sorted({own_number for name in schedules for own_number in own_numbers(name) or {}})
        hint = f"These have {', '.join(known_numbers)}." if known_numbers else "These have none."
        return [f"{key}: none of {', '.join(schedules) or 'the schedules'} has a number {number}. {hint}"]
    faults = []
    for name in owners:
        for value in values:
            try:
                check_own_numbers(name, {number: value})
            except SpecError as error:
                faults.append(f"{key}: {error}")
                break
    return faults

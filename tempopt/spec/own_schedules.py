"""Schedules that are not tempopt's own: what a spec names of them is imported and checked here.

Called where a study is searched, never where it is read: importing runs the module's code.
"""

from __future__ import annotations

from tempopt.errors import SpecError
from tempopt.spec.domains import Choices
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature.named import split_name
from tempopt.temperature.own_schedules import check_own_numbers, check_promises, is_own, own_numbers
from tempopt.temperature.plan import OWN_NUMBER, is_own_number
from tempopt.temperature.schedules import OWN
from tempopt.workers.class_paths import load_schedule


def own_schedules(spec: StudySpec) -> dict[str, str]:
    """Return the schedules outside tempopt that a spec names, each with the key that names it."""
    named: dict[str, str] = {}
    for searched, domain in spec.search.items():
        if _is_schedule(searched) and isinstance(domain, Choices):
            named |= {each: f"search.{searched}" for each in domain.choices if each not in named}
    if fixed := spec.fixed_temperatures.get("schedule"):
        named.setdefault(fixed, "model.init_args.schedule")
    for each in spec.compare or ():
        for given, schedule in each.parameters.items():
            if _is_schedule(given) and isinstance(schedule, str):
                named.setdefault(schedule, f"compare.{each.name}.{given}")
    return {name: where for name, where in named.items() if is_own(name)}


def _is_schedule(name: str) -> bool:
    return split_name(name)[1] == "schedule"


def import_schedules(spec: StudySpec) -> None:
    """Import the schedules outside tempopt that a spec names, and check their numbers.

    Raises:
        SpecError: One does not import or is no schedule, or a number is none of theirs or out of range.
    """
    for name, where in own_schedules(spec).items():
        load_schedule(name, where=where)
        _check_promises(name, where, spec)
    _check_numbers(spec)


def check_schedules(spec: StudySpec) -> None:
    """Check the schedules outside tempopt that a spec names; none is imported.

    Raises:
        SpecError: One was not imported in this process, or as :func:`import_schedules`.
    """
    for name, where in own_schedules(spec).items():
        if name not in OWN:
            raise SpecError(
                f'{where}: the schedule "{name}" is outside tempopt, and a server runs no code of its users. '
                "Take one of tempopt's, or have whoever runs the server import this one: tempopt --import "
                f"{name.partition(':')[0]} serve"
            )
        _check_promises(name, where, spec)
    _check_numbers(spec)


def _check_promises(name: str, where: str, spec: StudySpec) -> None:
    low, high = _temperatures(spec)
    try:
        check_promises(name, low, high)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error


def _check_numbers(spec: StudySpec) -> None:
    named = list(own_schedules(spec))
    numbers = {f"search.{name}": (name, domain.probes) for name, domain in spec.search.items()}
    numbers |= {
        f"model.init_args.{name}": (name, (value,)) for name, value in spec.fixed_temperatures.items()
    }
    numbers |= {
        f"compare.{each.name}.{name}": (name, (value,))
        for each in spec.compare or ()
        for name, value in each.parameters.items()
    }
    faults = []
    for where, (name, values) in numbers.items():
        bare = split_name(name)[1]
        if is_own_number(bare):
            faults += _faults(named, where, bare.removeprefix(OWN_NUMBER), values)
    if faults:
        raise SpecError("\n".join(faults))


def _temperatures(spec: StudySpec) -> tuple[float, float]:
    """Return two temperatures that the schedules of a study may go between."""
    levels = [each for name, each in spec.search.items() if split_name(name)[1] == "temperature_init"]
    found = [float(each) for level in levels for each in level.probes if isinstance(each, int | float)]
    low, high = (min(found), max(found)) if found else (0.25, 4.0)
    return (low, high) if low < high else (low, 2 * low)


def _faults(schedules: list[str], where: str, number: str, values: tuple[object, ...]) -> list[str]:
    """Return what is wrong with the values of a number, for the schedules that have it."""
    having = [name for name in schedules if number in (own_numbers(name) or {})]
    if not having:
        known = sorted({each for name in schedules for each in own_numbers(name) or {}})
        there = f"These have {', '.join(known)}." if known else "These have none."
        return [f"{where}: none of {', '.join(schedules) or 'the schedules'} has a number {number}. {there}"]
    faults = []
    for name in having:
        for value in values:
            try:
                check_own_numbers(name, {number: value})
            except SpecError as error:
                faults.append(f"{where}: {error}")
                break
    return faults

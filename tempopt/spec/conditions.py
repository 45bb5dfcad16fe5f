"""Which searched names count under which values of others: ``when:`` in the section ``search:``.

All names are sampled; what does not count is dropped before a parameter set is stored or trained, so that
sets which differ in nothing else are one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from tempopt.errors import SpecError, unknown
from tempopt.spec.domains import UNSET, Choices, Domain, domain_contains, same_value
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS


def parse_when(condition: object) -> dict[str, tuple[Any, ...]]:
    """Return a condition as values by name.

    Args:
        condition: Searched names, each with a value or a list of values.

    Raises:
        SpecError: It is no such mapping.
    """
    items = condition.items() if isinstance(condition, Mapping) else ()
    values_by_name = {
        name: tuple(value) if isinstance(value, list | tuple) else (value,) for name, value in items
    }
    are_complete = all(isinstance(name, str) and values for name, values in values_by_name.items())
    if not values_by_name or not are_complete:
        raise SpecError(
            f"given when: {condition!r}. Give names, each with at least one value under which this one "
            "counts, as in when: {optimizer: sgd}."
        )
    return values_by_name


def when_problems(search: Mapping[str, Domain]) -> dict[str, str]:
    """Return what is wrong with conditions, by the name that has them."""
    problems: dict[str, str] = {}
    for name, domain in search.items():
        for other_name, values in (domain.when or {}).items():
            if problem := _problem(search, name, other_name, values):
                problems.setdefault(name, problem)
    return problems or _circles(search)


def _problem(search: Mapping[str, Domain], name: str, other_name: str, values: tuple[Any, ...]) -> str | None:
    if name in TEMPERATURE_PARAMETERS:
        return (
            "a temperature parameter takes no condition: the schedule, the layer_pattern and the like say "
            "which of them count. Take it out."
        )
    if search[name].baseline != UNSET:
        return "given beside a baseline, at which the baseline holds it in any case. Take one of the two out."
    if other_name == name:
        return f"{name} cannot depend on itself. Name another one."
    if other_name not in search:
        return unknown("searched name", other_name, [candidate for candidate in search if candidate != name])
    domain = search[other_name]
    if other_name in TEMPERATURE_PARAMETERS or domain.baseline != UNSET:
        return (
            f"{other_name} is held at τ = 1, so what else differs from the baseline would follow from it. "
            "Name a parameter that every arm tunes."
        )
    if not isinstance(domain, Choices) and domain.step is None and not isinstance(domain.low, int):
        return (
            f"{other_name} is any number of a range, which hardly ever has one value. Name one with choices."
        )
    for value in values:
        try:
            domain_contains(domain, value)
        except SpecError as error:
            return f"{other_name}: {error}"
    return None


def _circles(search: Mapping[str, Domain]) -> dict[str, str]:
    needs = {name: set(domain.when or {}) for name, domain in search.items()}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][::-1]
        return {cycle[0]: f"the conditions go in a circle, {' -> '.join(cycle)}. Take one of them out."}
    return {}


def active_params(search: Mapping[str, Domain], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values without those of names that do not count under the others.

    A name does not count where one that it depends on does not count, or is not among the values.

    Args:
        search: The whole search space.
        values: Parameters by name; those that are not searched are kept.
    """
    return {name: value for name, value in values.items() if _counts(search, values, name)}


def _counts(search: Mapping[str, Domain], values: Mapping[str, Any], name: str) -> bool:
    if name not in search:
        return True
    return all(
        other_name in values
        and _among(values[other_name], allowed_values)
        and _counts(search, values, other_name)
        for other_name, allowed_values in (search[name].when or {}).items()
    )


def _among(value: object, choices: tuple[Any, ...]) -> bool:
    return any(same_value(value, choice) for choice in choices)


def find_excluding_condition(
    search: Mapping[str, Domain], values: Mapping[str, Any], name: str
) -> str | None:
    """Return what keeps a name from counting, of a set in which others may be left open; None: nothing."""
    for other_name, allowed_values in (search[name].when or {}).items():
        if other_name in values and not _among(values[other_name], allowed_values):
            choices_text = " or ".join(map(json.dumps, allowed_values))
            value_text = json.dumps(values[other_name])
            return f"it counts only when {other_name} is {choices_text}, and this set has {value_text}."
    return None

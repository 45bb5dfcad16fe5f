"""``study.compare``: the searched parameter whose values are compared, in place of a verdict on temperature.

Reads its values and says what keeps a spec from comparing them. Which runs that takes, and what is found, is
confirmation/values.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import comb
from typing import Any

from tempopt.errors import unknown
from tempopt.spec.compared_sets import fewest_pairs
from tempopt.spec.domains import Domain, Range
from tempopt.spec.sections import FEWEST, Arms
from tempopt.spec.study_section import StudySection
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS

MOST_VALUES = 8
"""Most values that a study compares: 28 pairs of values share the error rate then."""

_LONGEST = 40
_PATH = "study.compare"
_MODEL = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedValue:
    """One value of the compared parameter.

    Args:
        parameter: The searched name of the parameter.
        name: What tickets and results call it, as in ``num_heads=4``; the arm of its runs.
        value: The value itself.
    """

    parameter: str
    name: str
    value: Any

    @property
    def sampled(self) -> dict[str, Any]:
        """The value by the parameter's name, as tickets have it."""
        return {self.parameter: self.value}


def compared_name(given: str, search: Mapping[str, Domain]) -> str | None:
    """Return under which name a parameter is searched; None: it is not.

    An argument of the model may be written with ``model.`` before it and without.
    """
    return next((name for name in (given, given.removeprefix(_MODEL)) if name in search), None)


def compared_values(given: str | None, search: Mapping[str, Domain]) -> tuple[ComparedValue, ...]:
    """Return the values that are compared: numbers ascending, others in the order in which they are listed.

    Args:
        given: ``study.compare``; None: nothing is compared, so there are none.
        search: The search space.
    """
    name = None if given is None else compared_name(given, search)
    if name is None:
        return ()
    values = _values(search[name]) or []
    short = name.rpartition(".")[2]
    texts = [_text(f"{short}={value if isinstance(value, str) else json.dumps(value)}") for value in values]
    if len(set(texts)) < len(texts):
        texts = [f"{text[: _LONGEST - 2]}-{place}" for place, text in enumerate(texts, start=1)]
    return tuple(
        ComparedValue(parameter=name, name=text, value=value)
        for text, value in zip(texts, values, strict=True)
    )


def _text(name: str) -> str:
    # arms that share a run are joined by a plus
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", name)[:_LONGEST]


def _values(domain: Domain) -> list[Any] | None:
    """Return the values of a domain in their order; None: there are infinitely many."""
    if isinstance(domain, Range):
        if not (isinstance(domain.low, int) and isinstance(domain.high, int)):
            return None
        return list(range(domain.low, domain.high + 1, int(domain.step or 1)))
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in domain.choices)
    return sorted(domain.choices) if numbers else list(domain.choices)


def value_problems(
    study: StudySection, search: Mapping[str, Domain], *, has_sets: bool
) -> list[tuple[str, str]]:
    """Return what keeps a study from comparing the values of a parameter, as dotted path and message.

    Args:
        study: The section ``study:``.
        search: The search space; empty where there are sets.
        has_sets: Whether the spec has a section ``compare:``.
    """
    if study.compare is None:
        return []
    if has_sets:
        message = (
            f"given {study.compare} together with a section compare:, which compares given parameter sets "
            "and searches nothing. Take one of the two out."
        )
        return [(_PATH, message)]
    if problem := _of_parameter(study.compare, search):
        return [(_PATH, problem)]
    return _of_study(study, search)


def _of_parameter(given: str, search: Mapping[str, Domain]) -> str | None:
    name = compared_name(given, search)
    if name is None:
        return unknown("searched name", given, search, "The values that are compared are those in search:.")
    if name in TEMPERATURE_PARAMETERS:
        return (
            f"given {name}, a temperature parameter: without study.compare the verdict is about temperature "
            "anyway. Take study.compare out, or give a parameter of the model, as in num_heads."
        )
    domain = search[name]
    if domain.when is not None:
        return f"given {name}, which counts under some values of others only. Take its when: out."
    values = _values(domain)
    if values is None:
        assert isinstance(domain, Range)
        return (
            f"given {name}, a range of numbers from {domain.low} to {domain.high}, whose values cannot all "
            f"be compared. Give 2 to {MOST_VALUES} choices, as in {name}: [{domain.low}, {domain.high}]."
        )
    if not 2 <= len(values) <= MOST_VALUES:
        return (
            f"given {name}, which has {len(values)} value{'s' * (len(values) != 1)} in search:. Give 2 to "
            f"{MOST_VALUES} choices, as in search.{name}: [1, 2, 4]."
        )
    if len(search) == 1:
        return (
            f"given {name}, beside which nothing is searched, so there is nothing to choose for each value. "
            "Search more, as a learning rate, or compare sets as they are: tempopt compare SPEC SET SET."
        )
    return None


def _of_study(study: StudySection, search: Mapping[str, Domain]) -> list[tuple[str, str]]:
    values = compared_values(study.compare, search)
    lines = []
    if study.evaluate_only is not None:
        message = (
            "given with study.compare, but of a trained model no value is trained. Take one of them out."
        )
        lines.append(("study.evaluate_only", message))
    if study.trials < FEWEST * len(values):
        message = (
            f"given {study.trials}, which {len(values)} values of {study.compare} share. Give at least "
            f"{FEWEST} each: {FEWEST * len(values)}."
        )
        lines.append(("study.trials", message))
    pairs, comparisons = study.seeds.confirm, comb(len(values), 2)
    if pairs.max < (fewest := fewest_pairs(pairs, study.test, comparisons)):
        message = (
            f"given {pairs.max} with test: {study.test} and {len(values)} values, whose {comparisons} "
            f"comparisons share the error rate. So few pairs can show nothing: give at least {fewest}, or "
            "test: t."
        )
        lines.append(("study.seeds.confirm", message))
    lines += [
        (f"study.{key}", f"given with study.compare, where {why}. Take it out.")
        for key, (given, why) in _unread(study).items()
        if given
    ]
    return lines


def _unread(study: StudySection) -> dict[str, tuple[bool, str]]:
    """Return by key whether it asks something that comparing values does not answer, and why not."""
    own = "each value searches by itself and has an equal share of the trials"
    at_one = "nothing is trained at τ = 1 for comparison"
    return {
        "arms": (study.arms != Arms(), at_one),
        "ablation": (study.ablation == "full", "no winner is taken apart"),
        "failure": (study.failure is not None, at_one),
        "guards": (bool(study.guards), at_one),
        "enqueue": (bool(study.enqueue), own),
        "warm_start": (bool(study.warm_start), own),
        "limits.standard_errors": (study.limits.standard_errors is not None, own),
    }

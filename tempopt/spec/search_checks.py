"""Whether a search asks about temperature, whether each name can change anything, and likely slips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tempopt.errors import SpecError
from tempopt.spec.domains import Choices, Domain
from tempopt.spec.search_space import unused_temperature_params
from tempopt.spec.study_section import StudySection, direction_of
from tempopt.spec.yaml_source import unresolved
from tempopt.temperature.entropy_control import CONTROL, has_target
from tempopt.temperature.parameters import check_parameter
from tempopt.temperature.plan_parts import CREDITED

_REMEDY = (
    "Search what it goes with as well (a schedule and temperature_final, num_knots and temperature_knot_2, "
    "a layer_pattern and layer_ratio, a head_pattern and head_ratio, a length_scaling, a normaliser and "
    "top_k, a local_share and window, an entropy_lambda, its entropy_schedule and entropy_lambda_final, an "
    "entropy_control and control_level), set that under model.init_args, or take the name out."
)


def temperature_problems(
    search: Mapping[str, Domain], fixed: Mapping[str, Any], *, needs_temperature: bool, compiled: bool = False
) -> list[tuple[str, str]]:
    """Return what is wrong with the temperatures of a spec: the path of each fault, and the message.

    Args:
        search: The searched names.
        fixed: Temperature parameters that the model's init arguments set.
        needs_temperature: Whether the verdict of the study is about a temperature, so that one has to be
            searched.
        compiled: Whether the model is compiled.
    """
    lines = []
    for name, value in fixed.items():
        try:
            if not unresolved(value):
                check_parameter(name, value)
        except SpecError as error:
            lines.append((f"model.init_args.{name}", str(error)))
    if lines:
        return lines
    if compiled and (path := _controlled(search, fixed)):
        message = (
            "the entropy of attention cannot be controlled in a compiled model (study.compile), which does "
            "not show what it attends to. Take study.compile or entropy_control out."
        )
        return [(path, message)]
    if needs_temperature and not any(name in CREDITED for name in search):
        message = (
            f"given {', '.join(search)}, of which none is a temperature, so that there would be no "
            "temperature for the verdict to be about. Search one, as in temperature_init: {low: 0.25, "
            "high: 4}."
        )
        return [("search", message)]
    return [
        (f"search.{name}", f"it changes nothing: nothing in this space depends on it. {_REMEDY}")
        for name in unused_temperature_params(search, fixed)
    ]


def _controlled(search: Mapping[str, Domain], fixed: Mapping[str, Any]) -> str:
    """Return where a control of the entropy is asked for; empty: it is not."""
    if CONTROL in search:
        return f"search.{CONTROL}"
    return f"model.init_args.{CONTROL}" if has_target(fixed) else ""


def notes_on(study: StudySection, search: Mapping[str, Domain]) -> list[str]:
    """Return what is allowed and may yet be a slip, one sentence each."""
    notes = []
    expected = direction_of(study.metric)
    if expected not in (None, study.direction):
        notes.append(
            f'study.direction is {study.direction}, but by its name "{study.metric}" is one to '
            f"{expected}. Check that it is meant."
        )
    for name, domain in search.items():
        if isinstance(domain, Choices) and len(domain.choices) == 2 and _looks_like_a_range(domain):
            low, high = domain.choices
            notes.append(
                f"search.{name} is one of two choices, {low} and {high}; for all numbers between write "
                f"{{low: {low}, high: {high}}}."
            )
    return notes


def _looks_like_a_range(domain: Choices) -> bool:
    low, high = domain.choices
    return isinstance(low, float) and isinstance(high, int | float) and low < high

"""Checks of the named temperatures of a spec, and what a dry run adds to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from tempopt.spec.spec_fields import SpecFields
from tempopt.spec.temperatures import LEVELS, MAX_TEMPERATURES, TemperatureSection
from tempopt.temperature.named import join_name, name_problem, registered_path
from tempopt.temperature.ranges import HIGHEST, LOWEST

Spec = TypeVar("Spec", bound=SpecFields)

_WIDTH = 8
"""A range goes as far from the temperature as found, in ratio, if nothing else is known."""


def named_temperature_problems(spec: SpecFields) -> list[tuple[str, str]]:
    """Return what is wrong with the named temperatures of a spec: the path of each fault, and the message."""
    temperatures = spec.temperatures
    if len(temperatures) > MAX_TEMPERATURES:
        message = f"given {len(temperatures)} temperatures. Give at most {MAX_TEMPERATURES}."
        return [("temperatures", message)]
    lines = []
    earlier_sections: dict[str, TemperatureSection] = {}
    for name, section in temperatures.items():
        path = f"temperatures.{name}"
        if problem := _name_problem(name, spec.model["init_args"]):
            lines.append((path, problem))
        elif spec.compare is None and not any(join_name(name, level) in spec.search for level in LEVELS):
            example = _example(name, section.as_found)
            message = f"its level is not searched. Search it, as in {example}, or take"
            lines.append((path, f"{message} {name} out. Usual ranges are in docs/values.md."))
        lines += _find_duplicate_paths(name, section, earlier_sections)
        earlier_sections[name] = section
    return lines + _headless(spec)


def _headless(spec: SpecFields) -> list[tuple[str, str]]:
    if spec.study.learned != "per_head" or spec.attends:
        return []
    message = (
        "given per_head, which is about heads of attention, but no temperature of attention is searched. "
        "Give true: each of the temperatures is then learned."
    )
    return [("study.learned", message)]


def _find_duplicate_paths(
    new_name: str, section: TemperatureSection, earlier_sections: Mapping[str, TemperatureSection]
) -> list[tuple[str, str]]:
    """Return what an entry has in common with those before it, as far as the spec alone can tell."""
    for name, earlier_section in earlier_sections.items():
        path, earlier_path = _path_of(new_name, section), _path_of(name, earlier_section)
        if path == earlier_path:
            message = f'"{path}" is the temperature {name} already. Take one of them out.'
            return [(f"temperatures.{new_name}.value", message)]
    return []


def _path_of(name: str, section: TemperatureSection) -> str:
    return section.value or registered_path(name)


def _example(name: str, as_found: float | None) -> str:
    """Return how a level is searched: about the temperature as found, else as that of a contrastive loss."""
    low, high = (0.02, 1.0) if as_found is None else (as_found / _WIDTH, as_found * _WIDTH)
    return f"{name}.temperature_init: {{low: {max(low, LOWEST):.3g}, high: {min(high, HIGHEST):.3g}}}"


def _name_problem(name: str, model_args: Mapping[str, Any]) -> str | None:
    if problem := name_problem(name):
        return problem
    if name in model_args:
        return f'the model has an init argument "{name}", too. Give the temperature another name.'
    return None


def with_found(
    spec: Spec,
    temperatures: Mapping[str, float],
    *,
    not_learned: str | None = None,
    evaluated: Collection[str] | None = None,
    trained: Collection[str] | None = None,
) -> Spec:
    """Return a spec with what a dry run has found of its module, where it does not say it.

    Args:
        spec: The spec.
        temperatures: The named temperatures that the module has.
        not_learned: Why they cannot be learned; None: they can, or it was not tried.
        evaluated: Names of those that the metric reads in evaluation; None: it was not tried.
        trained: Names of those that the module's own optimizers train; None: it was not tried.
    """
    sections = {}
    for name, section in spec.temperatures.items():
        looked_up = {
            "as_found": temperatures.get(name),
            "evaluated": None if evaluated is None else name in evaluated,
            "trained": None if trained is None else name in trained,
        }
        updates = {key: value for key, value in looked_up.items() if getattr(section, key) is None}
        sections[name] = section.model_copy(update=updates)
    not_learned = spec.study.not_learned or not_learned
    study = spec.study.model_copy(update={"not_learned": not_learned})
    return spec.model_copy(update={"temperatures": sections, "study": study})

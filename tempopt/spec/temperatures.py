"""The section ``temperatures:``: temperatures of a module that are not attention's, each with a name.

Where they are in the module is found by a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from tempopt.errors import unknown
from tempopt.spec.sections import SpecSection
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature.knots import INNER_KNOTS
from tempopt.temperature.named import (
    AS_FOUND,
    VALUE_FIELDS,
    join_name,
    name_problem,
    registered_path,
    split_name,
)
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS
from tempopt.temperature.plan import flatten_schedule_args
from tempopt.temperature.plan_parts import CREDITED
from tempopt.temperature.ranges import HIGHEST, LOWEST

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

ATTENTION = "attention"
MAX_TEMPERATURES = 7
"""So many temperatures may have a name, beside attention's."""
LEVELS = ("temperature_init", "temperature_final", *INNER_KNOTS)
"""Parameters that say where a temperature goes, the one to begin with first."""
_WIDTH = 8
"""A range goes as far from the temperature as found, in ratio, if nothing else is known."""


class TemperatureSection(SpecSection):
    """One entry of ``temperatures:``: where a module has a temperature that is not attention's.

    Args:
        value: Dotted path from the module to a number that is the temperature, as in
            ``criterion.temperature``. Without it, it is the temperature that the module, a
            TemperedModule, registers by the entry's name.
        transform: How the number stores the temperature τ: ``identity`` τ, ``inverse`` 1/τ, ``log_inverse``
            ln(1/τ).
        as_found: The temperature that the module has, which the baseline trains at. None: it is looked
            up before the study begins.
        evaluated: Whether the metric reads it when a trained model is evaluated; None: it is looked up before
            the study begins.
        trained: Whether the module's own optimizers train it, where it stays as found; None: it is looked up
            before the study begins.
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


def with_attention(data: object) -> object:
    """Return a spec with the entry ``attention`` of ``temperatures:`` as the section ``attach:``.

    Raises:
        FaultsError: Both are given.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("temperatures"), Mapping):
        return data
    temperatures = dict(data["temperatures"])
    if ATTENTION not in temperatures:
        return data
    if data.get("attach") is not None:
        message = "given beside attach:, which is the same. Take one of them out."
        raise CollectedSpecError([(f"temperatures.{ATTENTION}", message)])
    return {**data, "attach": temperatures.pop(ATTENTION) or {}, "temperatures": temperatures}


def problems(spec: StudySpec) -> list[tuple[str, str]]:
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


def _headless(spec: StudySpec) -> list[tuple[str, str]]:
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


def check_unknown_temperature_name(name: str, temperatures: Collection[str] | None) -> str | None:
    """Return what is wrong with a searched name that looks like that of a named temperature, or None.

    Args:
        name: As a person wrote it.
        temperatures: Names in the section ``temperatures:``; None: it is wrong itself.
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
    """Return the temperatures of which something is searched, by name; attention's is the empty text."""
    return list(dict.fromkeys(split_name(name)[0] for name in search if name in CREDITED))


def fixed(spec: StudySpec) -> dict[str, Any]:
    """Return the temperature parameters that the model's init arguments set, and the values as found.

    A module that is attached to has arguments of its own, of whatever name; of these only the temperature of
    its output is tempopt's.
    """
    names = TEMPERATURE_PARAMETERS if spec.attach is None else ("output_temperature",)
    fixed_values = {name: value for name, value in spec.model["init_args"].items() if name in names}
    found_values = {
        join_name(name, AS_FOUND): section.as_found
        for name, section in spec.temperatures.items()
        if section.as_found is not None
    }
    return flatten_schedule_args(fixed_values) | found_values


def evaluated(spec: StudySpec) -> list[str]:
    """Return the temperatures that the evaluation of a trained model reads; attention's is the empty text."""
    names = [name for name, section in spec.temperatures.items() if section.evaluated]
    return [*([""] if spec.attends else []), *names]


def with_found(
    spec: StudySpec,
    temperatures: Mapping[str, float],
    *,
    not_learned: str | None = None,
    evaluated: Collection[str] | None = None,
    trained: Collection[str] | None = None,
) -> StudySpec:
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


def with_stored_dry_run_results(spec: StudySpec, stored_spec: StudySpec) -> StudySpec:
    """Return a spec with what the dry run had found when the study was begun."""
    temperatures = {
        name: section.as_found
        for name, section in stored_spec.temperatures.items()
        if section.as_found is not None
    }
    evaluated_names = [name for name, section in stored_spec.temperatures.items() if section.evaluated]
    trained_names = [name for name, section in stored_spec.temperatures.items() if section.trained]
    return spec.with_dry_run_results(
        temperatures,
        not_learned=stored_spec.study.not_learned,
        evaluated=evaluated_names,
        trained=trained_names,
    )

"""Which searched and compared parameters the section ``attach:`` cannot set, as far as the text tells.

Whether a module has an argument of its own by such a name is found by training/build.py, which imports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tempopt.temperature.entropy import ENTROPY_PARAMETERS
from tempopt.temperature.entropy_control import CONTROL_PARAMETERS
from tempopt.temperature.named import split_name
from tempopt.temperature.parameters import NEUTRAL, PLAN_PARAMETERS, ParameterNames
from tempopt.temperature.ways import ATTENTION_INTERFACE, BEYOND_ROWS, QUERY_ROWS

if TYPE_CHECKING:
    from tempopt.spec.spec_fields import SpecFields

_BY_ROWS = ParameterNames((*PLAN_PARAMETERS, *CONTROL_PARAMETERS))
_BY_INTERFACE = ParameterNames((*_BY_ROWS, *ENTROPY_PARAMETERS))


def attach_problems(spec: SpecFields) -> list[tuple[str, str]]:
    """Return what the section ``attach:`` of a spec cannot set: the path of each fault, and the message."""
    if spec.attach is None:
        return []
    lines: list[tuple[str, str]] = []
    for path, name, values in _parameters(spec):
        problem = _argument_problem(spec, name) or _rows_problem(spec, name, values)
        if problem is not None and path not in (line_path for line_path, _ in lines):
            lines.append((path, problem))
    return lines


def _parameters(spec: SpecFields) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield path, name and values of what is searched or compared of attention's temperature."""
    for name, domain in spec.search.items():
        if not split_name(name)[0]:
            yield f"search.{name}", name, domain.probes
    for compared_set in spec.compare or ():
        for name, value in compared_set.parameters.items():
            if not split_name(name)[0]:
                yield f"compare.{compared_set.name}.{name}", name, (value,)


def _argument_problem(spec: SpecFields, name: str) -> str | None:
    assert spec.attach is not None
    attachable = _BY_INTERFACE if spec.attach.method == ATTENTION_INTERFACE else _BY_ROWS
    if name not in attachable or name not in _arguments(spec):
        return None
    return (
        f"{name} could mean what attach: sets, or the argument {name} of {spec.model['class_path']}. Rename "
        "the argument, or take attach: out."
    )


def _rows_problem(spec: SpecFields, name: str, values: Sequence[Any]) -> str | None:
    assert spec.attach is not None
    if spec.attach.method != QUERY_ROWS or name not in BEYOND_ROWS:
        return None
    if name in ENTROPY_PARAMETERS and name in _arguments(spec):
        # the module has a term of its own
        return None
    refused_values = [value for value in values if value != NEUTRAL[name]]
    if not refused_values:
        return None
    class_path = spec.model["class_path"]
    argument_hint = f", write it under model.init_args if {class_path} has an argument of that name"
    return (
        f"given {refused_values[0]!r}, but attach: {{method: {QUERY_ROWS}}} cannot set it: it scales the "
        f"rows of the query projection, which {BEYOND_ROWS[name]}. Only {name}={NEUTRAL[name]!r} is allowed "
        f"there. Write attach: {{method: {ATTENTION_INTERFACE}}} if {class_path} is a model of transformers, "
        "derive it from TemperedModule and take attach: "
        f"out{argument_hint if name in ENTROPY_PARAMETERS else ''}, or take {name} out."
    )


def _arguments(spec: SpecFields) -> Mapping[str, Any]:
    arguments: Mapping[str, Any] = spec.model["init_args"]
    return arguments

"""Replace classes and functions in a spec given as Python data by their import paths."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from tempopt.api.main_module import write_module
from tempopt.api.main_source import MAIN, main_names
from tempopt.errors import SpecError, UsageError
from tempopt.service.lifecycle import Storage
from tempopt.service.requests import CompareRequest, SearchRequest
from tempopt.service.studies import parse_any_spec
from tempopt.spec.comparison_spec import refuse_comparison
from tempopt.spec.program_section import ProgramSection
from tempopt.spec.study_spec import StudySpec

Spec = StudySpec | Mapping[str, Any] | str | Path
"""A study spec: loaded, as plain data, the path of a YAML file or the name of a bundled one."""

_SECTIONS = ("model", "data", "trainer", "program")
_IN_MAIN = re.compile(r"__main__\.([A-Za-z_]\w*)")


def load_portable_spec(spec: Spec) -> StudySpec:
    """Return a spec whose classes workers can import.

    Raises:
        SpecError: It is invalid, or a class cannot be imported by workers.
        UsageError: A module with classes of the running program cannot be written.
    """
    return make_classes_importable(parse_any_spec(with_paths(spec)))


def load_search_spec(spec: Spec) -> StudySpec:
    """Return the spec of a search, as :func:`load_portable_spec`.

    Raises:
        UsageError: It is the spec of a comparison.
    """
    search_spec = load_portable_spec(spec)
    refuse_comparison(search_spec)
    return search_spec


def portable_comparison(request: CompareRequest, storage: Storage) -> SearchRequest:
    """Return the request of a comparison, as :meth:`.CompareRequest.to_search`, with importable classes."""
    search_request = request.to_search(storage)
    return replace(search_request, spec=make_classes_importable(search_request.spec))


def spec_of_function(
    function: Callable[..., Any],
    *,
    space: Mapping[str, Any] | None,
    metric: str | None,
    direction: str | None,
    name: str | None,
) -> dict[str, Any]:
    """Return the spec of a study of a function.

    Raises:
        UsageError: What is searched, or which way is better, was not given.
    """
    if space is None or metric is None or direction is None:
        raise UsageError(
            "A function is searched with space, metric and direction, as in tempopt.search(train, "
            'space={"lr": {"low": 0.001, "high": 0.1, "log": True, "baseline": 0.01}}, metric="val_loss", '
            'direction="minimize").'
        )
    study_name = name or getattr(function, "__name__", "function").strip("_<>")
    study = {"name": study_name, "metric": metric, "direction": direction}
    return {"study": study, "program": {"function": function}, "search": space}


def with_paths(spec: Spec) -> Spec:
    """Return a spec given as plain data with import paths in place of classes; return other specs unchanged.

    Raises:
        SpecError: It has an object in place of a class, or a class that other processes cannot import.
    """
    if isinstance(spec, StudySpec) or not isinstance(spec, Mapping):
        return spec
    return {key: _replace_classes(value, key) if key in _SECTIONS else value for key, value in spec.items()}


def _replace_classes(data: Any, where: str) -> Any:
    """Return part of a spec with paths in place of classes and functions; a class alone has no arguments."""
    if where == "program.function" and callable(data):
        return _find_path(data, where)
    if isinstance(data, type):
        path = _find_path(data, where)
        is_argument = where.endswith(".class_path") or ".init_args" in where
        return path if is_argument else {"class_path": path}
    if isinstance(data, Mapping):
        return {key: _replace_classes(value, f"{where}.{key}") for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_replace_classes(value, f"{where}[{number}]") for number, value in enumerate(data)]
    try:
        to_jsonable_python(data)
    except PydanticSerializationError as error:
        name = type(data).__qualname__
        raise SpecError(
            f"{where}: given an object of the class {name}, but a spec is plain data. Give a number or text, "
            "or in place of an object its class and arguments, from which every run makes its own object: "
            '{"class_path": TheClass, "init_args": {...}}.'
        ) from error
    return data


def _find_path(value: Any, where: str) -> str:
    """Return the import path of a class or a function."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    kind = "class" if isinstance(value, type) else "function"
    if not name or name == "<lambda>" or module is None:
        raise SpecError(f"{where}: given {value!r}, which has no name to import. Write a function with def.")
    if "." in name:
        raise SpecError(
            f"{where}: the {kind} {name} is defined inside a function or another class, where workers cannot "
            "import it. Define it at the top level of a module, a script or a cell."
        )
    namespace = main_names() if module == MAIN else vars(sys.modules.get(module, object))
    if namespace.get(name) is not value:
        raise SpecError(
            f"{where}: the {kind} {name} was given, but {module}.{name} is now a different class or does not "
            "exist. Import or define it again, and give that class."
        )
    return f"{module}.{name}"


def make_classes_importable(spec: StudySpec) -> StudySpec:
    """Write classes of the running program to a module, and return a spec that refers to that module.

    Raises:
        SpecError: A class cannot be written to a module.
        UsageError: The module cannot be written.
    """
    sections = {key: getattr(spec, key) for key in _SECTIONS}
    if spec.program is not None:
        sections["program"] = spec.program.model_dump()
    names: dict[str, None] = {}
    _map_main_paths(sections, lambda name: str(names.setdefault(name)))
    if not names:
        return spec
    module = write_module(list(names))
    update = _map_main_paths(sections, lambda name: f"{module}.{name}")
    if spec.program is not None:
        update["program"] = ProgramSection(**update["program"])
    return spec.model_copy(update=update)


def _map_main_paths(data: Any, path: Callable[[str], str]) -> Any:
    """Return plain data with each path of a class of the running program replaced by ``path`` of its name."""
    if isinstance(data, str):
        match = _IN_MAIN.fullmatch(data)
        return data if match is None else path(match[1])
    if isinstance(data, Mapping):
        return {key: _map_main_paths(value, path) for key, value in data.items()}
    if isinstance(data, Sequence) and not isinstance(data, bytes):
        return [_map_main_paths(value, path) for value in data]
    return data

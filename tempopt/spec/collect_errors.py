"""Further errors of a study spec that does not validate, as far as its text shows them.

Validation stops at the first step that finds errors, since sections are compared only when each is valid. A
worker checks whether the classes fit once the text is valid.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tempopt.spec.logger_secrets import find_secrets
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError, build_spec_error

_Lines = Sequence[tuple[str, str]]

_STUDY = {"name": "study", "metric": "metric", "direction": "minimize"}
_MODEL = {"class_path": "module.Class"}
_COMMAND = "program {seed}"
_SEARCH = {"temperature_init": {"low": 0.25, "high": 4.0}}
# A spec is validated in four steps; each runs only if the one before found no error.
_STEPS = 4


def find_all_faults(error: FaultySpecError) -> list[tuple[str, str]]:
    """Return path and message of all errors that validation would find if it continued at each error."""
    faults = list(error.lines)
    for _ in range(_STEPS):
        try:
            StudySpec.parse(_remove_faults(error.document.data, faults), source=error.document)
            break
        except FaultySpecError as next_error:
            new_faults = [line for line in next_error.lines if not _may_be_consequence(line[0], faults)]
            if not new_faults:
                break
            faults += new_faults
    # checked separately, since validation itself accepts secrets
    secrets = find_secrets(_as_mapping(error.document.data.get("trainer")).get("logger"))
    fault_paths = {path for path, _ in faults}
    return [*faults, *(secret for secret in secrets if secret[0] not in fault_paths)]


def with_all_faults(error: FaultySpecError) -> FaultySpecError:
    """Return an error with all errors in the text of the spec; no class of it is imported."""
    return build_spec_error(find_all_faults(error), error.document)


def _may_be_consequence(path: str, faults: _Lines) -> bool:
    """Return whether an error may exist only because another faulty part was removed from the spec."""
    section, _, name = path.partition(".")
    for fault_path, _ in faults:
        fault_section = fault_path.partition(".")[0]
        if section == "search" or path.startswith("study.enqueue"):
            is_related = fault_section == "search"
        elif path == "program.command" and fault_section in ("search", "compare"):
            # a placeholder stands for the parameter that was removed
            is_related = True
        elif section == "temperatures" and fault_path.startswith(f"search.{name}."):
            # the searched parameter of this temperature exists and is wrong
            is_related = True
        else:
            is_related = f"{path}.".startswith(f"{fault_path}.") or f"{fault_path}.".startswith(f"{path}.")
        if is_related:
            return True
    return False


def _remove_faults(spec_data: Mapping[str, Any], faults: _Lines) -> dict[str, Any]:
    """Return a spec without its faulty parts, with placeholders for required ones."""
    data = copy.deepcopy(dict(spec_data))
    for path, _ in faults:
        _drop(data, path)
    data["study"] = {**_STUDY, **_as_mapping(data.get("study"))}
    if spec_data.get("program") is None:
        data["model"] = {**_MODEL, **_as_mapping(data.get("model"))}
    else:
        program = _as_mapping(data.get("program"))
        data["program"] = program if program.keys() & {"command", "function"} else {"command": _COMMAND}
    if "compare" not in data:
        data["search"] = data.get("search") or _SEARCH
    if isinstance(temperatures := data.get("temperatures"), dict):
        _fill_temperatures(temperatures, _as_mapping(spec_data.get("temperatures")))
    return data


def _fill_temperatures(temperatures: dict[str, Any], spec_temperatures: Mapping[str, Any]) -> None:
    """Give faulty entries of ``temperatures:`` a placeholder, so that other sections can refer to them."""
    for name, section in spec_temperatures.items():
        if name not in temperatures and not isinstance(section, Mapping):
            temperatures[name] = {}
        if isinstance(entry := temperatures.get(name), dict):
            entry.setdefault("value", f"place_of.{name}")


def _drop(data: dict[str, Any], path: str) -> None:
    """Remove the key of a path, or the nearest removable key above it."""
    remaining_path = path
    # a searched name may contain dots
    while key := next((key for key in map(str, data) if f"{remaining_path}.".startswith(f"{key}.")), None):
        child, remaining_path = data.get(key), remaining_path[len(key) + 1 :]
        if not remaining_path or not isinstance(child, dict):
            data.pop(key, None)
            return
        data = child


def _as_mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}

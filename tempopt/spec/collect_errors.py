"""What else is wrong with a study spec that does not validate, as far as its text tells.

Validation ends at what it finds first, as sections do not fit together before each is right. Whether the
classes fit is checked by a worker once the text is right.
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
_SEARCH = {"temperature_init": {"low": 0.25, "high": 4.0}}
# A spec is validated in three steps, of which each is taken only where the one before found nothing.
_STEPS = 3


def all_faults(error: FaultySpecError) -> list[tuple[str, str]]:
    """Return the path and the message of all that validation finds, were it to go on at each fault."""
    faults = list(error.lines)
    for _ in range(_STEPS):
        try:
            StudySpec.parse(_without(error.origin.data, faults), source=error.origin)
            break
        except FaultySpecError as next_error:
            new_faults = [line for line in next_error.lines if not _follows(line[0], faults)]
            if not new_faults:
                break
            faults += new_faults
    # refused of specs that are right otherwise as well
    secrets = find_secrets(_mapping(error.origin.data.get("trainer")).get("logger"))
    fault_paths = {path for path, _ in faults}
    return [*faults, *(secret for secret in secrets if secret[0] not in fault_paths)]


def with_all_faults(error: FaultySpecError) -> FaultySpecError:
    """Return the error with all that the text of the spec does wrong; no class of it is imported."""
    return build_spec_error(all_faults(error), error.origin)


def _follows(path: str, faults: _Lines) -> bool:
    """Whether a fault may be there only because another part of the spec was left out for its own."""
    section, _, name = path.partition(".")
    for fault_path, _ in faults:
        if section == "search" or path.startswith("study.enqueue"):
            is_related = fault_path.partition(".")[0] == "search"
        elif section == "temperatures" and fault_path.startswith(f"search.{name}."):
            # what is searched of it is there, and wrong
            is_related = True
        else:
            is_related = f"{path}.".startswith(f"{fault_path}.") or f"{fault_path}.".startswith(f"{path}.")
        if is_related:
            return True
    return False


def _without(spec_data: Mapping[str, Any], faults: _Lines) -> dict[str, Any]:
    """Return a spec without what is wrong, and with something in the place of what has to be there."""
    data = copy.deepcopy(dict(spec_data))
    for path, _ in faults:
        _drop(data, path)
    data["study"] = {**_STUDY, **_mapping(data.get("study"))}
    data["model"] = {**_MODEL, **_mapping(data.get("model"))}
    if "compare" not in data:
        data["search"] = data.get("search") or _SEARCH
    if isinstance(temperatures := data.get("temperatures"), dict):
        _place_temperatures(temperatures, _mapping(spec_data.get("temperatures")))
    return data


def _place_temperatures(temperatures: dict[str, Any], spec_temperatures: Mapping[str, Any]) -> None:
    """Have the entries of ``temperatures:`` that lost their place be somewhere, for others to name them."""
    for name, section in spec_temperatures.items():
        if name not in temperatures and not isinstance(section, Mapping):
            temperatures[name] = {}
        if isinstance(entry := temperatures.get(name), dict):
            entry.setdefault("value", f"place_of.{name}")


def _drop(data: dict[str, Any], path: str) -> None:
    """Take out the key of a path, or the nearest one above it that can be taken out."""
    remaining_path = path
    # a searched name has dots of its own
    while key := next((key for key in map(str, data) if f"{remaining_path}.".startswith(f"{key}.")), None):
        child, remaining_path = data.get(key), remaining_path[len(key) + 1 :]
        if not remaining_path or not isinstance(child, dict):
            data.pop(key, None)
            return
        data = child


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}

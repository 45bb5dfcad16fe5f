"""What else is wrong with a study spec that does not validate, as far as its text tells.

Validation ends at what it finds first, as sections do not fit together before each is right. Whether the
classes fit is checked by a worker once the text is right.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tempopt.errors import SpecError
from tempopt.spec.logger_secrets import check_no_secrets
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.temperatures import ATTENTION
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
    return [*faults, *_secret_faults(error.origin.data, faults)]


def _secret_faults(spec_data: Mapping[str, Any], faults: _Lines) -> list[tuple[str, str]]:
    """Return which logger holds a password, which is refused of specs that are right otherwise as well."""
    try:
        check_no_secrets(_mapping(spec_data.get("trainer")).get("logger"))
    except SpecError as error:
        path, _, message = str(error).partition(": ")
        return [] if path in (fault_path for fault_path, _ in faults) else [(path, message)]
    return []


def with_all_faults(error: FaultySpecError) -> FaultySpecError:
    """Return the error with all that the text of the spec does wrong; no class of it is imported."""
    return build_spec_error(all_faults(error), error.origin)


def _follows(path: str, faults: _Lines) -> bool:
    """Whether a fault may be there only because another part of the spec was left out for its own."""
    fault_paths = [fault_path for fault_path, _ in faults]
    if path.partition(".")[0] == "search" or path.startswith("study.enqueue"):
        return any(fault_path.partition(".")[0] == "search" for fault_path in fault_paths)
    section, _, name = path.partition(".")
    if section == "temperatures" and any(
        fault_path.startswith(f"search.{name}.") for fault_path in fault_paths
    ):
        # what is searched of it is there, and wrong
        return True
    return any(
        f"{inner_path}.".startswith(f"{outer_path}.")
        for fault_path in fault_paths
        for inner_path, outer_path in ((path, fault_path), (fault_path, path))
    )


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
        entry = temperatures.get(name)
        if name != ATTENTION and isinstance(entry, dict) and "value" not in entry:
            entry["value"] = f"place_of.{name}"


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

"""The identity of a study: which parts of a spec define the question, and how two specs differ in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

# May change while a study runs: number of runs, operation, and settings of the recommendation.
_OPERATION = (
    *("trials", "enqueue", "limits", "min_gain", "explain"),
    *("max_attempts", "lease", "store_timeout", "checkpoint_every"),
    "priority",
)
# affects logs only
_LOGGED = ("logger", "log_every_n_steps")


def diff_specs(stored_spec: StudySpec, new_spec: StudySpec) -> dict[str, str]:
    """Return one line for each path in which two specs define different studies.

    The name, numbers of runs and settings of operation (``_OPERATION``), the loggers, and settings of one
    machine (``resources:``, ``--set data.*``) are not compared.
    """
    stored_values, new_values = _flatten(identity_fields(stored_spec)), _flatten(identity_fields(new_spec))
    lines: dict[str, str] = {}
    for path in [*stored_values, *(path for path in new_values if path not in stored_values)]:
        stored_text = _format_value(stored_values, path, new_values)
        new_text = _format_value(new_values, path, stored_values)
        if stored_text != new_text and None not in (stored_text, new_text):
            lines[path] = f"{path}: was {stored_text}, now {new_text}"
    return lines


def _format_value(values: Mapping[str, Any], path: str, other_values: Mapping[str, Any]) -> str | None:
    """Return a value as text; None for an empty mapping, if the other study's keys have lines."""
    if path not in values:
        return "not given"
    is_emptied = values[path] == {} and any(key.startswith(f"{path}.") for key in other_values)
    return None if is_emptied else json.dumps(values[path])


def identity_fields(spec: StudySpec) -> dict[str, Any]:
    """Return the plain data that define a study: specs with equal data define the same study."""
    data = spec.to_json()
    del data["resources"]
    for name in _LOGGED:
        data["trainer"].pop(name, None)
    for name in ("name", "not_learned", "not_resumed", *_OPERATION):
        del data["study"][name]
    for temperature in data["temperatures"].values():
        # looked up in the module if they are not written in the spec
        del temperature["as_found"], temperature["evaluated"], temperature["trained"]
    return data


def _flatten(value: object, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    result: dict[str, Any] = {}
    for key, child in value.items():
        result |= _flatten(child, f"{path}.{key}" if path else key)
    return result

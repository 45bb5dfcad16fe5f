"""What a study asks, apart from how it is looked after: when are two specs the same question?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

# What may be changed while a study runs: how many runs there are, how they are looked after, what is advised.
_CARE = (
    *("trials", "enqueue", "limits", "min_gain", "explain"),
    *("max_attempts", "lease", "store_timeout", "checkpoint_every"),
    "priority",
)
# What only observes.
_LOGGED = ("logger", "log_every_n_steps")


def diff_specs(stored_spec: StudySpec, new_spec: StudySpec) -> dict[str, str]:
    """Return by path a line for each thing that one study asks otherwise than another.

    The name, what only says how many runs there are and how they are looked after (``_CARE``), the loggers,
    and what belongs to a machine (``resources:``, ``--set data.*``) are no difference.
    """
    stored_values, new_values = _flat(identity_fields(stored_spec)), _flat(identity_fields(new_spec))
    lines: dict[str, str] = {}
    for path in [*stored_values, *(path for path in new_values if path not in stored_values)]:
        stored, new = _text(stored_values, path, new_values), _text(new_values, path, stored_values)
        if stored != new and None not in (stored, new):
            lines[path] = f"{path}: was {stored}, now {new}"
    return lines


def _text(values: Mapping[str, Any], path: str, other_values: Mapping[str, Any]) -> str | None:
    """Return a value as text; None: it is an empty mapping, and the other study's keys in it have lines."""
    if path not in values:
        return "not given"
    is_emptied = values[path] == {} and any(key.startswith(f"{path}.") for key in other_values)
    return None if is_emptied else json.dumps(values[path])


def identity_fields(spec: StudySpec) -> dict[str, Any]:
    """Return what a spec asks, as plain data: two specs that are equal in it ask the same."""
    data = spec.to_json()
    del data["resources"]
    for name in _LOGGED:
        data["trainer"].pop(name, None)
    for name in ("name", "not_learned", "not_resumed", *_CARE):
        del data["study"][name]
    for temperature in data["temperatures"].values():
        # what the module has, and reads, is looked up where a person does not write it
        del temperature["as_found"], temperature["evaluated"], temperature["trained"]
    return data


def _flat(value: object, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {path: value}
    result: dict[str, Any] = {}
    for key, child in value.items():
        result |= _flat(child, f"{path}.{key}" if path else key)
    return result

"""What else is wrong with a study spec that does not validate, as far as its text tells.

Validation ends at what it finds first, as sections do not fit together before each is right. Whether the
classes fit is checked by a worker once the text is right.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tempopt.errors import SpecError
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.temperatures import ATTENTION
from tempopt.spec.validation_errors import FaultySpecError, faulty
from tempopt.workers.secrets import refuse_secrets

_Lines = Sequence[tuple[str, str]]

_STUDY = {"name": "study", "metric": "metric", "direction": "minimize"}
_MODEL = {"class_path": "module.Class"}
_SEARCH = {"temperature_init": {"low": 0.25, "high": 4.0}}
# A spec is validated in three steps, of which each is taken only where the one before found nothing.
_STEPS = 3


def all_faults(error: FaultySpecError) -> list[tuple[str, str]]:
    """Return the path and the message of all that validation finds, were it to go on at each fault."""
    found = list(error.lines)
    for _ in range(_STEPS):
        try:
            StudySpec.parse(_without(error.origin.data, found), source=error.origin)
            break
        except FaultySpecError as more:
            new = [line for line in more.lines if not _follows(line[0], found)]
            if not new:
                break
            found += new
    return [*found, *_secret_faults(error.origin.data, found)]


def _secret_faults(given: Mapping[str, Any], found: _Lines) -> list[tuple[str, str]]:
    """Return which logger holds a password, which is refused of specs that are right otherwise as well."""
    try:
        refuse_secrets(_mapping(given.get("trainer")).get("logger"))
    except SpecError as error:
        path, _, message = str(error).partition(": ")
        return [] if path in (known for known, _ in found) else [(path, message)]
    return []


def with_all_faults(error: FaultySpecError) -> FaultySpecError:
    """Return the error with all that the text of the spec does wrong; no class of it is imported."""
    return faulty(all_faults(error), error.origin)


def _follows(path: str, found: _Lines) -> bool:
    """Whether a fault may be there only because another part of the spec was left out for its own."""
    told = [each for each, _ in found]
    if path.partition(".")[0] == "search" or path.startswith("study.enqueue"):
        return any(each.partition(".")[0] == "search" for each in told)
    section, _, name = path.partition(".")
    if section == "temperatures" and any(each.startswith(f"search.{name}.") for each in told):
        # what is searched of it is there, and wrong
        return True
    return any(
        f"{one}.".startswith(f"{other}.") for each in told for one, other in ((path, each), (each, path))
    )


def _without(given: Mapping[str, Any], found: _Lines) -> dict[str, Any]:
    """Return a spec without what is wrong, and with something in the place of what has to be there."""
    data = copy.deepcopy(dict(given))
    for path, _ in found:
        _drop(data, path)
    data["study"] = {**_STUDY, **_mapping(data.get("study"))}
    data["model"] = {**_MODEL, **_mapping(data.get("model"))}
    if "compare" not in data:
        data["search"] = data.get("search") or _SEARCH
    if isinstance(kept := data.get("temperatures"), dict):
        _place_temperatures(kept, _mapping(given.get("temperatures")))
    return data


def _place_temperatures(kept: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Have the entries of ``temperatures:`` that lost their place be somewhere, for others to name them."""
    for name, each in given.items():
        if name not in kept and not isinstance(each, Mapping):
            kept[name] = {}
        left = kept.get(name)
        if name != ATTENTION and isinstance(left, dict) and "value" not in left:
            left["value"] = f"place_of.{name}"


def _drop(data: dict[str, Any], path: str) -> None:
    """Take out the key of a path, or the nearest one above it that can be taken out."""
    rest = path
    # a searched name has dots of its own
    while key := next((key for key in map(str, data) if f"{rest}.".startswith(f"{key}.")), None):
        inside, rest = data.get(key), rest[len(key) + 1 :]
        if not rest or not isinstance(inside, dict):
            data.pop(key, None)
            return
        data = inside


def _mapping(given: object) -> dict[str, Any]:
    return dict(given) if isinstance(given, Mapping) else {}

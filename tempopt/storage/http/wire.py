"""Convert rows and changes to plain JSON data and back, with validation.

NaN is null in JSON: a measurement that is not finite is read as NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from tempopt.errors import UsageError
from tempopt.storage.changes import AttemptLost, AttemptReleased, Change, RunEnded
from tempopt.storage.damage import adapter, first_fault
from tempopt.storage.rows import Measurement, check_plain

T = TypeVar("T")

PROTOCOL = 1
"""Version of the protocol; a server also serves agents of the version before."""

_CHANGES: dict[str, type[Change]] = {change_type.__name__: change_type for change_type in get_args(Change)}


def serialize(value: Any, kind: Any = None) -> Any:
    """Return dataclass rows (or lists and mappings of them) as plain JSON data."""
    return adapter(kind if kind is not None else type(value)).dump_python(value, mode="json")


def deserialize(kind: type[T] | Any, data: Any) -> T:
    """Return rows of a type from plain data, validated.

    Raises:
        UsageError: The data have another type.
    """
    try:
        value: T = adapter(kind).validate_python(data)
    except ValidationError as error:
        raise UsageError(f"This is not as expected: {first_fault(error)}.") from error
    return value


def measurements_to_plain(rows: Iterable[Measurement]) -> list[list[Any]]:
    """Return measurements as lists of ticket id, step, name and value; without keys, to save bytes."""
    return [
        [row.ticket_id, row.step, row.name, row.value if math.isfinite(row.value) else None] for row in rows
    ]


def measurements_from_plain(data: Iterable[Sequence[Any]]) -> list[Measurement]:
    """Return the measurements of the output of :func:`measurements_to_plain`."""
    return [
        Measurement(ticket_id=ticket, step=step, name=name, value=math.nan if value is None else float(value))
        for ticket, step, name, value in data
    ]


def change_to_plain(change: Change) -> dict[str, Any]:
    """Return a change as plain data, with the name of its type."""
    return {"type": type(change).__name__, **serialize(change)}


def change_from_plain(data: dict[str, Any]) -> Change:
    """Return the change of an output of :func:`change_to_plain`, validated.

    Raises:
        UsageError: It is not a change, or has a value that is impossible or cannot be stored.
    """
    fields = dict(data)
    kind = _CHANGES.get(str(fields.pop("type", None)))
    if kind is None:
        raise UsageError(f"A change has one of these types: {', '.join(_CHANGES)}.")
    field_names = [field.name for field in dataclasses.fields(kind)]
    if extra_keys := sorted(fields.keys() - set(field_names)):
        raise UsageError(
            f"{kind.__name__} has no {str(extra_keys[0])[:100]!r}. It has {', '.join(field_names)}."
        )
    try:
        check_plain(fields)
    except ValueError as error:
        raise UsageError(f"A change cannot be stored: {error}") from error
    change: Change = deserialize(kind, fields)
    if isinstance(change, RunEnded):
        if any(measurement.ticket_id != change.ticket_id for measurement in change.outcomes.measurements):
            raise UsageError(f"The change of ticket {change.ticket_id} has measurements of another ticket.")
    return change


def changes_from_plain(data: Sequence[dict[str, Any]]) -> list[Change]:
    """Return changes from plain data, in order, validated.

    Raises:
        UsageError: One is not a change, or belongs to an attempt after its end.
    """
    changes: list[Change] = []
    ended_attempts: set[tuple[int, int]] = set()
    for change in map(change_from_plain, data):
        attempt = (change.ticket_id, change.attempt)
        if attempt in ended_attempts:
            raise UsageError(f"A change of ticket {attempt[0]} comes after the end of its attempt.")
        if isinstance(change, RunEnded | AttemptLost | AttemptReleased):
            ended_attempts.add(attempt)
        changes.append(change)
    return changes

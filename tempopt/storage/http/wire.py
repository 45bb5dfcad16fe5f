"""Convert rows and changes to plain JSON data and back, with validation.

NaN is null in JSON: a measurement that is not finite is read as NaN.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from tempopt.errors import UsageError
from tempopt.storage.changes import AttemptLost, AttemptReleased, Change, RunEnded
from tempopt.storage.rows import Measurement

T = TypeVar("T")

PROTOCOL = 1
"""Version of the protocol; a server also serves agents of the version before."""

_CHANGES: dict[str, type[Change]] = {change_type.__name__: change_type for change_type in get_args(Change)}
_MAX_INTEGER = 2**63 - 1
"""The largest integer in a change: seeds are among the attributes of a run."""


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def serialize(value: Any, kind: Any = None) -> Any:
    """Return dataclass rows (or lists and mappings of them) as plain JSON data."""
    return _adapter(kind if kind is not None else type(value)).dump_python(value, mode="json")


def deserialize(kind: type[T] | Any, data: Any) -> T:
    """Return rows of a type from plain data, validated.

    Raises:
        UsageError: The data have another type.
    """
    try:
        value: T = _adapter(kind).validate_python(data)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first_error["loc"])
        raise UsageError(f"{where or 'The body'} is not as expected: {first_error['msg']}.") from error
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
    _check_numbers(fields)
    change: Change = deserialize(kind, fields)
    if isinstance(change, RunEnded):
        if any(measurement.ticket_id != change.ticket_id for measurement in change.outcomes.measurements):
            raise UsageError(f"The change of ticket {change.ticket_id} has measurements of another ticket.")
    return change


def _check_numbers(data: Any) -> None:
    stack = [data]
    while stack:
        node = stack.pop()
        if isinstance(node, dict | list):
            stack += node.values() if isinstance(node, dict) else node
        elif isinstance(node, int) and abs(node) > _MAX_INTEGER:
            raise UsageError(f"An integer in a change exceeds {_MAX_INTEGER}.")
        elif isinstance(node, float) and not math.isfinite(node):
            raise UsageError("A number in a change is not finite. Give null instead.")


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

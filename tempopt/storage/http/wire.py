"""Rows and changes as plain JSON data, for requests and answers; what comes in is validated.

NaN is null in JSON: a measurement that is not finite comes back as NaN.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from tempopt.errors import UsageError, not_text
from tempopt.storage.changes import (
    MOST_SECONDS,
    AttemptLost,
    AttemptReleased,
    Change,
    CheckpointRecorded,
    MetricReported,
    RunEnded,
    RunStarted,
)
from tempopt.storage.http.protocol import LARGEST_COUNT, LARGEST_ID
from tempopt.storage.rows import Measurement, RunRow, StudyRow, TicketRow

T = TypeVar("T")

PROTOCOL = 1
"""Version of what agents and servers say to each other; a server also serves agents of the one before."""

_CHANGES: dict[str, type] = {
    change_type.__name__: change_type
    for change_type in (
        RunStarted,
        MetricReported,
        CheckpointRecorded,
        RunEnded,
        AttemptLost,
        AttemptReleased,
    )
}
_RANGES: dict[str, tuple[float, float]] = {
    "ticket_id": (0, LARGEST_ID),
    "attempt": (1, LARGEST_ID),
    "max_attempts": (1, LARGEST_ID),
    "value": (-sys.float_info.max, sys.float_info.max),
    **dict.fromkeys(("step", "steps", "total_steps", "diverged_at"), (0, LARGEST_COUNT)),
    **dict.fromkeys(("peak_memory", "size"), (0, LARGEST_COUNT)),
    **dict.fromkeys(("seconds", "checkpoint_seconds", "gpu_seconds"), (0, MOST_SECONDS)),
}
"""The least and the most that a number of this name may be in a change, wherever in it that is."""
_LARGEST_SEED = 2**63 - 1
"""What an agent of the database has left for another one to deliver has the seed among its attributes."""
_OF_THEIR_OWN = ("maps", "attributes", "constraints")
"""Parts of a change with names of their own."""
_LENGTHS = {"name": 255, "code": 255, "url": 4096, "digest": 255}
"""Characters of names in a change, at the most. Other texts, as logs, are cut and cleaned when written."""

_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def serialize(value: Any, kind: Any = None) -> Any:
    """Return dataclass rows (or lists and mappings of them) as plain JSON data."""
    return _adapter(kind if kind is not None else type(value)).dump_python(value, mode="json")


def deserialize(kind: type[T] | Any, data: Any) -> T:
    """Return rows of a kind, validated.

    Raises:
        UsageError: The data are none of that kind.
    """
    try:
        value: T = _adapter(kind).validate_python(data)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first_error["loc"])
        raise UsageError(f"{where or 'The body'} is not as expected: {first_error['msg']}.") from error
    return value


def measurement_to_plain(row: Measurement) -> dict[str, Any]:
    """Return a measurement as plain data, null for what is not finite."""
    value = row.value if math.isfinite(row.value) else None
    return {"ticket_id": row.ticket_id, "step": row.step, "name": row.name, "value": value}


def measurement_from_plain(data: Any) -> Measurement:
    """Return the measurement that :func:`measurement_to_plain` has written."""
    value = math.nan if data["value"] is None else float(data["value"])
    return Measurement(ticket_id=data["ticket_id"], step=data["step"], name=data["name"], value=value)


def measurements_to_plain(rows: Iterable[Measurement]) -> list[list[Any]]:
    """Return measurements as lists of ticket id, step, name and value: keys of so many cost bytes."""
    return [
        [row.ticket_id, row.step, row.name, row.value if math.isfinite(row.value) else None] for row in rows
    ]


def measurements_from_plain(data: Iterable[Sequence[Any]]) -> list[Measurement]:
    """Return the measurements that :func:`measurements_to_plain` has written."""
    return [
        Measurement(ticket_id=ticket, step=step, name=name, value=math.nan if value is None else float(value))
        for ticket, step, name, value in data
    ]


def run_to_plain(row: RunRow) -> dict[str, Any]:
    """Return a run as plain data, null for reports that are not finite."""
    reports = {step: value if math.isfinite(value) else None for step, value in row.reports.items()}
    return {"study": serialize(row.study), "ticket": serialize(row.ticket), "reports": reports}


def run_from_plain(data: Any) -> RunRow:
    """Return the run that :func:`run_to_plain` has written."""
    reports = {
        int(step): math.nan if value is None else float(value) for step, value in data["reports"].items()
    }
    return RunRow(
        study=deserialize(StudyRow, data["study"]),
        ticket=deserialize(TicketRow, data["ticket"]),
        reports=reports,
    )


ChangeData = Annotated[dict[str, Any], Field(description="A change, with its name as `type`.")]


def change_to_plain(change: Change) -> dict[str, Any]:
    """Return a change as plain data, with its type by name."""
    plain = {"type": type(change).__name__, **_adapter(type(change)).dump_python(change, mode="json")}
    if isinstance(change, RunEnded):
        measurements = change.outcomes.measurements
        plain["outcomes"]["measurements"] = [
            measurement_to_plain(measurement) for measurement in measurements
        ]
    elif isinstance(change, MetricReported) and not math.isfinite(change.value):
        plain["value"] = None
    return plain


def change_from_plain(data: dict[str, Any]) -> Change:
    """Return the change that :func:`change_to_plain` has written, validated.

    Raises:
        UsageError: It is none.
    """
    fields = dict(data)
    kind = _CHANGES.get(str(fields.pop("type", None)))
    if kind is None:
        raise UsageError(f"A change has one of these types: {', '.join(_CHANGES)}.")
    _check(kind, fields)
    if kind is MetricReported and fields.get("value", 0) is None:
        fields["value"] = math.nan
    if kind is RunEnded and isinstance(outcomes := fields.get("outcomes"), dict):
        measurements = outcomes.get("measurements")
        if isinstance(measurements, list):
            fields["outcomes"] = {**outcomes, "measurements": list(map(_with_nan, measurements))}
    change: Change = deserialize(kind, fields)
    if isinstance(change, RunEnded):
        if any(measurement.ticket_id != change.ticket_id for measurement in change.outcomes.measurements):
            raise UsageError(f"Of ticket {change.ticket_id} measurements of another ticket were told.")
    return change


def _with_nan(measurement: Any) -> Any:
    if isinstance(measurement, dict) and measurement.get("value", 0) is None:
        return {**measurement, "value": math.nan}
    return measurement


def _check(kind: type, data: dict[str, Any]) -> None:
    """Refuse keys that a change does not have, and what no database holds or no run can have done."""
    field_names = [field.name for field in dataclasses.fields(kind)]
    if extra_keys := sorted(data.keys() - set(field_names)):
        raise UsageError(
            f"{kind.__name__} has no {str(extra_keys[0])[:100]!r}. It has {', '.join(field_names)}."
        )
    stack: list[tuple[str, Any]] = [("", data)]
    while stack:
        parent_key, node = stack.pop()
        if isinstance(node, dict):
            for key, value in node.items():
                if parent_key not in _OF_THEIR_OWN:
                    _check_number(kind, key, value)
                    _check_text(kind, key, value)
                stack.append((parent_key if parent_key in _OF_THEIR_OWN else key, value))
        elif isinstance(node, list):
            stack += [(parent_key, value) for value in node]
        elif isinstance(node, int):
            max_value = _LARGEST_SEED if parent_key == "attributes" else LARGEST_COUNT
            if abs(node) > max_value:
                raise UsageError(f"A whole number in {kind.__name__} is beyond {max_value}, the largest.")
        elif isinstance(node, float) and not math.isfinite(node):
            raise UsageError(f"A number in {kind.__name__} is not finite. Give null where a value is none.")


def _check_number(kind: type, key: str, value: Any) -> None:
    if key not in _RANGES or value is None:
        return
    min_value, max_value = _RANGES[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(
            f"{key} in {kind.__name__} is no number. Give one from {min_value:g} to {max_value:g}."
        )
    if not min_value <= value <= max_value:
        value_text = f"{value:g}" if isinstance(value, float) else str(value)[:40]
        raise UsageError(
            f"{key} in {kind.__name__} is {value_text}. Give a number from {min_value:g} to {max_value:g}."
        )


def _check_text(kind: type, key: str, value: Any) -> None:
    if key not in _LENGTHS or not isinstance(value, str):
        return
    if len(value) > _LENGTHS[key]:
        raise UsageError(
            f"{key} in {kind.__name__} has {len(value)} characters. It may have {_LENGTHS[key]} at the most."
        )
    if fault := not_text(value):
        raise UsageError(f"{key} in {kind.__name__} holds {fault}. Give a text in UTF-8 without it.")


def changes_from_plain(data: Sequence[dict[str, Any]]) -> list[Change]:
    """Return changes in their order, validated.

    Raises:
        UsageError: One of them is none, or happens to an attempt after its end.
    """
    changes: list[Change] = []
    ended_attempts: set[tuple[int, int]] = set()
    for change in map(change_from_plain, data):
        attempt = (change.ticket_id, change.attempt)
        if attempt in ended_attempts:
            raise UsageError(f"Something happens to ticket {attempt[0]} after the end of its attempt.")
        if isinstance(change, RunEnded | AttemptLost | AttemptReleased):
            ended_attempts.add(attempt)
        changes.append(change)
    return changes

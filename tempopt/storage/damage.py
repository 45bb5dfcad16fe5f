"""Rows of a database are validated on reading: a damaged one is left out, and one line says so."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from tempopt.errors import escape_control_chars

if TYPE_CHECKING:  # clients of a server do without SQLAlchemy
    from sqlalchemy import Row

T = TypeVar("T")

_LOGGER = logging.getLogger("tempopt")
_COLLECTED_LINES: ContextVar[list[str] | None] = ContextVar("damage", default=None)
_MAX_LINE_CHARS = 300

adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)
"""The validator of a type, built once."""
UNREADABLE = object()
"""A value that is no document or no time: it passes no validation."""


@contextmanager
def collect_damage() -> Iterator[list[str]]:
    """Collect the lines on damaged rows that are read inside, which are otherwise logged as warnings."""
    lines: list[str] = []
    token = _COLLECTED_LINES.set(lines)
    try:
        yield lines
    finally:
        _COLLECTED_LINES.reset(token)


def shorten(text: object) -> str:
    """Return a text of a database as one short line that steers no terminal."""
    line = escape_control_chars(" ".join(str(text)[: 2 * _MAX_LINE_CHARS].split()))
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}…"


def report_damage(line: str) -> None:
    """Say in one line what is damaged in the database, and what became of it."""
    line = shorten(line)
    lines = _COLLECTED_LINES.get()
    if lines is None:
        _LOGGER.warning("%s", line)
    elif line not in lines:
        lines.append(line)


def first_fault(error: ValidationError) -> str:
    """Return where and why data are invalid, of the first fault, without the data."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(str(part)[:60] for part in fault["loc"])
    reason = fault["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{location}: {reason}" if location else reason


def read_with_defaults(
    kind: type[T], values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[T, str]:
    """Return a row as a dataclass, with defaults for damaged values, and the first fault; empty if none.

    Raises:
        ValidationError: A damaged value has no default.
    """
    try:
        return adapter(kind).validate_python(values), ""
    except ValidationError as error:
        columns = {str(fault["loc"][0]) for fault in error.errors()} & defaults.keys()
        readable_values = {**values, **{name: defaults[name] for name in columns}}
        return adapter(kind).validate_python(readable_values), first_fault(error)


def read_rows(kind: type[T], rows: Iterable[Row[Any]], title: str) -> list[T]:
    """Return rows as dataclasses, without those that are damaged.

    Args:
        kind: The dataclass.
        rows: Rows with its fields as columns.
        title: Name of such rows.
    """
    values = [dict(row._mapping) for row in rows]
    try:
        readable_rows: list[T] = adapter(list[kind]).validate_python(values)  # type: ignore[valid-type]
        return readable_rows
    except ValidationError:
        readable_rows, faults = [], []
    for row in values:
        try:
            readable_rows.append(adapter(kind).validate_python(row))
        except ValidationError as error:
            faults.append(first_fault(error))
    report_damage(f"{title}: {len(faults)} damaged in the database and left out: {faults[0]}.")
    return readable_rows

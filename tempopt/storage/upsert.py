"""Insert rows: one row with a new key, or many that update existing rows."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table

_BATCH = 500


def insert_row(connection: Connection, table: Table, values: Mapping[str, Any]) -> int:
    """Insert one row, and return its new key."""
    key = connection.execute(table.insert().values(dict(values))).inserted_primary_key
    assert key is not None, "one row was inserted"
    return int(key[0])


def insert_rows(connection: Connection, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    """Insert many rows, some hundred in one statement."""
    remaining = iter(rows)
    while batch := list(itertools.islice(remaining, _BATCH)):
        connection.execute(table.insert(), batch)


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[dict[str, Any]],
    *,
    key: Sequence[str],
    replace: Sequence[str],
) -> None:
    """Insert rows in one statement; if a row's key exists, update some of its columns.

    Args:
        rows: Column values, all with the same columns and different keys.
        key: Columns of the unique constraint.
        replace: Columns to update in an existing row, at least one.
    """
    if not rows:
        return
    # lazy import: loading the dialect of another database takes a tenth of a second
    dialect: Any = importlib.import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
    insert = dialect.insert(table)
    if connection.dialect.name == "mysql":
        statement = insert.on_duplicate_key_update({name: insert.inserted[name] for name in replace})
    else:
        columns = {name: insert.excluded[name] for name in replace}
        statement = insert.on_conflict_do_update(index_elements=key, set_=columns)
    connection.execute(statement, rows)

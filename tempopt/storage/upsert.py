"""Insert-or-replace, which each database spells in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table


def upsert(
    connection: Connection,
    table: Table,
    rows: Sequence[dict[str, Any]],
    *,
    key: Sequence[str],
    replace: Sequence[str],
) -> None:
    """Insert rows in one statement; of a row whose key is there already, only some columns are replaced.

    Args:
        rows: Column values, all with the same columns, no key twice.
        key: Columns of the unique constraint.
        replace: Columns that a row which is there takes over, one at least.
    """
    if not rows:
        return
    # the dialect of another database takes a tenth of a second to load
    match connection.dialect.name:
        case "mysql":
            from sqlalchemy.dialects import mysql

            mysql_insert = mysql.insert(table)
            columns = {name: mysql_insert.inserted[name] for name in replace}
            connection.execute(mysql_insert.on_duplicate_key_update(columns), rows)
        case "postgresql":
            from sqlalchemy.dialects import postgresql

            postgresql_insert = postgresql.insert(table)
            columns = {name: postgresql_insert.excluded[name] for name in replace}
            connection.execute(
                postgresql_insert.on_conflict_do_update(index_elements=key, set_=columns), rows
            )
        case _:
            from sqlalchemy.dialects import sqlite

            insert = sqlite.insert(table)
            columns = {name: insert.excluded[name] for name in replace}
            connection.execute(insert.on_conflict_do_update(index_elements=key, set_=columns), rows)

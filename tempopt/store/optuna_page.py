"""What Optuna's dashboard shows of a study as a whole: plots and a note, in Optuna's table of attributes.

Written in one transaction for all of a page, where Optuna's public calls make one of every 2,045 characters.
What the attributes mean is known to those who give them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, Text, delete, insert, or_, select

from tempopt.store.optuna_tables import STUDIES, find_study, is_known

Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_ATTRIBUTES = Table(
    "study_system_attributes",
    MetaData(),
    Column("study_id", Integer),
    Column("key", String(512)),
    Column("value_json", Text),
)


def read(connection: Connection, study_name: str, prefixes: Collection[str]) -> dict[str, Any] | None:
    """Return the attributes of Optuna's study that begin so; None if there is no study of that name.

    None as well if Optuna's tables are of a version that is not known.
    """
    if not is_known(connection):
        return None
    study_id = find_study(connection, study_name)
    return None if study_id is None else _attributes(connection, study_id, prefixes)


def read_all(connection: Connection, key: str) -> dict[str, tuple[int, Any]]:
    """Return of each of Optuna's studies, by name, its id and its attribute of that key; None: it has none.

    Empty if Optuna's tables are of a version that is not known.
    """
    if not is_known(connection):
        return {}
    of_study = (_ATTRIBUTES.c.study_id == STUDIES.c.study_id) & (_ATTRIBUTES.c.key == key)
    query = select(STUDIES.c.study_name, STUDIES.c.study_id, _ATTRIBUTES.c.value_json).select_from(
        STUDIES.outerjoin(_ATTRIBUTES, of_study)
    )
    return {
        row.study_name: (row.study_id, None if row.value_json is None else json.loads(row.value_json))
        for row in connection.execute(query)
    }


def change(connection: Connection, study_name: str, prefixes: Collection[str], decide: Change) -> int:
    """Change attributes of Optuna's study, and return how many rows were written.

    0 if there is no such study, or Optuna's tables are of a version that is not known.

    Args:
        prefixes: With which the attributes begin that are looked at.
        decide: Given those that there are, returns the new value of each that is to have one; None has it
            deleted. May be called again, when a lock was met.
    """
    if not is_known(connection):
        return 0
    # locked: of two dashboards at once, the second sees what the first has written
    study_id = find_study(connection, study_name, lock=True)
    if study_id is None:
        return 0
    there = _attributes(connection, study_id, prefixes)
    wanted = decide(there)
    new = {key: value for key, value in wanted.items() if value is not None and there.get(key) != value}
    gone = {key for key in there if key in new or (key in wanted and wanted[key] is None)}
    if gone:
        of_study = (_ATTRIBUTES.c.study_id == study_id, _ATTRIBUTES.c.key.in_(sorted(gone)))
        connection.execute(delete(_ATTRIBUTES).where(*of_study))
    if new:
        rows = [{"study_id": study_id, "key": key, "value_json": json.dumps(new[key])} for key in sorted(new)]
        connection.execute(insert(_ATTRIBUTES), rows)
    return len(gone | new.keys())


def _attributes(connection: Connection, study_id: int, prefixes: Collection[str]) -> dict[str, Any]:
    begins = or_(*(_ATTRIBUTES.c.key.startswith(prefix, autoescape=True) for prefix in prefixes))
    query = select(_ATTRIBUTES.c.key, _ATTRIBUTES.c.value_json).where(
        _ATTRIBUTES.c.study_id == study_id, begins
    )
    # SQLite's LIKE does not tell letters apart by their case
    found = {row.key: json.loads(row.value_json) for row in connection.execute(query)}
    return {key: value for key, value in found.items() if key.startswith(tuple(prefixes))}

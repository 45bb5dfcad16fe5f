"""The jobs by which launchers have started agents, as functions of a connection in a transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

from sqlalchemy import Connection, delete, insert, select

from tempopt.storage.claims import now
from tempopt.storage.models import JOB
from tempopt.storage.rows import JobRow


def add(
    connection: Connection, study: str, launcher: str, options: Mapping[str, str], ids: Sequence[str]
) -> None:
    """Write jobs, leaving alone those that are there."""
    of_launcher = (JOB.c.study == study, JOB.c.launcher == launcher)
    existing_ids = set(connection.scalars(select(JOB.c.id).where(*of_launcher)))
    common_columns = {"study": study, "launcher": launcher, "options": dict(options), "created": now()}
    new_rows = [{"id": id, **common_columns} for id in dict.fromkeys(ids) if id not in existing_ids]
    if new_rows:
        connection.execute(insert(JOB), new_rows)


def list_jobs(connection: Connection, study: str) -> list[JobRow]:
    """Return the jobs of a study, those first that were started first."""
    columns = (JOB.c[f.name] for f in fields(JobRow))
    query = select(*columns).where(JOB.c.study == study).order_by(JOB.c.number)
    return [JobRow(**row._mapping) for row in connection.execute(query)]


def forget(connection: Connection, study: str, ids: Collection[str]) -> None:
    """Delete jobs of a study."""
    connection.execute(delete(JOB).where(JOB.c.study == study, JOB.c.id.in_(list(ids))))

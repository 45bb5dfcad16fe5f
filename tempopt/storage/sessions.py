"""Sessions of the pages for people, as the store keeps them: digests, never what a browser holds."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from tempopt.storage.access_rows import SessionRow
from tempopt.storage.database import Database
from tempopt.storage.models import SESSION

MOST_OF_ONE = 100
"""Sessions of one token that are kept: the newest."""


class SessionRepository:
    """The sessions in one database; threads may share it.

    Every method is one transaction, and raises StorageError as the store's do.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, session: SessionRow) -> None:
        """Write a new session; those that are over, and the oldest of many of its token, go."""
        self._database.write(lambda c: _add(c, session))

    def find(self, digest: str) -> SessionRow | None:
        """Return the session of that digest, None if there is none; it may be over."""
        return self._database.read(lambda c: _find(c, digest))

    def end(self, digest: str) -> None:
        """Delete a session; nothing happens if there is none."""
        self._database.write(lambda c: c.execute(delete(SESSION).where(SESSION.c.digest == digest)))


def _add(connection: Connection, session: SessionRow) -> None:
    _tidy(connection, session.token, session.created)
    connection.execute(insert(SESSION).values(**asdict(session)))


def _tidy(connection: Connection, token: str, now: datetime) -> None:
    connection.execute(delete(SESSION).where(SESSION.c.expires < now))
    newest_first = select(SESSION.c.digest).where(SESSION.c.token == token)
    newest_first = newest_first.order_by(SESSION.c.created.desc(), SESSION.c.digest)
    # read before they are deleted: MySQL deletes from no table that it selects from
    old_ids = connection.scalars(newest_first.offset(MOST_OF_ONE - 1).limit(MOST_OF_ONE)).all()
    if old_ids:
        connection.execute(delete(SESSION).where(SESSION.c.digest.in_(old_ids)))


def _find(connection: Connection, digest: str) -> SessionRow | None:
    columns = (SESSION.c[f.name] for f in fields(SessionRow))
    row = connection.execute(select(*columns).where(SESSION.c.digest == digest)).one_or_none()
    return None if row is None else SessionRow(**row._mapping)

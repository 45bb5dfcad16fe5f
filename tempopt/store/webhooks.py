"""Messages to receivers of webhooks in the store: added once, taken by one server, kept until delivered."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Connection, case, delete, func, literal, select, update

from tempopt.records.webhooks import Backlog, Marks, Message, RunMark, StudyMark
from tempopt.store.clock import Clock
from tempopt.store.database import Database
from tempopt.store.models import STUDY, TICKET, WEBHOOK
from tempopt.store.optuna_tables import MANY
from tempopt.store.taking import storable
from tempopt.store.upsert import upsert

LONGEST_KEPT = 30 * 86_400.0
"""Seconds for which a message that is delivered, or given up, is kept to be looked at; its key is kept on."""
_OVER = ("delivered", "given_up")
_FORGOTTEN = "forgotten:"
_COLUMNS = [WEBHOOK.c[f.name] for f in fields(Message)]


class Webhooks:
    """The messages in one database; threads may share it.

    Every method is one transaction, and raises StorageError as the store's do.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def marks(self) -> Marks:
        """Return which studies there are, which are done, and which runs were given up."""
        return self._database.read(_marks)

    def keys(self, endpoint: str) -> set[str]:
        """Return the keys of an endpoint's messages, those of what is past included."""
        query = select(WEBHOOK.c.key).where(WEBHOOK.c.endpoint == endpoint)
        return self._database.read(lambda c: set(c.scalars(query)))

    def begin(self, marker: Message, past: Sequence[Message]) -> None:
        """Write that an endpoint is told of one kind of events from now on, and what is past.

        Where the marker's key is there already, nothing is written: another server was faster, and what
        has happened since is not past.
        """
        self._database.write(lambda c: _begin(c, marker, past))

    def add(self, messages: Sequence[Message]) -> None:
        """Add messages, due at once; those whose keys are there already are left out."""
        self._database.write(lambda c: _add(c, messages))

    def forget(self, endpoint: str, keys: Collection[str]) -> None:
        """Forget the keys of messages that do not wait: what they are about may happen again, or is gone."""
        if keys:
            self._database.write(lambda c: _forget(c, endpoint, sorted(keys)))

    def remove(self, endpoint: str) -> int:
        """Delete all that there is of an endpoint, and return how many messages waited or were given up."""
        return self._database.write(lambda c: _remove(c, endpoint))

    def tidy(self) -> None:
        """Delete the messages that are kept no longer."""
        self._database.write(_tidy)

    def take(self, endpoint: str, *, most: int, seconds: float) -> list[Message]:
        """Take messages that are due, the oldest first; for so many seconds nobody else gets them."""
        return self._database.write(lambda c: _take(c, endpoint, most, seconds))

    def delivered(self, message: Message) -> None:
        """Write that an endpoint has accepted a message."""
        self._database.write(lambda c: _settle(c, message, {"state": "delivered", "error": ""}))

    def failed(self, message: Message, error: str, *, again: float | None) -> None:
        """Write what an attempt failed with.

        Args:
            message: The message, as it was taken.
            error: Why.
            again: Seconds until the next attempt; None: there is none.
        """
        values: dict[str, Any] = {"error": storable(error) or ""}
        values |= {"state": "given_up"} if again is None else {"due": Clock() + again}
        self._database.write(lambda c: _settle(c, message, values))

    def retry(self, endpoint: str) -> int:
        """Have the messages that were given up sent again, and return how many those are."""
        which = (WEBHOOK.c.endpoint == endpoint, WEBHOOK.c.state == "given_up")
        query = update(WEBHOOK).where(*which).values(state="waiting", attempts=0, due=Clock())
        return int(self._database.write(lambda c: c.execute(query).rowcount))

    def backlog(self) -> dict[str, Backlog]:
        """Return what is not delivered, by endpoint; one without messages is not among them."""
        return self._database.read(_backlog)

    def latest(self, *, most: int) -> list[Message]:
        """Return the messages that were added last, the newest first."""
        query = select(*_COLUMNS).where(WEBHOOK.c.state != "past")
        query = query.order_by(WEBHOOK.c.number.desc()).limit(most)
        return self._database.read(lambda c: [Message(**row._mapping) for row in c.execute(query)])


def _marks(connection: Connection) -> Marks:
    done = connection.execute(
        select(STUDY.c.id, STUDY.c.name, STUDY.c.version).where(STUDY.c.state == "done").order_by(STUDY.c.id)
    )
    failed = connection.execute(
        select(TICKET.c.id, TICKET.c.study_id, STUDY.c.name, TICKET.c.attempt)
        .join(STUDY, TICKET.c.study_id == STUDY.c.id)
        .where(TICKET.c.state == "failed")
        .order_by(TICKET.c.id)
    )
    return Marks(
        done=tuple(StudyMark(study_id=id, name=name, version=version) for id, name, version in done),
        failed=tuple(
            RunMark(ticket_id=id, study_id=study_id, study=name, attempt=attempt)
            for id, study_id, name, attempt in failed
        ),
        studies=frozenset(connection.scalars(select(STUDY.c.id))),
    )


def _add(connection: Connection, messages: Sequence[Message]) -> None:
    if not messages:
        return
    now = connection.scalars(select(Clock())).one()
    rows = [{**asdict(each), "due": now, "created": now} for each in messages]
    # the key of one that is there replaces itself
    for start in range(0, len(rows), MANY):
        upsert(connection, WEBHOOK, rows[start : start + MANY], key=["endpoint", "key"], replace=["key"])


def _forget(connection: Connection, endpoint: str, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), MANY):
        which = (WEBHOOK.c.endpoint == endpoint, WEBHOOK.c.key.in_(keys[start : start + MANY]))
        connection.execute(delete(WEBHOOK).where(*which, WEBHOOK.c.state == "past"))
        # what was sent can be looked at for a while, under a key that no event has
        over = (*which, WEBHOOK.c.state.in_(_OVER))
        connection.execute(update(WEBHOOK).where(*over).values(key=literal(_FORGOTTEN) + WEBHOOK.c.id))


def _remove(connection: Connection, endpoint: str) -> int:
    theirs = WEBHOOK.c.endpoint == endpoint
    undelivered = (theirs, WEBHOOK.c.state.in_(("waiting", "given_up")))
    count = connection.scalar(select(func.count()).select_from(WEBHOOK).where(*undelivered)) or 0
    connection.execute(delete(WEBHOOK).where(theirs))
    return int(count)


def _tidy(connection: Connection) -> None:
    old = (WEBHOOK.c.created < Clock() - LONGEST_KEPT, WEBHOOK.c.state.in_(_OVER))
    connection.execute(delete(WEBHOOK).where(*old, WEBHOOK.c.key.like(f"{_FORGOTTEN}%")))
    # the key tells on that its event was told
    connection.execute(update(WEBHOOK).where(*old).values(state="past", body="", error=""))


def _begin(connection: Connection, marker: Message, past: Sequence[Message]) -> None:
    _add(connection, [marker])
    which = (WEBHOOK.c.endpoint == marker.endpoint, WEBHOOK.c.key == marker.key)
    # the second of two that begin at the same moment has waited for the first
    if connection.scalars(select(WEBHOOK.c.id).where(*which)).one() == marker.id:
        _add(connection, past)


def _take(connection: Connection, endpoint: str, most: int, seconds: float) -> list[Message]:
    due = (WEBHOOK.c.endpoint == endpoint, WEBHOOK.c.state == "waiting", WEBHOOK.c.due <= Clock())
    query = select(*_COLUMNS).where(*due).order_by(WEBHOOK.c.number).limit(most)
    rows = connection.execute(query.with_for_update(skip_locked=True)).all()
    taken = [Message(**{**row._mapping, "attempts": row.attempts + 1}) for row in rows]
    for each in taken:
        values = {"attempts": each.attempts, "due": Clock() + seconds}
        connection.execute(update(WEBHOOK).where(WEBHOOK.c.id == each.id).values(values))
    return taken


def _settle(connection: Connection, message: Message, values: Mapping[str, Any]) -> None:
    # who was too slow finds the message in another's hands
    which = (WEBHOOK.c.id == message.id, WEBHOOK.c.attempts == message.attempts, WEBHOOK.c.state == "waiting")
    connection.execute(update(WEBHOOK).where(*which).values(dict(values)))


def _backlog(connection: Connection) -> dict[str, Backlog]:
    waiting = WEBHOOK.c.state == "waiting"
    columns = (
        func.sum(case((waiting, 1), else_=0)),
        func.min(case((waiting, WEBHOOK.c.created))),
        func.sum(case((WEBHOOK.c.state == "given_up", 1), else_=0)),
        func.max(Clock()),
    )
    rows = connection.execute(select(WEBHOOK.c.endpoint, *columns).group_by(WEBHOOK.c.endpoint))
    return {
        endpoint: Backlog(
            waiting=int(count), oldest=0.0 if first is None else max(0.0, now - first), given_up=int(lost)
        )
        for endpoint, count, first, lost, now in rows
    }


def message_id() -> str:
    """Return an id for a message: 128 random bits."""
    return f"msg_{secrets.token_hex(16)}"

"""Store: every query on studies, tickets and measurements. It knows no Optuna and trains nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, insert, select, true, update
from sqlalchemy.exc import IntegrityError

from tempopt.errors import StaleAttempt, StorageError, StudyNotFound, unknown
from tempopt.store import optuna_values
from tempopt.store.database import Database
from tempopt.store.models import MAX_NAME, MEASUREMENT, STUDY, TICKET
from tempopt.store.rows import (
    KINDS,
    Kind,
    Measurement,
    NewTicket,
    Outcomes,
    StudyRow,
    StudyState,
    StudySummary,
    TicketRow,
    TicketState,
)
from tempopt.store.schema import connect
from tempopt.store.upsert import upsert

_STAGES = {kind: stage for stage, kind in enumerate(KINDS)}
_STUDY_COLUMNS = [STUDY.c[f.name] for f in fields(StudyRow)]
_TICKET_COLUMNS = [TICKET.c[f.name] for f in fields(TicketRow)]
_ORDER = (TICKET.c.stage, TICKET.c.number)


class Store:
    """The studies in one database. Use :meth:`open`; close it, or use it as a context manager.

    Every method is one transaction. What is written about a run carries the attempt that it belongs
    to, and raises StaleAttempt when the ticket has been given to somebody else or has ended. Threads
    may share a store; processes may not: each opens its own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Self:
        """Open the store at a URL; StorageError if it cannot be reached, read or written.

        Args:
            url: ``sqlite:///file.db``, a bare path, ``postgresql://...``, ``mysql://...`` or ``mariadb://...``.
            create: Whether tables that are missing are created; False: a store must be there.
        """
        return cls(connect(url, create=create))

    @property
    def url(self) -> str:
        """The URL to connect with, driver named, SQLite paths absolute, password and all: never print it."""
        return self._database.address.url.render_as_string(hide_password=False)

    @property
    def url_shown(self) -> str:
        """The URL with its password masked, for people to see."""
        return self._database.address.shown

    def __repr__(self) -> str:
        return f"Store({self.url_shown!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the store cannot fail in this."""
        self._database.close()

    # ---- studies

    def create_study(self, name: str, spec: dict[str, Any], spec_hash: str) -> StudyRow:
        """Write a new study, running, and return it; StorageError if there is one of that name."""
        if not name.strip() or name != name.strip() or len(name) > MAX_NAME:
            raise StorageError(
                f'The study name "{name}" cannot be stored: 1 to {MAX_NAME} characters are allowed, '
                "with no space at either end."
            )
        values: dict[str, Any] = {
            "name": name,
            "spec": spec,
            "spec_hash": spec_hash,
            "state": "running",
            "created": _now(),
        }

        def work(connection: Connection) -> StudyRow:
            try:
                result = connection.execute(insert(STUDY).values(values))
            except IntegrityError:
                raise StorageError(
                    f'The store {self.url_shown} has a study "{name}" already. Go on with it '
                    f"(tempopt resume {name}), or choose another name."
                ) from None
            key = result.inserted_primary_key
            assert key is not None, "one row was inserted"
            return StudyRow(id=key[0], **values)

        return self._database.write(work)

    def load_study(self, name: str) -> StudyRow:
        """Return the study of that name; StudyNotFound, with the names that there are, if there is none."""
        return self._database.read(lambda connection: self._study(connection, name))

    def list_studies(self) -> list[StudySummary]:
        """Return every study with its numbers of tickets, oldest first; StorageError if it cannot be read."""

        def work(connection: Connection) -> list[StudySummary]:
            studies = connection.execute(select(*_STUDY_COLUMNS).order_by(STUDY.c.id)).all()
            counts: dict[int, dict[Kind, dict[TicketState, int]]] = {row.id: {} for row in studies}
            for row in connection.execute(
                select(TICKET.c.study_id, TICKET.c.stage, TICKET.c.kind, TICKET.c.state, func.count())
                .group_by(TICKET.c.study_id, TICKET.c.stage, TICKET.c.kind, TICKET.c.state)
                .order_by(TICKET.c.study_id, TICKET.c.stage, TICKET.c.state)
            ):
                # A study that was begun between the two statements is seen the next time.
                if row.study_id in counts:
                    counts[row.study_id].setdefault(row.kind, {})[row.state] = row[4]
            return [StudySummary(study=_study_row(row), tickets=counts[row.id]) for row in studies]

        return self._database.read(work)

    def set_state(self, study_id: int, state: StudyState) -> None:
        """Set the state of a study; StudyNotFound if it has been deleted."""

        def work(connection: Connection) -> None:
            changed = connection.execute(update(STUDY).where(STUDY.c.id == study_id).values(state=state))
            if changed.rowcount == 0:
                raise StudyNotFound(f"Study {study_id} has been deleted from {self.url_shown} meanwhile.")

        self._database.write(work)

    def delete_study(self, name: str) -> None:
        """Delete a study with its tickets and measurements; StudyNotFound if there is none of that name."""

        def work(connection: Connection) -> None:
            study = self._study(connection, name)
            tickets = select(TICKET.c.id).where(TICKET.c.study_id == study.id)
            connection.execute(delete(MEASUREMENT).where(MEASUREMENT.c.ticket_id.in_(tickets)))
            connection.execute(delete(TICKET).where(TICKET.c.study_id == study.id))
            connection.execute(delete(STUDY).where(STUDY.c.id == study.id))

        self._database.write(work)

    def _study(self, connection: Connection, name: str) -> StudyRow:
        row = connection.execute(select(*_STUDY_COLUMNS).where(STUDY.c.name == name)).one_or_none()
        if row is None:
            names = connection.scalars(select(STUDY.c.name).order_by(STUDY.c.id)).all()
            remedy = f"Look into another database with --storage URL; this one is {self.url_shown}."
            raise StudyNotFound(unknown("study", name, names or ["none yet"], remedy))
        return _study_row(row)

    # ---- tickets

    def add_tickets(self, study_id: int, tickets: Sequence[NewTicket]) -> None:
        """Write waiting tickets, leaving alone those that are there; StorageError if it fails."""
        rows = [
            {
                **{f.name: getattr(ticket, f.name) for f in fields(NewTicket)},
                "study_id": study_id,
                "stage": _STAGES[ticket.kind],
                "state": "waiting",
                "attempt": 0,
                "failures": 0,
                "seconds": 0.0,
            }
            for ticket in tickets
        ]
        self._database.write(lambda c: upsert(c, TICKET, rows, key=("study_id", "kind", "number")))

    def take_ticket(self, study_id: int, agent: str, kinds: Iterable[Kind] | None = None) -> TicketRow | None:
        """Take the next waiting ticket for an agent, None if there is none; StorageError if it fails.

        Args:
            agent: Name of the agent, unique among those at work.
            kinds: Take only of these; None: of any, in the order of the kinds, then of the numbers.
        """
        wanted = and_(TICKET.c.study_id == study_id, TICKET.c.state == "waiting", _of_kinds(kinds))
        # SQLite leaves FOR UPDATE out: there the transaction has begun IMMEDIATE and is alone.
        next_one = select(*_TICKET_COLUMNS).where(wanted).order_by(*_ORDER).limit(1)
        next_one = next_one.with_for_update(skip_locked=True)
        # MySQL locks what it reads: with a sort it would lock every waiting ticket, and others find none.
        next_one = next_one.with_hint(TICKET, "FORCE INDEX (tempopt_ticket_next)", "mysql")

        def work(connection: Connection) -> TicketRow | None:
            row = connection.execute(next_one).one_or_none()
            if row is None:
                return None
            taken: dict[str, Any] = {
                "state": "running",
                "attempt": row.attempt + 1,
                "agent": agent,
                "started": _now(),
            }
            connection.execute(update(TICKET).where(TICKET.c.id == row.id).values(taken))
            return replace(_ticket_row(row), **taken)

        return self._database.write(work)

    def tickets(self, study_id: int, kinds: Iterable[Kind] | None = None) -> list[TicketRow]:
        """Return the tickets of a study in their order of work; StorageError if they cannot be read."""
        query = select(*_TICKET_COLUMNS).where(TICKET.c.study_id == study_id, _of_kinds(kinds))
        query = query.order_by(*_ORDER)
        return self._database.read(lambda c: [_ticket_row(row) for row in c.execute(query)])

    def release_agent(self, study_id: int, agent: str | None) -> int:
        """Give back the running tickets of an agent (None: of all); StorageError if it fails."""
        held = and_(TICKET.c.study_id == study_id, TICKET.c.state == "running")
        if agent is not None:
            held = and_(held, TICKET.c.agent == agent)
        statement = update(TICKET).where(held).values(state="waiting", agent=None)
        return self._database.write(lambda c: c.execute(statement).rowcount)

    # ---- one run

    def set_run(self, ticket_id: int, attempt: int, *, total_steps: int, code: str) -> None:
        """Write what is known when a run has begun; StaleAttempt if the ticket is another's."""
        self._change(ticket_id, attempt, total_steps=total_steps, code=_storable(code))

    def set_parameters(
        self, ticket_id: int, attempt: int, parameters: dict[str, Any], trial_number: int | None = None
    ) -> None:
        """Write a ticket's parameters and trial, its for life; StaleAttempt if it is another's."""

        def work(connection: Connection) -> None:
            held = self._hold(connection, ticket_id, attempt)
            assert held.trial_number in (None, trial_number), "a ticket owns one trial for life"
            _set(connection, ticket_id, parameters=parameters, trial_number=trial_number)

        self._database.write(work)

    def record(self, ticket_id: int, attempt: int, measurements: Sequence[Measurement]) -> None:
        """Write measurements, replacing same step and name; StaleAttempt if the ticket is another's."""

        def work(connection: Connection) -> None:
            self._hold(connection, ticket_id, attempt)
            _measure(connection, ticket_id, measurements)

        self._database.write(work)

    def set_intermediate_values(
        self,
        study_name: str,
        trial_number: int,
        values: Mapping[int, float],
        *,
        otherwise: Callable[[int, float], None],
    ) -> None:
        """Write a trial's values into Optuna's table in one transaction; StaleAttempt if it is not running.

        Args:
            study_name: Name of Optuna's study, in this same database.
            values: Value by step; NaN and infinities come back as they are.
            otherwise: Called with each step and value when Optuna's tables are of an unknown version.
        """

        def work(connection: Connection) -> bool:
            if not optuna_values.is_known(connection):
                return False
            optuna_values.insert(connection, study_name, trial_number, values)
            return True

        if not self._database.write(work):
            for step, value in values.items():
                otherwise(step, value)

    def finish(self, ticket_id: int, attempt: int, outcomes: Outcomes) -> None:
        """Write how a run ended and what it measured; StaleAttempt if the ticket is another's."""

        def work(connection: Connection) -> None:
            held = self._hold(connection, ticket_id, attempt)
            _measure(connection, ticket_id, outcomes.measurements)
            _set(
                connection,
                ticket_id,
                state="failed" if outcomes.outcome == "failed" else "done",
                outcome=outcomes.outcome,
                value=outcomes.value,
                steps=outcomes.steps,
                diverged_at=outcomes.diverged_at,
                seconds=held.seconds + outcomes.seconds,
                error=_storable(outcomes.error),
                finished=_now(),
            )

        self._database.write(work)

    def give_back(
        self, ticket_id: int, attempt: int, error: str | None = None, *, seconds: float = 0.0
    ) -> None:
        """Let a ticket wait again, no failure counted; StaleAttempt if the ticket is another's."""

        def work(connection: Connection) -> None:
            held = self._hold(connection, ticket_id, attempt)
            _set(
                connection,
                ticket_id,
                state="waiting",
                agent=None,
                seconds=held.seconds + seconds,
                error=_storable(error) if error is not None else held.error,
            )

        self._database.write(work)

    def fail(
        self, ticket_id: int, attempt: int, error: str, max_attempts: int, *, seconds: float = 0.0
    ) -> TicketState:
        """Count a failure, return ``waiting`` or, at the last, ``failed``; StaleAttempt if it is another's.

        Args:
            error: What happened, for a person to read.
            max_attempts: Failures after which the ticket is not tried again, >= 1.
            seconds: Training seconds of this attempt.
        """

        def work(connection: Connection) -> TicketState:
            held = self._hold(connection, ticket_id, attempt)
            is_last = held.failures + 1 >= max_attempts
            state: TicketState = "failed" if is_last else "waiting"
            _set(
                connection,
                ticket_id,
                state=state,
                agent=held.agent if is_last else None,
                outcome="failed" if is_last else None,
                failures=held.failures + 1,
                error=_storable(error),
                seconds=held.seconds + seconds,
                finished=_now() if is_last else None,
            )
            return state

        return self._database.write(work)

    def _change(self, ticket_id: int, attempt: int, **values: Any) -> None:
        def work(connection: Connection) -> None:
            self._hold(connection, ticket_id, attempt)
            _set(connection, ticket_id, **values)

        self._database.write(work)

    def _hold(self, connection: Connection, ticket_id: int, attempt: int) -> Row[Any]:
        """Return a ticket, locked until the transaction ends; StaleAttempt if it is another's."""
        query = select(*_TICKET_COLUMNS).where(TICKET.c.id == ticket_id).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            raise StaleAttempt(
                f"Ticket {ticket_id} has been deleted meanwhile; attempt {attempt} is thrown away."
            )
        if (row.attempt, row.state) != (attempt, "running"):
            raise StaleAttempt(
                f"Ticket {ticket_id} ({row.kind} {row.number}) is {row.state} at attempt {row.attempt}"
                f"{f', held by {row.agent}' if row.agent else ''}; attempt {attempt} is thrown away."
            )
        return row

    # ---- measurements

    def measurements(
        self, study_id: int, ticket_ids: Iterable[int] | None = None, names: Iterable[str] | None = None
    ) -> list[Measurement]:
        """Return measurements by ticket, name and step; StorageError if they cannot be read.

        Args:
            ticket_ids: Only of these tickets; None: of all.
            names: Only of these names; None: of all.
        """
        query = (
            select(*(MEASUREMENT.c[f.name] for f in fields(Measurement)))
            .join(TICKET, TICKET.c.id == MEASUREMENT.c.ticket_id)
            .where(TICKET.c.study_id == study_id)
            .order_by(MEASUREMENT.c.ticket_id, MEASUREMENT.c.name, MEASUREMENT.c.step)
        )
        if ticket_ids is not None:
            query = query.where(MEASUREMENT.c.ticket_id.in_(list(ticket_ids)))
        if names is not None:
            query = query.where(MEASUREMENT.c.name.in_(list(names)))
        return self._database.read(lambda c: [_measurement(row) for row in c.execute(query)])


def _now() -> datetime:
    return datetime.now(UTC)


def _study_row(row: Row[Any]) -> StudyRow:
    return StudyRow(**row._mapping)


def _ticket_row(row: Row[Any]) -> TicketRow:
    return TicketRow(**row._mapping)


def _measurement(row: Row[Any]) -> Measurement:
    value = math.nan if row.value is None else row.value
    return Measurement(ticket_id=row.ticket_id, step=row.step, name=row.name, value=value)


def _of_kinds(kinds: Iterable[Kind] | None) -> ColumnElement[bool]:
    return true() if kinds is None else TICKET.c.stage.in_([_STAGES[kind] for kind in kinds])


def _set(connection: Connection, ticket_id: int, **values: Any) -> None:
    connection.execute(update(TICKET).where(TICKET.c.id == ticket_id).values(values))


def _measure(connection: Connection, ticket_id: int, measurements: Sequence[Measurement]) -> None:
    # By key first: PostgreSQL refuses a statement that replaces the same row twice; the last one counts.
    values = {(m.name, m.step): m.value if math.isfinite(m.value) else None for m in measurements}
    assert all(m.ticket_id == ticket_id for m in measurements), "measurements of another ticket"
    rows = [
        {"ticket_id": ticket_id, "name": name, "step": step, "value": value}
        for (name, step), value in values.items()
    ]
    upsert(connection, MEASUREMENT, rows, key=("ticket_id", "name", "step"), replace=("value",))


def _storable(text: str | None) -> str | None:
    """Return a text that every database can hold: no NUL (PostgreSQL), no half surrogates (all)."""
    return None if text is None else text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()

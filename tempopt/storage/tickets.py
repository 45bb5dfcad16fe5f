"""Write, claim and withdraw tickets, and read them with their runs' measurements and logs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, insert, or_, select, update

from tempopt.errors import StaleAttempt
from tempopt.spec.program import GUARD
from tempopt.storage import claims, optuna_tables, queries
from tempopt.storage.attention_maps import MapsRow
from tempopt.storage.changes import ClaimRequest, StudyDelta
from tempopt.storage.damage import read_rows
from tempopt.storage.database import Repository, read_transaction, write_transaction
from tempopt.storage.models import ATTENTION_MAP, LOG, MEASUREMENT, STUDY, TICKET
from tempopt.storage.optuna_tables import MAX_IDS
from tempopt.storage.rows import (
    SEARCH_KINDS,
    TERMINAL_STATES,
    Kind,
    LogRow,
    Measurement,
    NewTicket,
    TicketRow,
    TrialParam,
)
from tempopt.storage.trial_changes import TrialChange, TrialEnd


class TicketRepository(Repository):
    """The methods of :class:`tempopt.storage.Store` for tickets and their runs."""

    @write_transaction
    def add_tickets(
        self,
        connection: Connection,
        study_id: int,
        tickets: Sequence[NewTicket],
        *,
        version: int | None = None,
        resume: bool = False,
    ) -> bool:
        """Write new waiting tickets, without changing existing ones, and return whether that was done.

        Args:
            version: Write them only if the existing tickets have this version; None: in any case.
            resume: Whether the study is set to running if any ticket is new.

        Raises:
            StudyNotFound: The study has been deleted.
        """
        return _add_tickets(connection, study_id, tickets, version=version, resume=resume)

    @write_transaction
    def retry(
        self,
        connection: Connection,
        study_id: int,
        failed: Collection[int],
        tickets: Sequence[NewTicket],
        *,
        version: int,
    ) -> bool:
        """Let failed tickets wait again with all attempts, and return whether that was done.

        The study is set to running if any ticket is changed or new.

        Args:
            failed: Ids of the tickets; tickets that have not failed are not changed.
            tickets: New tickets to write in the same transaction.
            version: Do so only if the tickets have this version.

        Raises:
            StudyNotFound: The study has been deleted.
        """
        if queries.lock_study(connection, study_id) != version:
            return False
        conditions = (
            TICKET.c.study_id == study_id,
            TICKET.c.state == "failed",
            TICKET.c.id.in_(sorted(failed)),
        )
        query = (
            select(TICKET.c.id, TICKET.c.trial_id).where(*conditions).order_by(TICKET.c.id).with_for_update()
        )
        rows = connection.execute(query).all()
        columns = {"state": "waiting", "outcome": None, "failures": 0, "finished": None, "agent": None}
        for start in range(0, len(rows), MAX_IDS):
            batch = rows[start : start + MAX_IDS]
            condition = TICKET.c.id.in_([row.id for row in batch])
            connection.execute(update(TICKET).where(condition).values(columns))
            optuna_tables.reopen_trials(
                connection, [row.trial_id for row in batch if row.trial_id is not None]
            )
        if rows:
            queries.change_study(connection, study_id, version=STUDY.c.version + 1, state="running")
        _add_tickets(connection, study_id, tickets, version=None, resume=True)
        return True

    @write_transaction
    def withdraw(self, connection: Connection, study_id: int, kinds: Collection[Kind]) -> int:
        """Withdraw the waiting tickets of some kinds, so that they do not begin, and return their number.

        Trials of tickets that had begun, and were then released or lost, are closed as failed.

        Args:
            study_id: Id of the study.
            kinds: The kinds.
        """
        queries.lock_study(connection, study_id)
        return _withdraw(connection, study_id, TICKET.c.state == "waiting", queries.kind_clause(kinds))

    @write_transaction
    def withdraw_from(self, connection: Connection, ticket: TicketRow, *, version: int) -> int | None:
        """Withdraw a ticket that was claimed and not begun, and the later waiting tickets of its kind.

        Args:
            ticket: The claimed ticket; it is not changed if another agent holds it by now.
            version: Version of the tickets on which the decision is based.

        Returns:
            The number of withdrawn tickets; None if tickets have been added or withdrawn since, so that none
            was withdrawn.
        """
        if queries.lock_study(connection, ticket.study_id) != version:
            return None
        is_waiting = and_(TICKET.c.state == "waiting", TICKET.c.number > ticket.number)
        is_own = and_(
            TICKET.c.id == ticket.id,
            TICKET.c.state == "running",
            TICKET.c.attempt == ticket.attempt,
            TICKET.c.agent == ticket.agent,
        )
        return _withdraw(
            connection, ticket.study_id, or_(is_waiting, is_own), queries.kind_clause([ticket.kind])
        )

    @write_transaction
    def take_ticket(
        self, connection: Connection, study_id: int, agent: str, request: ClaimRequest
    ) -> TicketRow | None:
        """Claim the next waiting ticket for an agent; None if there is none, or the study is not running.

        Before that, attempts of other agents are lost whose lease has expired or whose agent is dead: their
        tickets wait again, or have failed permanently. Running tickets of this agent that are not in the
        request (the answer to their claim was lost) wait again, and no failure is counted. A request with
        the number of an earlier one of this agent changes nothing.

        Args:
            agent: Unique name of the agent, 1 to 255 characters.
            request: The tickets that it may claim.
        """
        return claims.claim_ticket(connection, study_id, agent, request)

    @write_transaction
    def release(self, connection: Connection, study_id: int, agents: Collection[str]) -> int:
        """Release the running tickets of some agents without counting failures, and return their number."""
        theirs = and_(
            TICKET.c.study_id == study_id, TICKET.c.state == "running", TICKET.c.agent.in_(list(agents))
        )
        ids = connection.scalars(select(TICKET.c.id).where(theirs).with_hint(*claims.NEXT_TICKET_HINT)).all()
        if not ids:
            return 0
        # In the order of id in which all writers lock them.
        order = (
            select(TICKET.c.id).where(TICKET.c.id.in_(ids), theirs).order_by(TICKET.c.id).with_for_update()
        )
        locked_ids = connection.scalars(order).all()
        freed = (
            update(TICKET).where(TICKET.c.id.in_(locked_ids)).values(state="waiting", agent=None, lease=None)
        )
        return connection.execute(freed).rowcount

    @write_transaction
    def begin(
        self,
        connection: Connection,
        ticket_id: int,
        attempt: int,
        parameters: Mapping[str, Any],
        sampled: Mapping[str, Any],
        trial: Sequence[TrialParam] | None,
    ) -> int | None:
        """Write the parameters of a ticket, create its Optuna trial, and return the trial's number.

        The number is None without a trial, and if Optuna's tables are missing or have another version.

        Args:
            trial: Parameters of the trial; ignored if the ticket already has a trial. None: no trial is
                created.

        Raises:
            StaleAttempt: Another agent holds the ticket by now.
            StorageError: Optuna's study of that name has been deleted.
        """
        name = select(STUDY.c.name).where(STUDY.c.id == TICKET.c.study_id).scalar_subquery().label("study")
        query = (
            select(*[*claims.LOCKED_TICKET_COLUMNS, name]).where(TICKET.c.id == ticket_id).with_for_update()
        )
        row = connection.execute(query).one_or_none()
        why = claims.stale_reason(row, ticket_id, attempt)
        if row is None or why:
            raise StaleAttempt(why)
        values: dict[str, Any] = {"parameters": dict(parameters), "sampled": dict(sampled)}
        number: int | None = row.trial_number
        if trial is not None and number is None and optuna_tables.is_supported_schema(connection):
            trials = optuna_tables.begin_trials(connection, row.study, {ticket_id: trial})
            values["trial_id"], number = trials[ticket_id]
            values["trial_number"] = number
        claims.change_ticket(connection, ticket_id, **values)
        return number

    # ---- reading

    @read_transaction
    def tickets(
        self, connection: Connection, study_id: int, kinds: Iterable[Kind] | None = None
    ) -> list[TicketRow]:
        """Return the tickets of a study in their order of work."""
        return queries.tickets(connection, TICKET.c.study_id == study_id, queries.kind_clause(kinds))

    @read_transaction
    def ticket(self, connection: Connection, study_id: int, kind: Kind, number: int) -> TicketRow | None:
        """Return the ticket of that kind and number, None if there is none."""
        where = (TICKET.c.study_id == study_id, TICKET.c.kind == kind, TICKET.c.number == number)
        return next(iter(queries.tickets(connection, *where)), None)

    @read_transaction
    def attempts(self, connection: Connection, study_id: int) -> list[tuple[int, str, int]]:
        """Return id, state and attempt of each ticket, by id: they change when a run begins or ends."""
        query = select(TICKET.c.id, TICKET.c.state, TICKET.c.attempt).where(TICKET.c.study_id == study_id)
        rows = connection.execute(query.order_by(TICKET.c.id))
        return [(row.id, row.state, row.attempt) for row in rows]

    @read_transaction
    def news(self, connection: Connection, study_id: int, since: Mapping[Kind, int]) -> StudyDelta:
        """Return the tickets that are not waiting, by kind from the given number on; or raise StudyNotFound.

        The version is read last: it may be newer than the tickets, never older.
        """
        is_begun = TICKET.c.state.in_(["running", "done", "failed"])
        tickets = queries.tickets(
            connection, TICKET.c.study_id == study_id, is_begun, queries.since_clause(since)
        )
        ended_ids = [
            ticket.id for ticket in tickets if ticket.state in TERMINAL_STATES and ticket.kind in SEARCH_KINDS
        ]
        is_report = or_(MEASUREMENT.c.name == "report", MEASUREMENT.c.name.contains(GUARD, autoescape=True))
        conditions = (is_report, TICKET.c.id.in_(ended_ids))
        reports = queries.measurements(connection, *conditions) if ended_ids else []
        # The version last: if tickets were added in between, the reader reads all tickets again.
        state, version, age = queries.study_state(connection, study_id)
        return StudyDelta(state=state, version=version, tickets=tickets, reports=reports, age=age)

    @read_transaction
    def measurements(
        self,
        connection: Connection,
        study_id: int,
        ticket_ids: Iterable[int] | None = None,
        names: Iterable[str] | None = None,
        *,
        prefixes: Iterable[str] = (),
    ) -> list[Measurement]:
        """Return measurements by ticket, name and step.

        Args:
            ticket_ids: Only of these tickets; None: of all tickets.
            names: Only with these names; None: with any name.
            prefixes: Only with names that begin with one of these; empty: with any name.
        """
        return queries.measurements(
            connection,
            TICKET.c.study_id == study_id,
            queries.in_clause(MEASUREMENT.c.ticket_id, ticket_ids),
            queries.in_clause(MEASUREMENT.c.name, names),
            queries.prefix_clause(MEASUREMENT.c.name, prefixes),
        )

    @read_transaction
    def logs(
        self, connection: Connection, study_id: int, ticket_ids: Iterable[int] | None = None
    ) -> list[LogRow]:
        """Return the ends of the runs' outputs, by ticket and attempt; None: of all tickets."""
        query = (
            select(*(LOG.c[f.name] for f in fields(LogRow)))
            .join(TICKET, TICKET.c.id == LOG.c.ticket_id)
            .where(TICKET.c.study_id == study_id, queries.in_clause(LOG.c.ticket_id, ticket_ids))
            .order_by(LOG.c.ticket_id, LOG.c.attempt)
        )
        return read_rows(LogRow, connection.execute(query), "logs")

    @read_transaction
    def attention_maps(
        self, connection: Connection, study_id: int, ticket_ids: Iterable[int]
    ) -> dict[int, Any]:
        """Return the attention maps by ticket, of those tickets that have them."""
        query = (
            select(ATTENTION_MAP.c.ticket_id, ATTENTION_MAP.c.maps)
            .join(TICKET, TICKET.c.id == ATTENTION_MAP.c.ticket_id)
            .where(TICKET.c.study_id == study_id, queries.in_clause(ATTENTION_MAP.c.ticket_id, ticket_ids))
            .order_by(ATTENTION_MAP.c.ticket_id)
        )
        rows = read_rows(MapsRow, connection.execute(query), "attention maps")
        return {row.ticket_id: row.maps for row in rows}


def _add_tickets(
    connection: Connection,
    study_id: int,
    tickets: Sequence[NewTicket],
    *,
    version: int | None,
    resume: bool,
) -> bool:
    """Write new waiting tickets, without changing existing ones; if any is new, increase the version."""
    stored_version = queries.lock_study(connection, study_id)
    if version is not None and stored_version != version:
        return False
    query = select(TICKET.c.kind, TICKET.c.number).where(TICKET.c.study_id == study_id)
    rows = connection.execute(query.where(queries.kind_clause({t.kind for t in tickets})))
    existing_keys = {(row.kind, row.number) for row in rows}
    new_tickets = {(t.kind, t.number): t for t in tickets if (t.kind, t.number) not in existing_keys}
    if not new_tickets:
        return True
    values = [
        {
            **{f.name: getattr(ticket, f.name) for f in fields(NewTicket)},
            "study_id": study_id,
            "stage": queries.STAGES[ticket.kind],
            "state": "waiting",
            "attempt": 0,
            "failures": 0,
            "seconds": 0.0,
        }
        for ticket in new_tickets.values()
    ]
    connection.execute(insert(TICKET), values)
    running = {"state": "running"} if resume else {}
    queries.change_study(connection, study_id, version=STUDY.c.version + 1, **running)
    return True


def _withdraw(connection: Connection, study_id: int, *conditions: ColumnElement[bool]) -> int:
    query = select(TICKET.c.id, TICKET.c.trial_id).where(TICKET.c.study_id == study_id, *conditions)
    rows = connection.execute(query.order_by(TICKET.c.id).with_for_update()).all()
    for start in range(0, len(rows), MAX_IDS):
        batch = rows[start : start + MAX_IDS]
        condition = TICKET.c.id.in_([row.id for row in batch])
        connection.execute(update(TICKET).where(condition).values(state="withdrawn", agent=None, lease=None))
        closing_change = TrialChange(
            end=TrialEnd(outcome="failed", error="withdrawn: the search was stopped")
        )
        trials = {row.trial_id: closing_change for row in batch if row.trial_id is not None}
        optuna_tables.write_trials(connection, trials)
    if rows:
        queries.change_study(connection, study_id, version=STUDY.c.version + 1)
    return len(rows)

"""Studies and the tickets they consist of, as functions of a connection in a transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from tempopt.errors import StorageError, StudyNotFound, unknown
from tempopt.spec.program import GUARD
from tempopt.storage import optuna_tables, queries
from tempopt.storage.changes import StudyDelta
from tempopt.storage.clock import Clock
from tempopt.storage.models import ATTENTION_MAP, JOB, LOG, MAX_NAME, MEASUREMENT, STUDY, TICKET
from tempopt.storage.optuna_tables import MANY
from tempopt.storage.rows import (
    SAMPLED_KINDS,
    TERMINAL_STATES,
    Kind,
    NewTicket,
    OpenStudy,
    StudyRow,
    StudyState,
    StudySummary,
    TicketRow,
    TicketState,
)
from tempopt.storage.trial_changes import TrialChange, TrialEnd

_WITHDRAWN = "withdrawn: the search was stopped"


def create(
    connection: Connection,
    name: str,
    spec: dict[str, Any],
    spec_hash: str,
    warm_start: list[Any] | None = None,
    *,
    columns: Mapping[str, Any],
    url_shown: str,
) -> StudyRow:
    """Write a new study; StorageError if the name cannot be stored or is taken."""
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
        # by the clock that the study's age is told by: two machines' clocks differ
        "created": datetime.fromtimestamp(connection.scalars(select(Clock())).one(), UTC),
        "version": 0,
        **columns,
    }
    try:
        result = connection.execute(insert(STUDY).values({**values, "warm_start": warm_start}))
    except IntegrityError:
        raise StorageError(
            f'The store {url_shown} has a study "{name}" already. Continue it '
            f"(tempopt resume {name}), or choose another name."
        ) from None
    key = result.inserted_primary_key
    assert key is not None, "one row was inserted"
    return StudyRow(id=key[0], **values)


def warm_start(connection: Connection, study_id: int) -> list[Any]:
    """Return what a study keeps of earlier ones; StudyNotFound if it has been deleted."""
    row = connection.execute(select(STUDY.c.warm_start).where(STUDY.c.id == study_id)).one_or_none()
    if row is None:
        raise queries.deleted(study_id)
    return row.warm_start or []


def load(connection: Connection, name: str, *, url_shown: str) -> StudyRow:
    """Return the study of a name; StudyNotFound, with the names that there are, if there is none."""
    row = connection.execute(select(*queries.STUDY_COLUMNS).where(STUDY.c.name == name)).one_or_none()
    if row is None:
        names = connection.scalars(select(STUDY.c.name).order_by(STUDY.c.id)).all()
        remedy = f"This database is {url_shown}. To look into another one, run: tempopt list --storage URL"
        raise StudyNotFound(unknown("study", name, names or ["none yet"], remedy))
    return queries.study_row(row)


def summaries(connection: Connection) -> list[StudySummary]:
    """Return every study, oldest first, with its numbers of tickets and the agents at work."""
    studies = connection.execute(select(*queries.STUDY_COLUMNS).order_by(STUDY.c.id)).all()
    counts: dict[int, dict[Kind, dict[TicketState, int]]] = {row.id: {} for row in studies}
    for row in connection.execute(
        select(TICKET.c.study_id, TICKET.c.stage, TICKET.c.state, func.count())
        .group_by(TICKET.c.study_id, TICKET.c.stage, TICKET.c.state)
        .order_by(TICKET.c.study_id, TICKET.c.stage, TICKET.c.state)
    ):
        # A study that was begun between the two statements is seen the next time.
        if row.study_id in counts:
            counts[row.study_id].setdefault(queries.KIND_OF[row.stage], {})[row.state] = row[3]
    at_work: dict[int, set[str]] = {row.id: set() for row in studies}
    query = select(TICKET.c.study_id, TICKET.c.agent).where(
        TICKET.c.state == "running", TICKET.c.lease > Clock()
    )
    for study_id, agent in connection.execute(query.distinct()):
        if study_id in at_work:
            at_work[study_id].add(agent)
    return [
        StudySummary(
            study=queries.study_row(row), tickets=counts[row.id], agents=tuple(sorted(at_work[row.id]))
        )
        for row in studies
    ]


def open_studies(connection: Connection) -> list[OpenStudy]:
    """Return the unfinished studies, those of the highest priority first, of the same the oldest."""
    rows = connection.execute(
        select(STUDY.c.id, STUDY.c.name, STUDY.c.priority, STUDY.c.parallel)
        .where(STUDY.c.state == "running")
        .order_by(STUDY.c.priority.desc(), STUDY.c.id)
    ).all()
    is_held = (TICKET.c.state == "running") & (TICKET.c.lease > Clock())
    is_free = TICKET.c.state.in_(("waiting", "running")) & ~is_held
    counts = connection.execute(
        select(
            TICKET.c.study_id, func.sum(case((is_held, 1), else_=0)), func.sum(case((is_free, 1), else_=0))
        )
        .join(STUDY, STUDY.c.id == TICKET.c.study_id)
        .where(STUDY.c.state == "running")
        .group_by(TICKET.c.study_id)
    )
    held_and_free = {study_id: (int(num_held), int(num_free)) for study_id, num_held, num_free in counts}
    return [
        OpenStudy(
            id=row.id,
            name=row.name,
            priority=row.priority,
            needs_agent=_needs_agent(*held_and_free.get(row.id, (0, 0)), parallel=row.parallel),
        )
        for row in rows
    ]


def _needs_agent(num_held: int, num_free: int, *, parallel: int) -> bool:
    # with no run in progress and none that is free, the next stage is to be opened
    return not num_held or (num_free > 0 and num_held < parallel)


def change(connection: Connection, study_id: int, **values: Any) -> None:
    """Write columns of a study; StudyNotFound if it has been deleted."""
    if connection.execute(update(STUDY).where(STUDY.c.id == study_id).values(values)).rowcount == 0:
        raise queries.deleted(study_id)


def remove(connection: Connection, name: str, *, url_shown: str) -> None:
    """Delete a study, its tickets and all that hangs on them, and Optuna's study of that name."""
    study = load(connection, name, url_shown=url_shown)
    _lock(connection, study.id)
    rows = connection.execute(
        select(TICKET.c.id, TICKET.c.trial_id).where(TICKET.c.study_id == study.id).order_by(TICKET.c.id)
    ).all()
    for start in range(0, len(rows), MANY):
        ids = [row.id for row in rows[start : start + MANY]]
        # The tickets first, in the order in which every writer locks them.
        connection.execute(select(TICKET.c.id).where(TICKET.c.id.in_(ids)).with_for_update()).all()
        for table in (MEASUREMENT, LOG, ATTENTION_MAP):
            connection.execute(delete(table).where(table.c.ticket_id.in_(ids)))
        connection.execute(delete(TICKET).where(TICKET.c.id.in_(ids)))
    connection.execute(delete(JOB).where(JOB.c.study == name))
    connection.execute(delete(STUDY).where(STUDY.c.id == study.id))
    optuna_tables.delete_study(connection, name, {row.trial_id for row in rows})


def name_of(connection: Connection, ticket_id: int) -> str:
    """Return the name of the study that a ticket belongs to."""
    query = select(STUDY.c.name).join(TICKET, TICKET.c.study_id == STUDY.c.id).where(TICKET.c.id == ticket_id)
    name: str = connection.scalars(query).one()
    return name


def set_state(connection: Connection, study_id: int, state: StudyState, version: int | None) -> bool:
    """Set a study's state, unless its tickets are of another version; return whether it was set."""
    if version is not None and _lock(connection, study_id) != version:
        return False
    change(connection, study_id, state=state)
    return True


def add_tickets(
    connection: Connection,
    study_id: int,
    tickets: Sequence[NewTicket],
    *,
    version: int | None,
    resume: bool,
) -> bool:
    """Write waiting tickets, leaving alone those that are there; if any is new, the version grows."""
    stored_version = _lock(connection, study_id)
    if version is not None and stored_version != version:
        return False
    query = select(TICKET.c.kind, TICKET.c.number).where(TICKET.c.study_id == study_id)
    rows = connection.execute(query.where(queries.of_kinds({t.kind for t in tickets})))
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
    change(connection, study_id, version=STUDY.c.version + 1, **running)
    return True


def retry(
    connection: Connection,
    study_id: int,
    failed: Collection[int],
    tickets: Sequence[NewTicket],
    version: int,
) -> bool:
    """Let failed tickets wait again and write new ones; False if the tickets are of another version."""
    if _lock(connection, study_id) != version:
        return False
    conditions = (TICKET.c.study_id == study_id, TICKET.c.state == "failed", TICKET.c.id.in_(sorted(failed)))
    query = select(TICKET.c.id, TICKET.c.trial_id).where(*conditions).order_by(TICKET.c.id).with_for_update()
    rows = connection.execute(query).all()
    columns = {"state": "waiting", "outcome": None, "failures": 0, "finished": None, "agent": None}
    for start in range(0, len(rows), MANY):
        batch = rows[start : start + MANY]
        condition = TICKET.c.id.in_([row.id for row in batch])
        connection.execute(update(TICKET).where(condition).values(columns))
        optuna_tables.reopen_trials(connection, [row.trial_id for row in batch if row.trial_id is not None])
    if rows:
        change(connection, study_id, version=STUDY.c.version + 1, state="running")
    add_tickets(connection, study_id, tickets, version=None, resume=True)
    return True


def withdraw(connection: Connection, study_id: int, kinds: Collection[Kind]) -> int:
    """Withdraw the waiting tickets of these kinds, and close the trials of those that were begun before."""
    _lock(connection, study_id)
    return _withdraw(connection, study_id, TICKET.c.state == "waiting", queries.of_kinds(kinds))


def end_before(connection: Connection, ticket: TicketRow, version: int) -> int | None:
    """Withdraw a taken ticket and those after it that wait; None if tickets have come or gone meanwhile."""
    _lock(connection, ticket.study_id)
    version_query = select(STUDY.c.version).where(STUDY.c.id == ticket.study_id)
    if connection.scalars(version_query).one_or_none() != version:
        return None
    is_waiting = and_(TICKET.c.state == "waiting", TICKET.c.number > ticket.number)
    is_own = and_(
        TICKET.c.id == ticket.id,
        TICKET.c.state == "running",
        TICKET.c.attempt == ticket.attempt,
        TICKET.c.agent == ticket.agent,
    )
    return _withdraw(connection, ticket.study_id, or_(is_waiting, is_own), queries.of_kinds([ticket.kind]))


def _withdraw(
    connection: Connection, study_id: int, *conditions: ColumnElement[bool], error: str = _WITHDRAWN
) -> int:
    query = select(TICKET.c.id, TICKET.c.trial_id).where(TICKET.c.study_id == study_id, *conditions)
    rows = connection.execute(query.order_by(TICKET.c.id).with_for_update()).all()
    for start in range(0, len(rows), MANY):
        batch = rows[start : start + MANY]
        condition = TICKET.c.id.in_([row.id for row in batch])
        connection.execute(update(TICKET).where(condition).values(state="withdrawn", agent=None, lease=None))
        closed = TrialChange(end=TrialEnd(outcome="failed", error=error))
        trials = {row.trial_id: closed for row in batch if row.trial_id is not None}
        optuna_tables.write_trials(connection, trials)
    if rows:
        change(connection, study_id, version=STUDY.c.version + 1)
    return len(rows)


def news(connection: Connection, study_id: int, since: Mapping[Kind, int]) -> StudyDelta:
    """Return what became of the tickets of these kinds from these numbers on."""
    is_begun = TICKET.c.state.in_(["running", "done", "failed"])
    tickets = queries.tickets(connection, TICKET.c.study_id == study_id, is_begun, queries.from_on(since))
    ended_ids = [
        ticket.id for ticket in tickets if ticket.state in TERMINAL_STATES and ticket.kind in SAMPLED_KINDS
    ]
    is_report = or_(MEASUREMENT.c.name == "report", MEASUREMENT.c.name.contains(GUARD, autoescape=True))
    conditions = (is_report, TICKET.c.id.in_(ended_ids))
    reports = queries.measurements(connection, *conditions) if ended_ids else []
    # The version last: a reader of a ticket that came in between then reads all again.
    state, version, age = queries.study_state(connection, study_id)
    return StudyDelta(state=state, version=version, tickets=tickets, reports=reports, age=age)


def _lock(connection: Connection, study_id: int) -> int:
    """Keep others from adding and withdrawing, and return the version of the tickets.

    To be locked before the tickets are, so that no two writers lock crosswise.
    """
    query = select(STUDY.c.version).where(STUDY.c.id == study_id).with_for_update()
    version = connection.scalars(query).one_or_none()
    if version is None:
        raise queries.deleted(study_id)
    return int(version)

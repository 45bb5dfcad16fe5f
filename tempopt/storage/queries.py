"""Conversion of table rows to the plain rows that the store returns, and conditions of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Row, and_, false, or_, select, true, update

from tempopt.errors import StorageError, StudyNotFound
from tempopt.storage.clock import Clock
from tempopt.storage.damage import adapter, first_fault, read_rows, read_with_defaults, report_damage
from tempopt.storage.models import MEASUREMENT, STUDY, TICKET
from tempopt.storage.rows import Checkpoint, Kind, Measurement, StudyRow, StudyState, TicketRow

STAGES: dict[Kind, int] = {
    "baseline": 0,
    "constant": 1,
    "search": 2,
    "choose": 3,
    "confirm": 4,
    "ablation": 6,
}
"""Number of each kind in the database; tickets of a lower number are claimed first."""
KIND_BY_STAGE = {stage: kind for kind, stage in STAGES.items()}
ORDER = (TICKET.c.stage, TICKET.c.number)

STUDY_COLUMNS = [Clock().label("age") if f.name == "age" else STUDY.c[f.name] for f in fields(StudyRow)]
TICKET_COLUMNS = [
    (TICKET.c.lease - Clock()).label("lease") if f.name == "lease" else TICKET.c[f.name]
    for f in fields(TicketRow)
]


_STUDY_DEFAULTS = {
    "spec_hash": "",
    "state": "paused",
    "created": datetime.fromtimestamp(0, UTC),
    **{f.name: f.default for f in fields(StudyRow) if f.default is not MISSING},
}
_TICKET_DEFAULTS = {
    **dict.fromkeys(f.name for f in fields(TicketRow)),
    **{f.name: f.default for f in fields(TicketRow) if f.default is not MISSING},
    "kind": "search",
    "arm": "",
    "seed": 0,
    "attempt": 1,
    "seconds": 0.0,
    "state": "failed",
}


def study_row(row: Row[Any]) -> StudyRow:
    """Return a row of STUDY_COLUMNS as StudyRow, with defaults in place of damaged values.

    Raises:
        StorageError: The spec is damaged.
    """
    fault_text = f'A row of the study "{str(row.name)[:100]}" is damaged in the database: '
    try:
        study, fault = read_with_defaults(StudyRow, dict(row._mapping), _STUDY_DEFAULTS)
    except ValidationError as error:
        raise StorageError(
            f"{fault_text}{first_fault(error)}. Restore it from a backup, or delete the study."
        ) from error
    if fault:
        report_damage(f"{fault_text}{fault}.")
    return replace(study, age=study.age - study.created.timestamp())


def study_state(connection: Connection, study_id: int) -> tuple[StudyState, int, float]:
    """Return a study's state, the version of its tickets and its age; StudyNotFound if it was deleted."""
    query = select(STUDY.c.state, STUDY.c.version, STUDY.c.created, Clock()).where(STUDY.c.id == study_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise study_deleted_error(study_id)
    state, version, created, clock = row
    return state, version, clock - created.timestamp()


def change_study(connection: Connection, study_id: int, **values: Any) -> None:
    """Write columns of a study; raise StudyNotFound if it has been deleted."""
    if connection.execute(update(STUDY).where(STUDY.c.id == study_id).values(values)).rowcount == 0:
        raise study_deleted_error(study_id)


def lock_study(connection: Connection, study_id: int) -> int:
    """Lock a study so that no other transaction adds or withdraws tickets, and return the tickets' version.

    To avoid deadlocks, call it before tickets are locked.
    """
    query = select(STUDY.c.version).where(STUDY.c.id == study_id).with_for_update()
    version = connection.scalars(query).one_or_none()
    if version is None:
        raise study_deleted_error(study_id)
    return int(version)


def study_deleted_error(study_id: int) -> StudyNotFound:
    """Return the error for a study that has been deleted."""
    return StudyNotFound(f"Study {study_id} has been deleted.")


def ticket_row(row: Row[Any]) -> TicketRow:
    """Return a row of TICKET_COLUMNS as TicketRow; a ticket with a damaged value counts as failed."""
    values = {**row._mapping, "checkpoints": row.checkpoints or ()}
    ticket, fault = read_with_defaults(TicketRow, values, {**_TICKET_DEFAULTS, "number": row.id})
    return failed_ticket(ticket, fault) if fault else ticket


def failed_ticket(ticket: TicketRow, fault: str) -> TicketRow:
    """Return a ticket with a damaged value as one that has failed, and say so."""
    fault = f"its row is damaged in the database: {fault}"
    report_damage(f"{ticket.name} counts as failed: {fault}.")
    return replace(ticket, state="failed", outcome="failed", value=None, error=fault)


def checkpoints(document: Any) -> tuple[Checkpoint, ...]:
    """Return the checkpoints in the column of a ticket; none, if it is damaged."""
    try:
        return tuple(adapter(tuple[Checkpoint, ...]).validate_python(document or ()))
    except ValidationError:
        return ()


def document(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]] | None:
    """Return the value of a ticket's column for checkpoints."""
    return [asdict(checkpoint) for checkpoint in checkpoints] or None


def tickets(connection: Connection, *where: ColumnElement[bool]) -> list[TicketRow]:
    """Return the tickets that meet conditions, in their order of work."""
    query = select(*TICKET_COLUMNS).where(*where).order_by(*ORDER)
    return [ticket_row(row) for row in connection.execute(query)]


def measurements(connection: Connection, *where: ColumnElement[bool]) -> list[Measurement]:
    """Return the measurements that meet conditions, by ticket, name and step."""
    query = (
        select(*(MEASUREMENT.c[f.name] for f in fields(Measurement)))
        .join(TICKET, TICKET.c.id == MEASUREMENT.c.ticket_id)
        .where(*where)
        .order_by(MEASUREMENT.c.ticket_id, MEASUREMENT.c.name, MEASUREMENT.c.step)
    )
    return read_rows(Measurement, connection.execute(query), "measurements")


def kind_clause(kinds: Iterable[Kind] | None) -> ColumnElement[bool]:
    """Return the condition that a ticket has one of the kinds; None: any kind."""
    return true() if kinds is None else TICKET.c.stage.in_([STAGES[kind] for kind in kinds])


def number_limit_clause(max_number_by_kind: Mapping[Kind, int | None]) -> ColumnElement[bool]:
    """Return the condition that a ticket has one of the kinds, and at most the number given for it."""
    # Only by stage and number, which are in the index, so that MySQL reads and locks only matching rows.
    stages = [STAGES[kind] for kind, last_number in max_number_by_kind.items() if last_number is None]
    bound = [
        and_(TICKET.c.stage == STAGES[kind], TICKET.c.number <= last_number)
        for kind, last_number in max_number_by_kind.items()
        if last_number is not None
    ]
    return or_(TICKET.c.stage.in_(stages) if stages else false(), *bound)


def since_clause(since: Mapping[Kind, int]) -> ColumnElement[bool]:
    """Return the condition that a ticket has one of the kinds, and at least the number given for it."""
    conditions = [
        and_(TICKET.c.stage == STAGES[kind], TICKET.c.number >= first_number)
        for kind, first_number in since.items()
    ]
    return or_(false(), *conditions)


def in_clause(column: ColumnElement[Any], values: Iterable[Any] | None) -> ColumnElement[bool]:
    """Return the condition that a column has one of the values; None: any value."""
    return true() if values is None else column.in_(list(values))


def prefix_clause(column: ColumnElement[str], prefixes: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a column begins with one of the prefixes; empty: any text."""
    conditions = [column.startswith(prefix, autoescape=True) for prefix in prefixes]
    return or_(*conditions) if conditions else true()

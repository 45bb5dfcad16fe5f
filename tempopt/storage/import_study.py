"""Write a complete study into a database, with new ids and with new trials in Optuna's tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.exc import IntegrityError

from tempopt.errors import StorageError
from tempopt.storage import optuna_tables, queries
from tempopt.storage.claims import sanitize_text
from tempopt.storage.models import ATTENTION_MAP, LOG, MEASUREMENT, STUDY, TICKET
from tempopt.storage.optuna_tables import MAX_IDS
from tempopt.storage.rows import TERMINAL_STATES, LogRow, Measurement, StudyRow, TicketRow, TrialParam
from tempopt.storage.trial_changes import TrialChange, TrialEnd
from tempopt.storage.upsert import insert_row, insert_rows

# Columns that differ between databases, or that waiting tickets do not have.
_EXCLUDED_COLUMNS = ("id", "study_id", "lease", "agent", "trial_number")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDump:
    """A study with all its rows; ids are those of the database from which it was read.

    Args:
        study: Its row.
        tickets: Its tickets; running ones are written as waiting.
        measurements: All measurements of its runs.
        logs: The ends of their outputs.
        maps: Attention maps, by ticket.
        warm_start: Its warm-start runs of earlier studies.
        trials: Parameters of the Optuna trials, by ticket.
    """

    study: StudyRow
    tickets: Sequence[TicketRow]
    measurements: Sequence[Measurement]
    logs: Sequence[LogRow]
    maps: Mapping[int, Any]
    warm_start: Sequence[Any]
    trials: Mapping[int, Sequence[TrialParam]]


def write(connection: Connection, whole_study: StudyDump, *, masked_url: str) -> int:
    """Write a study, and return its id; Optuna's study of its name must exist.

    Raises:
        StorageError: There is a study of that name.
    """
    study = whole_study.study
    columns = [f.name for f in fields(StudyRow) if f.name not in ("id", "age")]
    row = {name: getattr(study, name) for name in columns}
    row |= {"warm_start": list(whole_study.warm_start) or None}
    try:
        study_id = insert_row(connection, STUDY, row)
    except IntegrityError:
        raise StorageError(
            f'The store {masked_url} already has a study "{study.name}". Load it under another name: '
            "--name NAME"
        ) from None
    ids = _write_tickets(connection, study_id, whole_study.tickets)
    measurements = (
        {**dataclasses.asdict(measurement), "ticket_id": ids[measurement.ticket_id]}
        for measurement in whole_study.measurements
    )
    insert_rows(connection, MEASUREMENT, measurements)
    logs = (
        {**dataclasses.asdict(log), "ticket_id": ids[log.ticket_id], "text": sanitize_text(log.text)}
        for log in whole_study.logs
    )
    insert_rows(connection, LOG, logs)
    maps = ({"ticket_id": ids[id], "maps": ticket_maps} for id, ticket_maps in whole_study.maps.items())
    insert_rows(connection, ATTENTION_MAP, maps)
    _write_trials(connection, whole_study, ids)
    return study_id


def _write_tickets(connection: Connection, study_id: int, tickets: Iterable[TicketRow]) -> dict[int, int]:
    """Write tickets, and return the new id by the old one."""
    ordered_tickets = sorted(tickets, key=lambda ticket: ticket.id)
    columns = [f.name for f in fields(TicketRow) if f.name not in _EXCLUDED_COLUMNS]
    rows = (
        {name: getattr(ticket, name) for name in columns}
        | {
            "study_id": study_id,
            "stage": queries.STAGES[ticket.kind],
            "state": ticket.state if ticket.state in TERMINAL_STATES else "waiting",
            "checkpoints": queries.document(ticket.checkpoints),
            "error": sanitize_text(ticket.error),
        }
        for ticket in ordered_tickets
    )
    insert_rows(connection, TICKET, rows)
    query = select(TICKET.c.id, TICKET.c.kind, TICKET.c.number).where(TICKET.c.study_id == study_id)
    new_ids = {(row.kind, row.number): row.id for row in connection.execute(query)}
    return {ticket.id: new_ids[ticket.kind, ticket.number] for ticket in ordered_tickets}


def _write_trials(connection: Connection, whole_study: StudyDump, ids: Mapping[int, int]) -> None:
    """Write the Optuna trials of tickets, in the order in which they began."""
    owners = [ticket for ticket in whole_study.tickets if ticket.id in whole_study.trials]
    if not owners or not optuna_tables.is_supported_schema(connection):
        return
    reports: dict[int, dict[int, float]] = {}
    for measurement in whole_study.measurements:
        if measurement.name == "report":
            reports.setdefault(measurement.ticket_id, {})[measurement.step] = measurement.value
    owners.sort(key=lambda ticket: (ticket.trial_number or 0, ticket.number))
    params_by_ticket = {ids[ticket.id]: whole_study.trials[ticket.id] for ticket in owners}
    trials = optuna_tables.begin_trials(connection, whole_study.study.name, params_by_ticket)
    columns: dict[Any, Any] = {"trial_id": bindparam("trial"), "trial_number": bindparam("trial_rank")}
    connection.execute(
        update(TICKET).where(TICKET.c.id == bindparam("ticket")).values(columns),
        [{"ticket": id, "trial": trial, "trial_rank": number} for id, (trial, number) in trials.items()],
    )
    changes = [
        (trials[ids[ticket.id]][0], TrialChange(values=reports.get(ticket.id, {}), end=_trial_end(ticket)))
        for ticket in owners
    ]
    for start in range(0, len(changes), MAX_IDS):
        optuna_tables.write_trials(connection, dict(changes[start : start + MAX_IDS]))


def _trial_end(ticket: TicketRow) -> TrialEnd | None:
    if ticket.state != "withdrawn" and ticket.outcome is None:
        return None
    return TrialEnd(
        outcome=ticket.outcome or "failed",
        value=ticket.value,
        diverged_at=ticket.diverged_at,
        error=ticket.error,
    )

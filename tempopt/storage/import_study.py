"""Write a complete study into a database, with new ids and with new trials in Optuna's tables."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, insert, update
from sqlalchemy.exc import IntegrityError

from tempopt.errors import StorageError
from tempopt.storage import optuna_tables, queries
from tempopt.storage.claims import sanitize_text
from tempopt.storage.models import ATTENTION_MAP, LOG, MEASUREMENT, STUDY, TICKET
from tempopt.storage.optuna_tables import MAX_IDS
from tempopt.storage.rows import TERMINAL_STATES, LogRow, Measurement, StudyRow, TicketRow, TrialParam
from tempopt.storage.trial_changes import TrialChange, TrialEnd
from tempopt.storage.upsert import insert_row

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
    _insert_in_batches(connection, MEASUREMENT, measurements)
    logs = (
        {**dataclasses.asdict(log), "ticket_id": ids[log.ticket_id], "text": sanitize_text(log.text)}
        for log in whole_study.logs
    )
    _insert_in_batches(connection, LOG, logs)
    maps = ({"ticket_id": ids[id], "maps": ticket_maps} for id, ticket_maps in whole_study.maps.items())
    _insert_in_batches(connection, ATTENTION_MAP, maps)
    _write_trials(connection, whole_study, ids)
    return study_id


def _write_tickets(connection: Connection, study_id: int, tickets: Iterable[TicketRow]) -> dict[int, int]:
    """Write tickets, and return the new id by the old one."""
    ids: dict[int, int] = {}
    columns = [f.name for f in fields(TicketRow) if f.name not in _EXCLUDED_COLUMNS]
    for ticket in sorted(tickets, key=lambda ticket: ticket.id):
        row = {name: getattr(ticket, name) for name in columns}
        row |= {
            "study_id": study_id,
            "stage": queries.STAGES[ticket.kind],
            "state": ticket.state if ticket.state in TERMINAL_STATES else "waiting",
            "checkpoints": queries.document(ticket.checkpoints),
            "error": sanitize_text(ticket.error),
        }
        ids[ticket.id] = insert_row(connection, TICKET, row)
    return ids


def _write_trials(connection: Connection, whole_study: StudyDump, ids: Mapping[int, int]) -> None:
    """Write the Optuna trials of tickets, in the order in which they began."""
    if not optuna_tables.is_supported_schema(connection):
        return
    owners = [ticket for ticket in whole_study.tickets if ticket.id in whole_study.trials]
    reports: dict[int, dict[int, float]] = {}
    for measurement in whole_study.measurements:
        if measurement.name == "report":
            reports.setdefault(measurement.ticket_id, {})[measurement.step] = measurement.value
    changes = {}
    for ticket in sorted(owners, key=lambda ticket: (ticket.trial_number or 0, ticket.number)):
        trial, number = optuna_tables.begin_trial(
            connection, whole_study.study.name, ids[ticket.id], whole_study.trials[ticket.id]
        )
        values = {"trial_id": trial, "trial_number": number}
        connection.execute(update(TICKET).where(TICKET.c.id == ids[ticket.id]).values(values))
        end = None
        if ticket.state == "withdrawn" or ticket.outcome is not None:
            end = TrialEnd(
                outcome=ticket.outcome or "failed",
                value=ticket.value,
                diverged_at=ticket.diverged_at,
                error=ticket.error,
            )
        changes[trial] = TrialChange(values=reports.get(ticket.id, {}), end=end)
    optuna_tables.write_trials(connection, changes)


def _insert_in_batches(connection: Connection, table: Any, rows: Iterable[dict[str, Any]]) -> None:
    remaining = iter(rows)
    while part := list(itertools.islice(remaining, MAX_IDS)):
        connection.execute(insert(table), part)

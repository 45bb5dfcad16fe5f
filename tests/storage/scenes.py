"""What the store's tests say again and again: tickets, takings and changes in few words."""

from __future__ import annotations

from typing import Any

from tempopt.storage import Store
from tempopt.storage.changes import CheckpointRecorded, ClaimRequest, MetricReported, RunEnded, RunOutcome
from tempopt.storage.rows import KINDS, Checkpoint, Kind, NewTicket, StudyRow, TicketRow, TrialParam

ALL: dict[Kind, int | None] = dict.fromkeys(KINDS)
HOUR = 3600.0
PARAMETERS = {"temperature_init": 0.5, "schedule": "cosine"}
SAMPLED = {"x": 0.5}
X = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}'
TRIAL = (TrialParam(name="x", value=0.5, distribution=X),)


def new_ticket(number: int, kind: Kind = "search", **fields: Any) -> NewTicket:
    """Return a ticket to be written."""
    return NewTicket(kind=kind, arm="search", number=number, seed=2**63 - 1 - number, **fields)


def take(store: Store, study_id: int, agent: str = "agent", **fields: Any) -> TicketRow | None:
    """Take the next ticket of any kind; an agent of these tests knows all its tickets unless it says so."""
    held_ids = [t.id for t in store.tickets(study_id) if t.agent == agent]
    options = {
        "max_number_by_kind": ALL,
        "lease": HOUR,
        "max_attempts": 3,
        "held_ticket_ids": held_ids,
    } | fields
    return store.take_ticket(study_id, agent, ClaimRequest(**options))


def take_next(store: Store, study: StudyRow, agent: str = "agent", **options: Any) -> TicketRow:
    """Return the next ticket, which there must be."""
    ticket = take(store, study.id, agent, **options)
    assert ticket is not None
    return ticket


def only_ticket(store: Store, study_id: int) -> TicketRow:
    """Return the one ticket of a study as it is now."""
    (ticket,) = store.tickets(study_id)
    return ticket


def assert_fields(row: object, **expected: Any) -> None:
    """Check that fields of a row are as expected."""
    assert {name: getattr(row, name) for name in expected} == expected


def complete(value: float = 0.5, **fields: Any) -> RunOutcome:
    """Return how a run ends well."""
    return RunOutcome(outcome="complete", value=value, steps=100, seconds=2.5, **fields)


def reported(ticket: TicketRow, step: int, value: float) -> MetricReported:
    """Return a report of a ticket's attempt."""
    return MetricReported(ticket_id=ticket.id, attempt=ticket.attempt, step=step, value=value)


def make_end(ticket: TicketRow, outcomes: RunOutcome | None = None, **fields: Any) -> RunEnded:
    """Return the end of a ticket's attempt."""
    return RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes or complete(), **fields)


def make_kept(ticket: TicketRow, step: int, mark: str = "") -> CheckpointRecorded:
    """Return a checkpoint of a ticket's attempt."""
    url = f"file:///runs/step-{step}{mark}.ckpt"
    checkpoint = Checkpoint(step=step, url=url, digest=f"digest of {step}", size=10**10)
    return CheckpointRecorded(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint)

"""Claim and reclaim tickets, as functions of a connection in a transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, false, func, or_, select, update

from tempopt.storage import optuna_tables
from tempopt.storage.changes import ClaimRequest, state_after_loss
from tempopt.storage.clock import Clock
from tempopt.storage.models import MAX_NAME, STUDY, TICKET
from tempopt.storage.queries import ORDER, TICKET_COLUMNS, number_limit_clause, ticket_row
from tempopt.storage.rows import TicketRow
from tempopt.storage.trial_changes import TrialChange, TrialEnd

# MySQL locks the rows that it reads: a sort would lock all waiting tickets, and other agents would skip them.
NEXT_TICKET_HINT = (TICKET, "FORCE INDEX (tempopt_ticket_next)", "mysql")
# The columns that a write reads before it changes a ticket: all but the long ones.
LOCKED_TICKET_COLUMNS = [c for c in TICKET.c if c.name not in ("parameters", "sampled", "error", "code")]


def claim_ticket(
    connection: Connection, study_id: int, agent: str, request: ClaimRequest
) -> TicketRow | None:
    """Reclaim tickets of dead or expired holders, then claim and return the next; None if there is none.

    A repeated request returns the ticket that it has claimed before, while that runs.
    """
    if request.number is not None:
        is_held = (TICKET.c.study_id == study_id, TICKET.c.state == "running", TICKET.c.agent == agent)
        newest = connection.scalar(select(func.max(TICKET.c.claim)).where(*is_held))
        if newest is not None and newest >= request.number:
            query = select(*TICKET_COLUMNS).where(*is_held, TICKET.c.claim == request.number)
            repeated = None if newest > request.number else connection.execute(query).first()
            return None if repeated is None else ticket_row(repeated)
    _reclaim(connection, study_id, agent, request)
    conditions = (
        TICKET.c.study_id == study_id,
        TICKET.c.state == "waiting",
        number_limit_clause(request.max_number_by_kind),
    )
    # No ticket of a paused study can be claimed, even before its agents know that it is paused.
    running = select(STUDY.c.state).where(STUDY.c.id == study_id).scalar_subquery() == "running"
    # SQLite ignores FOR UPDATE: its transaction has begun IMMEDIATE and is the only one that writes.
    row = connection.execute(
        select(*TICKET_COLUMNS)
        .where(*conditions, running)
        .order_by(*ORDER)
        .limit(1)
        .with_for_update(skip_locked=True)
        .with_hint(*NEXT_TICKET_HINT)
    ).one_or_none()
    if row is None:
        return None
    values: dict[str, Any] = {
        "state": "running",
        "attempt": row.attempt + 1,
        "agent": agent,
        "started": now(),
    }
    stored_values = {**values, "lease": Clock() + request.lease, "claim": request.number}
    change_ticket(connection, row.id, **stored_values)
    return replace(ticket_row(row), **values, lease=float(request.lease))


def _reclaim(connection: Connection, study_id: int, agent: str, request: ClaimRequest) -> None:
    """Release running tickets whose lease has expired, whose agent is dead, or whose claim got no answer."""
    running = and_(TICKET.c.study_id == study_id, TICKET.c.state == "running")
    not_held_by_asker = and_(TICKET.c.agent == agent, TICKET.c.id.not_in(list(request.held_ticket_ids)))
    is_gone: ColumnElement[bool] = TICKET.c.agent.in_(list(request.dead)) if request.dead else false()
    if request.expired:
        is_gone = or_(is_gone, TICKET.c.lease <= Clock())
    # The requesting agent is alive: it keeps its tickets even if their leases have expired.
    is_free = and_(running, or_(not_held_by_asker, and_(TICKET.c.agent != agent, is_gone)))
    # Without locks: MySQL would lock every running ticket that it reads, and block writers.
    ids = connection.scalars(select(TICKET.c.id).where(is_free).with_hint(*NEXT_TICKET_HINT)).all()
    if not ids:
        return
    query = select(*LOCKED_TICKET_COLUMNS).where(TICKET.c.id.in_(ids), is_free).order_by(TICKET.c.id)
    failed = {}
    for row in connection.execute(query.with_for_update(skip_locked=True)).all():
        if row.agent == agent:
            # The answer to its claim was lost: the run has not begun, and no failure is counted.
            change_ticket(connection, row.id, state="waiting", agent=None, lease=None)
            continue
        why = "died" if row.agent in request.dead else "made no progress within its lease"
        error = f"Attempt {row.attempt} was lost: its agent {row.agent} {why}."
        values = values_after_lost_attempt(row, error, request.max_attempts)
        # The agent's name is kept, so that the agent can readopt the ticket until another claims it.
        change_ticket(connection, row.id, **values | {"agent": row.agent})
        if values["state"] == "failed" and row.trial_id is not None:
            failed[row.trial_id] = TrialChange(end=TrialEnd(outcome="failed", error=error))
    optuna_tables.write_trials(connection, failed)


def values_after_lost_attempt(row: Row[Any], error: str, max_attempts: int) -> dict[str, Any]:
    """Return the columns of a ticket whose attempt was lost: it waits again, or has failed permanently."""
    state = state_after_loss(row.failures, max_attempts)
    is_last = state == "failed"
    return {
        "state": state,
        "agent": row.agent if is_last else None,
        "lease": None,
        "outcome": "failed" if is_last else None,
        "failures": row.failures + 1,
        "error": sanitize_text(error),
        "finished": now() if is_last else None,
    }


def stale_reason(row: Row[Any] | None, ticket_id: int, attempt: int, agent: str | None = None) -> str:
    """Return why an attempt may no longer write about its ticket; the empty text if it may.

    Args:
        agent: Agent that must hold the ticket; None: check the attempt only.
    """
    if row is None:
        return f"Ticket {ticket_id} has been deleted; attempt {attempt} is discarded."
    if (row.attempt, row.state) == (attempt, "running") and agent in (None, row.agent):
        return ""
    return (
        f"Ticket {ticket_id} ({row.kind} {row.number}) is {row.state} at attempt {row.attempt}"
        f"{f', held by {row.agent}' if row.agent else ''}; attempt {attempt} is discarded."
    )


def values_after_readoption(row: Row[Any], lease: float) -> dict[str, Any]:
    """Return the columns of a reclaimed ticket whose holder has reported again."""
    return {
        "state": "running",
        "lease": Clock() + lease,
        "failures": max(0, row.failures - 1),
        "error": None,
    }


def change_ticket(connection: Connection, ticket_id: int, **values: Any) -> None:
    """Write columns of one ticket."""
    connection.execute(update(TICKET).where(TICKET.c.id == ticket_id).values(values))


def now() -> datetime:
    """Return the current time by this machine's clock: for display, never for comparisons."""
    return datetime.now(UTC)


def sanitize_text(text: str | None) -> str | None:
    """Return a text that every database can store: without NUL (PostgreSQL) and lone surrogates (all)."""
    return None if text is None else text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def shorten_text(text: str | None) -> str | None:
    """Return a text cut to the size of a column for names."""
    storable_text = sanitize_text(text)
    return None if storable_text is None else storable_text[:MAX_NAME]

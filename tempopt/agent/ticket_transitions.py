"""The end of an attempt: the change for the store, and the ticket after it.

Decides nothing; what an attempt cost is counted here and nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tempopt.agent.worker_slot import WorkerSlot
from tempopt.storage.changes import AttemptLost, AttemptReleased, RunEnded, RunOutcome, state_after_loss
from tempopt.storage.rows import Measurement, Outcome, TicketRow
from tempopt.training.messages import Finished


def build_run_ended(
    work: WorkerSlot,
    outcome: Outcome,
    message: Finished,
    *,
    value: float | None,
    measured: Sequence[Measurement],
) -> tuple[RunEnded, TicketRow]:
    """Return what becomes of a ticket whose parameters have decided how its run ends.

    Args:
        value: What counts of it, if anything does.
        measured: What was measured at its end.
    """
    ticket = _ticket(work)
    outcomes = RunOutcome(
        outcome=outcome,
        value=value,
        steps=message.step,
        seconds=message.seconds,
        diverged_at=message.step if outcome == "diverged" else None,
        measurements=list(measured),
        checkpoint_seconds=message.checkpoint_seconds,
        gpu_seconds=message.seconds * work.cards,
        peak_memory=message.peak_memory,
        maps=message.maps if outcome == "complete" else None,
    )
    change = RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes, log=work.printed())
    return change, apply_run_ended(ticket, outcomes, work.total_steps)


def apply_run_ended(ticket: TicketRow, outcomes: RunOutcome, total_steps: int | None) -> TicketRow:
    """Return a ticket as it is once its run has ended.

    Args:
        ticket: As it was while the run was in progress.
        total_steps: Steps of the whole run; None: it had not begun to train.
    """
    return dataclasses.replace(
        ticket,
        state="done",
        outcome=outcomes.outcome,
        value=outcomes.value,
        steps=outcomes.steps,
        total_steps=total_steps,
        seconds=ticket.seconds + outcomes.seconds,
        gpu_seconds=ticket.gpu_seconds + outcomes.gpu_seconds,
        diverged_at=outcomes.diverged_at,
        checkpoints=(),
    )


def to_pruned_outcome(outcomes: RunOutcome, value: float | None) -> RunOutcome:
    """Return the outcomes of a run that went on, perhaps to its end, after the report that it is pruned at.

    Args:
        value: That report's.
    """
    return dataclasses.replace(
        outcomes, outcome="pruned", value=value, diverged_at=None, error=None, measurements=[], maps=None
    )


def build_attempt_lost(
    work: WorkerSlot, why: str, *, attempts: int, alone: bool
) -> tuple[AttemptLost, TicketRow]:
    """Return what becomes of a ticket whose attempt was lost: it waits again, or has failed.

    Args:
        attempts: Failures after which it is not tried again.
        alone: Whether it is to have a card to itself from then on.
    """
    ticket, seconds = _ticket(work), work.age
    change = AttemptLost(
        ticket_id=ticket.id,
        attempt=ticket.attempt,
        error=why,
        max_attempts=attempts,
        seconds=seconds,
        log=work.printed(),
        alone=alone,
        gpu_seconds=seconds * work.cards,
    )
    return change, apply_attempt_lost(ticket, change)


def apply_attempt_lost(ticket: TicketRow, change: AttemptLost) -> TicketRow:
    """Return a ticket as it is after an attempt was lost."""
    row = dataclasses.replace(
        ticket,
        error=change.error,
        failures=ticket.failures + 1,
        seconds=ticket.seconds + change.seconds,
        gpu_seconds=ticket.gpu_seconds + change.gpu_seconds,
        alone=ticket.alone or change.alone,
    )
    if state_after_loss(ticket.failures, change.max_attempts) == "waiting":
        return dataclasses.replace(row, state="waiting", agent=None)
    return dataclasses.replace(row, state="failed", outcome="failed", checkpoints=())


def build_attempt_released(work: WorkerSlot, peak_memory: int | None) -> AttemptReleased:
    """Return the change for a ticket that is returned in good order."""
    ticket, seconds = _ticket(work), work.age
    return AttemptReleased(
        ticket_id=ticket.id,
        attempt=ticket.attempt,
        seconds=seconds,
        log=work.printed(),
        gpu_seconds=seconds * work.cards,
        peak_memory=peak_memory,
    )


def _ticket(work: WorkerSlot) -> TicketRow:
    assert work.ticket is not None
    return work.ticket

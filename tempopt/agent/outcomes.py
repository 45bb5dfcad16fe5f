"""The end of an attempt: the change for the store, and the ticket after it.

Decides nothing; what an attempt cost is counted here and nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tempopt.agent.trial_attributes import trial_attributes
from tempopt.agent.worker_slot import WorkerSlot
from tempopt.records.changes import Ended, Lost, Outcomes, Returned
from tempopt.records.rows import Checkpoint, Measurement, Outcome, TicketRow
from tempopt.workers.messages import Finished


def ended(
    work: WorkerSlot,
    outcome: Outcome,
    message: Finished,
    *,
    value: float | None,
    measured: Sequence[Measurement],
    gain: float | None,
    kept: tuple[Checkpoint, ...] = (),
) -> tuple[Ended, TicketRow]:
    """Return what becomes of a ticket whose parameters have decided how its run ends.

    Args:
        value: What counts of it, if anything does.
        measured: What was measured at its end.
        gain: How much better than τ = 1 it is, as far as that is known.
        kept: Checkpoints that other runs may begin from.
    """
    ticket = _ticket(work)
    outcomes = Outcomes(
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
        attributes=trial_attributes(ticket, message.seconds, gain, measured),
    )
    row = dataclasses.replace(
        ticket,
        state="done",
        outcome=outcome,
        value=value,
        steps=message.step,
        total_steps=work.total_steps,
        seconds=ticket.seconds + outcomes.seconds,
        gpu_seconds=ticket.gpu_seconds + outcomes.gpu_seconds,
        diverged_at=outcomes.diverged_at,
        checkpoints=kept,
    )
    change = Ended(
        ticket_id=ticket.id,
        attempt=ticket.attempt,
        outcomes=outcomes,
        log=work.printed(),
        checkpoints=kept,
    )
    return change, row


def lost(work: WorkerSlot, why: str, *, attempts: int, alone: bool) -> tuple[Lost, TicketRow]:
    """Return what becomes of a ticket whose attempt was lost: it waits again, or has failed.

    Args:
        attempts: Failures after which it is not tried again.
        alone: Whether it is to have a card to itself from then on.
    """
    ticket, seconds = _ticket(work), work.age
    change = Lost(
        ticket_id=ticket.id,
        attempt=ticket.attempt,
        error=why,
        max_attempts=attempts,
        seconds=seconds,
        log=work.printed(),
        alone=alone,
        gpu_seconds=seconds * work.cards,
    )
    row = dataclasses.replace(
        ticket,
        error=why,
        failures=ticket.failures + 1,
        seconds=ticket.seconds + seconds,
        gpu_seconds=ticket.gpu_seconds + change.gpu_seconds,
        alone=ticket.alone or alone,
    )
    if row.failures < attempts:
        return change, dataclasses.replace(row, state="waiting", agent=None)
    return change, dataclasses.replace(row, state="failed", outcome="failed", checkpoints=())


def returned(work: WorkerSlot, peak_memory: int | None) -> Returned:
    """Return the change for a ticket that is given back in good order."""
    ticket, seconds = _ticket(work), work.age
    return Returned(
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

"""The end of an attempt: the change for the store, the ticket after it, and what Optuna shows of its trial.

Decides nothing; what an attempt cost is counted here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from statistics import fmean, geometric_mean

from tempopt.agent.worker_slot import WorkerSlot
from tempopt.storage.changes import AttemptLost, AttemptReleased, RunEnded, RunOutcome, state_after_loss
from tempopt.storage.rows import Measurement, Outcome, TicketRow
from tempopt.storage.ticket_queries import last_values
from tempopt.temperature import (
    TemperatureParameters,
    is_controlled,
    list_temperatures,
    parameters_of_temperature,
)
from tempopt.training.messages import CONTROLLED_CURVE, Finished

ENTROPY = "entropy/"
"""Measurements of the attention entropy begin so; the layer and the head follow."""


def build_run_ended(
    slot: WorkerSlot,
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
    ticket = slot.current_ticket
    outcomes = RunOutcome(
        outcome=outcome,
        value=value,
        steps=message.step,
        seconds=message.seconds,
        diverged_at=message.step if outcome == "diverged" else None,
        measurements=list(measured),
        checkpoint_seconds=message.checkpoint_seconds,
        gpu_seconds=message.seconds * slot.cards,
        peak_memory=message.peak_memory,
        maps=message.maps if outcome == "complete" else None,
    )
    change = RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes, log=slot.output_tail())
    return change, apply_run_ended(ticket, outcomes, slot.total_steps)


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
    slot: WorkerSlot, why: str, *, max_attempts: int, alone: bool
) -> tuple[AttemptLost, TicketRow]:
    """Return what becomes of a ticket whose attempt was lost: it waits again, or has failed.

    Args:
        max_attempts: Failures after which it is not tried again, >= 1.
        alone: Whether it is to have a card to itself from then on.
    """
    ticket, seconds = slot.current_ticket, slot.age
    change = AttemptLost(
        ticket_id=ticket.id,
        attempt=ticket.attempt,
        error=why,
        max_attempts=max_attempts,
        seconds=seconds,
        log=slot.output_tail(),
        alone=alone,
        gpu_seconds=seconds * slot.cards,
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


def build_attempt_released(slot: WorkerSlot, peak_memory: int | None) -> AttemptReleased:
    """Return the change for a ticket that is returned in good order."""
    ticket, seconds = slot.current_ticket, slot.age
    return AttemptReleased(
        ticket_id=ticket.id,
        attempt=ticket.attempt,
        seconds=seconds,
        log=slot.output_tail(),
        gpu_seconds=seconds * slot.cards,
        peak_memory=peak_memory,
    )


def build_trial_user_attrs(
    ticket: TicketRow, seconds: float, gain: float | None, measurements: Iterable[Measurement]
) -> dict[str, int | float]:
    """Return the numbers by which a trial that has ended can be sorted; what cannot be said is left out.

    Their names are no names of parameters, so that a table holds both.

    ``tau_init``, ``tau_final``: attention's temperature at progress 0 and 1, in the geometric mean over the
    layers, or the last one that was measured where it follows a target of the entropy;
    ``contrast_init``, ``contrast_final``: that of a temperature named ``contrast``.
    ``gain``: value of a complete run less the mean of the baseline's runs, > 0 being better; of a trial that
    ended before all of these had there is none.
    ``entropy_final``: attention entropy at the end, a share of ln n in [0, 1], in the mean over all heads.
    ``seconds``: of training, all attempts. ``seed``: of the run.

    Args:
        ticket: As it was taken; one that has no trial has no attributes.
        seconds: Training seconds of this attempt.
        gain: As far as it is known.
        measurements: What was measured at its end.
    """
    if ticket.trial_number is None:
        return {}
    attributes: dict[str, int | float] = {}
    parameters = ticket.parameters or {}
    for name in list_temperatures(parameters):
        level = (
            TemperatureParameters.from_mapping(parameters_of_temperature(parameters, name)).plan(1).schedule
        )
        attributes |= {f"{name or 'tau'}_init": level(0.0), f"{name or 'tau'}_final": level(1.0)}
    measurements = list(measurements)
    if is_controlled(parameters):
        ends = _ends(CONTROLLED_CURVE, measurements)
        attributes["tau_final"] = geometric_mean(ends) if ends else math.nan
    if gain is not None:
        attributes["gain"] = gain
    if entropies := _ends(ENTROPY, measurements):
        attributes["entropy_final"] = fmean(entropies)
    attributes |= {"seconds": ticket.seconds + seconds, "seed": ticket.seed}
    return {name: number for name, number in attributes.items() if math.isfinite(number)}


def _ends(prefix: str, measurements: Iterable[Measurement]) -> list[float]:
    """Return the last value of each measurement of a ticket whose name begins so."""
    return [
        value
        for values_by_ticket in last_values(measurements, prefix).values()
        for value in values_by_ticket.values()
    ]

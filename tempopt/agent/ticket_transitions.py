"""The end of an attempt: the change for the store, the ticket after it, and the attributes of Optuna's trial.

Makes no decisions. The cost of an attempt is computed only here.
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
"""Prefix of the measurements of attention entropy; layer and head follow."""


def build_run_ended(
    slot: WorkerSlot,
    outcome: Outcome,
    message: Finished,
    *,
    value: float | None,
    measured: Sequence[Measurement],
) -> tuple[RunEnded, TicketRow]:
    """Return the change and the ticket of a run that has ended: complete, pruned or diverged.

    Args:
        value: Value of the run, None if it has none.
        measured: Measurements at its end.
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
    """Return a ticket after the end of its run.

    Args:
        ticket: The ticket while the run was in progress.
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
    """Return the outcomes of a run that is pruned at an earlier report than its last.

    Args:
        value: The value of that report.
    """
    return dataclasses.replace(
        outcomes, outcome="pruned", value=value, diverged_at=None, error=None, measurements=[], maps=None
    )


def build_attempt_lost(
    slot: WorkerSlot, why: str, *, max_attempts: int, alone: bool
) -> tuple[AttemptLost, TicketRow]:
    """Return the change and the ticket of a lost attempt: the ticket waits again, or has failed.

    Args:
        max_attempts: Failures after which the ticket is not repeated, >= 1.
        alone: Whether it needs a GPU to itself from then on.
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
    """Return a ticket after the loss of an attempt."""
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
    """Return the change for a ticket that is released without a failure."""
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
    """Return the user attributes of a trial that has ended; values that are not known are left out.

    The names differ from all names of parameters, so that one table can hold both.

    - ``tau_init``, ``tau_final``: attention temperature at progress 0 and 1, geometric mean over the layers;
      under entropy control ``tau_final`` is the last one that was measured.
    - ``contrast_init``, ``contrast_final``: the same of a temperature named ``contrast``.
    - ``gain``: value of a complete run minus the mean of the baseline runs, > 0 being better; missing if the
      trial ended before all baseline runs had.
    - ``entropy_final``: attention entropy at the end as a share of ln n, in [0, 1], mean over all heads.
    - ``seconds``: training seconds of all attempts.
    - ``seed``: seed of the run.

    Args:
        ticket: The ticket when it was claimed; without a trial there are no attributes.
        seconds: Training seconds of this attempt.
        gain: The gain, None while it is not known.
        measurements: Measurements at the end of the run.
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
        ends = _list_last_values(CONTROLLED_CURVE, measurements)
        attributes["tau_final"] = geometric_mean(ends) if ends else math.nan
    if gain is not None:
        attributes["gain"] = gain
    if entropies := _list_last_values(ENTROPY, measurements):
        attributes["entropy_final"] = fmean(entropies)
    attributes |= {"seconds": ticket.seconds + seconds, "seed": ticket.seed}
    return {name: number for name, number in attributes.items() if math.isfinite(number)}


def _list_last_values(prefix: str, measurements: Iterable[Measurement]) -> list[float]:
    """Return the last value of each measurement whose name begins with a prefix."""
    return [
        value
        for values_by_ticket in last_values(measurements, prefix).values()  # one dict for each name
        for value in values_by_ticket.values()
    ]

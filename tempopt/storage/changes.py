"""What an agent tells the store about tickets, and what the store answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from tempopt.storage.rows import (
    Attempt,
    BoundedText,
    Checkpoint,
    Kind,
    Measurement,
    MetricValue,
    NumBytes,
    Outcome,
    Step,
    StudyState,
    TicketId,
    TicketRow,
    is_finite,
)

MOST_SECONDS = 1e10
"""Seconds, and seconds times cards, that count of one attempt at the most: three centuries of one card."""
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, strict=True)]


def clamp_seconds(seconds: float) -> float:
    """Clamp seconds to [0, :data:`MOST_SECONDS`], so that no sum of them overflows."""
    return max(seconds, 0.0) if seconds <= MOST_SECONDS else MOST_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended, as the agent tells the store.

    A complete run whose value is beyond :data:`~tempopt.storage.rows.LARGEST_VALUE` becomes a diverged one.

    Args:
        value: Finite; None for a run that diverged or failed, and for one pruned before it reported.
        seconds: Training seconds of this attempt.
        checkpoint_seconds: Part of them that went into writing checkpoints.
        gpu_seconds: They times the cards that they were spent on.
        peak_memory: Most bytes that this attempt had allocated on one card; None without cards.
        maps: What the heads of its attention attend to, as plain data; None: it was not looked at.
        attributes: Numbers to be shown with its trial in Optuna, by name; finite.
        constraints: Name of a guard to how far the run exceeds its limit, as Optuna's constraints; finite.

    Raises:
        ValueError: The value is not finite, or missing from a complete run, or there for a diverged one.
    """

    outcome: Outcome
    value: Annotated[float, Field(strict=True)] | None
    steps: Step | None
    seconds: Seconds
    diverged_at: Step | None = None
    error: str | None = None
    measurements: list[Measurement] = field(default_factory=list)
    checkpoint_seconds: Seconds = 0.0
    gpu_seconds: Seconds = 0.0
    peak_memory: NumBytes | None = None
    attributes: dict[str, int | float] = field(default_factory=dict)
    constraints: dict[str, float] = field(default_factory=dict)
    maps: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(
                f"The value of a run is finite or None, not {self.value}: a run that is not is diverged."
            )
        if self.value is not None and not is_finite(self.value) and self.outcome in ("complete", "pruned"):
            object.__setattr__(self, "value", None)
            if self.outcome == "complete":
                object.__setattr__(self, "outcome", "diverged")
                object.__setattr__(self, "diverged_at", self.steps)
        if (self.value is None and self.outcome == "complete") or (
            self.value is not None and self.outcome in ("diverged", "failed")
        ):
            raise ValueError(f"A run whose outcome is {self.outcome} cannot have the value {self.value}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run of an attempt has begun to train; what is not said here is as in TicketRow."""

    ticket_id: TicketId
    attempt: Attempt
    total_steps: Step
    code: BoundedText
    machine: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricReported:
    """One validation of a run: optimizer step and metric, NaN for one that is not finite (``is_finite``)."""

    ticket_id: TicketId
    attempt: Attempt
    step: Step
    value: MetricValue

    def __post_init__(self) -> None:
        if not is_finite(self.value):
            object.__setattr__(self, "value", math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecorded:
    """A run has written a checkpoint; those are remembered that :func:`checkpoints_to_resume` names."""

    ticket_id: TicketId
    attempt: Attempt
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A run came to an end that its parameters decided.

    Args:
        log: The end of what it printed.
    """

    ticket_id: TicketId
    attempt: Attempt
    outcomes: RunOutcome
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """The infrastructure lost an attempt: the ticket waits again, or has failed for good.

    Args:
        error: What happened, for a person to read.
        max_attempts: Failures after which the ticket is not tried again, >= 1.
        seconds: Training seconds of this attempt.
        log: The end of what the run printed.
        alone: Whether later attempts are to have a card to themselves.
        gpu_seconds: The seconds times the cards that they were spent on.
    """

    ticket_id: TicketId
    attempt: Attempt
    error: str
    max_attempts: Attempt
    seconds: Seconds = 0.0
    log: str = ""
    alone: bool = False
    gpu_seconds: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReleased:
    """An attempt was broken off in good order: the ticket waits again, and no failure is counted.

    The numbers are as in Outcomes.
    """

    ticket_id: TicketId
    attempt: Attempt
    seconds: Seconds = 0.0
    log: str = ""
    gpu_seconds: Seconds = 0.0
    peak_memory: NumBytes | None = None


def state_after_loss(failures: int, max_attempts: int) -> Literal["waiting", "failed"]:
    """Return the state of a ticket whose attempt was lost: it waits again, or has failed for good.

    Args:
        failures: Attempts that were lost before.
        max_attempts: Failures after which a ticket is not tried again.
    """
    return "failed" if failures + 1 >= max_attempts else "waiting"


Change = RunStarted | MetricReported | CheckpointRecorded | RunEnded | AttemptLost | AttemptReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Which ticket an agent would take, and what it knows of those that others hold.

    Args:
        max_number_by_kind: The kinds to take from, in their order, each with the highest number that may be
            taken (None: any).
        lease: Seconds, > 0, within which the run has to show progress (see ``Store.write``).
        max_attempts: Failures after which a ticket is not tried again, >= 1.
        dead: Names of agents that are known to have died.
        held_ticket_ids: Ids of the tickets that this agent knows it holds.
        expired: Whether leases that are over count; False just after the store was away, when others
            could not renew theirs either.
    """

    max_number_by_kind: Mapping[Kind, int | None]
    lease: float
    max_attempts: int
    dead: Collection[str] = ()
    held_ticket_ids: Collection[int] = ()
    expired: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """What became of changes that were written, and how the study stands.

    Args:
        refused: Ticket id to the reason, for tickets that are another's by now: what was to be written
            about them was discarded, and so should their runs be.
        state: State of the study.
        version: Version of its tickets.
        age: Seconds since the study was created, by the database's clock.
        claimed_ticket: The ticket that was taken with it; None: none was wanted, or there was none.
    """

    refused: dict[int, str]
    state: StudyState
    version: int
    age: float = field(default=0.0, compare=False)
    claimed_ticket: TicketRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDelta:
    """What others have done to a study's tickets.

    Args:
        state: State of the study.
        version: Version of its tickets, no older than this answer; another than before: read all of
            them again, before anything else is made of this.
        tickets: Tickets that are not waiting, of those that were asked about.
        reports: Reports of those among them that are over and belong to an arm that searches, and what they
            measured of guarded metrics.
        age: Seconds since the study was created, by the database's clock.
    """

    state: StudyState
    version: int
    tickets: list[TicketRow]
    reports: list[Measurement]
    age: float

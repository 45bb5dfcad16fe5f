"""The changes of tickets that agents report, and the answers of the store."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from tempopt.storage.attention_maps import MapsData
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

MAX_SECONDS = 1e10
"""Maximal seconds, and GPU seconds, of one attempt: three centuries of one GPU."""
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, strict=True)]


def clamp_seconds(seconds: float) -> float:
    """Clamp seconds to [0, :data:`MAX_SECONDS`], so that no sum of them overflows."""
    return max(seconds, 0.0) if seconds <= MAX_SECONDS else MAX_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The outcome of a run, as reported by its agent.

    A complete run whose value exceeds :data:`~tempopt.storage.rows.MAX_VALUE` counts as diverged.

    Args:
        value: Finite; None for a run that diverged, failed, or was pruned before its first report.
        seconds: Training seconds of this attempt.
        checkpoint_seconds: Part of ``seconds`` spent on writing checkpoints.
        gpu_seconds: ``seconds`` times the number of GPUs.
        peak_memory: Maximal bytes that this attempt had allocated on one GPU; None without a GPU.
        maps: Attention maps of its heads, as plain data; None: they were not recorded.
        attributes: Numbers to be shown with its trial in Optuna, by name; finite.
        constraints: By how much the run exceeds the limit of each guard, by name, as Optuna's constraints;
            finite.

    Raises:
        ValueError: The value is not finite, a complete run has none, or a diverged or failed run has one.
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
    maps: MapsData | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(
                f"The value of a run must be finite or None, not {self.value}: report such a run as diverged."
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
    """The run of an attempt has begun to train; fields as in TicketRow."""

    ticket_id: TicketId
    attempt: Attempt
    total_steps: Step
    code: BoundedText
    machine: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricReported:
    """One validation of a run: optimizer step and metric, NaN if it is not finite (``is_finite``)."""

    ticket_id: TicketId
    attempt: Attempt
    step: Step
    value: MetricValue

    def __post_init__(self) -> None:
        if not is_finite(self.value):
            object.__setattr__(self, "value", math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecorded:
    """A run has written a checkpoint; :func:`checkpoints_to_resume` selects those that are stored."""

    ticket_id: TicketId
    attempt: Attempt
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A run has ended with an outcome of its parameters: complete, pruned or diverged.

    Args:
        log: The end of its output.
    """

    ticket_id: TicketId
    attempt: Attempt
    outcomes: RunOutcome
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLost:
    """An attempt was lost by the infrastructure: the ticket waits again, or has failed permanently.

    Args:
        error: Message on what happened.
        max_attempts: Failures after which the ticket is not repeated, >= 1.
        seconds: Training seconds of this attempt.
        log: The end of the run's output.
        alone: Whether later attempts need a GPU to themselves.
        gpu_seconds: ``seconds`` times the number of GPUs.
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
    """An attempt was ended at a checkpoint: the ticket waits again, and no failure is counted.

    Fields as in RunOutcome.
    """

    ticket_id: TicketId
    attempt: Attempt
    seconds: Seconds = 0.0
    log: str = ""
    gpu_seconds: Seconds = 0.0
    peak_memory: NumBytes | None = None


def state_after_loss(failures: int, max_attempts: int) -> Literal["waiting", "failed"]:
    """Return the state of a ticket whose attempt was lost: it waits again, or has failed permanently.

    Args:
        failures: Number of attempts that were lost before.
        max_attempts: Failures after which a ticket is not repeated.
    """
    return "failed" if failures + 1 >= max_attempts else "waiting"


Change = RunStarted | MetricReported | CheckpointRecorded | RunEnded | AttemptLost | AttemptReleased


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Which tickets an agent may claim, and which holders it knows to be dead.

    Args:
        max_number_by_kind: The allowed kinds, in their order, each with the highest allowed number; None: any
            number.
        lease: Seconds, > 0, within which the run has to make progress (see ``Store.write``).
        max_attempts: Failures after which a ticket is not repeated, >= 1.
        dead: Names of agents that are known to have died.
        held_ticket_ids: Ids of the tickets that this agent knows that it holds.
        expired: Whether tickets with expired leases are reclaimed; False just after an outage of the store,
            in which other agents could not renew theirs.
    """

    max_number_by_kind: Mapping[Kind, int | None]
    lease: float
    max_attempts: int
    dead: Collection[str] = ()
    held_ticket_ids: Collection[int] = ()
    expired: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The result of writing changes, and the state of the study.

    Args:
        refused: Reason by ticket id, for tickets that another agent holds by now: their changes were
            discarded, and their runs should be, too.
        state: State of the study.
        version: Version of its tickets.
        age: Seconds since the study was created, by the database's clock.
        claimed_ticket: The ticket that was claimed; None: none was requested, or none may begin.
    """

    refused: dict[int, str]
    state: StudyState
    version: int
    age: float = field(default=0.0, compare=False)
    claimed_ticket: TicketRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDelta:
    """Changes of a study's tickets by other agents.

    Args:
        state: State of the study.
        version: Version of its tickets, not older than this answer. If it has changed, read all tickets
            again before using this answer.
        tickets: Those of the requested tickets that are not waiting.
        reports: Reports and guarded metrics of the search tickets among them that are over.
        age: Seconds since the study was created, by the database's clock.
    """

    state: StudyState
    version: int
    tickets: list[TicketRow]
    reports: list[Measurement]
    age: float

"""What the store gives out and takes in: plain immutable rows, no SQL and no Optuna."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Kind = Literal["unit", "constant", "search", "choose", "confirm", "init_only"]
KINDS: tuple[Kind, ...] = ("unit", "constant", "search", "choose", "confirm", "init_only")
TicketState = Literal["waiting", "running", "done", "failed"]
Outcome = Literal["complete", "pruned", "diverged", "failed"]
StudyState = Literal["running", "paused", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One study.

    Args:
        name: Unique in its database, 1 to 255 characters.
        spec: The resolved study spec as plain JSON data (``StudySpec.to_json``), with no password in it.
        spec_hash: Identity of the spec, at most 64 characters.
        created: In UTC, as every moment here.
    """

    id: int
    name: str
    spec: dict[str, Any]
    spec_hash: str
    state: StudyState
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """One study and how far it is.

    Args:
        tickets: Number of tickets by kind and state; what there is none of is left out.
    """

    study: StudyRow
    tickets: dict[Kind, dict[TicketState, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketRow:
    """The right and duty to do one run.

    Args:
        kind: Stage it belongs to; in ``choose`` and ``confirm`` the arm says whose candidate is trained.
        arm: ``unit``, ``constant``, ``search`` or ``init_only``.
        number: Position within its kind, from 0.
        candidate: For choose and confirm: rank of the candidate within its arm, from 0; else None.
        pair: For choose, confirm and init_only: index of the seed that is shared across arms; else None.
        seed: Seed of the run, 0 <= seed < 2**63.
        parameters: The parameter set, effective values; None until it has been suggested.
        trial_number: Number of the Optuna trial (search tickets only).
        state: ``done`` has an outcome; ``failed`` means that every attempt was lost.
        attempt: How often it was taken; every write about a run carries it, so that a stale one is refused.
        value: The value that counts for its kind: the validation metric at the end, for confirm and
            init_only the metric on ``study.confirm_on``. None unless the outcome is complete (for
            pruned: the last reported value).
        diverged_at: Optimizer step at which the run diverged, else None.
        error: Last error message of a failed attempt, else None.
        agent: Who holds it, or held it last; None while it waits.
        seconds: Training seconds over all attempts.
        steps: Optimizer steps done; total_steps: steps it would have taken to the end.
        code: Identity of the code that ran it.
        started: When it was last taken.
        failures: Attempts that the infrastructure lost; those given back in good order do not count.
    """

    id: int
    study_id: int
    kind: Kind
    arm: str
    number: int
    candidate: int | None
    pair: int | None
    seed: int
    parameters: dict[str, Any] | None
    trial_number: int | None
    state: TicketState
    outcome: Outcome | None
    attempt: int
    value: float | None
    diverged_at: int | None
    error: str | None
    agent: str | None
    seconds: float
    steps: int | None
    total_steps: int | None
    code: str | None
    started: datetime | None
    finished: datetime | None
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTicket:
    """A ticket to be written: the fields that are known beforehand."""

    kind: Kind
    arm: str
    number: int
    seed: int
    candidate: int | None = None
    pair: int | None = None
    parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number that a run measured.

    Args:
        step: Optimizer step (reports), or the last step (evaluations).
        name: ``report`` for the validation metric during training; else an evaluation's name, as in
            ``validate``, ``validate_current``, ``test``, ``test:winner``, ``test:constant=0.5``.
        value: NaN for what was measured and is not a finite number (infinities come back as NaN:
            not every database can hold them).
    """

    ticket_id: int
    step: int
    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How a run ended, as the agent tells the store.

    Args:
        value: Finite; None for a run that diverged or failed, and for one pruned before it reported.
        seconds: Training seconds of this attempt.

    Raises:
        ValueError: The value is not finite, or missing from a complete run, or there for a diverged one.
    """

    outcome: Outcome
    value: float | None
    steps: int | None
    seconds: float
    diverged_at: int | None = None
    error: str | None = None
    measurements: list[Measurement] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(
                f"The value of a run is finite or None, not {self.value}: a run that is not is diverged."
            )
        if (self.value is None and self.outcome == "complete") or (
            self.value is not None and self.outcome in ("diverged", "failed")
        ):
            raise ValueError(f"A run whose outcome is {self.outcome} cannot have the value {self.value}.")

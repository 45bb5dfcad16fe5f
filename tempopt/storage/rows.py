"""What the store gives out and takes in: plain immutable rows, no SQL and no Optuna."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PlainSerializer

Kind = Literal["baseline", "constant", "search", "choose", "confirm", "ablation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SEARCH_KINDS: tuple[Literal["baseline", "constant", "search"], ...] = ("baseline", "constant", "search")
"""The kinds whose runs look for the parameters; the others judge what was found."""
TicketState = Literal["waiting", "running", "done", "failed", "withdrawn"]
TICKET_STATES: tuple[TicketState, ...] = get_args(TicketState)
TERMINAL_STATES: tuple[TicketState, ...] = ("done", "failed", "withdrawn")
"""The states in which nothing is left to do for a ticket."""
Outcome = Literal["complete", "pruned", "diverged", "failed"]
StudyState = Literal["running", "paused", "done"]
StudyStanding = Literal["running", "waiting", "paused", "done"]
"""How a study stands: ``waiting`` is one that may be worked on while no agent is at work on it."""
STANDINGS: tuple[StudyStanding, ...] = get_args(StudyStanding)
Parameters = dict[str, Any]
"""A parameter set: name to value."""
PriorRuns = Sequence[Mapping[str, Any]]
"""For each earlier study its ``name`` and ``runs``, each a pair of parameters and value; more is better."""
LARGEST_VALUE = 1e100
"""A measured value beyond this, up or down, counts as infinite: its squares could not be computed with."""


def is_finite(value: float) -> bool:
    """Return whether a measured value counts as a finite number; a run whose metric does not is diverged."""
    return -LARGEST_VALUE <= value <= LARGEST_VALUE


LARGEST_ID = 2**31 - 1
"""The largest id, and the largest number of an attempt, that every database holds."""
LARGEST_COUNT = 2**53 - 1
"""The largest step, and the largest number of bytes: every whole number up to it is exact in JSON."""
WITHOUT_NUL = r"^[^\x00]*$"
"""Pattern of texts that every database can hold."""
# Ranges hold for what comes over HTTP; what is made here is not looked at.
TicketId = Annotated[int, Field(ge=0, le=LARGEST_ID)]
Attempt = Annotated[int, Field(ge=1, le=LARGEST_ID)]
Step = Annotated[int, Field(ge=0, le=LARGEST_COUNT, strict=True)]
NumBytes = Annotated[int, Field(ge=0, le=LARGEST_COUNT, strict=True)]
ShortText = Annotated[str, Field(max_length=255, pattern=WITHOUT_NUL)]
BoundedText = Annotated[str, Field(max_length=4096, pattern=WITHOUT_NUL)]
MetricValue = Annotated[
    float,
    Field(strict=True),
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(
        lambda value: value if math.isfinite(value) else None, return_type=float | None, when_used="json"
    ),
]
"""A measured value; null in JSON for one that is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One study.

    Args:
        name: Unique in its database, 1 to 255 characters.
        spec: The resolved study spec as plain JSON data (``StudySpec.to_json``), with no password in it.
        spec_hash: Identity of the spec, at most 64 characters.
        state: ``running`` may be worked on, ``paused`` was told to rest, ``done`` has no ticket left to do.
            Whether anybody is at work is told by the leases, not by this.
        created: In UTC, as every moment here; by the database's clock.
        version: Grows when tickets are added or withdrawn.
        checkpoints: URL under which the runs keep their checkpoints, absolute; None before the first.
        owner: The user who began it; empty for one that was begun on the database by no user in particular.
        priority: Agents of every study serve those with a higher one first.
        parallel: Runs that may be in progress at a time, as ``study.parallel``.
        age: Seconds from then until this was read, by the database's clock as well.
    """

    id: int
    name: str
    spec: dict[str, Any]
    spec_hash: str
    state: StudyState
    created: datetime
    version: int = 0
    checkpoints: str | None = None
    owner: str = ""
    priority: int = 0
    parallel: int = 1
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """One unfinished study, for an agent that serves every study.

    Args:
        needs_agent: Whether a run of it may be begun now, as far as its numbers of runs show.
    """

    id: int
    name: str
    priority: int
    needs_agent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """One study and how far it is.

    Args:
        tickets: Number of tickets by kind and state; what there is none of is left out.
        agents: Names of the agents that hold a ticket whose lease is not over, sorted; some may have died.
    """

    study: StudyRow
    tickets: dict[Kind, dict[TicketState, int]]
    agents: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[TicketState]:
        """Number of tickets by state."""
        return sum(map(Counter, self.tickets.values()), Counter())


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTotals:
    """The totals of all runs of one study.

    Args:
        lowest: Lowest value of a complete search trial; None: there is none.
        highest: The highest.
        seconds: Seconds of training, all attempts.
        gpu_seconds: The same times the GPUs that they were spent on.
    """

    lowest: float | None
    highest: float | None
    seconds: float
    gpu_seconds: float

    @property
    def hours(self) -> float:
        """Hours of GPUs, or of training where no run used one."""
        return (self.gpu_seconds or self.seconds) / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a run, as it is found again and known to be whole.

    Args:
        step: Optimizer step at which it was written.
        url: Where it lies, absolute (an fsspec URL).
        digest: Hash of its bytes.
        size: Its bytes.
    """

    step: Step
    url: BoundedText
    digest: ShortText
    size: NumBytes


def checkpoints_to_resume(checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return which of a run's checkpoints, newest first, are kept while it trains: the two newest."""
    return tuple(checkpoints[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketRow:
    """The right and duty to do one run.

    Args:
        kind: Stage it belongs to; in ``choose`` and ``confirm`` the arm says whose candidate is trained.
        arm: Which arm it trains for: ``baseline``, ``constant``, ``search``; several with
            the same parameters share a run, as in ``baseline+twin`` (see ticket_queries.py).
        number: Position within its kind, from 0.
        candidate: For choose and confirm: rank of the candidate within its arm, from 0; else None.
        pair: For choose, confirm and ablation: index of the seed that arms share; else
            None.
        seed: Seed of the run, 0 <= seed < 2**63.
        parameters: The parameter set, effective values; None until it has been suggested.
        trial_number: Number of the Optuna trial (search tickets only).
        state: ``done`` has an outcome; ``failed`` means that every attempt was lost.
        attempt: How often it was taken; every write about a run carries it, so that a stale one is refused.
        value: The value that counts for its kind: the validation metric at the end, for confirm
            the metric on ``study.confirm_on``. None unless the outcome is complete (for
            pruned: the last reported value).
        diverged_at: Optimizer step at which the run diverged, else None.
        error: Last error message of a failed attempt, else None.
        agent: Who holds it, or held it last; None while it waits, unless it waits because this holder was
            thought to be gone (who may come back, see ``Store.write``).
        seconds: Training seconds over all attempts.
        steps: Optimizer steps done, of a running attempt as it was told last; total_steps: steps it would
            have taken to the end.
        code: The code that ran it, as :attr:`tempopt.storage.run_code.RunCode.text`.
        started: When it was last taken.
        failures: Attempts that the infrastructure lost; those returned in good order do not count.
        round: Verdict that it belongs to, from 0; more search tickets after a verdict open the next round.
        sampled: Values of the arm's own space that ``parameters`` follow from; before the ticket is begun
            those that a person wants tried, if any.
        lease: Seconds that the holder still has to show progress, negative once it is over; None unless
            running.
        checkpoints: Those to go on from, newest first; none once it is over.
        checkpoint_seconds: Part of ``seconds`` that went into writing checkpoints.
        alone: Whether it is to have a card to itself, an attempt having run out of a card's memory.
        gpu_seconds: ``seconds`` times the cards that they were spent on, a share of one counting as that
            share; 0 without cards.
        peak_memory: Most bytes that an attempt had allocated on one card; None without cards.
        machine: Host that the latest attempt to begin trained on; None before the first.
        device: What it trained on there, for people to read: ``NVIDIA H200 (cuda:0)``, ``cpu``.
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
    round: int = 0
    sampled: dict[str, Any] | None = None
    lease: float | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    checkpoint_seconds: float = 0.0
    alone: bool = False
    gpu_seconds: float = 0.0
    peak_memory: int | None = None
    machine: str | None = None
    device: str | None = None

    @property
    def name(self) -> str:
        """What people call its run, as in ``search-12``."""
        return f"{self.kind}-{self.number}"


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
    round: int = 0
    sampled: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialParam:
    """One parameter of an Optuna trial as Optuna's tables hold it.

    Args:
        value: Optuna's internal representation (for a choice its index).
        distribution: Optuna's ``distribution_to_json``.
    """

    name: str
    value: float
    distribution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number that a run measured.

    Args:
        step: Optimizer step (reports), or the last step (evaluations).
        name: ``report`` for the validation metric during training; else an evaluation's name, as in
            ``validate``, ``validate_current``, ``test``, ``test:winner``, ``test:constant=0.5``,
            ``test/guard:val_loss``.
        value: NaN for what was measured and is not a finite number (:func:`is_finite`;
            infinities come back as NaN: not every database can hold them).
    """

    ticket_id: TicketId
    step: Step
    name: ShortText
    value: MetricValue

    def __post_init__(self) -> None:
        if not is_finite(self.value):
            object.__setattr__(self, "value", math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One agent that a launcher has started for a study.

    Args:
        id: What the launcher calls it.
        launcher: Name of the launcher.
        options: What the launcher was given, so that another program asks the right one about it.
        created: When it was started.
    """

    id: str
    launcher: str
    options: dict[str, str]
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """The end of what one attempt at a ticket printed, with its traceback if it died."""

    ticket_id: int
    attempt: int
    agent: str
    text: str
    written: datetime

"""The plain immutable rows that the store returns and accepts; without SQL and Optuna."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, Field, PlainSerializer

T = TypeVar("T")

Kind = Literal["baseline", "constant", "search", "choose", "confirm", "ablation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SEARCH_KINDS: tuple[Literal["baseline", "constant", "search"], ...] = ("baseline", "constant", "search")
"""The kinds whose runs search for parameters; the other kinds test them."""
TicketState = Literal["waiting", "running", "done", "failed", "withdrawn"]
TICKET_STATES: tuple[TicketState, ...] = get_args(TicketState)
TERMINAL_STATES: tuple[TicketState, ...] = ("done", "failed", "withdrawn")
"""The states in which nothing is left to do for a ticket."""
Outcome = Literal["complete", "pruned", "diverged", "failed"]
StudyState = Literal["running", "paused", "done"]
StudyStanding = Literal["running", "waiting", "paused", "done"]
"""State of a study for display; ``waiting``: it may be worked on, but no agent works on it."""
STANDINGS: tuple[StudyStanding, ...] = get_args(StudyStanding)
MAX_VALUE = 1e100
"""Measured values with a larger absolute value count as infinite, since their squares may overflow."""


def is_finite(value: float) -> bool:
    """Return whether a measured value counts as finite; a run whose metric does not has diverged."""
    return -MAX_VALUE <= value <= MAX_VALUE


MAX_ID = 2**31 - 1
"""The largest id, and the largest number of an attempt, that every database can store."""
MAX_COUNT = 2**53 - 1
"""The largest step, and the largest number of bytes: integers up to it are exact in JSON."""
WITHOUT_NUL = r"^[^\x00]*$"
"""Pattern of texts that every database can store."""
MAX_INTEGER = 2**63 - 1
"""The largest integer in a document: seeds are among the attributes of a run."""
_MAX_LEVELS = 100


def check_plain(data: T) -> T:
    """Return plain data; refuse data that no database, or no program that reads them, can hold.

    Raises:
        ValueError: An integer has more than 64 bits, a number is not finite, a text is not in UTF-8, or the
            data are nested too deeply.
    """
    stack: list[tuple[Any, int]] = [(data, 0)]
    while stack:
        node, level = stack.pop()
        if isinstance(node, dict | list):
            if level == _MAX_LEVELS:
                raise ValueError(f"It is nested more than {_MAX_LEVELS} levels deep.")
            children = [*node, *node.values()] if isinstance(node, dict) else node
            stack += [(child, level + 1) for child in children]
        elif isinstance(node, int) and abs(node) > MAX_INTEGER:
            raise ValueError(f"An integer exceeds {MAX_INTEGER}.")
        elif isinstance(node, float) and not math.isfinite(node):
            raise ValueError("A number is not finite. Give null instead.")
        elif isinstance(node, str):
            node.encode()  # raises ValueError
    return data


# The ranges are checked when rows are read: from a database, over HTTP, from a file.
PlainDict = Annotated[dict[str, Any], AfterValidator(check_plain)]
Parameters = PlainDict
"""A parameter set: name to value."""
Integer = Annotated[int, Field(ge=-MAX_ID, le=MAX_ID)]
Count = Annotated[int, Field(ge=0, le=MAX_ID)]
Seed = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
FiniteValue = Annotated[float, Field(ge=-MAX_VALUE, le=MAX_VALUE)]
Moment = Annotated[
    AwareDatetime, Field(ge=datetime(1970, 1, 1, tzinfo=UTC), lt=datetime(9000, 1, 1, tzinfo=UTC))
]
TicketId = Annotated[int, Field(ge=0, le=MAX_ID)]
Attempt = Annotated[int, Field(ge=1, le=MAX_ID)]
Step = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
NumBytes = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
ShortText = Annotated[str, Field(max_length=255, pattern=WITHOUT_NUL)]
BoundedText = Annotated[str, Field(max_length=4096, pattern=WITHOUT_NUL)]
LongText = Annotated[str, Field(max_length=2**24, pattern=WITHOUT_NUL)]
MetricValue = Annotated[
    float,
    Field(strict=True),
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(
        lambda value: value if math.isfinite(value) else None, return_type=float | None, when_used="json"
    ),
]
"""A measured value; null in JSON if it is not finite."""


def has_form(model: type[BaseModel]) -> AfterValidator:
    """Return a validator of plain data by a model, which leaves the data plain."""

    def check(data: T) -> T:
        model.model_validate(data)
        return data

    return AfterValidator(check)


class _PriorStudy(BaseModel, extra="forbid"):
    name: ShortText
    runs: list[tuple[Parameters, FiniteValue]]


PriorRuns = Sequence[Annotated[Mapping[str, Any], has_form(_PriorStudy)]]
"""``name`` and ``runs`` of each earlier study; a run is a pair of parameters and value, more being better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One study.

    Args:
        name: Unique in its database, 1 to 255 characters.
        spec: The resolved study spec as plain JSON data (``StudySpec.to_json``), without passwords.
        spec_hash: Identity of the spec, at most 64 characters.
        state: ``running``: agents may work on it; ``paused`` by a user; ``done``: no ticket is left. Whether
            an agent works on it follows from the leases, not from this field.
        created: Time of creation, by the database's clock; all times of rows are in UTC.
        version: Increases when tickets are added or withdrawn.
        checkpoints: Absolute URL under which the runs write checkpoints; None before the first agent.
        owner: The user who created it; empty if it was created without a user.
        priority: Agents of every study serve studies with a higher priority first.
        parallel: Maximal number of runs in progress, as ``study.parallel``.
        age: Seconds from ``created`` to the time of reading, by the database's clock.
    """

    id: Count
    name: Annotated[ShortText, Field(min_length=1)]
    spec: PlainDict
    spec_hash: ShortText
    state: StudyState
    created: Moment
    version: Count = 0
    checkpoints: BoundedText | None = None
    owner: ShortText = ""
    priority: Integer = 0
    parallel: Annotated[Count, Field(ge=1)] = 1
    age: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStudy:
    """One unfinished study, for an agent that serves every study.

    Args:
        needs_agent: Whether a run of it may begin now, judged by its numbers of tickets.
    """

    id: int
    name: str
    priority: int
    needs_agent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """One study and its progress.

    Args:
        tickets: Number of tickets by kind and state, without zeros.
        agents: Sorted names of the agents that hold a valid lease; some may have died.
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
        lowest: Lowest value of a complete search trial; None before one is complete.
        highest: Highest value of a complete search trial, likewise.
        seconds: Training seconds of all attempts.
        gpu_seconds: The same, times the number of GPUs.
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
    """Location and hash of one checkpoint of a run.

    Args:
        step: Optimizer step at which it was written.
        url: Absolute path or fsspec URL.
        digest: Hash of its bytes.
        size: Number of bytes.
    """

    step: Step
    url: BoundedText
    digest: ShortText
    size: NumBytes


def checkpoints_to_resume(checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """Return the checkpoints to keep while a run trains, given all, newest first: the two newest."""
    return tuple(checkpoints[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketRow:
    """One planned run.

    Args:
        kind: Stage to which it belongs; in ``choose`` and ``confirm`` it trains a candidate of ``arm``.
        arm: The arm for which it trains: ``baseline``, ``constant``, ``search``; arms with the same
            parameters share a run, as in ``baseline+twin`` (see ticket_queries.py).
    number: Number within its kind, from 0.
        candidate: For choose and confirm: rank of the candidate within its arm, from 0; else None.
        pair: For choose, confirm and ablation: index of the seed that arms share; else
            None.
        seed: Seed of the run, 0 <= seed < 2**63.
        parameters: The parameter set, effective values; None until it has been sampled.
        trial_number: Number of the Optuna trial (search tickets only).
        state: ``done`` has an outcome; ``failed`` means that all attempts were lost.
        attempt: Number of claims; every change has its attempt, so that a stale change is refused.
        value: The value that counts for its kind: the validation metric at the end, for confirm
            the metric on ``study.confirm_on``. None unless the outcome is complete (for
            pruned: the last reported value).
        diverged_at: Optimizer step at which the run diverged, else None.
        error: Last error message of a failed attempt, else None.
        agent: The agent that holds it, or held it last; None while it waits, unless it was reclaimed from
            this agent, which may readopt it (see ``Store.write``).
        seconds: Training seconds over all attempts.
        steps: Optimizer steps done, of a running attempt as last reported.
        total_steps: Optimizer steps of the complete run.
        code: The code that trained it, as :attr:`tempopt.storage.run_code.RunCode.text`.
        started: When it was last claimed.
        failures: Number of lost attempts; released ones do not count.
        round: Number of its verdict, from 0; search tickets after a verdict open the next round.
        sampled: Values in the arm's space from which ``parameters`` follow; before the run begins, values
            that a user has enqueued, if any.
        lease: Seconds that the agent still has to make progress, negative if the lease has expired; None
            unless running.
        checkpoints: Checkpoints to resume from, newest first; empty once it is over.
        checkpoint_seconds: Part of ``seconds`` spent on writing checkpoints.
        alone: Whether it needs a GPU to itself, since an attempt has run out of GPU memory.
        gpu_seconds: ``seconds`` times the number of GPUs, a share of a GPU counting as that share; 0 without
            a GPU.
        peak_memory: Maximal bytes that an attempt had allocated on one GPU; None without a GPU.
        machine: Host of the latest attempt that began to train; None before the first.
        device: Its device, as text for people: ``NVIDIA H200 (cuda:0)``, ``cpu``.
    """

    id: TicketId
    study_id: Count
    kind: Kind
    arm: ShortText
    number: Count
    candidate: Count | None
    pair: Count | None
    seed: Seed
    parameters: Parameters | None
    trial_number: Count | None
    state: TicketState
    outcome: Outcome | None
    attempt: Count
    value: FiniteValue | None
    diverged_at: Step | None
    error: LongText | None
    agent: ShortText | None
    seconds: Amount
    steps: Step | None
    total_steps: Step | None
    code: BoundedText | None
    started: Moment | None
    finished: Moment | None
    failures: Count = 0
    round: Count = 0
    sampled: Parameters | None = None
    lease: float | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    checkpoint_seconds: Amount = 0.0
    alone: bool = False
    gpu_seconds: Amount = 0.0
    peak_memory: NumBytes | None = None
    machine: ShortText | None = None
    device: ShortText | None = None

    @property
    def name(self) -> str:
        """Name of its run, as in ``search-12``."""
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTicket:
    """A new ticket: the fields that are known before it is written."""

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
    """One parameter of an Optuna trial, as in Optuna's tables.

    Args:
        value: Optuna's internal representation (for a choice its index).
        distribution: Optuna's ``distribution_to_json``.
    """

    name: str
    value: float
    distribution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured value of a run.

    Args:
        step: Optimizer step (reports), or the last step (evaluations).
        name: ``report`` for the validation metric during training; else an evaluation's name, as in
            ``validate``, ``validate_current``, ``test``, ``test:winner``, ``test:constant=0.5``,
            ``test/guard:val_loss``.
        value: The value; NaN if it is not finite (:func:`is_finite`), also for infinities, which not every
            database can store.
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
        id: The launcher's name of the job.
        launcher: Name of the launcher.
        options: Options of the launcher, with which another program can query the job.
        created: When it was started.
    """

    id: ShortText
    launcher: ShortText
    options: dict[str, str]
    created: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """The end of the output of one attempt of a ticket, with its traceback if it failed."""

    ticket_id: TicketId
    attempt: Attempt
    agent: ShortText
    text: LongText
    written: Moment

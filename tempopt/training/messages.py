"""What an agent and a worker say to each other: plain data, sent as JSON, never pickled.

Knows neither torch nor Lightning, so that an agent can speak it without loading either.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from tempopt.spec.program import CommandProgram, FunctionProgram, Program, ValidateAt

if TYPE_CHECKING:
    from tempopt.temperature.learned import Learns

INT32 = struct.Struct("=i")
"""A length, a process id or an exit status, as the fork server and its clients send it."""

LOG = "log.txt"
"""What a run printed, in the run's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of the trained weights at the end of a run.

    Args:
        name: Name under which it is measured.
        on: The dataloader: ``validate`` or ``test``.
        at: Temperature: the ``final`` one of the plan or the ``current`` one (at the run's last step).
        temperature: Temperature parameters of *another* plan to evaluate under, None for the run's own.
        guards: Names of other logged metrics that are measured with it, as :func:`guard_name` names them.
    """

    name: str
    on: Literal["validate", "test"]
    at: ValidateAt = "final"
    temperature: dict[str, Any] | None = None
    guards: list[str] = field(default_factory=list)


LEARNED_CURVE = "learned/"
"""Before the name of a temperature, in the name of the curve that it takes while it is learned."""

CONTROLLED_CURVE = "controlled/"
"""Before the number of a layer, in the name of the curve that its temperature takes under control."""

MOMENTS = ("start", "middle", "end")
"""When maps of attention are made: in the first step of a training, the one in its middle, and its last."""

UnitKind = Literal["items", "batches"]
"""What an evaluation of a trained model tells the metric of."""
UNIT_KINDS: tuple[UnitKind, ...] = ("items", "batches")


def units_name(on: str, kind: UnitKind) -> str:
    """Return the name under which the metric of each unit of the data ``on`` is measured."""
    return f"{on}/{kind}"


def sizes_name(on: str) -> str:
    """Return the name under which the number of items of each unit is measured; not if each is one item."""
    return f"{on}/sizes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """One checkpoint of a run.

    Args:
        step: Optimizer step at which it was written.
        url: Where it lies, absolute (an fsspec URL).
        digest: Hash of its bytes; a file with another one is damaged.
        size: Its bytes.
    """

    step: int
    url: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """What a run is called where people look at it: in the trackers of ``trainer.logger``.

    Args:
        study: Name of its study.
        study_created_at: When the study was created, as text; another database may have one of its name.
        run: Name of the run in its study, as in ``search-0012``.
        kind: Kind of its ticket.
        arm: Arm of its ticket.
    """

    study: str
    study_created_at: str
    run: str
    kind: str
    arm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMessage:
    """A message about one run.

    Args:
        ticket: Id of the run's ticket.
        attempt: Number of the attempt at the ticket, from 1.
    """

    ticket: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest(RunMessage):
    """One run: a parameter set and a seed, by value.

    Args:
        program: What is trained.
        parameters: Name to value: a temperature parameter or an init argument of the model as a bare
            name, ``data.x`` and ``trainer.x`` dotted. Overrides the program's own values.
        seed: Seed of the run.
        evaluations: Measured at the end, after training.
        folder: Local folder for the log of this ticket, or None to keep none.
        checkpoints: fsspec URL of a folder for the checkpoints of this ticket, or None to keep none.
        checkpoint_every: Seconds between checkpoints; None: at every validation, and at the latest
            five minutes after the one before.
        resume: Checkpoints to go on from, newest first: the first that is there, whole and of this run
            is used. None of them: the run begins at its beginning.
        task: ``train``; ``dry_run``: train two steps and validate once, to find what can only be seen
            by running; ``check``: only build what the program names; ``time``: train some steps and evaluate,
            to measure what a run takes.
        learns: Whether a dry run tries to learn the temperatures, too, and of what kind.
        space: Searched name to values that stand for all it may get; dry_run and check try them.
        memory_share: Share of a card's memory that the run may take, in (0, 1]; None: no cap.
        observe: Whether its attention is looked at a few times, for the curves that come with its end.
        maps: Whether maps of the attention of its heads come with its end, too.
        label: What it is called in the loggers of the program; None to log nothing.
    """

    program: Program
    parameters: dict[str, Any]
    seed: int
    evaluations: list[Evaluation] = field(default_factory=list)
    folder: str | None = None
    checkpoints: str | None = None
    checkpoint_every: float | None = None
    resume: list[CheckpointRef] = field(default_factory=list)
    task: Literal["train", "dry_run", "check", "time"] = "train"
    learns: Learns = False
    space: dict[str, list[Any]] = field(default_factory=dict)
    memory_share: float | None = None
    observe: bool = False
    maps: bool = False
    label: RunLabel | None = None


NUM_PROGRAM_SEEDS = 2**31
"""Seeds of programs are below it: NumPy takes 32 bits, and many a command line a signed integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest(RunMessage):
    """One run of a command or a function: a parameter set and a seed, by value.

    Args:
        program: What is run.
        parameters: Name to value.
        seed: Seed of the run, below ``NUM_PROGRAM_SEEDS``.
        names: Names under which its value is measured.
        folder: Local folder for the log and the files of this ticket; None only to check.
        grace: Seconds that it has to end after a request to stop.
        task: ``train``, or ``check``: only see whether it can be started.
    """

    program: CommandProgram | FunctionProgram
    parameters: dict[str, Any]
    seed: int
    names: list[str] = field(default_factory=list)
    folder: str | None = None
    grace: float = 20.0
    task: Literal["train", "check"] = "train"


AnyRequest = RunRequest | ProgramRequest
"""What an agent asks a worker to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The worker process is warm; said once, before all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(RunMessage):
    """The run has begun: where, and from which optimizer step of how many.

    Args:
        reports: History that the checkpoint carries, ``[[step, value], ...]``; an agent that died
            may have missed the newest.
        device: What it trains on, for a person: ``NVIDIA H200 (cuda:0)``, ``2 x NVIDIA H200``, ``cpu``.
        precision: Lightning's name of the precision that is in force, as in ``bf16-mixed``.
        code: As :attr:`tempopt.storage.run_code.RunCode.text`.
        notes: What a person should know: a checkpoint that was damaged, one that is not there.
    """

    step: int
    total_steps: int
    device: str
    precision: str
    layers: list[str]
    code: str
    reports: list[list[float]]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(RunMessage):
    """One part of a dry run is over.

    Args:
        what: What was done, for a person.
        seconds: How long it took.
    """

    what: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(RunMessage):
    """Optimizer steps done so far; sent as batches (of validation too) are done, never by a clock."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(RunMessage):
    """One validation: the metric that counts and all others that were logged."""

    step: int
    value: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(RunMessage):
    """A checkpoint is there, whole."""

    saved: CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(RunMessage):
    """A checkpoint could not be written; the run continues without it.

    Args:
        why: What the disk or the object store says.
    """

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What the parts of a run take, in seconds.

    Args:
        start: From building its objects to its first step; of a frozen model, all of it.
        step: One optimizer step.
        steps: Optimizer steps of a whole run.
        validate: One pass over the validation data.
        validations: Passes in the course of a whole run.
        ends_validated: Whether one of them comes after the last step.
        test: One pass over the test data; 0 if runs are not tested.
    """

    start: float
    step: float = 0.0
    steps: int = 0
    validate: float = 0.0
    validations: int = 0
    ends_validated: bool = False
    test: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(RunMessage):
    """The end of a run in good order.

    Args:
        state: ``complete``, ``stopped`` (the agent's stop message) or ``diverged`` (NaN or inf).
        step: Optimizer steps done; for a diverged run the step at which it happened.
        measurements: Evaluation name to metric value, and what it guards; empty unless complete.
        seconds: Wall-clock seconds from building to the end, of this attempt.
        reports: Every report up to here, those of earlier attempts included: ``[[step, value], ...]``.
        checkpoint_seconds: Part of ``seconds`` that went into writing checkpoints.
        notes: What a person should know, as of a tracker that was lost.
        peak_memory: Most bytes that the run had allocated on one card; None where there is none.
        curves: What was observed over training: name to ``[[step, value], ...]``; empty unless complete.
        maps: What heads attend to (``tempopt.training.attention_maps``), as plain data; None: not looked at.
        times: What its parts take; None unless that was the task.
        initial_temperatures: Of a check: the named temperatures that the module has.
        evaluated: Of a dry run: the named temperatures that the metric reads in evaluation; None if that
            was not tried.
        trained: Of a dry run: the named temperatures that the module's own optimizers train; None if that
            was not tried.
        not_learned: Of a dry run: why its temperatures cannot be learned; None if they can.
        log_lost: Why some of what the run printed is not in its log; empty if all is, None if it printed
            nothing.
    """

    state: Literal["complete", "stopped", "diverged"]
    step: int
    measurements: dict[str, float]
    metrics: dict[str, dict[str, float]]
    seconds: float
    reports: list[list[float]]
    checkpoint_seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    peak_memory: int | None = None
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    maps: dict[str, Any] | None = None
    times: Times | None = None
    initial_temperatures: dict[str, float] = field(default_factory=dict)
    evaluated: list[str] | None = None
    trained: list[str] | None = None
    not_learned: str | None = None
    log_lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(RunMessage):
    """The run could not be carried through.

    Args:
        kind: ``usage`` (the spec is wrong: nothing will help but changing it), ``error`` (the user's
            code raised), ``gpu_memory`` (a card's memory did not suffice), ``disk`` (no space, over quota,
            read-only or not permitted), or ``infrastructure`` (out of other memory, killed, lost).
        message: One paragraph for a person.
        traceback: The traceback, or an empty string.
        log_lost: As for Finished.
    """

    kind: Literal["usage", "error", "gpu_memory", "disk", "infrastructure"]
    message: str
    traceback: str = ""
    log_lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(RunMessage):
    """Agent to worker: end this run at the next step, in good order.

    Args:
        keep: Whether a checkpoint is to be written first, so that a later attempt goes on from there.
    """

    keep: bool = False


Message = (
    RunRequest
    | ProgramRequest
    | Ready
    | Started
    | Stage
    | Progress
    | Report
    | CheckpointSaved
    | CheckpointFailed
    | Finished
    | Failed
    | Stop
)
_TYPES: dict[str, Any] = {message_type.__name__: message_type for message_type in get_args(Message)}


def encode(message: Message) -> bytes:
    """Return the message as one line of JSON; floats survive bit for bit, NaN and inf too."""
    return json.dumps({"type": type(message).__name__, **dataclasses.asdict(message)}).encode()


def decode(line: bytes) -> Message:
    """Return the message that :func:`encode` wrote."""
    fields = json.loads(line)
    kind = _TYPES[fields.pop("type")]
    if kind is RunRequest:
        fields["program"] = Program(**fields["program"])
        fields["evaluations"] = [Evaluation(**e) for e in fields["evaluations"]]
        fields["resume"] = [CheckpointRef(**saved) for saved in fields["resume"]]
        fields["label"] = None if fields["label"] is None else RunLabel(**fields["label"])
    elif kind is ProgramRequest:
        program_type = CommandProgram if "command" in fields["program"] else FunctionProgram
        fields["program"] = program_type(**fields["program"])
    elif kind is Finished and fields["times"] is not None:
        fields["times"] = Times(**fields["times"])
    elif kind is CheckpointSaved:
        fields["saved"] = CheckpointRef(**fields["saved"])
    message: Message = kind(**fields)
    return message


class Channel(Protocol):
    """Where a run's messages go, and where the wish to stop it comes from."""

    def send(self, message: Message) -> None:
        """Send one message to the agent."""

    def stop(self, request: RunMessage) -> Stop | None:
        """Return the agent's wish that this run end, if there is one."""


@dataclass(slots=True, kw_only=True)
class LocalChannel:
    """The channel of a run that is only tried.

    Args:
        send: Takes its messages; by default they are dropped.
        should_stop: Returns whether the run is to end at the next step.
    """

    send: Callable[[Message], None] = lambda message: None
    should_stop: Callable[[], bool] = lambda: False

    def stop(self, request: RunMessage) -> Stop | None:
        """Return the wish to end, once it is time."""
        return Stop(ticket=request.ticket, attempt=request.attempt) if self.should_stop() else None

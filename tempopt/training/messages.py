"""Messages between an agent and a worker: plain data, sent as JSON, never pickled.

Independent of torch and Lightning, so that an agent need not load them.
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
"""A length, a process id or an exit status, as exchanged by the fork server and its clients."""

LOG = "log.txt"
"""File in the run's folder with its output."""


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
"""Prefix of the curve of a learned temperature; its name follows."""

CONTROLLED_CURVE = "controlled/"
"""Prefix of the curve of a controlled temperature; the number of its layer follows."""

MOMENTS = ("start", "middle", "end")
"""When maps of attention are made: in the first, the middle and the last step of a training."""

UnitKind = Literal["items", "batches"]
"""Unit of the metric in an evaluation of a trained model."""
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
        url: Absolute fsspec URL of the file.
        digest: Hash of its bytes; a file with another hash is damaged.
        size: Size in bytes.
    """

    step: int
    url: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabel:
    """Name of a run for people, in the trackers of ``trainer.logger``.

    Args:
        study: Name of its study.
        study_created_at: When the study was created, as text; another database may have a study of that name.
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
    """One run, by value: a parameter set and a seed.

    Args:
        program: The program to train.
        parameters: Name to value: a temperature parameter or an init argument of the model as a bare
            name, ``data.x`` and ``trainer.x`` dotted. Overrides the program's own values.
        seed: Seed of the run.
        evaluations: Evaluations after training.
        folder: Local folder for the log of this ticket; None for no log.
        checkpoints: fsspec URL of a folder for the checkpoints of this ticket; None for no checkpoints.
        checkpoint_every: Seconds between checkpoints; None: at every validation, and at most five minutes
            apart.
        checkpoint_timeout: Maximal seconds for an object store to take or give a checkpoint.
        resume: Checkpoints to resume from, newest first: the first one that exists, is complete and is of
            this run is used. If there is none, the run begins from step 0.
        task: ``train``; ``dry_run``: train two steps and validate once, to find errors at run time;
            ``check``: only build the objects of the program; ``time``: train some steps and evaluate, to
            measure the duration of a run.
        learns: Whether a dry run also tests learned temperatures, and of which kind.
        space: Searched name to probe values, which dry_run and check test.
        memory_share: Share of a GPU's memory that the run may use, in (0, 1]; None for no limit.
        observe: Whether its attention is observed, for curves in its end message.
        maps: Whether its end message also has maps of the attention of its heads.
        label: Name in the loggers of the program; None to log nothing.
    """

    program: Program
    parameters: dict[str, Any]
    seed: int
    evaluations: list[Evaluation] = field(default_factory=list)
    folder: str | None = None
    checkpoints: str | None = None
    checkpoint_every: float | None = None
    checkpoint_timeout: float = 225.0
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
    """The worker process is warm; sent once, before all other messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(RunMessage):
    """The run has begun: its device, and its first optimizer step and total number of steps.

    Args:
        reports: History in the checkpoint, ``[[step, value], ...]``; an agent that died may have missed the
            newest ones.
        device: Its device as text: ``NVIDIA H200 (cuda:0)``, ``2 x NVIDIA H200``, ``cpu``.
        precision: Lightning's name of the precision, such as ``bf16-mixed``.
        code: As :attr:`tempopt.storage.run_code.RunCode.text`.
        notes: Notes for a person, such as a damaged or missing checkpoint.
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
    """One part of a dry run is complete.

    Args:
        what: Description of the part for a person.
        seconds: Duration of the part.
    """

    what: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(RunMessage):
    """Optimizer steps done so far; sent as batches (of validation too) are done, never by a clock."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(RunMessage):
    """One validation: the metric of the study and all other logged metrics."""

    step: int
    value: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(RunMessage):
    """A checkpoint was written completely."""

    saved: CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(RunMessage):
    """A checkpoint could not be written; the run continues without it.

    Args:
        why: Message of the disk or the object store.
    """

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Durations of the parts of a run in seconds.

    Args:
        start: From creating its objects to its first step; of a frozen model, everything.
        step: One optimizer step.
        steps: Optimizer steps of a whole run.
        validate: One pass over the validation data.
        validations: Number of passes during a whole run.
        ends_validated: Whether one of them follows the last step.
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
    """A run has ended without failure.

    Args:
        state: ``complete``, ``stopped`` (the agent's stop message) or ``diverged`` (NaN or inf).
        step: Optimizer steps done; for a diverged run the step at which it happened.
        measurements: Evaluation name to metric value, and what it guards; empty unless complete.
        seconds: Wall-clock seconds from building to the end, of this attempt.
        reports: Every report up to here, those of earlier attempts included: ``[[step, value], ...]``.
        checkpoint_seconds: Part of ``seconds`` that went into writing checkpoints.
        notes: Notes for a person, such as a lost tracker.
        peak_memory: Peak of allocated bytes on one GPU; None without a GPU.
        curves: Observations over training: name to ``[[step, value], ...]``; empty unless complete.
        maps: Maps of attention (``tempopt.training.attention_maps``), as plain data; None if not observed.
        times: Durations of its parts; None unless requested by the task.
        initial_temperatures: Of a check: the named temperatures of the module.
        evaluated: Of a dry run: the named temperatures that the metric reads in evaluation; None if not
            tested.
        trained: Of a dry run: the named temperatures that the module's own optimizers train; None if not
            tested.
        not_learned: Of a dry run: why its temperatures cannot be learned; None if they can.
        not_resumed: Of a dry run: why a resumed run starts again; None if it goes on, or was not tried.
        log_lost: Why part of the output is not in its log; empty if the log is complete, None if there was no
            output.
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
    not_resumed: str | None = None
    log_lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(RunMessage):
    """A run has failed.

    Args:
        kind: ``usage`` (the spec is wrong and has to be changed), ``error`` (the user's code raised),
            ``gpu_memory`` (GPU memory exhausted), ``disk`` (no space, over quota, read-only or not
            permitted), ``infrastructure`` (other memory exhausted, killed, lost), or ``no_value`` (a program
            ended without a value of the metric).
        message: One paragraph for a person.
        traceback: The traceback, or an empty string.
        is_by_program: Whether a program failed by itself, and so would again: nothing has killed it, and its
            memory was not exhausted.
        log_lost: As for Finished.
    """

    kind: Literal["usage", "error", "gpu_memory", "disk", "infrastructure", "no_value"]
    message: str
    traceback: str = ""
    is_by_program: bool = False
    log_lost: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(RunMessage):
    """Agent to worker: end this run gracefully at the next step.

    Args:
        keep: Whether to write a checkpoint first, from which a later attempt resumes.
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
    """Transport of a run's messages and of the stop request."""

    def send(self, message: Message) -> None:
        """Send one message to the agent."""

    def find_stop(self, request: RunMessage) -> Stop | None:
        """Return the agent's stop request, if there is one."""


@dataclass(slots=True, kw_only=True)
class LocalChannel:
    """The channel of a dry run.

    Args:
        send: Receives its messages; by default they are dropped.
        should_stop: Returns whether the run is to end at the next step.
    """

    send: Callable[[Message], None] = lambda message: None
    should_stop: Callable[[], bool] = lambda: False

    def find_stop(self, request: RunMessage) -> Stop | None:
        """Return a stop request once ``should_stop`` is true."""
        return Stop(ticket=request.ticket, attempt=request.attempt) if self.should_stop() else None

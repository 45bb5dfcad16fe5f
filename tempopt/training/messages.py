"""What an agent and a trainer say to each other: plain data, sent as JSON, never pickled.

Knows neither torch nor Lightning, so that an agent can speak it without loading either.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

ValidateAt = Literal["final", "current"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is trained: the sections of a study spec that a trainer needs, as plain data.

    Args:
        model: ``{"class_path": ..., "init_args": {...}}`` of a LightningModule.
        data: The same of a LightningDataModule, or None if the module has its own loaders.
        trainer: Keyword arguments of ``lightning.Trainer``.
        attach: ``{"layers": [patterns] | "auto"}`` for a module that is not a TemperedModule, else None.
        metric: Name of the logged validation metric.
        validate_at: Temperature under which validation counts: the plan's ``final`` or the ``current`` one.
        data_seed: Seed under which the data module is set up; one for the whole study, so that
            a random split is the same split in every run.
        weights: Checkpoint that a frozen model is loaded from (``study.evaluate_only``), else None.
    """

    model: dict[str, Any]
    data: dict[str, Any] | None
    trainer: dict[str, Any]
    attach: dict[str, Any] | None
    metric: str
    validate_at: ValidateAt
    data_seed: int
    weights: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of the trained weights at the end of a run.

    Args:
        name: Name under which it is measured.
        on: The dataloader: ``validate`` or ``test``.
        at: Temperature: the ``final`` one of the plan or the ``current`` one (at the run's last step).
        temperature: Temperature parameters of *another* plan to evaluate under, None for the run's own.
    """

    name: str
    on: Literal["validate", "test"]
    at: ValidateAt = "final"
    temperature: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run: a parameter set and a seed, by value.

    Args:
        ticket: Id of the ticket; comes back with everything that is said about the run.
        attempt: Number of the attempt at the ticket, from 1.
        program: What is trained.
        parameters: Name to value: a temperature parameter or an init argument of the model as a bare
            name, ``data.x`` and ``trainer.x`` dotted. Overrides the program's own values.
        seed: Seed of the run.
        evaluations: Measured at the end, after training.
        bake: Temperature parameters whose plan at step 0 is multiplied into the initial query
            weights and biases (the initialisation-only arm), else None.
        folder: Folder for checkpoints and the log of this ticket, or None to keep neither.
        resume: Whether to go on from the newest checkpoint in ``folder``.
        task: ``train``; ``rehearse``: train two steps and validate once, to find what can only be seen
            by running; ``check``: only build what the program names.
        space: Searched name to values that stand for all it may get; rehearse and check try them.
    """

    ticket: int
    attempt: int
    program: Program
    parameters: dict[str, Any]
    seed: int
    evaluations: list[Evaluation] = field(default_factory=list)
    bake: dict[str, Any] | None = None
    folder: str | None = None
    resume: bool = False
    task: Literal["train", "rehearse", "check"] = "train"
    space: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The run has begun: where, and from which optimizer step of how many.

    Args:
        reports: History that the checkpoint carries, ``[[step, value], ...]``; an agent that died
            may have missed the newest.
    """

    ticket: int
    attempt: int
    step: int
    total_steps: int
    device: str
    precision: str
    layers: list[str]
    code: str
    reports: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Optimizer steps done so far; sent now and then."""

    ticket: int
    attempt: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One validation: the metric that counts and all others that were logged."""

    ticket: int
    attempt: int
    step: int
    value: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a run that its parameters decided.

    Args:
        state: ``complete``, ``stopped`` (the agent's stop message) or ``diverged`` (NaN or inf).
        step: Optimizer steps done; for a diverged run the step at which it happened.
        measurements: Evaluation name to metric value; empty unless complete.
        seconds: Wall-clock seconds from building to the end, of this attempt.
        reports: Every report up to here, those of earlier attempts included: ``[[step, value], ...]``.
    """

    ticket: int
    attempt: int
    state: Literal["complete", "stopped", "diverged"]
    step: int
    measurements: dict[str, float]
    metrics: dict[str, dict[str, float]]
    seconds: float
    reports: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The run could not be carried through.

    Args:
        kind: ``usage`` (the spec is wrong: nothing will help but changing it), ``error`` (the user's
            code raised), or ``infrastructure`` (out of memory, killed, lost).
        message: One paragraph for a person.
        traceback: The traceback, or an empty string.
    """

    ticket: int
    attempt: int
    kind: Literal["usage", "error", "infrastructure"]
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Agent to trainer: end this run at the next step, in good order."""

    ticket: int
    attempt: int


Message = RunRequest | Started | Progress | Report | Finished | Failed | Stop
_TYPES = {t.__name__: t for t in (RunRequest, Started, Progress, Report, Finished, Failed, Stop)}


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
    message: Message = kind(**fields)
    return message

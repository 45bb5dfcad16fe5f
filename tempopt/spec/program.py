"""What a worker trains, as plain data, and the names of guarded metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ValidateAt = Literal["final", "current"]

GUARD = "/guard:"
"""Between the name of an evaluation and that of a metric that it guards, in the name of a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is trained: the sections of a study spec that a worker needs, as plain data.

    Args:
        model: ``{"class_path": ..., "init_args": {...}}`` of a LightningModule.
        data: The same of a LightningDataModule, or None if the module has its own loaders.
        trainer: Keyword arguments of ``lightning.Trainer``.
        attach: ``{"layers": [patterns] | "auto"}`` for a module that is not a TemperedModule, else None.
        values: Named temperatures by name, each with the keys ``value``, ``transform``,
            ``as_found``, ``evaluated`` and ``trained`` of the spec; a key that the spec does not have is
            None. Without ``value`` it is one that a TemperedModule registers.
        metric_reads_temperature: Whether the metric may change with a named temperature alone.
        metric: Name of the logged validation metric.
        validate_at: Temperature under which validation counts: the plan's ``final`` or the ``current`` one.
        data_seed: Seed under which the data module is set up; one for the whole study, so that
            a random split is the same split in every run.
        identity: Identity of the study's spec, which does not depend on the machine; None: what is here.
        weights: Checkpoint of a model that is evaluated and not trained (``tempopt evaluate``), else None.
        compile: Mode of ``torch.compile`` that the steps are compiled in, as in ``default``; None: in none.
        not_resumed: Why a resumed run starts again from its first step; None: it goes on from a checkpoint.
        compared: Whether given parameter sets are compared, so that there need be no temperature.
    """

    model: dict[str, Any]
    data: dict[str, Any] | None
    trainer: dict[str, Any]
    attach: dict[str, Any] | None
    metric: str
    validate_at: ValidateAt
    data_seed: int
    identity: str | None = None
    weights: str | None = None
    compile: str | None = None
    not_resumed: str | None = None
    compared: bool = False
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    metric_reads_temperature: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProgram:
    """A command that trains a run in processes of its own.

    Args:
        command: As the spec has it, with placeholders.
        metric: Name of the value.
        pattern: Text before the value in the output, or a regular expression with a group; None: the run
            reports its value.
        identity: Identity of the study's spec.
    """

    command: str
    metric: str
    pattern: str | None
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionProgram:
    """A Python function that trains a run in the worker.

    Args:
        function: Import path, as in ``my_package.train.train``.
        metric: Name of the value.
        identity: Identity of the study's spec.
    """

    function: str
    metric: str
    identity: str


AnyProgram = Program | CommandProgram | FunctionProgram
"""What runs of a study train."""


def guard_name(evaluation: str, metric: str) -> str:
    """Return the name under which an evaluation measures a metric that is guarded."""
    return f"{evaluation}{GUARD}{metric}"

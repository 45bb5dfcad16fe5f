"""What a worker trains, as plain data, and the names of guarded metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

ValidateAt = Literal["final", "current"]

GUARD = "/guard:"
"""Separates the name of an evaluation from that of a guarded metric in the name of a measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The training of a study: the sections of its spec that a worker needs, as plain data.

    Args:
        model: ``{"class_path": ..., "init_args": {...}}`` of a LightningModule.
        data: The same of a LightningDataModule; None if the module has its own loaders.
        trainer: Keyword arguments of ``lightning.Trainer``.
        attach: ``{"layers": [patterns] | "auto"}`` for a module that is not a TemperedModule, else None.
        values: Named temperatures by name, each with the keys ``value``, ``transform``, ``as_found``,
            ``evaluated`` and ``trained`` of the spec; missing keys are None. One without ``value`` is
            registered by a TemperedModule.
        metric_reads_temperature: Whether the metric may depend on a named temperature directly.
        metric: Name of the logged validation metric.
        validate_at: Temperature of decisive validations: the plan's ``final`` or the ``current`` one.
        data_seed: Seed of the setup of the data module; the same for the whole study, so that a random split
            is equal in all runs.
        identity: Identity of the study's spec, which does not depend on the machine; None: that of this
            program.
        weights: Checkpoint of a model that is evaluated without training (``tempopt evaluate``), else None.
        compile: Mode of ``torch.compile`` for the steps, such as ``default``; None: they are not compiled.
        not_resumed: Why a resumed run starts again from its first step; None: it goes on from a checkpoint.
        compared: Whether parameter sets are compared, so that there need not be a temperature.
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


def guard_name(evaluation_name: str, metric: str) -> str:
    """Return the name of the measurement of a guarded metric in an evaluation."""
    return f"{evaluation_name}{GUARD}{metric}"

"""The ``resources:`` section: what a trial uses and what a machine provides."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from tempopt.spec.sections import Seconds, SpecSection

if TYPE_CHECKING:
    from tempopt.spec.sections import StudySection

Workers = int | Literal["auto"]
"""Number of simultaneous trials; ``auto``: as many as fit."""

_Threads = Annotated[int | None, Field(ge=1, description="a whole number of at least 1, or null")]
_WORKERS = "a whole number of at least 1, auto or null"
_GPUS = "a share of a GPU below 1, a whole number of GPUs, or null"

SIZE = "bytes, a size with a unit (kB, MB, GB, TB, KiB, MiB, GiB, TiB) as in 8GB, or null"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]i?b)", re.IGNORECASE)
_UNITS = {
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Resources that one trial uses on any machine.

    Args:
        gpus: GPUs: a share of one in (0, 1), or an integer; 0: the trial trains on the CPU.
        cpus: CPU cores, >= 1.
        memory: Main memory in bytes; None if memory is not limited.
        ranks: Processes that train the trial together, >= 1; each has its own GPU if GPUs are used.
        loads_torch: Whether a worker trains it with torch and Lightning, and not by a program of its own.
    """

    gpus: float = 0.0
    cpus: int = 1
    memory: int | None = None
    ranks: int = 1
    loads_torch: bool = True

    @property
    def trials_per_gpu(self) -> int:
        """Number of trials that fit on one GPU, >= 1; also 1 for trials that use several or none."""
        return int(1 / self.gpus + 1e-9) if 0 < self.gpus < 1 else 1


class Resources(SpecSection):
    """The ``resources:`` section: what a trial uses and a machine provides; not part of a study's identity.

    Args:
        workers: Number of simultaneous trials; ``auto`` or None: as many as fit.
        gpus: GPUs of a trial: a share of one below 1, else an integer. None: one for each of
            ``trainer.devices`` on a machine with GPUs, otherwise none.
        cpus: CPU cores of a trial; None: one for each of its devices.
        memory: Main memory of a trial in bytes, or with a unit such as ``8GB``; None if memory is not
            limited.
        threads: CPU threads of each training process; None: ``cpus`` divided among them.
        grace: Seconds for writing checkpoints and exiting after Ctrl-C or SIGTERM.
    """

    workers: Annotated[Workers | None, Field(description=_WORKERS)] = None
    gpus: Annotated[float | None, Field(description=_GPUS)] = None
    cpus: _Threads = None
    memory: Annotated[int | None, Field(description=SIZE)] = None
    threads: _Threads = None
    grace: Seconds = 20.0

    @field_validator("workers", mode="before")
    @classmethod
    def _number_or_auto(cls, value: object) -> object:
        if value in (None, "auto") or (type(value) is int and value >= 1):
            return value
        raise ValueError(f"given {value!r}. Give {_WORKERS}.")

    @field_validator("gpus")
    @classmethod
    def _share_or_whole(cls, value: float | None) -> float | None:
        if value is None or 0 <= value < 1 or (math.isfinite(value) and value >= 1 and value.is_integer()):
            return value
        raise ValueError(f"given {value:g}. Give {_GPUS}.")

    @field_validator("memory", mode="before")
    @classmethod
    def _bytes(cls, value: object) -> object:
        size = value
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            size = int(float(match[1]) * _UNITS[match[2].lower()])
        if size is None or (type(size) is int and size >= 1):
            return size
        raise ValueError(f"given {value!r}. Give {SIZE}.")

    def need(self, *, ranks: int, can_use_gpus: bool, gpus: bool) -> Need:
        """Return the resources of a trial.

        Args:
            ranks: Number of processes that train a run together.
            can_use_gpus: Whether the Trainer may use GPUs.
            gpus: Whether the machine has GPUs, for a section without ``gpus``.
        """
        num_gpus = self.gpus if self.gpus is not None else float(ranks if gpus else 0)
        return Need(
            gpus=num_gpus if can_use_gpus else 0.0, cpus=self.cpus or ranks, memory=self.memory, ranks=ranks
        )

    def problems(self, study: StudySection, *, ranks: int, can_use_gpus: bool) -> list[tuple[str, str]]:
        """Return inconsistencies with the rest of a spec, as dotted path and message.

        Args:
            study: Its section ``study:``.
            ranks: Number of processes that train a run together.
            can_use_gpus: Whether runs may train on GPUs.
        """
        lines = []
        workers, gpus = self.workers, self.gpus
        if isinstance(workers, int) and workers > study.parallel:
            message = (
                f"given {workers}, but study.parallel lets {study.parallel} runs be in flight at a time."
            )
            remedy = "Give at most that many workers, or a larger study.parallel."
            lines.append(("resources.workers", f"{message} {remedy}"))
        if gpus and can_use_gpus and gpus != ranks and (gpus >= 1 or ranks > 1):
            reason = "two processes of a trial cannot share a GPU"
            if gpus > ranks:
                reason = "one would idle" if gpus - ranks == 1 else "some would idle"
            message = (
                f"given {gpus:g}, but trainer.devices is {ranks}: {reason}. Give resources.gpus: "
                f"{ranks}, or trainer.devices: {max(1, math.floor(gpus))}."
            )
            lines.append(("resources.gpus", message))
        return lines

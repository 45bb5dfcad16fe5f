"""The interface of launchers, which start agents on this machine, a Ray cluster, Slurm or another system.

A launcher is independent of tickets, which agents claim in the store: it finds room, starts agents there, and
restarts those that died.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tempopt.agent.machine import Machine
from tempopt.agent.placement import capacity
from tempopt.errors import UsageError, unknown
from tempopt.spec.resources import Need

State = Literal["waiting", "running", "done", "failed", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One agent to start, as plain data that can be sent to another machine.

    Args:
        study: Name of the study.
        storage: URL of the database, which may hold a password: never put it on a command line or into a log.
        spec: The study's spec as plain data (``StudySpec.to_json``); None: it is already in the store.
        options: Words of the command line after ``tempopt search SPEC`` or ``tempopt resume NAME``.
        workers: Number of workers of the agent, >= 1.
        gpus: Number of whole GPUs that the agent needs, all on one machine.
        cpus: Number of CPU cores that it needs.
        memory: Main memory that it needs, in bytes; None: not counted.
        folder: Its working folder, if that exists there.
        environment: Environment variables to set, as in ``{"PYTHONPATH": "..."}``.
        grace: Seconds that it gets to write checkpoints and leave.
    """

    study: str
    storage: str = field(repr=False)
    spec: dict[str, Any] | None = None
    options: tuple[str, ...] = ()
    workers: int = 1
    gpus: int = 0
    cpus: int = 1
    memory: int | None = None
    folder: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    grace: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The launcher's state of one agent.

    Args:
        id: The launcher's id of the job, by which a later program finds it again.
        state: ``waiting`` for room; ``running``; ``done``: it left gracefully, because the study has ended or
            was paused; ``failed``: it ended with an error and is not restarted; ``gone``: the launcher no
            longer knows the job.
        message: Why it failed or what it waits for; else empty.
        code: Exit code of its agent, if it has ended and the code is known.
    """

    id: str
    state: State
    message: str = ""
    code: int | None = None


class Launcher(abc.ABC):
    """Base class of launchers.

    A custom launcher is given as ``package.module:Class`` and tested with
    :class:`tempopt.testing.LauncherTests`. Its duties:

    - run an agent by :class:`tempopt.launch.supervise.Supervisor`, with the resources of its task on one
      machine;
    - restart an agent that died (killed, or its machine lost), but not one that ended by itself;
    - let an agent shut down gracefully, with ``task.grace`` seconds, before its resources are taken away.

    Args:
        options: The options ``--launch KEY=VALUE``.

    Raises:
        UsageError: An option is unknown or invalid, or the launcher's engine is not installed or cannot be
            reached.
    """

    name: ClassVar[str]
    """Name for ``--launcher NAME``."""

    OPTIONS: ClassVar[Mapping[str, str]]
    """Meaning and default of each option, by name."""

    is_multi_host: bool
    """Whether agents may run on another machine than the one that starts them."""

    allows_queueing: bool = False
    """Whether more trials than fit may share the resources, if that many are requested."""

    survives_command: bool
    """Whether agents continue after the end of the program that started them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in options:
            if name not in self.OPTIONS:
                descriptions = [f"{option} ({meaning})" for option, meaning in self.OPTIONS.items()]
                raise UsageError(
                    unknown(f"option of the launcher {self.name}", name, descriptions or ["none"])
                )
        self.options = dict(options)

    @abc.abstractmethod
    def machines(self) -> list[Machine]:
        """Return the machines on which agents may run, each with all its resources for them."""

    def has_gpus(self) -> bool:
        """Return whether there are GPUs to train on."""
        return any(machine.has_gpus for machine in self.machines())

    def capacity(self, need: Need) -> int:
        """Return how many trials of a need fit at a time on all machines; 0 if none fits, now or later."""
        return sum(capacity(need, machine) for machine in self.machines())

    def split(self, need: Need, workers: int) -> list[int]:
        """Return the number of workers of each agent, for a total number of workers, largest first.

        No agent has more workers than fit on its machine. Agents hold whole GPUs, so that a trial that ran
        out of GPU memory can have one to itself.
        """
        rooms = [capacity(need, machine) for machine in self.machines()]
        return sorted(split_over(rooms, need.trials_per_gpu, workers), reverse=True)

    @abc.abstractmethod
    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Start an agent for each task, now or when there is room, and return the ids of the jobs."""

    @abc.abstractmethod
    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return the jobs in the order of ``ids``, with those of earlier programs if ``survives_command``."""

    @abc.abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """Shut down agents gracefully, without a restart; return once they have left."""

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Release resources; agents continue if ``survives_command``, else they save their runs and leave."""


def build_tasks(base: Task, need: Need, split: Sequence[int]) -> list[Task]:
    """Return a task for each agent of a :meth:`Launcher.split`, with the resources for its workers.

    Args:
        base: The task's fields that all agents share.
        need: Resources of one trial.
        split: Number of workers of each agent.
    """
    return [
        dataclasses.replace(
            base,
            workers=workers,
            gpus=math.ceil(max(1.0, need.gpus) * workers / need.trials_per_gpu) if need.gpus else 0,
            cpus=need.cpus * workers,
            memory=None if need.memory is None else need.memory * workers,
        )
        for workers in split
    ]


def split_over(rooms: Sequence[int], per_agent: int, workers: int) -> list[int]:
    """Return the number of workers of each agent, at most as many as fit on a node.

    Workers beyond the room of all nodes wait, in agents that fit on the largest node.

    Args:
        rooms: Number of trials that fit on each node.
        per_agent: Maximal number of workers of an agent.
        workers: Total number of workers.
    """
    largest = min(per_agent, max(rooms, default=0) or per_agent)
    agents: list[int] = []
    for room in (*rooms, workers):
        node_workers = min(room, workers - sum(agents))
        agents += [min(largest, node_workers - done) for done in range(0, node_workers, largest)]
    return agents

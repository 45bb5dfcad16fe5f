"""The one interface of what starts agents: on this machine, on a Ray cluster, on Slurm, or your own way.

Agents meet in the store. A launcher knows nothing of tickets: it finds room, starts agents there, and starts
again those that died.
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
    """One agent of a study to be started, as plain data that can be sent anywhere.

    Args:
        study: Name of the study.
        storage: URL of the database; it may hold a password: never put it on a
            command line or into a log.
        spec: The study's spec as plain data (``StudySpec.to_json``); None: it is in the store already.
        options: Words of the command line behind ``tempopt search SPEC`` or ``tempopt resume NAME``.
        workers: Workers of the agent, >= 1.
        gpus: Whole cards that the agent needs, all on one machine.
        cpus: CPU cores that it needs.
        memory: Main memory in bytes that it needs; None: not counted.
        folder: Folder that it works in, where there is such a folder.
        environment: Variables that are set for it, as in ``{"PYTHONPATH": "..."}``.
        grace: Seconds that it is given to checkpoint and leave.
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
    """One agent that was started, as its launcher sees it.

    Args:
        id: What the launcher calls it; a program that is started later finds it again by that.
        state: ``waiting`` for room; ``running``; ``done``: it left in good order, whether the study has ended
            or was paused; ``failed``: it ended with an error and is not started again; ``gone``: the
            launcher knows no such job any more.
        message: Why it failed or what it waits for, for a person to read; else empty.
        code: Exit code of its agent, if it has ended and that is known.
    """

    id: str
    state: State
    message: str = ""
    code: int | None = None


class Launcher(abc.ABC):
    """Starts agents.

    A launcher of your own is given as ``package.module:Class`` and tested with
    :class:`tempopt.testing.LauncherTests`. What it owes:

    - an agent runs by :class:`tempopt.launch.supervise.Supervisor`, with what its task needs on one machine;
    - an agent that died (killed, its machine lost) is started again; one that ended by itself is not;
    - an agent is asked to leave in good order, with ``task.grace`` seconds, before its room is taken away.

    Args:
        options: What ``--launch KEY=VALUE`` gave.

    Raises:
        UsageError: An option is not known or cannot be, or what the launcher needs is not installed or
            cannot be reached.
    """

    name: ClassVar[str]
    """What it is called, as in ``--launcher NAME``."""

    OPTIONS: ClassVar[Mapping[str, str]]
    """Each option's name to what it means, with its default."""

    is_multi_host: bool
    """Whether agents may run on another machine than the one that starts them."""

    allows_queueing: bool = False
    """Whether more trials than there is room for may share what there is, if so many are asked for."""

    survives_command: bool
    """Whether agents go on when the program that started them has ended."""

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
        """Return the machines on which agents may run, each with all that it has for them."""

    def has_gpus(self) -> bool:
        """Return whether there are cards to train on."""
        return any(machine.has_gpus for machine in self.machines())

    def capacity(self, need: Need) -> int:
        """Return how many trials of that need fit at a time, in all of what the launcher reaches.

        0 if not even one fits, now or later.
        """
        return sum(capacity(need, machine) for machine in self.machines())

    def split(self, need: Need, workers: int) -> list[int]:
        """Return the workers of each agent, for so many trials side by side, the largest first.

        None has more than fit on its machine. An agent owns whole cards, so that a trial that ran out of a
        card's memory can have one to itself.
        """
        rooms = [capacity(need, machine) for machine in self.machines()]
        return sorted(split_over(rooms, need.trials_per_gpu, workers), reverse=True)

    @abc.abstractmethod
    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Start an agent for each task, now or when there is room, and return the ids of their jobs."""

    @abc.abstractmethod
    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return the jobs in the order of ``ids``; also those of earlier programs if ``survives_command``."""

    @abc.abstractmethod
    def cancel(self, ids: Sequence[str]) -> None:
        """Have agents leave in good order, and start none of these jobs again; return once they have left."""

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Release resources; agents continue if ``survives_command``, else they save their runs and leave."""


def tasks(base: Task, need: Need, split: Sequence[int]) -> list[Task]:
    """Return a task for each agent of a :meth:`Launcher.split`, with what all of its workers need.

    Args:
        base: What is the same for all of them.
        need: What one trial takes.
        split: Workers of each agent.
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
    """Return the workers of each agent, none with more than a node has room for.

    Those beyond all room have to wait for some, and wait in agents that fit on the largest node.

    Args:
        rooms: How many trials fit on each node.
        per_agent: No agent has more workers than that.
        workers: How many trials are to run side by side.
    """
    largest = min(per_agent, max(rooms, default=0) or per_agent)
    agents: list[int] = []
    for room in (*rooms, workers):
        node_workers = min(room, workers - sum(agents))
        agents += [min(largest, node_workers - done) for done in range(0, node_workers, largest)]
    return agents

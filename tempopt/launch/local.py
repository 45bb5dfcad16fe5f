"""Agents on this machine, as child processes that end with this process."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tempopt.agent.gpu_locks import exclude_claimed_gpus
from tempopt.agent.machine import Machine, this_machine
from tempopt.errors import UsageError
from tempopt.files import absolute
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.launch.supervise import ExitInfo, Supervisor
from tempopt.spec.resources import Need


class LocalLauncher(Launcher):
    """Starts agents on this machine: one agent per task, with all its workers.

    Args:
        options: ``logs``.

    Raises:
        UsageError: An option is unknown, or the folder for logs cannot be made.
    """

    name: ClassVar[str] = "local"
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "logs": "folder for the output of agents, one file per agent; default: not stored"
    }
    is_multi_host = False
    survives_command = False
    allows_queueing = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._agents: dict[str, _Agent] = {}
        self._numbers = itertools.count(1)
        self._logs = None if "logs" not in self.options else _make_log_folder(self.options["logs"])

    def machines(self) -> list[Machine]:
        """Return this machine, without the GPUs that other agents of this user hold."""
        return [exclude_claimed_gpus(this_machine())]

    def split(self, need: Need, workers: int) -> list[int]:
        """Return all workers for one agent, which assigns the machine's GPUs and cores itself."""
        return [workers]

    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Start an agent for each task, now."""
        started = []
        for task in tasks:
            id = f"{os.getpid()}-{next(self._numbers)}"
            self._agents[id] = _Agent(task, None if self._logs is None else self._logs / f"agent-{id}.log")
            started.append(id)
        return started

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return the jobs of this launcher object; others are ``gone``."""
        return [self._agents[id].job(id) if id in self._agents else Job(id=id, state="gone") for id in ids]

    def cancel(self, ids: Sequence[str]) -> None:
        """Shut down agents, all at once, and wait until they have left."""
        for thread in [self._agents[id].leave() for id in ids if id in self._agents]:
            thread.join()

    def close(self) -> None:
        """Shut down all agents gracefully."""
        self.cancel(list(self._agents))


class _Agent:
    """The agent of one task, and the thread that supervises it."""

    def __init__(self, task: Task, log: Path | None) -> None:
        self._output = (log or Path(os.devnull)).open("ab")
        self._supervisor = Supervisor(task, self._output.fileno())
        self._exit_info: ExitInfo | None = None
        # a daemon: when this process ends, its agents do, too, by the end of their standard input
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._output:
            self._exit_info = self._supervisor.run()

    def job(self, id: str) -> Job:
        """Return the state of its job."""
        return Job(id=id, state="running") if self._exit_info is None else self._exit_info.to_job(id)

    def leave(self) -> threading.Thread:
        """Start the shutdown of the agent; return a thread that ends when the agent has left."""
        thread = threading.Thread(target=self._leave, daemon=True)
        thread.start()
        return thread

    def _leave(self) -> None:
        self._supervisor.leave()
        self._thread.join()


def _make_log_folder(folder: str) -> Path:
    path = absolute(folder, "--launch logs: the folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--launch logs={folder}: the folder cannot be made: {error.strerror}. Give another one."
        ) from error
    return path

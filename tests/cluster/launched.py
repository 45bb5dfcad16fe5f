"""Agents that a launcher starts on a real cluster of this machine, Slurm or Ray, and blows at the cluster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unittest import mock

from tempopt.launch.launcher import Job, Launcher
from tempopt.launch.registry import make_launcher
from tempopt.launch.supervise import AGENT_MODULE
from tempopt.storage.rows import TicketRow
from tests.cluster import ray_cluster, slurm, studies
from tests.cluster.crew import Agent, Crew, wait_until
from tests.cluster.network import Machine
from tests.cluster.ray_cluster import RayCluster
from tests.cluster.slurm import Slurm
from tests.servers import descendants, strike

LAUNCHERS = {"slurm": slurm.why_not, "ray": ray_cluster.why_not}
_KEEPER = "ray::Keeper"


@dataclass(frozen=True)
class _Process:
    """A process that is another one's child, with what :class:`Agent` asks of its own."""

    pid: int

    def poll(self) -> int | None:
        return None if Path(f"/proc/{self.pid}/exe").exists() else 0


def _running(pids: list[int], program: str) -> list[int]:
    """Return those of the processes that run a program."""
    matches = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                matches.append(pid)
    return matches


class LaunchedCrew(Crew):
    """So many agents of a launcher; those that it gives up are started again.

    Args:
        folder: Folder in which they run.
        url: The study's database.
        num_agents: How many there are.
        launcher: Starts them.
    """

    environment: ClassVar[Mapping[str, str]] = {}
    """Variables of the launcher's commands."""

    def __init__(self, folder: Path, url: str, num_agents: int, launcher: Launcher) -> None:
        super().__init__(folder, url, [None] * num_agents)
        self._launcher = launcher
        self._ids: list[str] = []

    @abstractmethod
    def _pids(self) -> list[int]:
        """Return the processes of the cluster's nodes."""

    def begin(self, spec: dict[str, object]) -> None:
        """Begin the study with all agents."""
        self._task = studies.launch_task(self.folder, self.url, spec, grace=10.0)
        self._launch(len(self.places))
        wait_until(lambda: bool(studies.read_tickets(self.url)), "the study's tickets")

    def _launch(self, num_agents: int) -> None:
        with mock.patch.dict(os.environ, self.environment):
            self._ids += self._launcher.start([self._task] * num_agents)
        self.started += num_agents

    def _jobs(self) -> list[Job]:
        with mock.patch.dict(os.environ, self.environment):
            return self._launcher.jobs(self._ids)

    def look(self) -> list[TicketRow]:
        """Return the tickets, none if the database is away; agents that were started since are added."""
        agents = {agent.number: agent for agent in self.agents}
        self.agents = [
            agents.get(pid) or Agent(pid, _Process(pid), self.folder, None)
            for pid in _running(self._pids(), AGENT_MODULE)
        ]
        return super().look()

    def tend(self, *, is_away: Callable[[Machine | None], bool]) -> None:
        """Start another agent for each job that has ended, unless the study is over."""
        ended_jobs = [job for job in self._jobs() if job.state not in ("waiting", "running")]
        if not ended_jobs or is_away(None):
            return
        is_over = self._is_over()
        for job in ended_jobs:
            self._ids.remove(job.id)
            self._judge_job(job, is_over)
        if not is_over:
            self._launch(len(ended_jobs))

    def _judge_job(self, job: Job, is_over: bool) -> None:
        """Note a job whose end no blow explains: a cancellation, a request to leave, kill after kill."""
        if job.code == 2 and "database" in job.message:
            self.turned_away += 1
        elif job.code is not None and not (job.code == 0 and is_over) and 0 <= job.code < 128:
            self.unexplained.append(f"job {job.id} ended with exit code {job.code}:\n{job.message}")

    def has_left(self) -> bool:
        """Return whether the study is over and so is every job."""
        return not self._ids

    def end(self) -> None:
        """Leave it to the end of the cluster, which takes all of its processes with it."""

    def _any_running(self, rng: random.Random) -> str:
        return rng.choice([job.id for job in self._jobs() if job.state == "running"])


class SlurmCrew(LaunchedCrew):
    """Agents that are jobs of a Slurm with one node."""

    def __init__(self, folder: Path, url: str, num_agents: int, cluster: Slurm) -> None:
        self._slurm, self.environment = cluster, cluster.environment
        with mock.patch.dict(os.environ, self.environment):
            launcher = make_launcher("slurm", {"folder": str(folder / "slurm")})
        super().__init__(folder, url, num_agents, launcher)
        self.strikes = {"job queued again": self._requeue, "job cancelled": self._cancel}
        self.outages = {"node lost": (self._lose_node, cluster.start_node)}

    def _pids(self) -> list[int]:
        return self._slurm.processes()

    def tend(self, *, is_away: Callable[[Machine | None], bool]) -> None:
        """Start another agent for each job that has ended, and be the administrator whom Slurm waits for.

        A node on which a launch failed is drained, and that job is held.
        """
        if "drain" in self._slurm.command("sinfo", "-h", "--format=%T"):
            self._slurm.command("scontrol", "update", f"NodeName={slurm.NODE}", "State=RESUME")
        jobs = self._slurm.command("squeue", "-h", "--states=PENDING", "--format=%i|%r").splitlines()
        for id in (job.partition("|")[0] for job in jobs if "held" in job):
            self._slurm.command("scontrol", "release", id, check=False)
        super().tend(is_away=is_away)

    def _requeue(self, rng: random.Random) -> str:
        return self._command("scontrol", "requeue", self._any_running(rng))

    def _cancel(self, rng: random.Random) -> str:
        return self._command("scancel", self._any_running(rng))

    def _command(self, *words: str) -> str:
        try:
            self._slurm.command(*words)
        except RuntimeError as error:
            # it has ended meanwhile
            raise LookupError from error
        return words[-1]

    def _lose_node(self) -> None:
        self._slurm.kill_node()
        self._slurm.command("scontrol", "update", f"NodeName={slurm.NODE}", "State=DOWN", "Reason=lost")


class RayCrew(LaunchedCrew):
    """Agents that are actors of a Ray with two nodes, of which the second one may be lost."""

    def __init__(self, folder: Path, url: str, num_agents: int, cluster: RayCluster) -> None:
        launcher = make_launcher("ray", {"address": cluster.address})
        super().__init__(folder, url, num_agents, launcher)
        self._cluster = cluster
        self.strikes = {"keeper killed": self._kill_keeper, "actor killed": self._kill_actor}
        self.outages = {"node lost": (self._lose_node, self._add_node)}

    def _pids(self) -> list[int]:
        nodes = filter(None, (self._cluster.head, self._cluster.second_node))
        return [pid for node in nodes for pid in descendants(ray_cluster.raylet(node))]

    def _kill_keeper(self, rng: random.Random) -> str:
        return self._kill(rng.choice(_running(self._pids(), _KEEPER)))

    def _kill_actor(self, rng: random.Random) -> str:
        agent = rng.choice([agent for agent in self.agents if agent.alive and agent.worked])
        return self._kill(ray_cluster.parent(agent.number))

    def _kill(self, pid: int) -> str:
        strike(pid, signal.SIGKILL)
        return f"process {pid}"

    def _lose_node(self) -> None:
        node, self._cluster.second_node = self._cluster.second_node, None
        self._cluster.remove(node)

    def _add_node(self) -> None:
        self._cluster.second_node = self._cluster.add()


@contextlib.contextmanager
def run_launched(launcher: str, folder: Path, url: str, num_agents: int) -> Iterator[LaunchedCrew]:
    """Run a cluster and yield agents for it; nothing of it is left afterwards."""
    if launcher == "slurm":
        cluster = Slurm()
        try:
            yield SlurmCrew(folder, url, num_agents, cluster)
        finally:
            cluster.stop()
        return
    with ray_cluster.run_cluster() as ray:
        crew = RayCrew(folder, url, num_agents, ray)
        try:
            yield crew
        finally:
            crew._launcher.close()

"""Agents at work on one study: started, watched, and replaced when they are gone."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tempopt.errors import StorageError
from tempopt.storage.rows import TicketRow
from tests.cluster.http_servers import HttpServers
from tests.cluster.network import Machine
from tests.cluster.studies import NAME, environment, read_tickets, spawn, state, tempopt, write_spec
from tests.servers import strike, worker_pids

# Only against hanging for ever: nothing is done for so long on no machine, however slow and busy.
PATIENCE = 400.0
INTERRUPTED = 130


def wait_until(condition: Callable[[], bool], description: str, patience: float = PATIENCE) -> None:
    """Wait until something is so; AssertionError with what was waited for if it never is."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain: {description}"
        time.sleep(0.1)


@dataclass
class Agent:
    """One agent's process and what was done to it.

    Args:
        process: Has ``pid`` and ``poll()``; a ``Popen`` unless a launcher started it.
        machine: Where it runs; None for this machine.
        worked: Whether it was seen to hold a ticket.
        may_have_ended: Whether the agent was exposed to a fault that may end it.
    """

    number: int
    process: Any
    log: Path
    machine: Machine | None
    worked: bool = False
    may_have_ended: bool = False
    paused: bool = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def workers(self) -> list[int]:
        """Return the process ids of its workers."""
        return worker_pids(self.process.pid)

    def ending_text(self) -> str:
        """Return how it ended and the last that it said."""
        last = self.log.read_text(errors="replace")[-2500:]
        return f"agent {self.number} ended with exit code {self.process.returncode}:\n{last}"


@dataclass
class Crew:
    """So many agents, one worker each, on this machine and on others; the dead are replaced.

    Args:
        folder: Folder in which they run.
        url: The study's database.
        places: Machine of each agent; None for this machine.
        http: The servers that agents work for; None: they reach the database themselves.
        mixed: Whether every other agent reaches the database all the same.
        strikes: By kind of blow, what strikes at a cluster and returns its victim.
        outages: By kind of blow, what takes a node of a cluster away and what brings it back.
    """

    folder: Path
    url: str
    places: Sequence[Machine | None]
    http: HttpServers | None = None
    mixed: bool = False
    agents: list[Agent] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    turned_away: int = 0
    started: int = 0
    strikes: dict[str, Callable[[Random], str]] = field(default_factory=dict)
    outages: dict[str, tuple[Callable[[], object], Callable[[], object]]] = field(default_factory=dict)

    def begin(self, spec: dict[str, object]) -> None:
        """Begin the study with the first agent and have the others join it."""
        if self.http is not None:
            self._submit(self.http, spec)
            for machine in self.places:
                self._start(machine)
            return
        self._start(self.places[0], tempopt("search", write_spec(self.folder, spec)))
        first = self.agents[0]
        wait_until(lambda: not first.alive or bool(read_tickets(self.url)), "the study's tickets")
        assert first.alive, first.ending_text()
        for machine in self.places[1:]:
            self._start(machine)

    def _submit(self, http: HttpServers, spec: dict[str, object]) -> None:
        """Have a person begin the study over HTTP, who then leaves it to the agents."""
        command = tempopt("search", write_spec(self.folder, spec), "--storage", http.url, "--no-report")
        log = self.folder / "person.log"
        person = spawn(command, self.folder, log, environment(TEMPOPT_TOKEN_FILE=str(http.admin_file)))
        wait_until(lambda: person.poll() is not None or bool(read_tickets(self.url)), "the study's tickets")
        person.send_signal(signal.SIGINT)
        assert person.wait() == INTERRUPTED, log.read_text()

    def _start(self, machine: Machine | None, command: list[str] | None = None) -> None:
        number, self.started = self.started, self.started + 1
        log = self.folder / f"agent-{number:03d}.log"
        store_args = ["--storage", self.url]
        if self.http is not None and not (self.mixed and number % 2):
            store_args = ["--server", self.http.url, "--token-file", str(self.http.token_file)]
        prefix = machine.prefix if machine else []
        words = [*prefix, *(command or tempopt("agent", NAME)), *store_args, "--workers", "1"]
        process = spawn(words, self.folder, log, environment(PACE=str(self.folder / "pace")))
        self.agents.append(Agent(number, process, log, machine))

    def look(self) -> list[TicketRow]:
        """Return the tickets, none if the database is away; the agents seen to hold one are marked."""
        rows = read_tickets(self.url)
        holders = {int(row.agent.split(":")[1]) for row in rows if row.state == "running" and row.agent}
        for agent in self.agents:
            agent.worked = agent.worked or agent.process.pid in holders
        return rows

    def tend(self, *, is_away: Callable[[Machine | None], bool]) -> None:
        """Note who is gone, and start another in the place of each unless the study is over.

        Args:
            is_away: Whether the database cannot be reached from a machine just now.
        """
        is_over = False
        for agent in [agent for agent in self.agents if not agent.alive]:
            if not is_over and is_away(agent.machine):
                continue
            self.agents.remove(agent)
            is_over = is_over or self._is_over()
            self._judge(agent, is_over)
            if not is_over:
                self._start(agent.machine)

    def has_left(self) -> bool:
        """Return whether every agent has ended."""
        return not self.agents

    def _is_over(self) -> bool:
        with contextlib.suppress(StorageError):
            return state(self.url) == "done"
        return False

    def _judge(self, agent: Agent, is_over: bool) -> None:
        code = agent.process.returncode
        if agent.may_have_ended or (code == 0 and is_over):
            return
        outage_words = ("database", "cannot be reached", "token")
        if code == 2 and not agent.worked and any(word in agent.ending_text() for word in outage_words):
            # it was started while the database was away, and said so
            self.turned_away += 1
            return
        self.unexplained.append(agent.ending_text())

    def end(self) -> None:
        """Kill everybody."""
        for agent in self.agents:
            for pid in (*agent.workers(), agent.process.pid):
                strike(pid, signal.SIGCONT)
                strike(pid, signal.SIGKILL)
            agent.process.wait()
        self.agents.clear()

"""Agents of a pool at work: started, watched, struck and replaced; and which steps they really trained."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tempopt.confirmation.stages import first_tickets
from tempopt.records.rows import Pooled
from tempopt.spec.study_spec import StudySpec
from tempopt.store import Store
from tempopt.store.optuna_calls import make_study
from tests.cluster.crew import INTERRUPTED, wait_until
from tests.cluster.http_servers import HttpServers
from tests.cluster.studies import environment, seen, state, tempopt, written
from tests.servers import strike, worker_pids

_TOLD = re.compile(r"^\[\d\d:\d\d:\d\d\] (?P<text>.*)$", re.MULTILINE)
PREEMPTED = "another study has a higher priority"


class Step(NamedTuple):
    """One optimizer step that was begun, at a moment in epoch seconds."""

    study: str
    run: str
    step: int
    moment: float


def _interrupted(person: subprocess.Popen[bytes]) -> str:
    """Have a command end as by Ctrl-C, and return what it has said."""
    while True:
        # one that comes while an object is finalized is lost
        person.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return person.communicate(timeout=15.0)[0].decode()


@dataclass
class PoolAgent:
    """One agent of the pool, and what was done to it.

    Args:
        ended: Whether something was done to it that an agent may end of.
    """

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    ended: bool = False
    paused: bool = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def lines(self) -> list[str]:
        """Return what it has told people."""
        return _TOLD.findall(self.log.read_text(errors="replace"))

    def workers(self) -> list[int]:
        """Return the process ids of its workers."""
        return worker_pids(self.process.pid)


@dataclass
class PoolCrew:
    """So many agents of the pool on this machine; the dead are replaced.

    Args:
        folder: Folder in which they run.
        url: The database.
        count: Number of agents.
        http: The servers that agents work for; None: they reach the database themselves.
    """

    folder: Path
    url: str
    count: int
    http: HttpServers | None = None
    agents: list[PoolAgent] = field(default_factory=list)
    past: list[PoolAgent] = field(default_factory=list)

    @property
    def steps_file(self) -> Path:
        return self.folder / "steps"

    def pace(self, name: str, seconds: float) -> None:
        """Have every step of all studies take so many seconds more; ``name`` tells who wants it."""
        new = self.folder / f"pace.{name}"
        new.write_text(str(seconds))
        new.replace(self.folder / "pace")

    def submit(self, spec: dict[str, Any], *more: str) -> float:
        """Begin a study as a person does who then leaves it to the pool; return when it was there.

        In epoch seconds, by the database's clock, which is this machine's.
        """
        name = spec["study"]["name"]
        words = ["search", written(self._own(name), spec), "--no-report", *more]
        if self.http is not None:
            words += ["--storage", self.http.url]
            known = {"TEMPOPT_TOKEN_FILE": str(self.http.admin_file)}
        else:
            words += ["--storage", self.url, "--pool"]
            known = {}
        person = subprocess.Popen(
            tempopt(*words),
            cwd=self.folder,
            env=environment(**known),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        wait_until(lambda: person.poll() is not None or bool(seen(self.url, name)), f"the study {name}")
        told = _interrupted(person)
        assert person.returncode == INTERRUPTED, told
        with Store.open(self.url, create=False) as store:
            return store.load_study(name).created.timestamp()

    def submit_like(self, other: str, name: str, priority: int) -> float:
        """Begin a study as another one was begun, with no person who tries it first; as :meth:`submit`."""
        with Store.open(self.url, create=False) as store:
            before = store.load_study(other)
            plain = {**before.spec, "study": {**before.spec["study"], "name": name}}
            spec = StudySpec.stored(dataclasses.replace(before, name=name, spec=plain))
            pooled = Pooled(owner=before.owner, priority=priority, parallel=before.parallel)
            make_study(store.url, name=name, direction="minimize", metric="val_loss")
            row = store.create_study(name, spec.to_json(), spec.identity(), pooled=pooled)
            store.add_tickets(row.id, first_tickets(spec))
            return row.created.timestamp()

    def _own(self, name: str) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def place(self, name: str, priority: int) -> None:
        """Give a study another priority, as a person does."""
        words = ["queue", name, "--priority", str(priority)]
        where = self.url if self.http is None else self.http.url
        known = {} if self.http is None else {"TEMPOPT_TOKEN_FILE": str(self.http.admin_file)}
        done = subprocess.run(
            tempopt(*words, "--storage", where),
            cwd=self.folder,
            env=environment(**known),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def end_study(self, name: str) -> None:
        """Have a study rest, as if it had come to its verdict."""
        with Store.open(self.url, create=False) as store:
            store.set_state(store.load_study(name).id, "paused")

    def begin(self) -> None:
        """Start the agents."""
        for _ in range(self.count):
            self._start()

    def _start(self) -> None:
        number = len(self.agents) + len(self.past)
        log = self.folder / f"agent-{number:03d}.log"
        where = ["--storage", self.url]
        if self.http is not None:
            where = ["--server", self.http.url, "--token-file", str(self.http.token_file)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                tempopt("agent", "--pool", *where),
                cwd=self.folder,
                env=environment(PACE=str(self.folder / "pace"), STEPS=str(self.steps_file)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.agents.append(PoolAgent(number, process, log))

    def tend(self) -> None:
        """Start another agent in the place of each that is gone.

        Raises:
            AssertionError: One has ended to which nobody has done anything.
        """
        for agent in [agent for agent in self.agents if not agent.alive]:
            assert agent.ended, f"agent {agent.number} ended by itself:\n{agent.log.read_text()[-3000:]}"
            self.agents.remove(agent)
            self.past.append(agent)
            self._start()

    def steps(self, *studies: str) -> list[Step]:
        """Return each optimizer step that was begun, of these studies, none: of all."""
        if not self.steps_file.exists():
            return []
        # the last line may be half written
        parts = [line.split() for line in self.steps_file.read_text().split("\n")[:-1]]
        every = [Step(study, run, int(step), float(moment)) for study, run, step, moment in parts]
        return [each for each in every if not studies or each.study in studies]

    def trained_twice(self) -> int:
        """Return how many steps were trained that had been trained before."""
        counts = collections.Counter((each.study, each.run, each.step) for each in self.steps())
        return sum(count - 1 for count in counts.values())

    def preemptions(self) -> int:
        """Return how often an agent has left a study for another with a higher priority."""
        every = [line for agent in [*self.agents, *self.past] for line in agent.lines()]
        return sum(line.startswith("Left ") and line.endswith(f": {PREEMPTED}.") for line in every)

    def is_over(self, name: str) -> bool:
        """Return whether a study has come to its verdict; False as well if the database is away."""
        return bool(seen(self.url, name)) and state(self.url, name) == "done"

    def failures(self, name: str) -> int:
        """Return how many attempts at the runs of a study were lost."""
        with Store.open(self.url, create=False) as store:
            return sum(row.failures for row in store.tickets(store.load_study(name).id))

    def leave(self) -> None:
        """Have all agents leave in good order, and see that they do."""
        for agent in self.agents:
            agent.ended = True
            strike(agent.process.pid, signal.SIGCONT)
            strike(agent.process.pid, signal.SIGTERM)
        for agent in self.agents:
            code = agent.process.wait(timeout=120)
            assert code == INTERRUPTED, agent.log.read_text()[-3000:]

    def end(self) -> None:
        """Kill everybody."""
        for agent in self.agents:
            for pid in (*agent.workers(), agent.process.pid):
                strike(pid, signal.SIGCONT)
                strike(pid, signal.SIGKILL)
            agent.process.wait()

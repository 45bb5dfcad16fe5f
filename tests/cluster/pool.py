"""Agents of a pool, and studies that push each other out, in peace and under attack: nothing is lost.

All scenes, and how long a study with a higher priority waits for its first step, from the root of a clone::

    python -m tests.cluster.pool

Shorter ones are part of the tests (test_pool.py).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import functools
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tempopt.store import Store
from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.http_servers import HttpServers
from tests.cluster.pool_crew import PoolAgent, PoolCrew
from tests.cluster.pool_times import Times, first_step
from tests.cluster.studies import Record
from tests.servers import PrivateServer, start_private, strike, why_not

LONG, SHORT = 160, 24
"""Optimizer steps of a run of a study that is pushed out, and of one that comes first."""
LEASE = 20.0
"""In seconds, under attack; in peace no machine is so busy that a run is taken to be lost."""
_PEACEFUL_LEASE = 1800.0
_PACE, _FAST = 0.05, 0.0
_TICKETS = 2
# Share of the requests to servers that are doubled, and of the replies that are lost.
_UNRELIABLE = 0.05
Say = Callable[[str], None]


@dataclass(frozen=True)
class Pool:
    """Where a pool is, and how large it is.

    Args:
        backend: Of the database.
        servers: Number of servers that agents work for; 0: they reach the database themselves.
        agents: Number of agents.
        seed: Of the violence.
    """

    backend: str = "sqlite"
    servers: int = 0
    agents: int = 2
    seed: int = 0


def spec(name: str, steps: int, lease: float = _PEACEFUL_LEASE) -> dict[str, Any]:
    """Return the spec of a small study whose runs have so many steps."""
    made = studies.spec(_TICKETS, steps=steps, name=name, lease=lease, store_timeout=3600)
    # nothing but temperature: no rematch, and half the runs
    del made["search"]["lr"]
    return made


@contextlib.contextmanager
def pooled(pool: Pool, folder: Path) -> Iterator[tuple[PoolCrew, PrivateServer | None]]:
    """Yield agents of a pool that are not yet started, and the server of their database."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        server, url = None, f"sqlite:///{folder / 'tempopt.db'}"
        if pool.backend != "sqlite":
            server = start_private(pool.backend)
            stack.callback(server.remove)
            url = server.create_database("pool")
        http = None
        with Store.open(url):
            pass
        if pool.servers:
            http = HttpServers(folder, url, pool.servers)
            stack.callback(http.close)
        crew = PoolCrew(folder, url, pool.agents, http)
        stack.callback(crew.end)
        yield crew, server


def comes_first(pool: Pool, folder: Path, undisturbed: Callable[[int], Record], say: Say) -> Times:
    """A study with a higher priority comes, and a third gets one: nothing is lost, nothing trained twice.

    Raises:
        AssertionError: A step was trained twice, a run failed, or a study came to other values than in peace.
    """
    with pooled(pool, folder) as (crew, _):
        crew.pace("scene", _PACE)
        crew.submit(spec("low", LONG))
        crew.submit(spec("third", SHORT), "--priority", "-5")
        crew.begin()
        wait_until(lambda: _in_training(crew, pool.agents), "runs in mid-training")
        high = spec("high", SHORT)
        times = first_step(crew, "high", lambda: crew.submit(high, "--priority", "10"))
        say(f"first step after {times.every:.2f} s: {times}")
        assert crew.preemptions() >= 1
        crew.place("third", 20)
        wait_until(lambda: _said(crew, "Serves third."), "an agent on the study with another priority")
        crew.pace("scene", _FAST)
        _finish(crew, ("low", "third", "high"))
        crew.leave()
        say(f"{crew.preemptions()} times an agent was pushed out; {crew.trained_twice()} steps trained twice")
        assert crew.trained_twice() == 0
        assert [crew.failures(name) for name in ("low", "third", "high")] == [0, 0, 0]
        _compare(
            crew.url, {"low": undisturbed(LONG), "third": undisturbed(SHORT), "high": undisturbed(SHORT)}
        )
        return times


def flips(pool: Pool, folder: Path, undisturbed: Callable[[int], Record], say: Say, times: int) -> None:
    """Two studies take turns in having the higher priority: both come to the values that they have alone."""
    with pooled(pool, folder) as (crew, _):
        crew.pace("scene", 3 * _PACE)
        crew.submit(spec("low", LONG))
        crew.submit(spec("other", LONG))
        crew.begin()
        wait_until(lambda: _in_training(crew, pool.agents), "runs in mid-training")
        number = 0
        while crew.preemptions() < times:
            number += 1
            high, low = ("other", "low") if number % 2 else ("low", "other")
            with Store.open(crew.url) as store:
                store.pool.place(low, priority=0)
                store.pool.place(high, priority=1)
            before, trained = crew.preemptions(), len(crew.steps())

            def moved(before: int = before, trained: int = trained) -> bool:
                crew.tend()
                is_over = crew.is_over("low") or crew.is_over("other")
                assert not is_over, (
                    f"a study was over after {before} of {times} preemptions: give it more steps"
                )
                return crew.preemptions() > before and len(crew.steps()) > trained + 2

            wait_until(moved, "a study to be pushed out")
        crew.pace("scene", _FAST)
        _finish(crew, ("low", "other"))
        crew.leave()
        say(f"{crew.preemptions()} times an agent was pushed out; {crew.trained_twice()} steps trained twice")
        assert crew.preemptions() >= times and crew.trained_twice() == 0
        assert [crew.failures(name) for name in ("low", "other")] == [0, 0]
        _compare(crew.url, {"low": undisturbed(LONG), "other": undisturbed(LONG)})


@dataclass
class Attacker:
    """Strikes agents and servers of a pool, and has studies push each other out, at random from a seed."""

    crew: PoolCrew
    server: PrivateServer | None
    random: random.Random
    say: Say
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    _later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    _away: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._blows: dict[str, Callable[[], None]] = {
            "agent killed": self._kill,
            "agent frozen": self._freeze,
            "worker killed": self._kill_worker,
            "agent terminated": self._terminate,
            "priority changed": self._place,
        }
        if self.crew.http is not None:
            self._blows["server killed"] = self._kill_server
        if self.server is not None:
            self._blows["database killed"] = self._kill_database

    def untried(self) -> list[str]:
        """Return what was not done yet."""
        return [name for name in self._blows if not self.counts[name]]

    def strike(self) -> None:
        """Do something bad."""
        name = self.random.choice(self.untried() or list(self._blows))
        # nobody may be there to be struck like that just now
        with contextlib.suppress(LookupError):
            self._blows[name]()
            self.counts[name] += 1
            self.say(name)

    def undo(self, *, everything: bool = False) -> None:
        """Bring back what was away for long enough."""
        now = time.monotonic()
        due = [each for each in self._later if everything or each[0] <= now]
        self._later = [each for each in self._later if each not in due]
        for _, bring_back in sorted(due, key=lambda each: each[0]):
            bring_back()

    def _victim(self) -> PoolAgent:
        return self.random.choice([a for a in self.crew.agents if a.alive and not (a.ended or a.paused)])

    def _after(self, bring_back: Callable[[], object]) -> None:
        seconds = LEASE * self.random.choice((0.1, 0.5, 1.5))
        self._later.append((time.monotonic() + seconds, bring_back))

    def _kill(self) -> None:
        agent = self._victim()
        agent.ended = True
        strike(agent.process.pid, signal.SIGKILL)

    def _terminate(self) -> None:
        agent = self._victim()
        agent.ended = True
        strike(agent.process.pid, signal.SIGTERM)

    def _kill_worker(self) -> None:
        strike(self.random.choice(self._victim().workers()), signal.SIGKILL)

    def _freeze(self) -> None:
        agent = self._victim()
        agent.paused = True
        strike(agent.process.pid, signal.SIGSTOP)

        def wake() -> None:
            agent.paused = False
            strike(agent.process.pid, signal.SIGCONT)

        self._after(wake)

    def _place(self) -> None:
        if self._away:
            raise LookupError
        with Store.open(self.crew.url) as store:
            store.pool.place(self.random.choice(("low", "high")), priority=self.random.randrange(-5, 20))

    def _kill_server(self) -> None:
        http = self.crew.http
        if http is None or self._away:
            raise LookupError
        number = self.random.randrange(len(http.ports))
        http.kill(number)
        self._away.add("server")

        def bring_back() -> None:
            http.start(number)
            self._away.discard("server")

        self._after(bring_back)

    def _kill_database(self) -> None:
        server = self.server
        if server is None or self._away:
            raise LookupError
        server.kill()
        self._away.add("database")

        def bring_back() -> None:
            server.start()
            self._away.discard("database")

        self._after(bring_back)


def attacked(
    pool: Pool, folder: Path, undisturbed: Callable[[int], Record], say: Say, *, seconds: float
) -> None:
    """Studies push each other out while agents and servers are struck: nothing is lost, or done twice.

    Steps since the last checkpoint are trained again where an agent was killed, and come to the same values.
    """
    with pooled(pool, folder) as (crew, server):
        crew.pace("scene", _PACE)
        crew.submit(spec("low", LONG, LEASE))
        crew.begin()
        wait_until(lambda: _in_training(crew, pool.agents), "runs in mid-training")
        if crew.http is not None:
            crew.http.line.dropped = crew.http.line.doubled = _UNRELIABLE
        crew.submit(spec("high", SHORT, LEASE), "--priority", "10")
        attacker = Attacker(crew, server, random.Random(pool.seed), say)
        until = time.monotonic() + seconds
        while time.monotonic() < until or attacker.untried():
            attacker.undo()
            crew.tend()
            assert not crew.is_over("low"), (
                f"it was over before all was tried: {', '.join(attacker.untried())}"
            )
            attacker.strike()
            time.sleep(attacker.random.uniform(0.5, 4.0))
        attacker.undo(everything=True)
        say(f"peace after {dict(attacker.counts)}")
        crew.pace("scene", _FAST)
        _finish(crew, ("low", "high"))
        say(f"{crew.preemptions()} times an agent was pushed out; {crew.trained_twice()} steps trained twice")
        if crew.http is not None:
            line = crew.http.line
            assert line.lost and line.said_twice
        _compare(crew.url, {"low": undisturbed(LONG), "high": undisturbed(SHORT)})


def _in_training(crew: PoolCrew, agents: int) -> bool:
    crew.tend()
    runs = {(each.study, each.run) for each in crew.steps() if each.step >= 3}
    return len(runs) >= min(agents, 2)


def _said(crew: PoolCrew, line: str) -> bool:
    crew.tend()
    return any(line in agent.lines() for agent in crew.agents)


def _finish(crew: PoolCrew, names: tuple[str, ...]) -> None:
    """Leave agents in peace until all studies are over."""

    def over() -> bool:
        crew.tend()
        return all(crew.is_over(name) for name in names)

    wait_until(over, f"the verdicts of {', '.join(names)}", patience=900.0)


def _compare(url: str, undisturbed: dict[str, Record]) -> None:
    for name, record in undisturbed.items():
        differences = studies.read(url, _TICKETS, name).differences(record)
        assert not differences, f"{name}: " + "\n".join(differences)


def waits(pool: Pool, folder: Path, repetitions: int, say: Say) -> list[Times]:
    """Return how long studies with a higher priority waited for their first step, one after another."""
    found = []
    with pooled(pool, folder) as (crew, _):
        crew.pace("scene", _PACE)
        crew.submit(spec("low", 100_000))
        crew.begin()
        wait_until(lambda: _in_training(crew, pool.agents), "runs in mid-training")
        for number in range(repetitions):
            name = f"high{number}"
            found.append(first_step(crew, name, functools.partial(crew.submit_like, "low", name, 10)))
            say(f"{number}: {found[-1]}")
            crew.end_study(name)
            before = len(crew.steps("low"))
            wait_until(functools.partial(_goes_on, crew, before + 40), "the study goes on")
        say(f"{crew.preemptions()} preemptions, {crew.trained_twice()} steps trained twice")
        assert crew.trained_twice() == 0
    return found


def _goes_on(crew: PoolCrew, steps: int) -> bool:
    crew.tend()
    return len(crew.steps("low")) >= steps


def requests_of_idle(pool: Pool, folder: Path, seconds: float) -> dict[str, float]:
    """Return the requests per minute of one agent that has nothing to do, by path."""
    with pooled(pool, folder) as (crew, _):
        assert crew.http is not None
        crew.begin()
        wait_until(lambda: sum(crew.http.line.by_path.values()) >= pool.agents, "the agents")  # type: ignore[union-attr]
        time.sleep(5.0)
        before = dict(crew.http.line.by_path)
        time.sleep(seconds)
        after = crew.http.line.by_path
        each = 60.0 / seconds / pool.agents
        return {path: (count - before.get(path, 0)) * each for path, count in after.items()}


def in_peace(folder: Path) -> Callable[[int], Record]:
    """Return what gives the record of a study whose runs have so many steps that nobody disturbs.

    It is found out once, and kept in the folder for all processes that use it.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def record(steps: int) -> Record:
        kept = folder / f"{steps}.json"
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    found = studies.undisturbed(Path(place), spec("peace", steps))
                kept.write_text(json.dumps(dataclasses.asdict(found)))
            return Record(**json.loads(kept.read_text()))

    return record


def main() -> int:
    """Play the scenes that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.cluster.pool")
    parser.add_argument("scene", choices=("first", "flips", "attacked", "waits", "requests", "all"))
    parser.add_argument("--backend", choices=("sqlite", "postgresql", "mariadb"), default="sqlite")
    parser.add_argument("--servers", type=int, default=0, help="servers that agents work for (default: none)")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120.0, help="of violence (default: 120)")
    parser.add_argument("--times", type=int, default=30, help="preemptions, and repetitions of waits")
    parser.add_argument("--seed", type=int, default=0, help="of the violence")
    parser.add_argument("--folder", type=Path, help="where to keep all logs (default: nowhere)")
    asked = parser.parse_args()
    if asked.backend != "sqlite" and (reason := why_not(asked.backend)):
        sys.exit(reason)
    pool = Pool(asked.backend, asked.servers, asked.agents, asked.seed)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = (asked.folder or Path(temporary)).absolute()
        peace = in_peace(folder / "peace")
        scenes: dict[str, Callable[[Path], object]] = {
            "first": lambda at: comes_first(pool, at, peace, say),
            "flips": lambda at: flips(pool, at, peace, say, asked.times),
            "attacked": lambda at: attacked(pool, at, peace, say, seconds=asked.seconds),
            "waits": lambda at: _print(waits(pool, at, asked.times, say)),
            "requests": lambda at: print(requests_of_idle(pool, at, asked.seconds)),
        }
        for name in scenes if asked.scene == "all" else (asked.scene,):
            say(name)
            scenes[name](folder / name)
    return 0


def _print(found: list[Times]) -> None:
    for part in ("told", "left", "taken", "begun", "every"):
        values = [getattr(each, part) for each in found]
        print(f"{part:>6}: median {statistics.median(values):.2f} s, max {max(values):.2f} s")


if __name__ == "__main__":
    sys.exit(main())

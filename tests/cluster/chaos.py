"""A study under attack: agents, database, servers, network and clusters are struck, and nothing may be lost.

The full attack in every set-up is one command, from the root of a clone (as root, for the network)::

    python -m tests.cluster.chaos

A shorter one is part of the tests (test_chaos.py).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster import network, studies
from tests.cluster.crew import PATIENCE, Agent, Crew
from tests.cluster.http_servers import HttpServers
from tests.cluster.launched import LAUNCHERS, run_launched
from tests.cluster.network import Machine
from tests.cluster.studies import Record
from tests.servers import PrivateServer, start_private, strike, why_not

BACKENDS = ("sqlite", "postgresql", "mariadb")
SETUPS: dict[str, tuple[str, dict[str, Any]]] = {
    **{backend: (backend, {}) for backend in BACKENDS},
    "server": ("postgresql", {"servers": 2}),
    **{launcher: ("postgresql", {"launcher": launcher}) for launcher in LAUNCHERS},
}
"""By name: the database, and fields of :class:`Size`."""
LEASE = 5.0
# One in so many agents works on a machine whose network is cut now and then.
_ABROAD = 4
# Share of the requests to servers that are doubled, and of the replies that are lost.
_UNRELIABLE = 0.05
_DATABASE, _HTTP, _NODE = "the database", "a tempopt server", "a node of the cluster"


@dataclass(frozen=True)
class Size:
    """How large a study, how many agents, and how long they are attacked.

    Args:
        every: Seconds between two blows, on average.
        servers: Number of servers that agents work for; 0: they reach the database themselves.
        mixed: Whether every other agent reaches the database all the same.
        launcher: Starts the agents, on a cluster that is struck, too: ``slurm`` or ``ray``; empty: none.
        is_recall: Whether a transformer is trained instead of the toy.
    """

    tickets: int
    agents: int
    seconds: float
    every: float
    seed: int = 0
    servers: int = 0
    mixed: bool = False
    launcher: str = ""
    is_recall: bool = False

    @property
    def steps(self) -> int:
        """Training steps of a run."""
        return studies.RECALL_STEPS if self.is_recall else studies.STEPS

    def spec(self) -> dict[str, Any]:
        """Return the spec of the study that is attacked."""
        make_spec = studies.recall_spec if self.is_recall else studies.spec
        return make_spec(self.tickets, lease=LEASE, store_timeout=3600)


@dataclass
class Attacker:
    """Strikes at random, from a seed, until its time is over; everything it broke is whole again then."""

    crew: Crew
    server: PrivateServer | None
    size: Size
    say: Callable[[str], None]
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    _later: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    _away: set[str] = field(default_factory=set)
    """The names of what cannot be reached just now."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.size.seed)
        self._blows: dict[str, Callable[[], str]] = {
            "agent killed": lambda: self._end_agent(signal.SIGKILL),
            "worker killed": self._kill_worker,
            "agent paused": lambda: self._pause(True, False),
            "worker paused": lambda: self._pause(False, True),
            "agent and worker paused": lambda: self._pause(True, True),
            "agent terminated": lambda: self._end_agent(signal.SIGTERM),
        }
        if self.crew.http is not None:
            self._blows["tempopt server killed"] = lambda: self._http_away(signal.SIGKILL)
            self._blows["tempopt server restarted"] = lambda: self._http_away(signal.SIGTERM)
            self._blows["token replaced"] = self._replace_token
        if self.server is not None:
            self._blows["server killed"] = lambda: self._server_away(PrivateServer.kill)
            self._blows["server restarted"] = lambda: self._server_away(PrivateServer.stop)
        if any(self.crew.places):
            self._blows["network cut"] = self._cut_network
        for kind, blow in self.crew.strikes.items():
            self._blows[kind] = partial(blow, self._random)
        for kind, (end, restore) in self.crew.outages.items():
            self._blows[kind] = partial(self._node_away, end, restore)

    @property
    def kinds(self) -> list[str]:
        """Every kind of blow that there is here."""
        return list(self._blows)

    def attack(self) -> None:
        """Strike until the time is over and every kind of blow was struck."""
        start_time = time.monotonic()
        deadline = start_time + self.size.seconds + PATIENCE
        pending = self._random.sample(self.kinds, k=len(self.kinds))
        next_blow = start_time
        try:
            while time.monotonic() < start_time + self.size.seconds or pending:
                assert time.monotonic() < deadline, f"nothing to strike at for {', '.join(pending)}"
                self._undo_what_is_due()
                self.crew.tend(is_away=self.is_away)
                self._set_pace(time.monotonic() - start_time)
                if time.monotonic() >= next_blow and self._strike(pending):
                    next_blow = time.monotonic() + self.size.every * self._random.uniform(0.5, 1.5)
                time.sleep(0.5)
        finally:
            # what is undone may have something undone after it
            while self._later:
                pending_undos, self._later = self._later, []
                for _, undo in pending_undos:
                    undo()

    def is_away(self, machine: Machine | None) -> bool:
        """Return whether the database cannot be reached from a machine just now."""
        return not self._away.isdisjoint({_DATABASE, _HTTP, machine.name if machine else ""})

    def _strike(self, pending: list[str]) -> bool:
        kind = pending[0] if pending else self._random.choice(self.kinds)
        with contextlib.suppress(LookupError):
            victim = self._blows[kind]()
            self.counts[kind] += 1
            self.say(f"{kind}: {victim}")
            pending[:1] = []
            return True
        # no agent can be struck like that now
        pending.append(pending.pop(0)) if pending else None
        return False

    def _set_pace(self, elapsed: float) -> None:
        """Hold the study back if it would be over before the attack is, and its last tickets in any case."""
        rows = [row for row in self.crew.look() if row.kind == "search"]
        num_over = sum(row.state in ("done", "failed") for row in rows)
        size = self.size
        is_early = num_over / size.tickets > 0.8 * elapsed / size.seconds
        at_leisure = 2 * size.agents * size.seconds / (size.tickets * size.steps)
        studies.set_pace(
            self.crew.folder,
            min(at_leisure, 1.0) if is_early else 0.02,
            held_from=size.tickets - size.agents,
        )

    def _victim(self) -> Agent:
        able = [a for a in self.crew.agents if a.alive and a.worked and not (a.paused or a.may_have_ended)]
        return self._random.choice(able)

    def _schedule_undo(self, seconds: float, undo: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, undo))

    def _undo_what_is_due(self) -> None:
        now_seconds = time.monotonic()
        due = [undo for due_time, undo in self._later if due_time <= now_seconds]
        self._later = [(due_time, undo) for due_time, undo in self._later if due_time > now_seconds]
        for undo in due:
            undo()

    def _past_lease(self) -> float:
        return LEASE * self._random.uniform(1.3, 2.5)

    def _end_agent(self, blow: signal.Signals) -> str:
        agent = self._victim()
        agent.may_have_ended = True
        strike(agent.process.pid, blow)
        return f"agent {agent.number}"

    def _kill_worker(self) -> str:
        agent = self._victim()
        strike(self._random.choice(agent.workers()), signal.SIGKILL)
        return f"of agent {agent.number}"

    def _pause(self, agent_too: bool, workers_too: bool) -> str:
        agent = self._victim()
        pids = [agent.process.pid] if agent_too else []
        pids += [self._random.choice(agent.workers())] if workers_too else []
        agent.paused = True
        for pid in pids:
            strike(pid, signal.SIGSTOP)

        def wake() -> None:
            agent.paused = False
            for pid in pids:
                strike(pid, signal.SIGCONT)

        seconds = self._past_lease()
        self._schedule_undo(seconds, wake)
        return f"agent {agent.number} for {seconds:.1f} s"

    def _take_away(
        self, name: str, end: Callable[[], object], restore: Callable[[], object], seconds: float
    ) -> str:
        """Take something away for so long, unless it is away already."""
        if name in self._away:
            raise LookupError
        end()
        self._away.add(name)

        def bring_back() -> None:
            if name == _HTTP and _DATABASE in self._away:
                # a server begins with a look at its database
                self._schedule_undo(1.0, bring_back)
                return
            restore()
            self._away.discard(name)

        self._schedule_undo(seconds, bring_back)
        return f"for {seconds:.1f} s"

    def _outage(self) -> float:
        return LEASE * self._random.choice((0.0, 0.5, 1.5))

    def _server_away(self, end: Callable[[PrivateServer], None]) -> str:
        server = self.server
        assert server is not None
        return self._take_away(_DATABASE, lambda: end(server), server.start, self._outage())

    def _node_away(self, end: Callable[[], object], restore: Callable[[], object]) -> str:
        return self._take_away(_NODE, end, restore, self._outage())

    def _http_away(self, blow: signal.Signals) -> str:
        http = self.crew.http
        assert http is not None
        number = self._random.randrange(len(http.ports))
        duration = self._take_away(
            _HTTP, lambda: http.end(number, blow), lambda: http.start(number), self._outage()
        )
        return f"{number} {duration}"

    def _replace_token(self) -> str:
        if self.crew.http is None or _DATABASE in self._away:
            raise LookupError
        self.crew.http.replace_token()
        return "in the file of all agents"

    def _cut_network(self) -> str:
        at_work = {a.machine.name for a in self.crew.agents if a.machine and a.alive and a.worked}
        names = {site.name: site for site in self.crew.places if site is not None}
        machine = names[self._random.choice(sorted(at_work - self._away))]
        return (
            f"{machine.name} {self._take_away(machine.name, machine.cut, machine.join, self._past_lease())}"
        )


def why_not_setup(setup: str) -> str:
    """Return why a set-up cannot be attacked here; empty if it can."""
    backend, _ = SETUPS[setup]
    return (backend != "sqlite" and why_not(backend)) or LAUNCHERS.get(setup, str)()


@contextlib.contextmanager
def _arena(backend: str, folder: Path, size: Size) -> Iterator[tuple[str, PrivateServer | None, list[Any]]]:
    """Yield a database URL, its server and the agents' machines: none but this one where none can be made."""
    agent_machines: list[Machine | None] = [None] * size.agents
    with contextlib.ExitStack() as stack:
        host = {}
        # a file of SQLite is reached from other machines by way of a server alone
        if not (network.why_not() or size.launcher) and (backend != "sqlite" or size.servers):
            net = stack.enter_context(network.make_network())
            host = {"host": net.address}
            # not the first: it begins the study
            agent_machines[1::_ABROAD] = [net.machine() for _ in agent_machines[1::_ABROAD]]
        if backend == "sqlite":
            yield f"sqlite:///{folder / 'tempopt.db'}", None, agent_machines
            return
        server = start_private(backend, **host)
        stack.callback(server.remove)
        yield server.create_database("chaos"), server, agent_machines


def _finish(crew: Crew) -> None:
    """Leave the agents in peace until the study is over and all of them have left."""
    (crew.folder / "pace").unlink()
    last_progress, num_before = time.monotonic(), -1
    while not crew.has_left():
        num_over = sum(row.state == "done" for row in crew.look())
        if num_over != num_before:
            last_progress, num_before = time.monotonic(), num_over
        assert time.monotonic() < last_progress + PATIENCE, (
            f"nothing goes on any more: {num_over} tickets are done"
        )
        crew.tend(is_away=lambda machine: False)
        assert not crew.unexplained, "\n".join(crew.unexplained)
        time.sleep(0.5)


def attack(
    backend: str, folder: Path, size: Size, undisturbed: Record, print_line: Callable[[str], None]
) -> None:
    """Attack a study on a backend and see that nothing was lost.

    Args:
        folder: An empty folder for its database, checkpoints and logs.
        undisturbed: The record of the undisturbed study.
        print_line: Told of every blow, and of their sum.

    Raises:
        AssertionError: Something was lost, done twice or not done, or an agent died that was not struck.
    """
    start_time = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)

    def log(text: str) -> None:
        print_line(f"[{time.monotonic() - start_time:5.1f} s] {text}")

    with _arena(backend, folder, size) as (url, server, places), contextlib.ExitStack() as stack:
        http = None
        if size.servers:
            abroad = next((site.server for site in places if site is not None), "127.0.0.1")
            http = HttpServers(folder, url, size.servers, host=abroad)
        if size.launcher:
            crew: Crew = stack.enter_context(run_launched(size.launcher, folder, url, size.agents))
        else:
            crew = Crew(folder, url, places, http, mixed=size.mixed)
        if http is not None:
            stack.callback(http.close)
        stack.callback(crew.end)
        crew.begin(size.spec())
        if http is not None:
            http.line.dropped = http.line.doubled = _UNRELIABLE
        attacker = Attacker(crew, server, size, log)
        attack_start_time = time.monotonic()
        attacker.attack()
        log(f"peace, after {time.monotonic() - attack_start_time:.0f} s of attack")
        _finish(crew)
        actual_record = studies.read(url, size.tickets)
        rows = studies.tickets(url)
    blow_counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(attacker.counts.items()))
    attempts = sum(row.attempt for row in rows)
    log(
        f"{backend}: {blow_counts}; {crew.started} agents, {crew.turned_away} of them turned away; "
        f"{len(rows)} tickets in {attempts} attempts, {sum(row.failures for row in rows)} of them lost"
    )
    if http is not None:
        line = http.line
        log(f"of {line.requests} requests {line.said_twice} were doubled, the replies to {line.lost} lost")
        assert line.lost and line.said_twice
    differences = actual_record.differences(undisturbed)
    log(f"{len(undisturbed)} facts compared, {len(differences)} differ")
    assert not differences, "\n".join(differences)
    assert attempts > len(rows)


def main() -> int:
    """Attack a study in the set-ups that are asked for, each in turn."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.cluster.chaos")
    parser.add_argument("--setup", choices=(*SETUPS, "all"), default="all")
    parser.add_argument("--minutes", type=float, default=5.0, help="of violence (default: 5)")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--tickets", type=int, default=200)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two blows")
    parser.add_argument("--seed", type=int, default=0, help="of the violence")
    parser.add_argument("--recall", action="store_true", help="train a transformer instead of a toy")
    parser.add_argument("--folder", type=Path, help="where to keep all logs (default: nowhere)")
    args = parser.parse_args()
    size = Size(args.tickets, args.agents, 60 * args.minutes, args.every, args.seed, is_recall=args.recall)
    setups = SETUPS if args.setup == "all" else {args.setup: SETUPS[args.setup]}
    for reason in filter(None, (why_not_setup(setup) for setup in setups)):
        sys.exit(reason)
    if reason := network.why_not():
        print(reason)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)).absolute()
        print("The study in peace ...", flush=True)
        (folder / "undisturbed").mkdir(parents=True)
        undisturbed = studies.run_undisturbed(folder / "undisturbed", size.spec(), workers=1)
        for setup, (backend, options) in setups.items():
            print(f"\n{setup}", flush=True)
            setup_size = replace(size, **options)
            attack(backend, folder / setup, setup_size, undisturbed, lambda text: print(text, flush=True))
    print(f"\nNothing was lost on {', '.join(setups)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Agents of a pool and their studies, as tests play them: what decides is real, and what trains is not."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, update

from tempopt.agent.gate import Gate
from tempopt.pool.dispatcher import Dispatcher
from tempopt.records import Ended, NewTicket, Outcomes, Returned, Wanted
from tempopt.records.pool import PoolAgent
from tempopt.records.rows import OVER, Pooled, StudyRow
from tempopt.store import Store
from tempopt.store.models import POOL_AGENT, TICKET
from tempopt.store.pool import SILENT_SECONDS, Counts, PoolRows, demands

HOUR = 3600.0
STAGES = 2
REACH = 2
"""So many runs of a study may be begun before the first of them has ended; the pool thinks it is more."""
ROUNDS = 12
_COUNT = itertools.count()


def counted() -> int:
    """Return another number each time."""
    return next(_COUNT)


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """As much of a ticket as there is in memory."""

    id: int
    study_id: int
    number: int
    state: str = "waiting"
    agent: str | None = None
    attempt: int = 0


class InMemory:
    """As much of a store as the pool and the players below need, with the store's own rules."""

    def __init__(self) -> None:
        self.pool = self
        self.studies: dict[int, StudyRow] = {}
        self.rows: dict[int, list[Ticket]] = {}
        self.lost: set[int] = set()
        self.agents: dict[str, PoolAgent] = {}
        self.silent: set[str] = set()

    def create_study(self, name: str, spec: Any, hash: str, *, pooled: Pooled) -> StudyRow:
        given = {field.name: getattr(pooled, field.name) for field in dataclasses.fields(pooled)}
        row = StudyRow(
            id=next(_COUNT) + 1,
            name=name,
            state="running",
            spec=spec,
            spec_hash=hash,
            version=0,
            created=datetime.now(UTC),
            **given,
        )
        self.studies[row.id], self.rows[row.id] = row, []
        return row

    def load_study(self, name: str) -> StudyRow:
        return next(row for row in self.studies.values() if row.name == name)

    def _change(self, id: int, **values: Any) -> None:
        self.studies[id] = dataclasses.replace(self.studies[id], **values)

    def delete_study(self, name: str) -> None:
        del self.studies[self.load_study(name).id]

    def set_state(self, id: int, state: Any) -> bool:
        self._change(id, state=state)
        return True

    def place(self, name: str, *, priority: int) -> None:
        self._change(self.load_study(name).id, priority=priority)

    def add_tickets(self, id: int, tickets: list[NewTicket]) -> bool:
        self.rows[id] += [Ticket(id=next(_COUNT), study_id=id, number=each.number) for each in tickets]
        self._change(id, version=self.studies[id].version + 1)
        return True

    def tickets(self, id: int) -> list[Ticket]:
        return list(self.rows[id])

    def _set(self, id: int, ticket: int, **values: Any) -> Ticket:
        place = next(n for n, row in enumerate(self.rows[id]) if row.id == ticket)
        self.rows[id][place] = dataclasses.replace(self.rows[id][place], **values)
        self.lost.discard(ticket)
        return self.rows[id][place]

    def take_ticket(self, id: int, agent: str, wanted: Wanted) -> Ticket | None:
        for row in self.rows[id] if wanted.expired else ():
            if row.id in self.lost:
                self._set(id, row.id, state="waiting")
        limit = wanted.limits["search"]
        for row in self.rows[id] if self.studies[id].state == "running" else ():
            if row.state == "waiting" and limit is not None and row.number <= limit:
                return self._set(id, row.id, state="running", agent=agent, attempt=row.attempt + 1)
        return None

    def write(self, id: int, changes: list[Any], *, agent: str, lease: float) -> None:
        for each in changes:
            row = next(row for row in self.rows[id] if row.id == each.ticket_id)
            if (row.agent, row.attempt, row.state) == (agent, each.attempt, "running"):
                state: Any = "done" if isinstance(each, Ended) else "waiting"
                self._set(id, row.id, state=state, agent=None)

    def hear(self, agent: PoolAgent) -> None:
        self.agents[agent.name] = agent
        self.silent.discard(agent.name)

    def assign(self, agent: str, study_id: int | None) -> None:
        if agent in self.agents:
            self.agents[agent] = dataclasses.replace(self.agents[agent], study_id=study_id, leaving=False)

    def usage(self) -> list[Any]:
        return []

    def read(self) -> PoolRows:
        agents = tuple(each for name, each in sorted(self.agents.items()) if name not in self.silent)
        running = [row for row in self.studies.values() if row.state == "running"]
        counts = {row.id: self._counts(row.id) for row in running}
        return PoolRows(now=0.0, demands=demands(running, counts, agents), agents=agents, quotas=())

    def _counts(self, id: int) -> Counts:
        rows = self.rows[id]
        lost = sum(row.id in self.lost for row in rows)
        return Counts(
            waiting=sum(row.state == "waiting" for row in rows) + lost,
            running=sum(row.state == "running" for row in rows) - lost,
            over=sum(row.state in OVER for row in rows),
            lost=lost,
            attempts=sum(row.attempt for row in rows),
        )

    def miss(self, alive: list[str]) -> None:
        """Have the dead be missed."""
        for rows in self.rows.values():
            self.lost |= {row.id for row in rows if row.state == "running" and row.agent not in alive}
        self.silent |= self.agents.keys() - set(alive)

    def forget_agents(self) -> None:
        self.agents.clear()


class OnDatabase:
    """A real store, with the same."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def miss(self, alive: list[str]) -> None:
        running = (TICKET.c.state == "running", TICKET.c.agent.not_in(alive))
        old = {"seen": POOL_AGENT.c.seen - 2 * SILENT_SECONDS}

        def pass_by(connection: Any) -> None:
            connection.execute(update(TICKET).where(*running).values(lease=1.0))
            connection.execute(update(POOL_AGENT).where(POOL_AGENT.c.name.not_in(alive)).values(old))

        self._store._database.write(pass_by)

    def forget_agents(self) -> None:
        self._store._database.write(lambda c: c.execute(delete(POOL_AGENT)))


@dataclass
class Study:
    id: int
    name: str
    stage: int = 1


@dataclass
class Agent:
    """An agent of the pool as PoolWorker, Agent and their clients are together, one step at a time."""

    me: PoolAgent
    gate: Gate | None = None
    run: Any = None
    looked: float = -math.inf
    asks: bool = False
    earlier: list[PoolAgent] = field(default_factory=list)

    @property
    def id(self) -> int | None:
        return self.me.study_id


class Pool:
    """Studies and agents on one database, and everything that may happen to them."""

    def __init__(self, store: Any, reach: int = REACH) -> None:
        self.store = store
        self.reach = reach
        self.dispatchers = [Dispatcher(store), Dispatcher(store)]
        self.studies: dict[int, Study] = {}
        self.agents: list[Agent] = []
        self.moves = 0

    # ---- studies

    def begin(self, tickets: int, priority: int) -> None:
        name = f"study{next(_COUNT)}"
        row = self.store.create_study(name, {}, "hash", pooled=Pooled(parallel=4, priority=priority))
        self.studies[row.id] = Study(row.id, name)
        self.add(row.id, 0, tickets)

    def add(self, id: int, first: int, tickets: int) -> None:
        new = [NewTicket(kind="search", arm="search", number=first + n, seed=n) for n in range(tickets)]
        self.store.add_tickets(id, new)

    def rows(self, id: int) -> list[Any]:
        return list(self.store.tickets(id))

    def state(self, id: int) -> str:
        return str(self.store.load_study(self.studies[id].name).state)

    def limit(self, id: int) -> int | None:
        """Return the highest number that may be begun, None if all are over."""
        still = [each.number for each in self.rows(id) if each.state not in OVER]
        return min(still) + self.reach - 1 if still else None

    def has_work(self, id: int) -> bool:
        """Return whether something may be begun, or a stage is to be opened."""
        if self.state(id) != "running":
            return False
        limit = self.limit(id)
        alive = [agent.me.name for agent in self.agents]
        lost = [each for each in self.rows(id) if each.state == "running" and each.agent not in alive]
        waits = [each for each in self.rows(id) if each.state == "waiting" and each.number <= (limit or 0)]
        return limit is None or bool(waits + lost)

    # ---- agents

    def ask(self, agent: Agent, dispatcher: int) -> None:
        told = self.dispatchers[dispatcher].hear(self._said(agent))
        if told.name is not None and told.assignment.study_id is not None:
            agent.me = dataclasses.replace(agent.me, study_id=told.assignment.study_id)
            agent.asks, agent.looked = False, -math.inf

            def ask(agent: Agent = agent) -> None:
                agent.asks = True

            agent.gate = Gate(ask)
            self.moves += 1

    def _said(self, agent: Agent) -> PoolAgent:
        leaving = agent.gate is not None and agent.gate.order == "preempt"
        said = dataclasses.replace(agent.me, leaving=leaving)
        agent.earlier.append(said)
        return said

    def hear(self, agent: Agent, dispatcher: int) -> None:
        assert agent.gate is not None
        leaving = agent.gate.order == "preempt"
        told = self.dispatchers[dispatcher].hear(self._said(agent))
        if not leaving:
            agent.gate.say(told.assignment.order)

    def mark(self, agent: Agent, dispatcher: int) -> None:
        """Have the mark come that the gate has asked for."""
        assert agent.gate is not None
        if agent.asks:
            agent.asks = False
            agent.gate.marked(self.dispatchers[dispatcher].hear(self._said(agent)).mark)

    def look(self, agent: Agent, *, settled: bool) -> None:
        """Look for a run, and open the next stage if all are over."""
        assert agent.gate is not None and agent.id is not None
        if agent.run is not None or agent.gate.order != "serve":
            return
        if self.state(agent.id) != "running":
            self.leave(agent)
            return
        began, limit = time.monotonic(), self.limit(agent.id)
        if limit is None:
            self._next_stage(agent)
            return
        wanted = Wanted(limits={"search": limit}, lease=HOUR, max_attempts=99, held=[], expired=settled)
        agent.run = self.store.take_ticket(agent.id, agent.me.name, wanted)
        if agent.run is None:
            agent.looked = began

    def _next_stage(self, agent: Agent) -> None:
        study = self.studies[agent.id or 0]
        if study.stage == STAGES:
            self.store.set_state(study.id, "done")
            self.leave(agent)
            return
        study.stage += 1
        self.add(study.id, len(self.rows(study.id)), 2)

    def end_run(self, agent: Agent) -> None:
        assert agent.run is not None
        outcomes = Outcomes(outcome="complete", value=0.5, steps=1, seconds=1.0)
        self._tell(agent, Ended(ticket_id=agent.run.id, attempt=agent.run.attempt, outcomes=outcomes))

    def _tell(self, agent: Agent, change: Any) -> None:
        assert agent.run is not None
        self.store.write(agent.run.study_id, [change], agent=agent.me.name, lease=HOUR)
        agent.run = None

    def dismiss(self, agent: Agent) -> None:
        assert agent.gate is not None
        if agent.gate.dismisses(busy=agent.run is not None, idle=1e6, looked=agent.looked):
            self.leave(agent)

    def leave(self, agent: Agent) -> None:
        assert agent.gate is not None and agent.id is not None
        if agent.run is not None:
            self._tell(agent, Returned(ticket_id=agent.run.id, attempt=agent.run.attempt, seconds=1.0))
        idle = {**agent.me.idle_at}
        if agent.gate.found_nothing:
            idle[agent.id] = agent.gate.mark
        agent.gate.close()
        agent.gate = None
        agent.me = dataclasses.replace(agent.me, study_id=None, idle_at=idle)
        self.moves += 1

    def die(self, agent: Agent) -> None:
        self.agents.remove(agent)
        if agent.gate is not None:
            agent.gate.close()

    def time_passes(self) -> None:
        """Have the dead be missed: leases are over, and nobody has heard of them for too long."""
        self.store.miss([agent.me.name for agent in self.agents])

    # ---- peace

    def settle(self) -> None:
        """Let everybody do what there is to do, but for ending runs, until nobody moves any more."""
        self.time_passes()
        calm = 0
        for number in range(ROUNDS):
            moves = self.moves
            for agent in list(self.agents):
                if agent.gate is None:
                    self.ask(agent, number % 2)
                    continue
                self.hear(agent, number % 2)
                self.look(agent, settled=True)
                if agent.gate is not None:
                    self.dismiss(agent)
                if agent.gate is not None:
                    self.mark(agent, number % 2)
            calm = calm + 1 if self.moves == moves else 0
        assert calm >= 2, "agents come and go, and nothing happens between"
        idle = [agent.me.name for agent in self.agents if agent.gate is None]
        left = [study.name for study in self.studies.values() if self.has_work(study.id)]
        assert not (idle and left), f"{', '.join(idle)} idle while {', '.join(left)} could be trained"


def serving(pool: Pool) -> list[Agent]:
    return [agent for agent in pool.agents if agent.gate is not None]

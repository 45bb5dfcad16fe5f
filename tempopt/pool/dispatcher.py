"""What agents of the pool are to do, decided on a store's rows: any number of dispatchers decide alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tempopt.records.pool import Allocation, Assignment, Demand, PoolAgent, Quota, Usage
from tempopt.remote.protocol import PoolOrder
from tempopt.scheduling import allocate
from tempopt.store.pool import PoolRows
from tempopt.store.store import Store

_FRESH_SECONDS = 0.5
_USAGE_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """How the pool stands.

    Args:
        now: Epoch seconds of the database's clock.
        demands: Studies that are running, the oldest first.
        agents: Agents that were heard of lately.
        usage: What users have used, by queue and hour.
        quotas: What was set.
        allocation: What every agent is to do.
    """

    now: float
    demands: tuple[Demand, ...]
    agents: tuple[PoolAgent, ...]
    usage: Sequence[Usage]
    quotas: tuple[Quota, ...]
    allocation: Allocation

    def demand(self, study_id: int | None) -> Demand | None:
        """Return what a study wants, None if it is not running."""
        return next((each for each in self.demands if each.study_id == study_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one agent is told.

    Args:
        assignment: What it is to do.
        name: Name of the study that it is to serve; None: none.
        mark: Mark of the study that it serves, or is to serve; see ``Demand``.
    """

    assignment: Assignment
    name: str | None = None
    mark: str = ""

    def same_as(self, other: Told | None) -> bool:
        """Return whether it asks for the same; marks change whenever a run begins or ends."""
        return other is not None and (self.assignment, self.name) == (other.assignment, other.name)

    def order(self) -> PoolOrder:
        """Return it as a server and an agent say it to each other."""
        assignment = self.assignment
        return PoolOrder(
            study_id=None if self.name is None else assignment.study_id,
            study=self.name,
            order=assignment.order,
            mark=self.mark,
        )

    @classmethod
    def of(cls, agent: str, order: PoolOrder) -> Told:
        """Return what an order tells the agent of a name."""
        assignment = Assignment(agent=agent, study_id=order.study_id, order=order.order)
        return cls(assignment=assignment, name=order.study, mark=order.mark)


def picture(store: Store) -> Picture:
    """Return how the pool of a store stands now."""
    return _decided(store.pool.read(), store.pool.usage())


class Dispatcher:
    """Tells agents of the pool what to do; threads may share it.

    Args:
        store: Where the pool is.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._usage: list[Usage] = []
        self._usage_at = self._rows_at = float("-inf")
        self._picture: Picture | None = None

    def hear(self, agent: PoolAgent) -> Told:
        """Write how an agent stands, and return what it is to do.

        Raises:
            StorageError: The database is away; say it again.
        """
        self._store.pool.hear(agent)
        return self._told(agent, self._seen(anew=True))

    def look(self, agent: PoolAgent) -> Told:
        """Return what an agent is to do that has said how it stands, as of a moment ago."""
        return self._told(agent, self._seen(anew=False))

    def picture(self) -> Picture:
        """Return how the pool stands, as of a moment ago."""
        return self._seen(anew=False)

    def forget(self, agent: str) -> None:
        """Forget an agent that has left."""
        self._store.pool.forget(agent)

    def _seen(self, *, anew: bool) -> Picture:
        with self._lock:
            now = time.monotonic()
            if self._picture is None or anew or now - self._rows_at >= _FRESH_SECONDS:
                if now - self._usage_at >= _USAGE_SECONDS:
                    self._usage, self._usage_at = self._store.pool.usage(), now
                self._picture = _decided(self._store.pool.read(), self._usage)
                self._rows_at = time.monotonic()
            return self._picture

    def _told(self, agent: PoolAgent, seen: Picture) -> Told:
        found = next((each for each in seen.allocation.assignments if each.agent == agent.name), None)
        # one that was silent for too long is told at its next word
        assignment = found or Assignment(agent=agent.name, study_id=agent.study_id)
        if agent.study_id is None and assignment.study_id is not None:
            self._store.pool.assign(agent.name, assignment.study_id)
            with self._lock:
                # the next who looks counts the agent where it was sent
                self._rows_at = float("-inf")
        demand = seen.demand(assignment.study_id if agent.study_id is None else agent.study_id)
        if demand is not None and not demand.name.startswith(agent.studies):
            demand = None
        name = None if assignment.study_id is None or demand is None else demand.name
        return Told(assignment=assignment, name=name, mark="" if demand is None else demand.mark)


def _decided(rows: PoolRows, usage: Sequence[Usage]) -> Picture:
    return Picture(
        now=rows.now,
        demands=rows.demands,
        agents=rows.agents,
        usage=usage,
        quotas=rows.quotas,
        allocation=allocate(rows.demands, rows.agents, usage, rows.quotas, now=rows.now),
    )

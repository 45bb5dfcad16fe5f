"""Pools for the tests: short ways to write one down, and strategies that make up any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from tempopt.records.pool import Allocation, Demand, PoolAgent, Quota, Usage
from tempopt.scheduling import allocate

NOW = 1_000_000 * 3600.0 + 1800.0
HOUR = int(NOW // 3600)


def demand(study_id: int, owner: str = "ada", wanted: int = 1, **given: Any) -> Demand:
    """Return a study of ada's, if nothing else is said."""
    return Demand(study_id=study_id, name=f"study{study_id}", owner=owner, wanted=wanted, **given)


def agents(count: int, at: Iterable[int | None] = (), **given: Any) -> list[PoolAgent]:
    """Return agents that serve these studies, the first one for the longest time; idle beyond these."""
    serving = [*at, *[None] * count][:count]
    return [
        PoolAgent(name=f"agent{i:02}", study_id=each, since=float(i), **given)
        for i, each in enumerate(serving)
    ]


def told(allocation: Allocation) -> list[tuple[int | None, str]]:
    """Return study and order of each agent."""
    return [(each.study_id, each.order) for each in allocation.assignments]


def counts(allocation: Allocation) -> Counter[int]:
    """Return how many agents each study is to have."""
    return Counter(each.study_id for each in allocation.assignments if each.study_id is not None)


@dataclass(frozen=True)
class Given:
    """The rows of a pool."""

    demands: Sequence[Demand]
    agents: Sequence[PoolAgent]
    usage: Sequence[Usage]
    quotas: Sequence[Quota]

    def allocate(self) -> Allocation:
        """Return what every agent is to do."""
        return allocate(self.demands, self.agents, self.usage, self.quotas, now=NOW)

    def told(self) -> Given:
        """Return the pool after every agent has been told."""
        by_name = {each.agent: each for each in self.allocate().assignments}
        rows = [
            replace(each, leaving=each.study_id is not None and by_name[each.name].study_id != each.study_id)
            for each in self.agents
        ]
        return replace(self, agents=rows)

    def arrived(self) -> Given:
        """Return the pool after every agent has come to its study."""
        by_name = {each.agent: each for each in self.allocate().assignments}
        rows = [
            each
            if by_name[each.name].study_id == each.study_id and not each.leaving
            else replace(each, study_id=by_name[each.name].study_id, leaving=False, since=NOW)
            for each in self.agents
        ]
        return replace(self, agents=rows)


QUEUES = st.sampled_from(["default", "night"])
USERS = st.sampled_from(["ada", "bob", "cleo"])
LABELS = st.frozensets(st.sampled_from(["big", "fast"]), max_size=2)


@st.composite
def pools(draw: st.DrawFn, *, quotas: bool = True, alike: bool = False) -> Given:
    """Make up a pool.

    Args:
        draw: Of hypothesis.
        quotas: Whether there may be budgets and most agents at a time; weights there may always be.
        alike: Whether all agents have one GPU, and all studies one priority.
    """
    demands = [
        demand(
            study_id,
            draw(USERS),
            draw(st.integers(0, 4)),
            queue=draw(QUEUES),
            priority=0 if alike else draw(st.sampled_from([0, 0, 0, 1, -1])),
            labels=draw(st.one_of(st.just(frozenset()), LABELS)),
            gpus=draw(st.sampled_from([0.5, 1.0] if alike else [0.5, 1.0, 2.0])),
            on_cpu=False,
        )
        for study_id in range(1, draw(st.integers(0, 6)) + 1)
    ]
    ids = st.one_of(st.none(), st.integers(1, len(demands) + 1))
    rows = [
        PoolAgent(
            name=f"agent{i:02}",
            queues=draw(st.one_of(st.just(frozenset()), st.frozensets(QUEUES, max_size=2))),
            labels=draw(LABELS),
            studies=draw(st.sampled_from(["", "", "study", "study1"])),
            gpus=1 if alike else draw(st.sampled_from([1, 1, 4])),
            study_id=draw(ids),
            since=draw(st.sampled_from([0.0, 1.0, 2.0])),
            leaving=draw(st.booleans()),
            unable={draw(st.integers(1, 3)): "no such module"} if draw(st.integers(0, 5)) == 0 else {},
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    rows = [replace(each, leaving=each.leaving and each.study_id is not None) for each in rows]
    usage = draw(
        st.lists(
            st.builds(
                Usage,
                user=USERS,
                queue=QUEUES,
                hour=st.integers(HOUR - 300, HOUR),
                seconds=st.floats(0.0, 1e5),
            ),
            max_size=6,
        )
    )
    limits: dict[str, Any] = {}
    if quotas:
        limits = {
            "gpu_hours": st.one_of(st.none(), st.floats(0.0, 100.0)),
            "days": st.one_of(st.none(), st.floats(0.1, 10.0)),
            "agents": st.one_of(st.none(), st.integers(0, 4)),
        }
    made = draw(
        st.lists(
            st.builds(
                Quota,
                queue=st.one_of(st.just(""), QUEUES),
                user=st.one_of(st.just(""), USERS),
                weight=st.sampled_from([0.5, 1.0, 2.0, 7.0]),
                **limits,
            ),
            max_size=4,
            unique_by=lambda each: (each.queue, each.user),
        )
    )
    return Given(demands, rows, usage, made)

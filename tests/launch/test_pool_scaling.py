"""How many more agents of the pool would have work, beside the largest matching that there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from tempopt.pool.dispatcher import Picture
from tempopt.pool.scaling import lacking, shortage
from tempopt.records.pool import Demand, PoolAgent, Quota, Usage
from tempopt.scheduling import allocate

NOW = 3_600_000.0


def seen(
    demands: Sequence[Demand],
    agents: Sequence[PoolAgent] = (),
    quotas: Sequence[Quota] = (),
    usage: Sequence[Usage] = (),
) -> Picture:
    """Return the picture of a pool."""
    return Picture(
        now=NOW,
        demands=tuple(demands),
        agents=tuple(agents),
        usage=usage,
        quotas=tuple(quotas),
        allocation=allocate(demands, agents, usage, quotas, now=NOW),
    )


def study(id: int = 1, wanted: int = 1, **more: object) -> Demand:
    return Demand(study_id=id, name=f"study{id}", owner="ada", wanted=wanted, **more)  # type: ignore[arg-type]


def agent(name: str = "", **more: object) -> PoolAgent:
    return PoolAgent(name=name, **more)  # type: ignore[arg-type]


def _at_work(demands: Sequence[Demand], agents: Sequence[PoolAgent]) -> int:
    """Return how many agents can have work at a time: each one study, each study as many as it wants."""
    slots = [demand for demand in demands for _ in range(demand.wanted)]
    if not slots or not agents:
        return 0
    may = np.array([[each.may_serve(slot) for slot in slots] for each in agents], dtype=int)
    return int((maximum_bipartite_matching(csr_matrix(may), perm_type="column") >= 0).sum())


QUEUES = st.sampled_from(["default", "slow"])
LABELS = st.frozensets(st.sampled_from(["h100", "fast"]), max_size=2)
DEMANDS = st.lists(
    st.tuples(QUEUES, LABELS, st.integers(0, 4), st.integers(0, 2), st.integers(-1, 1), st.booleans()),
    max_size=4,
)
AGENTS = st.tuples(
    st.frozensets(QUEUES, max_size=2), LABELS, st.integers(0, 2), st.frozensets(st.integers(0, 3), max_size=1)
)


def _study(id: int, drawn: tuple[str, frozenset[str], int, int, int, bool]) -> Demand:
    queue, labels, wanted, gpus, priority, on_cpu = drawn
    return study(
        id, wanted, queue=queue, labels=labels, gpus=float(gpus), priority=priority, on_cpu=on_cpu or not gpus
    )


def _agent(name: str, drawn: tuple[frozenset[str], frozenset[str], int, frozenset[int]]) -> PoolAgent:
    queues, labels, gpus, unable = drawn
    return agent(name, queues=queues, labels=labels, gpus=gpus, unable=dict.fromkeys(unable, "broken"))


@settings(max_examples=150, deadline=None)
@given(
    DEMANDS,
    st.lists(st.tuples(AGENTS, st.integers(-1, 3)), max_size=5),
    AGENTS,
    st.integers(0, 6),
)
def test_as_many_are_lacking_as_would_have_work_beside_those_that_are_there(
    demanded: list[tuple[str, frozenset[str], int, int, int, bool]],
    there: list[tuple[tuple[frozenset[str], frozenset[str], int, frozenset[int]], int]],
    new: tuple[frozenset[str], frozenset[str], int, frozenset[int]],
    most: int,
) -> None:
    demands = [_study(id, drawn) for id, drawn in enumerate(demanded)]
    agents = []
    for number, (drawn, serving) in enumerate(there):
        one = _agent(f"agent{number}", drawn)
        served = next((each for each in demands if each.study_id == serving and one.may_serve(each)), None)
        agents.append(dataclasses.replace(one, study_id=None if served is None else served.study_id))
    added = [_agent(f"added{number}", new) for number in range(most)]
    found = lacking(seen(demands, agents), _agent("", new), most=most)
    assert found == _at_work(demands, [*agents, *added]) - _at_work(demands, agents)
    # once these are there, none of them is too many, and if there may be more, none is missing
    larger = seen(demands, [*agents, *added[:found]])
    assert sum(each.study_id is not None for each in larger.allocation.assignments) == _at_work(
        demands, larger.agents
    )
    assert found == most or lacking(larger, _agent("", new), most=most) == 0


def test_a_quota_and_a_budget_that_is_used_up_let_no_more_agents_come() -> None:
    demands = [study(1, 5), Demand(study_id=2, name="other", owner="bob", wanted=1)]
    assert lacking(seen(demands), agent(), most=9) == 6
    assert lacking(seen(demands, quotas=[Quota(user="ada", agents=2)]), agent(), most=9) == 3
    hour = int(NOW // 3600) - 1
    used = [Usage(user="ada", queue="default", hour=hour, seconds=7200.0)]
    assert lacking(seen(demands, quotas=[Quota(user="ada", gpu_hours=1.0)], usage=used), agent(), most=9) == 1


def test_an_idle_agent_that_is_there_and_may_is_one_less() -> None:
    demands = [study(1, 3, labels=frozenset({"h100"}))]
    idle = [agent("a", labels=frozenset({"h100"})), agent("b")]
    assert lacking(seen(demands, idle), agent(labels=frozenset({"h100"})), most=9) == 2
    assert lacking(seen(demands, idle), agent(), most=9) == 0


def test_those_of_the_same_launch_and_token_are_counted_and_what_they_cannot_serve_is_no_demand() -> None:
    demands = [study(1, 4), study(2, 4)]
    mine = agent("a", launch="k", started_by="t", study_id=2, unable={1: "no class"})
    others = [
        agent("b", launch="k", started_by="u", unable={2: "never"}),
        agent("c", launch="l", started_by="t"),
        agent("d"),
    ]
    found = shortage(seen(demands, [mine, *others]), agent(launch="k", started_by="t"), most=9)
    assert (found.reported, found.unable) == (1, {1: "no class"})
    # study 2 has a, and c or d may be divided as they like: of 8 agents wanted 4 are there, 4 cannot come
    assert found.lacking == _at_work(
        demands, [mine, *others, *(agent(str(n), unable={1: ""}) for n in range(9))]
    ) - _at_work(demands, [mine, *others])
    # a study that one of them serves is no study that they cannot serve
    serving = dataclasses.replace(mine, name="e", study_id=1, unable={})
    assert shortage(seen(demands, [mine, serving]), agent(launch="k", started_by="t"), most=9).unable == {}


def test_agents_whose_token_is_for_some_studies_lack_no_others() -> None:
    demands = [study(1, 3), Demand(study_id=2, name="team_a", owner="bob", wanted=2)]
    assert lacking(seen(demands), agent(studies="team_"), most=9) == 2

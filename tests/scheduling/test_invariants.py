"""What holds of every allocation, whatever the pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tempopt.records.pool import Demand, PoolAgent, Quota
from tests.scheduling.pools import NOW, Given, counts, pools, told

MANY = settings(max_examples=60, deadline=None)


def spent(quota: Quota, pool: Given) -> float:
    """Return the GPU-hours of a quota's days, second by second of the hour in which they begin."""
    begin = -1e18 if quota.days is None else NOW / 3600 - 24 * quota.days
    return sum(
        each.seconds / 3600 * max(0.0, min(1.0, each.hour + 1 - begin))
        for each in pool.usage
        if quota.queue in ("", each.queue) and quota.user in ("", each.user)
    )


def limiting(each: Demand, pool: Given) -> list[Quota]:
    return [
        quota for quota in pool.quotas if quota.queue in ("", each.queue) and quota.user in ("", each.owner)
    ]


def most(demands: Iterable[Demand], agents: Sequence[PoolAgent]) -> int:
    """Return how many agents can serve these studies at once (Kuhn's algorithm)."""
    slots = [each for each in demands for _ in range(min(each.wanted, len(agents)))]
    serving: dict[int, int] = {}

    def place(slot: int, seen: set[int]) -> bool:
        for number, agent in enumerate(agents):
            if number not in seen and agent.may_serve(slots[slot]):
                seen.add(number)
                if number not in serving or place(serving[number], seen):
                    serving[number] = slot
                    return True
        return False

    return sum(place(slot, set()) for slot in range(len(slots)))


@MANY
@given(pools())
def test_every_agent_has_one_order_and_serves_only_what_it_may(pool: Given) -> None:
    found = pool.allocate()
    studies = {each.study_id: each for each in pool.demands}
    rows = {each.name: each for each in pool.agents}
    assert [each.agent for each in found.assignments] == sorted(rows)
    for each in found.assignments:
        if each.study_id is not None:
            assert rows[each.agent].may_serve(studies[each.study_id])
    for study_id, count in counts(found).items():
        assert count <= studies[study_id].wanted
    for each in found.assignments:
        before = rows[each.agent].study_id
        assert (each.order == "serve") == (before is None or before == each.study_id)


@MANY
@given(pools())
def test_quotas_hold(pool: Given) -> None:
    had = counts(pool.allocate())
    for quota in pool.quotas:
        meant = [each for each in pool.demands if quota in limiting(each, pool)]
        held = sum(had[each.study_id] for each in meant)
        if quota.agents is not None:
            assert held <= quota.agents
        if quota.gpu_hours is not None and spent(quota, pool) >= quota.gpu_hours * (1 + 1e-9):
            assert held == 0


@MANY
@given(pools())
def test_no_agent_is_idle_or_of_lower_priority_while_a_study_could_use_it(pool: Given) -> None:
    found = pool.allocate()
    had = counts(found)
    studies = {each.study_id: each for each in pool.demands}
    for each in pool.demands:
        capped = any(
            quota.agents is not None or quota.gpu_hours is not None for quota in limiting(each, pool)
        )
        if had[each.study_id] >= each.wanted or capped:
            continue
        for agent, said in zip(sorted(pool.agents, key=lambda row: row.name), found.assignments, strict=True):
            if agent.may_serve(each):
                assert said.study_id is not None
                assert studies[said.study_id].priority >= each.priority


@MANY
@given(pools(quotas=False))
def test_as_many_agents_work_as_can_at_every_priority_and_above(pool: Given) -> None:
    had = counts(pool.allocate())
    for priority in {each.priority for each in pool.demands}:
        above = [each for each in pool.demands if each.priority >= priority]
        assert sum(had[each.study_id] for each in above) == most(above, pool.agents)


@MANY
@given(pools(), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(pool: Given, random: Any) -> None:
    def shuffled(rows: Sequence[Any]) -> list[Any]:
        return random.sample(list(rows), len(rows))

    other = Given(*(shuffled(each) for each in (pool.demands, pool.agents, pool.usage, pool.quotas)))
    assert other.allocate() == pool.allocate()


@MANY
@given(pools(quotas=False, alike=True))
def test_who_does_as_told_is_told_the_same_again(pool: Given) -> None:
    first = pool.allocate()
    assert counts(pool.told().allocate()) == counts(first)
    there = pool.arrived().allocate()
    assert told(there) == [(each.study_id, "serve") for each in first.assignments]


@MANY
@given(pools())
def test_agents_are_preempted_for_a_higher_priority_and_without_a_budget_only(pool: Given) -> None:
    found = pool.allocate()
    studies = {each.study_id: each for each in pool.demands}
    rows = {each.name: each for each in pool.agents}
    for each in found.assignments:
        before = studies.get(rows[each.agent].study_id or 0)
        if each.order == "preempt":
            assert before is not None
            raised = each.study_id is not None and studies[each.study_id].priority > before.priority
            budgets = [q for q in limiting(before, pool) if q.gpu_hours is not None]
            assert raised or any(spent(q, pool) >= (q.gpu_hours or 0.0) * 0.98 for q in budgets)


@MANY
@given(pools())
def test_every_study_that_has_fewer_agents_than_it_wants_says_why_and_stands_in_line(pool: Given) -> None:
    found = pool.allocate()
    had = counts(found)
    short = {each.study_id for each in pool.demands if had[each.study_id] < each.wanted}
    assert short == set(found.order)
    assert len(found.order) == len(short)
    assert short <= set(found.waiting)
    assert all(reason[0].isupper() and reason.endswith(".") for reason in found.waiting.values())

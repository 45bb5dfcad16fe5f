"""What every agent of the pool is to do: one decision for all of them, from rows alone.

Equal rows give equal decisions, whatever their order, so any number of servers and agents may decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from tempopt.records.pool import Allocation, Assignment, Demand, Order, PoolAgent, Quota, Usage
from tempopt.scheduling.division import Division, in_shared_queues, user_of
from tempopt.scheduling.limits import Limits
from tempopt.scheduling.matching import Eligible, Matching
from tempopt.scheduling.reasons import reasons
from tempopt.scheduling.shares import LONG_HALF_LIFE, SHORT_HALF_LIFE


def allocate(
    demands: Sequence[Demand],
    agents: Sequence[PoolAgent],
    usage: Sequence[Usage],
    quotas: Sequence[Quota],
    *,
    now: float,
    half_life: float = LONG_HALF_LIFE,
    short_half_life: float = SHORT_HALF_LIFE,
) -> Allocation:
    """Say for every agent of the pool which study it is to serve.

    Studies of a higher priority come first and take agents from others at their next checkpoint. Within a
    priority agents are shared by the weights of queues, and of the users of a queue, and change hands when a
    run ends. A user's own studies come one after another, the oldest first. ``docs/fair-share.md`` has the
    formulas.

    Args:
        demands: The studies that are not over, each with another id.
        agents: The agents that are there, each with another name.
        usage: What was used, by hours, runs that are training included; for ever, where a quota has no days.
        quotas: At most one for each queue and user.
        now: The time, in epoch seconds of the database's clock.
        half_life: Use halves in value so fast where it is repaid, in seconds.
        short_half_life: Use halves in value so fast where users take turns, in seconds.

    Returns:
        One assignment for each agent, sorted by name. No study has more agents than it wants, and none that
        may not serve it. No eligible agent is idle while a study could use it within its quotas.
    """
    demands = sorted(demands, key=lambda each: (-each.priority, each.study_id))
    agents = sorted(agents, key=lambda each: each.name)
    eligible = Eligible(demands, agents)
    shared, usage = in_shared_queues(demands, usage, quotas)
    limits = Limits(quotas, usage, now=now)
    half_lives = (half_life, short_half_life)
    division = Division(shared, agents, eligible, limits, usage, now=now, half_lives=half_lives)
    order = _order(shared, division)
    studies = _place(shared, agents, eligible, division)
    return Allocation(
        assignments=tuple(
            _assignment(agent, studies.get(place), shared, division) for place, agent in enumerate(agents)
        ),
        waiting=reasons(demands, agents, division, studies),
        order=tuple(demands[each].study_id for each in order if division.counts[each] < demands[each].wanted),
    )


def _order(demands: Sequence[Demand], division: Division) -> list[int]:
    """Return the studies, in the order in which they get the next agent."""

    def key(study: int) -> tuple[bool, int, tuple[float, float], tuple[str, str], int]:
        demand = demands[study]
        user = user_of(demand)
        return user in division.spent, -demand.priority, division.level(study), user, demand.study_id

    return sorted(range(len(demands)), key=key)


def _place(
    demands: Sequence[Demand], agents: Sequence[PoolAgent], eligible: Eligible, division: Division
) -> dict[int, int]:
    """Return the study of each agent: each study has as many as it is to have, and whoever can stays."""
    places = {demand.study_id: place for place, demand in enumerate(demands)}
    now = [places.get(each.study_id) if each.study_id is not None else None for each in agents]

    def key(agent: int) -> tuple[int, int, float, float, float, int, str]:
        study, row = now[agent], agents[agent]
        width = eligible.width[eligible.group[agent]]
        if study is None:
            # one whose study was paused or is over has still to leave it
            return int(row.study_id is not None), 0, 0.0, 0.0, 0.0, width, row.name
        queue, user = division.level(study)
        return 2, demands[study].priority, -queue, -user, -row.since, width, row.name

    by_loss = sorted(range(len(agents)), key=key)
    matching = Matching(eligible, by_loss, [each.priority for each in demands])
    counts = [0] * len(demands)
    # those that are to leave stay rather than others come
    for agent in sorted(
        by_loss, key=lambda each: (agents[each].leaving, agents[each].since, agents[each].name)
    ):
        study = now[agent]
        if study is not None and counts[study] < division.counts[study] and matching.match(agent, study):
            counts[study] += 1
    for study, count in enumerate(counts):
        for _ in range(count, division.counts[study]):
            changed = matching.extend(study)
            assert changed, "what was divided can be placed"
    return matching.study


def _assignment(
    agent: PoolAgent, study: int | None, demands: Sequence[Demand], division: Division
) -> Assignment:
    target = None if study is None else demands[study]
    before = next((each for each in demands if each.study_id == agent.study_id), None)
    order: Order = "serve"
    if agent.study_id is not None and (target is None or target.study_id != agent.study_id):
        raised = before is not None and target is not None and target.priority > before.priority
        spent = before is not None and user_of(before) in division.spent
        order = "preempt" if raised or spent else "finish"
    return Assignment(agent=agent.name, study_id=target.study_id if target else None, order=order)

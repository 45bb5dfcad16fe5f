"""How many more agents of the pool would have work, for those who start agents as there is need of them.

Found by dividing the pool with more agents in it: eligibility, quotas and priorities count as they do for
agents that are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tempopt.pool.dispatcher import Picture
from tempopt.records.pool import Allocation, PoolAgent
from tempopt.scheduling import allocate


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What the pool lacks of one kind of agents.

    Args:
        lacking: Agents of that kind that would have work, beside all that are there, >= 0.
        reported: Agents of the same launch that are there.
        unable: Why these cannot serve a study that none of them serves, by the study's id.
    """

    lacking: int
    reported: int = 0
    unable: Mapping[int, str] = field(default_factory=dict)


class Pool(Protocol):
    """A pool that says what it lacks: a database's or a server's."""

    def shortage(self, agent: PoolAgent, *, most: int) -> Shortage:
        """Return what the pool lacks of agents like this one.

        Args:
            agent: One of them; its name is not looked at, and it may serve nothing that it is ``unable`` to.
            most: No more than that are asked for, >= 0.

        Raises:
            StoreUnreachable: The database, or the server, is away.
        """


def lacking(seen: Picture, agent: PoolAgent, *, most: int) -> int:
    """Return how many agents like this one would have work, beside all that are in the pool.

    Args:
        seen: How the pool stands.
        agent: What they are like; its name and its study are not looked at.
        most: No more than that are counted, >= 0.
    """
    wanted = sum(demand.wanted for demand in seen.demands if agent.may_serve(demand))
    added = [
        dataclasses.replace(agent, name=f"lacking {number}", study_id=None, leaving=False)
        for number in range(min(most, wanted))
    ]
    if not added:
        return 0
    agents = [*seen.agents, *added]
    larger = allocate(seen.demands, agents, seen.usage, seen.quotas, now=seen.now)
    # not those of the added ones that get a study: one may take the place of another agent, which then idles
    return max(0, _at_work(larger) - _at_work(seen.allocation))


def shortage(seen: Picture, agent: PoolAgent, *, most: int) -> Shortage:
    """Return what the pool lacks of agents like this one; see :class:`Pool`."""
    launched = [each for each in seen.agents if each.launch == agent.launch]
    mine = [each for each in launched if each.started_by == agent.started_by]
    served = {each.study_id for each in mine}
    unable = {id: why for each in mine for id, why in each.unable.items() if id not in served}
    agent = dataclasses.replace(agent, unable={**agent.unable, **unable})
    return Shortage(lacking=lacking(seen, agent, most=most), reported=len(mine), unable=unable)


def _at_work(allocation: Allocation) -> int:
    return sum(each.study_id is not None for each in allocation.assignments)

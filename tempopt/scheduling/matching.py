"""Agents matched to studies, one at a time; those matched before may change their study, but keep one.

A study gets another agent whenever the agents can be dealt out so that every study keeps as many as it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tempopt.records.pool import Demand, PoolAgent


class Eligible:
    """Which agents may serve which studies.

    Args:
        demands: The studies.
        agents: The agents; those with the same rights are one group.

    Agents and studies are known by their place in these.
    """

    def __init__(self, demands: Sequence[Demand], agents: Sequence[PoolAgent]) -> None:
        self.group: list[int] = []
        self.members: list[list[int]] = []
        known: dict[tuple[object, ...], int] = {}
        ids = {demand.study_id for demand in demands}
        for place, agent in enumerate(agents):
            unable = frozenset(agent.unable) & ids
            rights = (agent.queues, agent.labels, agent.studies, agent.gpus, unable)
            group = known.setdefault(rights, len(known))
            self.group.append(group)
            if group == len(self.members):
                self.members.append([])
            self.members[group].append(place)
        # bit g: group g may serve the study
        self.masks = [0] * len(demands)
        self.width = [0] * len(self.members)
        self.gpus = [max(agents[members[0]].gpus, 1) for members in self.members]
        served: dict[tuple[object, ...], list[int]] = {}
        for group, members in enumerate(self.members):
            # many agents differ in nothing but the studies that they were unable to serve
            agent = replace(agents[members[0]], unable={})
            kind = (agent.queues, agent.labels, agent.studies, agent.gpus)
            if kind not in served:
                served[kind] = [i for i, demand in enumerate(demands) if agent.may_serve(demand)]
            refused = agents[members[0]].unable
            for study in served[kind]:
                if not refused or demands[study].study_id not in refused:
                    self.masks[study] |= 1 << group
                    self.width[group] += 1

    def may(self, agent: int, study: int) -> bool:
        """Return whether an agent may serve a study."""
        return bool(self.masks[study] >> self.group[agent] & 1)

    def of(self, mask: int) -> list[int]:
        """Return the groups of a mask."""
        found = []
        while mask:
            lowest = mask & -mask
            found.append(lowest.bit_length() - 1)
            mask ^= lowest
        return found


class Matching:
    """Which agent serves which study, so far.

    Args:
        eligible: Who may serve what.
        free: The agents that can be matched, those first that are taken first.
        priorities: Of the studies: where it can be, none gives an agent to one with a higher priority.
    """

    def __init__(self, eligible: Eligible, free: Iterable[int], priorities: Sequence[int]) -> None:
        self.study: dict[int, int] = {}
        self._eligible, self._priorities = eligible, priorities
        self._free = dict.fromkeys(free)
        self._free_in = [0] * len(eligible.members)
        self._free_mask = 0
        self._closed = 0
        for agent in self._free:
            group = eligible.group[agent]
            self._free_in[group] += 1
            self._free_mask |= 1 << group

    def free_gpus(self) -> int:
        """Return the GPUs of the free agents; one that trains on the CPU counts as one."""
        groups = self._eligible.of(self._free_mask)
        return sum(self._free_in[each] * self._eligible.gpus[each] for each in groups)

    def match(self, agent: int, study: int) -> bool:
        """Have an agent serve a study, if it is free and may; return whether it does."""
        if agent not in self._free or not self._eligible.may(agent, study):
            return False
        self._take(agent)
        self.study[agent] = study
        return True

    def extend(self, study: int) -> list[tuple[int, int | None]]:
        """Give a study one more agent.

        Returns:
            The agents whose study has changed, each with the study that it served before; none: it cannot be.
        """
        mask = self._eligible.masks[study]
        if mask & self._free_mask:
            agent = next(each for each in self._free if self._eligible.may(each, study))
            self.match(agent, study)
            return [(agent, None)]
        if not mask & ~self._closed:
            return []
        return self._exchange(study, rising=False) or self._exchange(study, rising=True)

    def _take(self, agent: int) -> None:
        del self._free[agent]
        group = self._eligible.group[agent]
        self._free_in[group] -= 1
        if not self._free_in[group]:
            self._free_mask ^= 1 << group

    def _exchange(self, study: int, *, rising: bool) -> list[tuple[int, int | None]]:
        """Give a study an agent of another one, which gets one in its place, and so on (breadth first).

        With ``rising``, a study may also give one to a study of a higher priority.
        """
        taken: dict[int, tuple[int, int]] = {}  # study: the agent that it gives, and the study that gets it
        seen = self._closed
        waiting = [study]
        reached = {study}
        for getter in waiting:
            new = self._eligible.masks[getter] & ~seen
            seen |= new
            for group in self._eligible.of(new):
                for agent in self._eligible.members[group]:
                    giver = self.study.get(agent)
                    if giver is None or giver in reached:
                        continue
                    if not rising and self._priorities[getter] > self._priorities[giver]:
                        continue
                    reached.add(giver)
                    taken[giver] = (agent, getter)
                    if self._eligible.masks[giver] & self._free_mask:
                        return self._hand_on(giver, taken)
                    waiting.append(giver)
        if rising:
            # all that can be reached from these groups is taken, and stays so
            self._closed = seen
        return []

    def _hand_on(self, last: int, taken: dict[int, tuple[int, int]]) -> list[tuple[int, int | None]]:
        agent = next(each for each in self._free if self._eligible.may(each, last))
        self.match(agent, last)
        changed: list[tuple[int, int | None]] = [(agent, None)]
        giver: int | None = last
        while giver in taken:
            agent, getter = taken[giver]
            self.study[agent] = getter
            changed.append((agent, giver))
            giver = getter
        return changed

"""How many agents each study is to have: priorities first, then quotas and fair shares of the users.

Which agents these are is decided in ``allocation.py``.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tempopt.records.pool import Demand, PoolAgent, Quota, Usage
from tempopt.scheduling.limits import Limits, Spent
from tempopt.scheduling.matching import Eligible, Matching
from tempopt.scheduling.shares import Claim, User, decayed, fair, recent

GAIN = 4.0
"""So many agents fewer serve a user now for each that served it too many of late, but at most one."""
STAYING = 0.4
"""An agent stays with a user until another is behind by so many agents, or this part of a smaller share."""
STAYING_PART = 0.025
"""The same as a part of a large share."""


@dataclass(slots=True)
class Standing:
    """How one user stands among the users of its queue, or one queue among the queues.

    Args:
        due: GPUs that it is due.
        gpus: GPUs of the agents that it is to have.
        serving: GPUs of the agents that serve it now.
        ahead: Agents that it has had too many of late, from -1 to 1.
    """

    due: float = 0.0
    gpus: int = 0
    serving: int = 0
    ahead: float = 0.0

    @property
    def level(self) -> float:
        """How far it is served: the least is next. An agent that stays counts as less than one that comes."""
        stays = (
            max(STAYING * min(self.due, 1.0), STAYING_PART * self.due) if self.gpus < self.serving else 0.0
        )
        return (self.gpus + self.ahead - stays) / max(self.due, 1e-9)


class Division:
    """How many agents each study is to have.

    Args:
        demands: The studies, the highest priority first, then the smallest id.
        agents: The agents.
        eligible: Which of these may serve which of those.
        limits: The quotas.
        usage: What was used.
        now: Epoch seconds.
        half_lives: Of the use that is repaid, and of the use by which users take turns; in seconds.
    """

    def __init__(
        self,
        demands: Sequence[Demand],
        agents: Sequence[PoolAgent],
        eligible: Eligible,
        limits: Limits,
        usage: Sequence[Usage],
        *,
        now: float,
        half_lives: tuple[float, float],
    ) -> None:
        self.counts = [0] * len(demands)
        self.users: dict[User, Standing] = defaultdict(Standing)
        self.queues: dict[str, Standing] = defaultdict(Standing)
        self.full: dict[User, Quota] = {}
        self.shared = sum(eligible.gpus[group] for group in eligible.group)
        self.spent: dict[User, Spent] = limits.spent(demands, agents)
        self._demands, self._agents = demands, agents
        self._eligible, self._limits = eligible, limits
        self._long = decayed(usage, now, half_lives[0])
        self._short, self._short_half_life = decayed(usage, now, half_lives[1]), half_lives[1]
        self._held: dict[User, int] = {}
        self._staying: list[list[int]] = [[] for _ in demands]
        self._able_in = [gpus * len(eligible.members[i]) for i, gpus in enumerate(eligible.gpus)]
        self._find_serving()
        self._matching = Matching(eligible, self._by_use(), [each.priority for each in demands])
        for priority in sorted({demand.priority for demand in demands}, reverse=True):
            self._divide([i for i, demand in enumerate(demands) if demand.priority == priority])

    def level(self, study: int) -> tuple[float, float]:
        """Return how far the queue of a study and its user are served: the least is next."""
        user = user_of(self._demands[study])
        return self.queues[user[0]].level, self.users[user].level

    def user(self, study: int) -> User:
        """Return the user of a queue that a study is of, where queues that share a weight are one."""
        return user_of(self._demands[study])

    def may_be_served(self, study: int) -> bool:
        """Return whether some agent may serve a study."""
        return self._eligible.masks[study] != 0

    def holders(self, study: int) -> list[Demand]:
        """Return the studies that are to have the agents that may serve a study."""
        served = self._matching.study
        found = {of for agent, of in served.items() if self._eligible.may(agent, study)}
        return [self._demands[each] for each in sorted(found)]

    def _find_serving(self) -> None:
        places = {demand.study_id: place for place, demand in enumerate(self._demands)}
        for agent, row in enumerate(self._agents):
            study = places.get(row.study_id) if row.study_id is not None else None
            # one that is leaving counts too, so that what it was told is decided again
            if study is not None and self._eligible.may(agent, study):
                self._staying[study].append(agent)
                for each in self._standings(study):
                    each.serving += self._gpus(agent)

    def _standings(self, study: int) -> tuple[Standing, Standing]:
        user = user_of(self._demands[study])
        return self.users[user], self.queues[user[0]]

    def _gpus(self, agent: int) -> int:
        return self._eligible.gpus[self._eligible.group[agent]]

    def _by_use(self) -> list[int]:
        """Return the agents, those first that are idle, then those that are of use to few studies."""
        staying = {agent for agents in self._staying for agent in agents}
        width = self._eligible.width
        return sorted(
            range(len(self._agents)),
            key=lambda each: (
                each in staying,
                self._agents[each].study_id is not None,
                width[self._eligible.group[each]],
                self._agents[each].name,
            ),
        )

    def _divide(self, studies: Sequence[int]) -> None:
        """Divide the agents that are free among the studies of one priority."""
        wanting: dict[User, list[int]] = {}
        for study in reversed(studies):
            user = user_of(self._demands[study])
            if user not in self.spent and self._demands[study].wanted > 0 and self._eligible.masks[study]:
                wanting.setdefault(user, []).append(study)
        self._share(wanting)
        line: dict[str, list[tuple[float, User]]] = {}
        for user in wanting:
            line.setdefault(user[0], []).append((self.users[user].level, user))
        for users in line.values():
            heapq.heapify(users)
        queues = [(self.queues[queue].level, queue) for queue in line]
        heapq.heapify(queues)
        # an entry that was made before somebody's agents changed has a successor
        while queues:
            level, queue = heapq.heappop(queues)
            if level != self.queues[queue].level or not line[queue]:
                continue
            level, user = heapq.heappop(line[queue])
            changed = {user}
            if wanting[user] and level == self.users[user].level:
                changed |= self._grant(user, wanting[user])
            for each in changed & wanting.keys():
                if wanting[each]:
                    heapq.heappush(line[each[0]], (self.users[each].level, each))
            for name in {queue, *(each[0] for each in changed)} & line.keys():
                heapq.heappush(queues, (self.queues[name].level, name))

    def _share(self, wanting: Mapping[User, Sequence[int]]) -> None:
        """Find what each user is due, and how far ahead of it or behind it is."""
        claims = {user: self._claim(user, studies) for user, studies in wanting.items()}
        queues: dict[str, list[User]] = {}
        for user in sorted(wanting):
            queues.setdefault(user[0], []).append(user)
        held = {queue: sum(self.users[user].gpus for user in users) for queue, users in queues.items()}
        capacity = float(self._matching.free_gpus() + sum(held.values()))
        of_queues = {
            queue: Claim(
                self._limits.queue_weight(queue),
                min(
                    math.fsum(claims[user].most for user in users),
                    self._able(each for user in users for each in wanting[user]),
                ),
            )
            for queue, users in queues.items()
        }
        by_queue = {queue: {user: claims[user] for user in users} for queue, users in queues.items()}
        due = fair(capacity, of_queues, by_queue, self._long)
        had = recent(self._short, due, self._short_half_life)
        for user in wanting:
            self.users[user].due = due[user]
            self.users[user].ahead = _ahead(had[user], due[user])
        for queue, users in queues.items():
            self.queues[queue].due = math.fsum(due[user] for user in users)
            self.queues[queue].ahead = _ahead(math.fsum(had[user] for user in users), self.queues[queue].due)

    def _claim(self, user: User, studies: Sequence[int]) -> Claim:
        largest = max(self._eligible.gpus, default=1)
        wanted = sum(self._demands[each].wanted for each in studies)
        caps = [each.agents for each in self._limits.of(user) if each.agents is not None]
        most = min(wanted * largest + self.users[user].gpus, self._able(studies))
        return Claim(self._limits.weight(user), float(min([most, *(largest * cap for cap in caps)])))

    def _able(self, studies: Iterable[int]) -> int:
        """Return the GPUs of all agents that may serve one of these studies."""
        mask = 0
        for study in studies:
            mask |= self._eligible.masks[study]
        # not of those alone that are free: which are depends on where agents happen to be
        return sum(self._able_in[group] for group in self._eligible.of(mask))

    def _grant(self, user: User, studies: list[int]) -> set[User]:
        """Give a user one more agent, for the last of ``studies`` that can have one.

        Studies that can get no more are removed from ``studies``. Returns the users whose agents changed.
        """
        full = self._limits.full(user, self._held)
        if full is not None:
            self.full[user] = full
            studies.clear()
        while studies:
            study = studies[-1]
            if self.counts[study] < self._demands[study].wanted:
                changed = self._extend(study)
                if changed:
                    self.counts[study] += 1
                    self._held[user] = self._held.get(user, 0) + 1
                    return self._account(changed) | {user}
            studies.pop()
        return set()

    def _extend(self, study: int) -> list[tuple[int, int | None]]:
        own = self._staying[study]
        while own:
            agent = own.pop()
            if self._matching.match(agent, study):
                return [(agent, None)]
        return self._matching.extend(study)

    def _account(self, changed: Iterable[tuple[int, int | None]]) -> set[User]:
        """Take note of the GPUs that changed hands; return whose they were and are."""
        users = set()
        for agent, before in changed:
            for study, sign in ((before, -1), (self._matching.study[agent], 1)):
                if study is not None:
                    users.add(user_of(self._demands[study]))
                    for each in self._standings(study):
                        each.gpus += sign * self._gpus(agent)
        return users


def _ahead(had: float, due: float) -> float:
    return min(max(GAIN * (had - due), -1.0), 1.0)


def user_of(demand: Demand) -> User:
    """Return the user of a queue that a study is of."""
    return demand.queue, demand.owner


def in_shared_queues(
    demands: Iterable[Demand], usage: Iterable[Usage], quotas: Iterable[Quota]
) -> tuple[list[Demand], list[Usage]]:
    """Return studies and use with the queues that share a weight as one, whose name is the empty text.

    Those are the queues for which no quota was set: whoever begins a study may invent one, and would have a
    share more by it.
    """
    named = {each.queue for each in quotas}
    return (
        [each if each.queue in named else replace(each, queue="") for each in demands],
        [each if each.queue in named else replace(each, queue="") for each in usage],
    )

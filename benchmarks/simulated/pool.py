"""A pool of agents on a simulated clock: runs end, users come and go, and `allocate` says who serves what.

An agent trains one run at a time, hears what it is to do once a minute, and follows it as a real one does.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tempopt.records.pool import Allocation, Assignment, Demand, PoolAgent, Quota, Usage
from tempopt.scheduling import allocate
from tempopt.scheduling.shares import LONG_HALF_LIFE, MOST_REPAID, PLAIN, REPAID_POWER, UNREPAID_HOURS

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
_UNASKED = 10 * MINUTE
_KEPT_HOURS = 40 * 24

Claims = Mapping[str, Sequence[tuple[str, float, float]]]
"""By queue, the users that want something: name, weight, most GPUs."""
Length = Callable[[random.Random], float]
"""Draws how long a run takes, in seconds."""


def short(rng: random.Random) -> float:
    """Draw from an exponential law with a mean of half an hour, from 2 minutes to 4 hours."""
    return min(max(rng.expovariate(1 / (0.5 * HOUR)), 2 * MINUTE), 4 * HOUR)


def heavy(rng: random.Random) -> float:
    """Draw from a law with a heavy tail: half are longer than a quarter of an hour, some take 12 hours."""
    return min(max(rng.lognormvariate(0.0, 1.5) * 0.25 * HOUR, MINUTE), 12 * HOUR)


def long(rng: random.Random) -> float:
    """Draw from 3 to 5 hours."""
    return rng.uniform(3 * HOUR, 5 * HOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user of the pool and what it has the pool train.

    Args:
        name: The user.
        queue: The queue of all its studies.
        weight: Its weight in the queue.
        studies: How many studies it has at a time.
        parallel: Runs of a study that may be trained at a time.
        length: How long its runs take.
        present: When it wants something, in seconds from the begin to the end; None: always.
        labels: What its studies ask of agents.
        priority: Of its studies.
    """

    name: str
    queue: str = "default"
    weight: float = 1.0
    studies: int = 1
    parallel: int = 1000
    length: Length = short
    present: Sequence[tuple[float, float]] | None = None
    labels: frozenset[str] = frozenset()
    priority: int = 0

    def wants(self, now: float) -> bool:
        """Return whether it wants runs to be begun."""
        return self.present is None or any(begin <= now < end for begin, end in self.present)


@dataclass(slots=True)
class _Agent:
    row: PoolAgent
    ends: float = 0.0
    begun: float = 0.0
    running: bool = False
    told: Assignment | None = None


@dataclass(slots=True)
class Seen:
    """What was seen of one user.

    Args:
        seconds: GPU-seconds that it had while it wanted some.
        due: GPU-seconds that it was due by the weights alone, of those who wanted some at the same time.
        formula: GPU-seconds that the formula says, if GPUs and time could be divided at will.
        there: GPU-seconds that the pool had in that time.
        wait: The longest time in which it wanted some and had none, in seconds.
        daily: GPU-seconds by day.
    """

    seconds: float = 0.0
    due: float = 0.0
    formula: float = 0.0
    there: float = 0.0
    wait: float = 0.0
    waiting: float = 0.0
    daily: dict[int, float] = field(default_factory=lambda: defaultdict(float))


class Pool:
    """The pool.

    Args:
        people: The users.
        agents: The agents, as rows.
        queues: Weight of each queue; 1 for those that are not named.
        quotas: Others than weights.
        seed: Of the lengths of runs.
        decide: What is asked; `allocate`.
    """

    def __init__(
        self,
        people: Sequence[Person],
        agents: Sequence[PoolAgent],
        *,
        queues: Mapping[str, float] | None = None,
        quotas: Sequence[Quota] = (),
        seed: int = 0,
        decide: Callable[..., Allocation] = allocate,
    ) -> None:
        self.people = people
        self.now = 0.0
        self.seen = {each.name: Seen() for each in people}
        self.agents = list(agents)
        self.idle = 0.0
        self.preempted = self.switches = self.runs = 0
        self._fluid = Fluid(people, queues or {}, float(len(agents)))
        self._formula: dict[str, float] = {}
        self._poured = 0.0
        self._rng = random.Random(seed)
        self._decide = decide
        self._queues = dict(queues or {})
        self._quotas = [
            *quotas,
            *(Quota(queue=each, weight=weight) for each, weight in self._queues.items()),
            *(Quota(queue=each.queue, user=each.name, weight=each.weight) for each in people),
        ]
        self._agents = [_Agent(row) for row in agents]
        self._owner: dict[int, Person] = {}
        for person in people:
            for _ in range(person.studies):
                self._owner[len(self._owner) + 1] = person
        self._rest: dict[int, list[float]] = defaultdict(list)
        self._usage: dict[tuple[str, str, int], float] = defaultdict(float)
        self._ends: list[tuple[float, int]] = []

    def run(self, until: float) -> None:
        """Go on to a time, in seconds."""
        asked, changed = -_UNASKED, True
        while self.now < until:
            if changed or self.now - asked >= _UNASKED:
                self._ask()
                asked = self.now
            wanted = self._wanting()
            self._pass(min(self.now + MINUTE, until))
            changed = self._end_runs() or wanted != self._wanting()

    def demands(self) -> list[Demand]:
        """Return what the studies want now."""
        serving: dict[int, int] = defaultdict(int)
        leaving: dict[int, int] = defaultdict(int)
        for agent in self._agents:
            if agent.running and agent.row.study_id is not None:
                (leaving if agent.row.leaving else serving)[agent.row.study_id] += 1
        found = []
        for study, person in self._owner.items():
            # a run whose agent is leaving is trained to its end, and needs no other agent
            most = person.parallel - leaving[study]
            wanted = most if person.wants(self.now) else serving[study] + len(self._rest[study])
            found.append(
                Demand(
                    study_id=study,
                    name=f"study{study}",
                    owner=person.name,
                    queue=person.queue,
                    priority=person.priority,
                    labels=person.labels,
                    wanted=wanted,
                )
            )
        return found

    # ---- what happens

    def _ask(self) -> None:
        rows = [
            Usage(queue=queue, user=user, hour=hour, seconds=seconds)
            for (queue, user, hour), seconds in self._usage.items()
            if hour > self.now / HOUR - _KEPT_HOURS
        ]
        said = self._decide(
            self.demands(), [each.row for each in self._agents], rows, self._quotas, now=self.now
        )
        by_name = {each.agent: each for each in said.assignments}
        for number, agent in enumerate(self._agents):
            agent.told = by_name[agent.row.name]
            agent.row = replace(
                agent.row, leaving=agent.running and agent.told.study_id != agent.row.study_id
            )
            if agent.running and agent.told.order == "preempt" and agent.row.study_id is not None:
                self.preempted += 1
                self._rest[agent.row.study_id].append(agent.ends - self.now)
                agent.running = False
            if not agent.running:
                self._begin(number)

    def _begin(self, number: int) -> None:
        """Have an agent that trains nothing begin a run of the study that it was told."""
        agent = self._agents[number]
        study = agent.told.study_id if agent.told else None
        if study != agent.row.study_id:
            self.switches += agent.row.study_id is not None and study is not None
            agent.row = replace(agent.row, study_id=study, since=self.now, leaving=False)
        if study is None:
            return
        person, rest = self._owner[study], self._rest[study]
        running = sum(each.running and each.row.study_id == study for each in self._agents)
        if not rest and (not person.wants(self.now) or running >= person.parallel):
            return
        agent.running, agent.begun = True, self.now
        agent.ends = self.now + (rest.pop() if rest else person.length(self._rng))
        heapq.heappush(self._ends, (agent.ends, number))

    def _end_runs(self) -> bool:
        changed = False
        while self._ends and self._ends[0][0] <= self.now:
            ends, number = heapq.heappop(self._ends)
            agent = self._agents[number]
            if agent.running and agent.ends == ends:
                changed = True
                self.runs += 1
                agent.running = False
                self._begin(number)
        return changed

    def _wanting(self) -> tuple[bool, ...]:
        return tuple(each.wants(self.now) for each in self.people)

    # ---- what is counted

    def _pass(self, until: float) -> None:
        """Let time pass, and count it; no longer than a minute, within which nothing is decided."""
        span = until - self.now
        wanted = {each.study_id: each for each in self.demands()}
        wanting = {each.name for each in self.people if self._wants(each, wanted.values())}
        have: dict[str, float] = defaultdict(float)
        serving: dict[int, int] = defaultdict(int)
        for agent in self._agents:
            if agent.running and agent.row.study_id is not None:
                have[self._owner[agent.row.study_id].name] += 1.0
                serving[agent.row.study_id] += not agent.row.leaving
        claims = self._claims(wanting, have)
        due = shared(claims, self._queues, float(len(self._agents)))
        if self.now >= self._poured:
            self._formula = self._fluid.step(claims, _UNASKED)
            self._poured += _UNASKED
        for person in self.people:
            name, seen = person.name, self.seen[person.name]
            self._usage[person.queue, name, int(self.now // HOUR)] += have[name] * span
            seen.daily[int(self.now // DAY)] += have[name] * span
            if name in wanting:
                seen.seconds += have[name] * span
                seen.due += due[name] * span
                seen.formula += self._formula[name] * span
                seen.there += len(self._agents) * span
            seen.waiting = seen.waiting + span if name in wanting and not have[name] else 0.0
            seen.wait = max(seen.wait, seen.waiting)
        unmet = [each for each in wanted.values() if each.wanted > serving[each.study_id]]
        self.idle += span * sum(
            not agent.running and any(agent.row.may_serve(each) for each in unmet) for agent in self._agents
        )
        self.now = until

    def _wants(self, person: Person, demands: Iterable[Demand]) -> bool:
        """Return whether a user wants something; also if all that it wants is in training."""
        return person.wants(self.now) or any(each.wanted for each in demands if each.owner == person.name)

    def _claims(self, wanting: set[str], have: Mapping[str, float]) -> Claims:
        claims: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
        for person in self.people:
            if person.name in wanting:
                able = sum(person.labels <= each.row.labels for each in self._agents)
                wanted = person.parallel * person.studies if person.wants(self.now) else have[person.name]
                most = float(min(able, wanted))
                claims[person.queue].append((person.name, person.weight, most))
        return claims


class Fluid:
    """The formula of docs/fair-share.md where GPUs and time can be divided at will.

    Args:
        people: The users.
        queues: Weight of each queue; 1 for those that are not named.
        gpus: How many there are.
    """

    def __init__(self, people: Sequence[Person], queues: Mapping[str, float], gpus: float) -> None:
        self._queue = {each.name: each.queue for each in people}
        self._used = {each.name: 0.0 for each in people}
        self._queues, self._gpus = queues, gpus

    def step(self, claims: Claims, span: float) -> dict[str, float]:
        """Let time pass, in seconds; return the GPUs that each user had."""
        of_queues: dict[str, float] = defaultdict(float)
        for name, used in self._used.items():
            of_queues[self._queue[name]] += used
        plain = shared(claims, self._queues, self._gpus)
        queues = _repaying({each: self._queues.get(each, 1.0) for each in claims}, of_queues, self._gpus)
        owed = {}
        for queue, users in claims.items():
            share = max(sum(plain[name] for name, _, _ in users), 1.0)
            weights = _repaying({name: weight for name, weight, _ in users}, self._used, share)
            owed[queue] = [(name, weights[name], most) for name, _, most in users]
        repaid = shared(owed, queues, self._gpus)
        had = {name: PLAIN * plain[name] + (1 - PLAIN) * repaid[name] for name in self._used}
        for name in self._used:
            self._used[name] = self._used[name] * 0.5 ** (span / LONG_HALF_LIFE) + had[name] * span
        return had


def _repaying(weights: Mapping[str, float], used: Mapping[str, float], gpus: float) -> dict[str, float]:
    slack = gpus * UNREPAID_HOURS * HOUR
    total = sum(used[each] for each in weights) + slack
    found = {}
    for each, weight in weights.items():
        due = weight / sum(weights.values())
        factor = (due / ((used[each] + slack * due) / total)) ** REPAID_POWER
        found[each] = weight * min(max(factor, 1 / MOST_REPAID), MOST_REPAID)
    return found


def shared(claims: Claims, queues: Mapping[str, float], capacity: float) -> dict[str, float]:
    """Return the fair shares of users by queue and weight: what is left over is shared out again."""
    most = [
        (queue, queues.get(queue, 1.0), sum(each[2] for each in users)) for queue, users in claims.items()
    ]
    found: dict[str, float] = defaultdict(float)
    for queue, share in _filled(most, capacity).items():
        found |= _filled(claims[queue], share)
    return found


def _filled(claims: Sequence[tuple[str, float, float]], capacity: float) -> dict[str, float]:
    got = {name: 0.0 for name, _, _ in claims}
    open_ = list(claims)
    while open_ and capacity > 1e-9:
        weight = sum(each[1] for each in open_)
        step = min(capacity / weight, *((most - got[name]) / w for name, w, most in open_))
        for name, w, _ in open_:
            got[name] += step * w
        capacity -= step * weight
        open_ = [each for each in open_ if each[2] - got[each[0]] > 1e-9]
    return got

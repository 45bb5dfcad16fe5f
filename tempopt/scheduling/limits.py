"""What quotas say of a user in a queue: its weight, and whether budget and agents are used up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tempopt.records.pool import Demand, PoolAgent, Quota, Usage
from tempopt.scheduling.shares import HOUR, User

DAY = 24 * HOUR
RESUMED_BELOW = 0.99
"""A study that has no agents gets some again when less than this part of its budget is used."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A budget and what is used of it.

    Args:
        quota: The quota whose budget it is.
        hours: GPU-hours that are used of it.
        served: Whether agents serve studies that it is for.
    """

    quota: Quota
    hours: float
    served: bool

    @property
    def over(self) -> bool:
        """Whether it is used up."""
        budget = self.quota.gpu_hours
        # otherwise each second that falls out of the window would start a run, and end it again
        return budget is not None and self.hours >= budget * (1.0 if self.served else RESUMED_BELOW)


class Limits:
    """The quotas as the users of queues meet them.

    Args:
        quotas: At most one for each queue and user; sorted here.
        usage: What was used, by hours; for ever, if a quota says so.
        now: Epoch seconds.
    """

    def __init__(self, quotas: Iterable[Quota], usage: Sequence[Usage], *, now: float) -> None:
        self._quotas = {
            (each.queue, each.user): each for each in sorted(quotas, key=lambda q: (q.queue, q.user))
        }
        by_user: dict[User, list[Usage]] = {}
        for row in usage:
            by_user.setdefault((row.queue, row.user), []).append(row)
        self._hours = {
            key: math.fsum(used(quota, rows, now) for user, rows in by_user.items() if holds(quota, user))
            for key, quota in self._quotas.items()
            if quota.gpu_hours is not None
        }

    def of(self, user: User) -> list[Quota]:
        """Return the quotas that hold for a user of a queue, the most specific one first."""
        queue, name = user
        keys = [(queue, name), ("", name), (queue, ""), ("", "")]
        return [self._quotas[key] for key in dict.fromkeys(keys) if key in self._quotas]

    def weight(self, user: User) -> float:
        """Return the weight of a user among the users of its queue."""
        own = [each for each in self.of(user) if each.user]
        return own[0].weight if own else 1.0

    def queue_weight(self, queue: str) -> float:
        """Return the weight of a queue among the queues."""
        own = self._quotas.get((queue, "")) if queue else None
        return own.weight if own else 1.0

    def spent(self, demands: Iterable[Demand], agents: Iterable[PoolAgent]) -> dict[User, Spent]:
        """Return the users of queues that have used up a budget, and which."""
        demands = list(demands)
        serving = {each.study_id for each in agents}
        served = {(each.queue, each.owner) for each in demands if each.study_id in serving}
        found: dict[User, Spent] = {}
        for user in sorted({(each.queue, each.owner) for each in demands}):
            for quota in self.of(user):
                key = (quota.queue, quota.user)
                if key in self._hours:
                    meant = any(holds(quota, other) for other in served)
                    each = Spent(quota, self._hours[key], meant)
                    if each.over:
                        found.setdefault(user, each)
        return found

    def full(self, user: User, counts: Mapping[User, int]) -> Quota | None:
        """Return the quota by which a user may have no more agents than are in ``counts``; None: it may."""
        for quota in self.of(user):
            if quota.agents is not None:
                held = sum(count for other, count in counts.items() if holds(quota, other))
                if held >= quota.agents:
                    return quota
        return None


def holds(quota: Quota, user: User) -> bool:
    """Return whether a quota holds for a user of a queue."""
    return quota.queue in ("", user[0]) and quota.user in ("", user[1])


def used(quota: Quota, usage: Iterable[Usage], now: float) -> float:
    """Return the GPU-hours of ``usage`` that count towards a quota's budget, whoever's they are.

    Of the hour in which the quota's days begin, the part that they hold counts.
    """
    begin = -math.inf if quota.days is None else now - quota.days * DAY
    parts = []
    for row in usage:
        inside = min(max((row.hour + 1) - begin / HOUR, 0.0), 1.0)
        parts.append(row.seconds * inside / HOUR)
    return math.fsum(parts)


def budgets(quotas: Iterable[Quota], usage: Sequence[Usage], *, now: float) -> list[tuple[Quota, float]]:
    """Return each quota that has a budget, with the GPU-hours that are used of it.

    Args:
        quotas: What was set.
        usage: What was used, by hours.
        now: Epoch seconds.
    """
    return [
        (each, used(each, [row for row in usage if holds(each, (row.queue, row.user))], now))
        for each in quotas
        if each.gpu_hours is not None
    ]

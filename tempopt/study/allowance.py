"""What a user's studies have used of GPU time, and what is set for that user by the quotas of the pool."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from tempopt.scheduling.limits import budgets
from tempopt.store.store import behind_server
from tempopt.study.admin import Storage, opened

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSpent:
    """A quota with a budget, and what is used of it.

    Args:
        queue: Its queue; empty: every queue together.
        user: Its user; empty: all users of the queue.
        gpu_hours: The GPU-hours that it allows, >= 0.
        days: Days that these are for; None: for ever.
        used: GPU-hours that are used of it, runs in progress and deleted studies included.
    """

    queue: str
    user: str
    gpu_hours: float
    days: float | None
    used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What a user has used and may use.

    Args:
        user: The user.
        gpu_hours: GPU-hours that the user's studies have used so far, of runs without a card their hours of
            training; runs in progress and deleted studies included.
        quotas: The quotas with a budget that hold for this user, in some queue or in all.
    """

    user: str
    gpu_hours: float
    quotas: tuple[QuotaSpent, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "quotas": [asdict(each) for each in self.quotas]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Return what :meth:`to_json` has made plain."""
        return cls(**{**data, "quotas": tuple(QuotaSpent(**each) for each in data["quotas"])})


def allowance(storage: Storage, user: str) -> Allowance:
    """Return what a user has used and may use.

    Args:
        storage: The store or its URL.
        user: The user; behind a server it is whoever the token stands for, whatever is given.
    """
    with opened(storage) as store:
        if server := behind_server(store):
            return Allowance.from_json(server.server.get("/api/allowance"))
        usage = store.pool.usage()
        rows = store.pool.read()
        own = math.fsum(each.seconds for each in usage if each.user == user) / _HOUR
        found = [
            QuotaSpent(
                queue=quota.queue,
                user=quota.user,
                gpu_hours=quota.gpu_hours,
                days=quota.days,
                used=used,
            )
            for quota, used in budgets(rows.quotas, usage, now=rows.now)
            if quota.gpu_hours is not None and quota.user in ("", user)
        ]
        return Allowance(user=user, gpu_hours=own, quotas=tuple(found))

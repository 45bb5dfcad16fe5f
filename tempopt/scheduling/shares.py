"""How many GPUs each user is due: weights, what was used before, and who wants less than that.

A user of a queue is the pair of the queue's name and the user's. The formulas are in ``docs/fair-share.md``.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tempopt.records.pool import Usage

User = tuple[str, str]
"""A user of a queue: the queue, the user."""

Key = TypeVar("Key", bound=Hashable)

HOUR = 3600.0
LONG_HALF_LIFE = 7 * 24 * HOUR
"""Half-life of the use that is repaid, in seconds."""
SHORT_HALF_LIFE = 4 * HOUR
"""Half-life of the use by which users take turns, in seconds."""
PLAIN = 0.5
"""This part of the pool is shared by the weights alone."""
MOST_REPAID = 2.0
"""A weight is at most multiplied by this, or divided by it, for what was used before."""
REPAID_POWER = 8.0
"""How fast a weight rises as a user has less than its share."""
UNREPAID_HOURS = 4.0
"""Use of the whole pool for so many hours is added to what was used, in the shares that are due."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one user, or one queue, may claim of the GPUs that are shared out.

    Args:
        weight: Its share relative to the others, > 0.
        most: More GPUs than this it cannot use, >= 0.
    """

    weight: float
    most: float


def decayed(rows: Iterable[Usage], now: float, half_life: float) -> dict[User, float]:
    """Return what each user has used, in GPU-seconds, where use halves in value every ``half_life`` seconds.

    The use of an hour counts as spread evenly over it, that of the hour of ``now`` (epoch seconds) over the
    part that has passed. Rows may come in any order.
    """
    parts: dict[User, list[float]] = {}
    values: dict[int, float] = {}
    for row in rows:
        if row.hour not in values:
            values[row.hour] = _value(row.hour * HOUR, now, half_life)
        parts.setdefault((row.queue, row.user), []).append(row.seconds * values[row.hour])
    # an exact sum is the same in any order
    return {user: math.fsum(each) for user, each in parts.items()}


def _value(start: float, now: float, half_life: float) -> float:
    """Return what a second of the hour from ``start`` on is worth at ``now``, on average."""
    end = min(start + HOUR, now)
    if end - start < 1.0:
        return math.exp2(-max(now - start, 0.0) / half_life)
    rate = math.log(2.0) / half_life
    return (math.exp(-rate * (now - end)) - math.exp(-rate * (now - start))) / (rate * (end - start))


def repaid(weights: Mapping[Key, float], used: Mapping[Key, float], slack: float) -> dict[Key, float]:
    """Return the weights, higher for those who had less than their share and lower for those who had more.

    Args:
        weights: The weight of everybody who wants something now, > 0.
        used: What each of them has used, in decayed GPU-seconds; missing: nothing.
        slack: GPU-seconds that count as used in the shares that are due, > 0: much less is hardly repaid.

    Returns:
        Each weight times (share due / share used) ** ``REPAID_POWER``, the factor from 1 / ``MOST_REPAID`` to
        ``MOST_REPAID``. Nobody's share is therefore less than 1 / ``MOST_REPAID`` ** 2 of what it is due.
    """
    everything = math.fsum(weights.values())
    total = math.fsum(used.get(key, 0.0) for key in weights) + slack
    found = {}
    for key, weight in weights.items():
        due = weight / everything
        had = (used.get(key, 0.0) + slack * due) / total
        factor = (due / had) ** REPAID_POWER
        found[key] = weight * min(max(factor, 1.0 / MOST_REPAID), MOST_REPAID)
    return found


def filled(capacity: float, claims: Mapping[Key, Claim]) -> dict[Key, float]:
    """Share ``capacity`` out by weight; what somebody cannot use goes to the others, by weight again.

    Also called water-filling, or weighted max-min fairness. The shares add up to ``capacity``, or to all that
    can be used if that is less.
    """
    shares: dict[Key, float] = {}
    left = max(capacity, 0.0)
    weight = math.fsum(claim.weight for claim in claims.values())
    # those who are content with the least for their weight come first, so one pass is enough
    for key, claim in sorted(claims.items(), key=lambda each: (each[1].most / each[1].weight, str(each[0]))):
        shares[key] = min(claim.most, left * claim.weight / weight) if weight > 0.0 else 0.0
        left = max(left - shares[key], 0.0)
        weight -= claim.weight
    return shares


def fair(
    capacity: float,
    queues: Mapping[str, Claim],
    users: Mapping[str, Mapping[User, Claim]],
    used: Mapping[User, float],
) -> dict[User, float]:
    """Return the GPUs that each user is due: half of them by the weights alone, half to repay as well.

    So nobody is due less than half of what the weights say, whatever was used before.

    Args:
        capacity: GPUs to be shared out.
        queues: What each queue may claim, > 0 in weight.
        users: What the users of each of these may claim.
        used: What every user has used, in decayed GPU-seconds.
    """
    plain = _hierarchical(capacity, queues, users)
    by_queue = {queue: math.fsum(each for user, each in used.items() if user[0] == queue) for queue in queues}
    weights = repaid({queue: claim.weight for queue, claim in queues.items()}, by_queue, _slack(capacity))
    owed_queues = {queue: Claim(weights[queue], claim.most) for queue, claim in queues.items()}
    owed = {}
    for queue, claims in users.items():
        share = math.fsum(plain[user] for user in claims)
        own = repaid({user: claim.weight for user, claim in claims.items()}, used, _slack(share))
        owed[queue] = {user: Claim(own[user], claim.most) for user, claim in claims.items()}
    repaying = _hierarchical(capacity, owed_queues, owed)
    return {user: PLAIN * plain[user] + (1.0 - PLAIN) * repaying[user] for user in plain}


def _slack(gpus: float) -> float:
    return max(gpus, 1.0) * UNREPAID_HOURS * HOUR


def _hierarchical(
    capacity: float, queues: Mapping[str, Claim], users: Mapping[str, Mapping[User, Claim]]
) -> dict[User, float]:
    shares: dict[User, float] = {}
    for queue, share in filled(capacity, queues).items():
        shares |= filled(share, users[queue])
    return shares


def recent(used: Mapping[Key, float], due: Mapping[Key, float], half_life: float) -> dict[Key, float]:
    """Return how many GPUs each has had of late, on average, scaled so that they add up to what is due.

    Args:
        used: GPU-seconds, decayed with ``half_life``.
        due: GPUs that each is due now.
        half_life: In seconds.

    Returns:
        Where fewer GPUs were used than are shared out now, the rest counts as used in the shares that are
        due: nobody is in debt for the hours in which the pool was smaller, or idle.
    """
    average = {key: used.get(key, 0.0) * math.log(2.0) / half_life for key in due}
    had, now = math.fsum(average.values()), math.fsum(due.values())
    if had >= now:
        return {key: each * now / had if had > 0.0 else 0.0 for key, each in average.items()}
    return {key: each + due[key] * (1.0 - had / now) for key, each in average.items()}

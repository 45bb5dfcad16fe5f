"""The pool of a store, for people: its queue, its agents, what users have used and may use; and what is set.

A server is asked to do what is done here on a database, and does it with the same functions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tempopt.errors import AccessDenied, UsageError
from tempopt.pool.dispatcher import Picture, picture
from tempopt.records.liveness import shown
from tempopt.records.pool import Demand, PoolAgent, Quota, Usage
from tempopt.store.store import behind_server
from tempopt.study.admin import Storage, opened

_HOUR = 3600.0
_HIGHEST = 1000
_WEEK_HOURS = 7 * 24


def pool(storage: Storage) -> dict[str, Any]:
    """Return how the pool stands, as plain JSON data.

    ``studies`` in the order in which they get the next agent, each with the agents that serve it, those that
    it could keep busy, and why it has fewer (``waiting``, null if it has them all); ``agents``; ``users`` of
    each queue with their weight and their GPU-hours of the last 7 days; ``quotas``.
    """
    with opened(storage) as store:
        if server := behind_server(store):
            told: dict[str, Any] = server.server.get("/api/pool")
            return told
        return pool_view(picture(store))


def pool_view(seen: Picture) -> dict[str, Any]:
    """Return a picture of the pool as plain JSON data; see :func:`pool`."""
    names = {each.study_id: each.name for each in seen.demands}
    serving: dict[int, int] = defaultdict(int)
    for each in seen.agents:
        if each.study_id is not None:
            serving[each.study_id] += 1
    place = {id: number for number, id in enumerate(seen.allocation.order)}
    ordered = sorted(seen.demands, key=lambda each: (place.get(each.study_id, len(place)), each.study_id))
    return {
        "studies": [
            _study(each, serving[each.study_id], seen.allocation.waiting.get(each.study_id))
            for each in ordered
        ],
        "agents": [_agent(each, names, seen.now) for each in seen.agents],
        "users": _users(seen),
        "quotas": [quota_json(each) for each in seen.quotas],
    }


def _study(demand: Demand, agents: int, waiting: str | None) -> dict[str, Any]:
    return {
        "study": demand.name,
        "owner": demand.owner,
        "queue": demand.queue,
        "priority": demand.priority,
        "labels": sorted(demand.labels),
        "agents": agents,
        "wanted": demand.wanted,
        "waiting": waiting if demand.wanted > agents else None,
    }


def _agent(agent: PoolAgent, names: Mapping[int, str], now: float) -> dict[str, Any]:
    return {
        "agent": shown(agent.name),
        "machine": agent.machine,
        "token": agent.started_by,
        "queues": sorted(agent.queues),
        "labels": sorted(agent.labels),
        "gpus": agent.gpus,
        "study": None if agent.study_id is None else names.get(agent.study_id),
        "seconds": max(0.0, now - agent.since),
        "leaving": agent.leaving,
        "unable": {names[id]: why for id, why in agent.unable.items() if id in names},
    }


def _users(seen: Picture) -> list[dict[str, Any]]:
    """Return who has used something, or wants something, by queue and user."""
    hours = used_hours(seen.usage, since=seen.now / _HOUR - _WEEK_HOURS)
    of_user = {(each.queue, each.owner) for each in seen.demands} | hours.keys()
    agents: dict[tuple[str, str], int] = defaultdict(int)
    owners = {each.study_id: (each.queue, each.owner) for each in seen.demands}
    for each in seen.agents:
        if each.study_id in owners:
            agents[owners[each.study_id]] += 1
    quotas = {(each.queue, each.user): each for each in seen.quotas}

    def weight(queue: str, user: str) -> float:
        found = quotas.get((queue, user)) or quotas.get(("", user))
        return 1.0 if found is None else found.weight

    return [
        {
            "queue": queue,
            "user": user,
            "weight": weight(queue, user),
            "queue_weight": quotas[queue, ""].weight if (queue, "") in quotas else 1.0,
            "agents": agents[queue, user],
            "gpu_hours": hours.get((queue, user), 0.0),
        }
        for queue, user in sorted(of_user)
    ]


def used_hours(usage: Iterable[Usage], *, since: float) -> dict[tuple[str, str], float]:
    """Return the GPU-hours that were used since an hour (hours since 1970), by queue and user."""
    hours: dict[tuple[str, str], float] = defaultdict(float)
    for each in usage:
        if each.hour >= since:
            hours[each.queue, each.user] += each.seconds / _HOUR
    return dict(hours)


# ---- queues and priorities


def place(
    storage: Storage, name: str, *, queue: str | None = None, priority: int | None = None
) -> tuple[str, int]:
    """Move a study to another queue of the pool, or give it another priority.

    Args:
        storage: The store or its URL.
        name: Name of the study.
        queue: Name of the queue; None: it stays where it is.
        priority: From -1000 to 1000; None: it stays as it is.

    Returns:
        Its queue and its priority then.

    Raises:
        StudyNotFound: There is no study of that name.
        AccessDenied: The server's quotas do not allow the priority.
    """
    with opened(storage) as store:
        if server := behind_server(store):
            told = server.ask(name, "place", {"queue": queue, "priority": priority})
            return told["queue"], told["priority"]
        return store.pool.place(name, queue=queue, priority=priority)


def check_priority(quotas: Iterable[Quota], *, user: str, queue: str, priority: int) -> None:
    """Refuse a priority that a user may not give.

    Raises:
        AccessDenied: It is above what the quotas of the user allow, or above 0 where there are none.
    """
    allowed = [
        each.priority
        for each in quotas
        if each.user == user and each.queue in ("", queue) and each.priority is not None
    ]
    most = max(allowed, default=0)
    if priority > most:
        raise AccessDenied(
            f"{user} may give studies of the queue {queue} a priority of at most {most}, and {priority} was "
            "given. Give that, or ask an administrator: tempopt quota set --user "
            f"{user} --priority {priority}"
        )


# ---- quotas


def quota_json(quota: Quota) -> dict[str, Any]:
    """Return a quota as plain JSON data."""
    return asdict(quota)


def checked_quota(quota: Quota) -> Quota:
    """Return a quota that is as it should be.

    Raises:
        UsageError: It is of nobody, or a number is out of its range.
    """
    if not (quota.queue or quota.user):
        raise UsageError("A quota is of a queue, of a user, or of a user in a queue. Give --queue or --user.")
    if not 0 < quota.weight <= 1e6:
        raise UsageError(f"A weight is above 0 and at most 1,000,000, and {quota.weight:g} was given.")
    if quota.gpu_hours is not None and not 0 <= quota.gpu_hours <= 1e9:
        raise UsageError(f"GPU-hours are from 0 to 1e9, and {quota.gpu_hours:g} were given.")
    if quota.days is not None and not 0 < quota.days <= 3660:
        raise UsageError(f"Days are above 0 and at most 3,660, and {quota.days:g} were given.")
    if quota.days is not None and quota.gpu_hours is None:
        raise UsageError("Days say what GPU-hours are for. Give --gpu-hours with --days.")
    if quota.agents is not None and not 0 <= quota.agents <= 1_000_000:
        raise UsageError(f"Agents are from 0 to 1,000,000, and {quota.agents} were given.")
    if quota.priority is not None and not quota.user:
        raise UsageError("A highest priority is of a user. Give --user with --priority.")
    if quota.priority is not None and not -_HIGHEST <= quota.priority <= _HIGHEST:
        raise UsageError(f"Priorities are from -{_HIGHEST} to {_HIGHEST}, and {quota.priority} was given.")
    return quota


def quotas(storage: Storage) -> list[Quota]:
    """Return the quotas of the pool."""
    with opened(storage) as store:
        if server := behind_server(store):
            return [Quota(**each) for each in server.server.get("/api/quotas")]
        return store.pool.quotas()


def set_quota(storage: Storage, quota: Quota) -> None:
    """Set what a queue, a user, or a user in a queue is to get of the pool, in place of what was set.

    Raises:
        UsageError: It is not as it should be.
    """
    checked_quota(quota)
    with opened(storage) as store:
        if server := behind_server(store):
            server.server.request("PUT", "/api/quotas", json=quota_json(quota))
        else:
            store.pool.set_quota(quota)


def remove_quota(storage: Storage, *, queue: str = "", user: str = "") -> None:
    """Remove a quota.

    Raises:
        UsageError: There is none of that queue and user.
    """
    with opened(storage) as store:
        if server := behind_server(store):
            server.server.request("DELETE", "/api/quotas", params={"queue": queue, "user": user})
        elif not store.pool.remove_quota(queue, user):
            raise no_quota(queue, user)


def no_quota(queue: str, user: str) -> UsageError:
    """Return the error that there is no quota of a queue and user."""
    whose = " and ".join([f'the queue "{queue}"'] * bool(queue) + [f'the user "{user}"'] * bool(user))
    return UsageError(f"There is no quota of {whose or 'nobody'}. To list them: tempopt quota list")

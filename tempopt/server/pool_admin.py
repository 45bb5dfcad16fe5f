"""The pool for people and programs: how it stands, its quotas, and where a study stands in it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from tempopt.pool.dispatcher import picture
from tempopt.records.pool import Quota
from tempopt.remote.protocol import Body, Label
from tempopt.server.asked import SUBMIT, VIEW, Meant, Shared
from tempopt.server.auth import Principal, about, require
from tempopt.server.documented import REFUSALS
from tempopt.server.errors import ApiError
from tempopt.study import pool
from tempopt.study.allowance import allowance

router = APIRouter(prefix="/api", tags=["pool"], responses=REFUSALS)
User = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9@._+-]{0,99})?$", examples=["ada"])]
Queue = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._=-]{0,62})?$", examples=["vision"])]


class QuotaBody(Body):
    """What a queue, a user, or a user in a queue is to get of the pool, and may use at most.

    Args:
        queue: The queue; empty: every queue together.
        user: The user; empty: the queue as a whole.
        weight: Share relative to the other users of a queue, or to the other queues.
        gpu_hours: At most so many GPU-hours in the last ``days``; null: no limit.
        days: Days that these are for; null: for ever.
        agents: At most so many agents at a time; null: no limit.
        priority: Highest priority that the user may give to a study; null: 0.
    """

    queue: Queue = ""
    user: User = ""
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    gpu_hours: Annotated[float | None, Field(ge=0, le=1e9)] = None
    days: Annotated[float | None, Field(gt=0, le=3660)] = None
    agents: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    priority: Annotated[int | None, Field(ge=-1000, le=1000)] = None


class Placing(Body):
    """Where a study is to stand in the pool; null: as it does."""

    queue: Label | None = None
    priority: Annotated[int | None, Field(ge=-1000, le=1000)] = None


class Placed(BaseModel):
    """Where a study stands in the pool."""

    queue: str
    priority: int


@router.get("/pool", summary="How the pool stands")
def standing(principal: Annotated[Principal, Depends(VIEW)], shared: Shared) -> dict[str, Any]:
    """Return the queue, the agents and what users have had; of others' studies nothing but that they are."""
    return seen_by(principal, pool.pool_view(picture(shared.store)))


def seen_by(principal: Principal, view: dict[str, Any]) -> dict[str, Any]:
    """Return of a view of the pool what somebody may see."""
    if not principal.studies:
        return view
    agents = [
        {
            **each,
            "study": each["study"] if principal.may_see(each["study"] or "") else None,
            "unable": {name: why for name, why in each["unable"].items() if principal.may_see(name)},
        }
        for each in view["agents"]
        if each["study"] is None or principal.may_see(each["study"])
    ]
    studies = [each for each in view["studies"] if principal.may_see(each["study"])]
    users = [each for each in view["users"] if each["user"] == principal.user]
    own = [each for each in view["quotas"] if each["user"] == principal.user]
    return {"studies": studies, "agents": agents, "users": users, "quotas": own}


@router.post("/studies/{name}/place", summary="Move a study in the pool")
def place(
    body: Placing, study: Meant, principal: Annotated[Principal, Depends(SUBMIT)], shared: Shared
) -> Placed:
    """Give a study another priority, or move it to another queue; at once, whatever is training."""
    queue = body.queue or study.queue
    # what stays as it is was allowed to somebody, but what one queue allows is not carried into another
    if body.priority is not None or queue != study.queue:
        priority = study.priority if body.priority is None else body.priority
        check_priority(shared, principal, queue=queue, priority=priority)
    queue, priority = shared.store.pool.place(study.name, queue=body.queue, priority=body.priority)
    return Placed(queue=queue, priority=priority)


def check_priority(shared: Shared, principal: Principal, *, queue: str, priority: int) -> None:
    """Refuse a priority that whoever asks may not give to a study."""
    if priority > 0 and "admin" not in principal.scopes:
        quotas = shared.store.pool.quotas()
        pool.check_priority(quotas, user=principal.user, queue=queue, priority=priority)


@router.get("/allowance", summary="What you have used and may use")
def allowed(principal: Annotated[Principal, Depends(VIEW)], shared: Shared) -> dict[str, Any]:
    """Return the GPU-hours of your studies, and the quotas that hold for you with what is used of each."""
    return allowance(shared.store, principal.user).to_json()


@router.get("/quotas", summary="List quotas")
def quotas(principal: Annotated[Principal, Depends(VIEW)], shared: Shared) -> list[QuotaBody]:
    """Return what was set for queues and users; to those who have a part of the studies, their own."""
    rows = shared.store.pool.quotas()
    return [
        QuotaBody(**pool.quota_json(each))
        for each in rows
        if not principal.studies or each.user == principal.user
    ]


@router.put("/quotas", summary="Set a quota")
def set_quota(
    body: QuotaBody,
    principal: Annotated[Principal, Depends(require("admin"))],
    shared: Shared,
    request: Request,
) -> QuotaBody:
    """Set what a queue or a user is to get of the pool, in place of what was set."""
    principal.check_whole()
    quota = pool.checked_quota(Quota(**body.model_dump()))
    about(request, detail=f"quota of {quota.queue or 'every queue'}, {quota.user or 'all users'}")
    shared.store.pool.set_quota(quota)
    return body


@router.delete("/quotas", summary="Remove a quota")
def remove_quota(
    principal: Annotated[Principal, Depends(require("admin"))],
    shared: Shared,
    request: Request,
    queue: Annotated[Queue, Query()] = "",
    user: Annotated[User, Query()] = "",
) -> QuotaBody:
    """Remove what was set for a queue, a user, or a user in a queue."""
    principal.check_whole()
    about(request, detail=f"quota of {queue or 'every queue'}, {user or 'all users'}")
    found = next((q for q in shared.store.pool.quotas() if (q.queue, q.user) == (queue, user)), None)
    if found is None or not shared.store.pool.remove_quota(queue, user):
        raise ApiError(404, "quota_not_found", str(pool.no_quota(queue, user)))
    return QuotaBody(**pool.quota_json(found))

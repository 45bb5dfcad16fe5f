"""The page of the pool: which study gets the next agent and why others wait, agents, users' shares."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from tempopt.server.asked import VIEW
from tempopt.server.auth import Principal
from tempopt.server.pages import routing
from tempopt.server.pages.rendering import about, environment, page
from tempopt.server.pages.shown import Pages
from tempopt.server.pages.studies import part
from tempopt.server.pool_admin import seen_by

router = routing.router()
Seeing = Annotated[Principal, Depends(VIEW)]
MOST = 200
"""So many studies of the queue are shown, those first that get the next agents."""


def _shown(principal: Principal, pages: Pages) -> dict[str, Any]:
    """Return what the page shows: a view of the pool, and what its numbers come to."""
    view = seen_by(principal, pages.pool.now())
    weights: dict[str, float] = defaultdict(float)
    hours: dict[str, float] = defaultdict(float)
    for each in view["users"]:
        weights[each["queue"]] += each["weight"]
        hours[each["queue"]] += each["gpu_hours"]
    users = [
        {
            **each,
            "due": each["weight"] / weights[each["queue"]],
            "had": each["gpu_hours"] / hours[each["queue"]] if hours[each["queue"]] else 0.0,
        }
        for each in view["users"]
    ]
    return {
        **view,
        "studies": view["studies"][:MOST],
        "left": max(0, len(view["studies"]) - MOST),
        "users": users,
        "at_work": sum(each["study"] is not None for each in view["agents"]),
        "short": sum(each["agents"] < each["wanted"] for each in view["studies"]),
        # shares are of all users, whom somebody with a part of the studies does not see
        "whole": not principal.studies,
    }


@router.get("/pool")
def shown(request: Request, principal: Seeing, pages: Pages) -> Response:
    """Return the page of the pool."""
    return page(request, "pool.html", place="pool", **_shown(principal, pages))


@router.get("/fragments/pool")
def fragment(request: Request, principal: Seeing, pages: Pages) -> Response:
    """Return what changes of the page; 304 while it is as whoever asks has it."""
    text = environment().get_template("pool_standing.html")
    return part(request, text.render(**about(request), **_shown(principal, pages)))

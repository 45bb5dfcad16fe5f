"""What agents of the pool ask: which study they are to serve."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool

from tempopt.pool.dispatcher import Told
from tempopt.pool.scaling import shortage
from tempopt.records.pool import PoolAgent
from tempopt.remote.protocol import PoolAsk, PoolDemand, PoolLeave, PoolLeft, PoolOrder, PoolSync
from tempopt.server.agents import Asking, Shared, full_name, speaks
from tempopt.server.documented import REFUSALS, refusal
from tempopt.server.operations import held

_LOOK_SECONDS = 0.5
router = APIRouter(
    prefix="/api/pool",
    tags=["pool"],
    dependencies=[Depends(speaks)],
    responses={**REFUSALS, 426: refusal("The agent speaks too old a version: `agent_too_old`.")},
)


@router.post("/sync", summary="Say how an agent of the pool stands, and be told what to serve")
async def sync(said: PoolSync, request: Request, principal: Asking, shared: Shared) -> PoolOrder:
    """Return what an agent of the pool is to do, as soon as that is something else than it knows.

    Safe to repeat: what an agent says of itself replaces what it has said before.
    """
    agent = PoolAgent(
        name=full_name(said.agent, principal),
        machine=said.machine,
        launch=said.launch,
        started_by=principal.name,
        queues=frozenset(said.queues),
        labels=frozenset(said.labels),
        studies=principal.studies,
        gpus=said.gpus,
        study_id=said.study_id,
        leaving=said.leaving,
        unable=said.unable,
        idle_at=said.idle_at,
    )
    until = time.monotonic() + said.wait
    known = None if said.known is None else Told.of(agent.name, said.known)
    told = await run_in_threadpool(shared.dispatcher.hear, agent)
    began = time.monotonic()
    while told.same_as(known) and (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _LOOK_SECONDS))
        if shared.leaving.is_set() or await request.is_disconnected():
            break
        if not shared.guard.still(principal):
            return PoolOrder()
        told = await run_in_threadpool(shared.dispatcher.look, agent)
    held(request, time.monotonic() - began)
    return told.order()


@router.post("/demand", summary="Say how many more agents of a kind would have work")
def demand(said: PoolAsk, principal: Asking, shared: Shared) -> PoolDemand:
    """Return how many agents to start, for a command that keeps agents started as there is need of them.

    Changes nothing.
    """
    agent = PoolAgent(
        name="",
        started_by=principal.name,
        launch=said.launch,
        queues=frozenset(said.queues),
        labels=frozenset(said.labels),
        studies=principal.studies,
        gpus=said.gpus,
        unable=dict.fromkeys(said.unable, ""),
    )
    found = shortage(shared.dispatcher.picture(), agent, most=said.most)
    return PoolDemand(lacking=found.lacking, reported=found.reported, unable=dict(found.unable))


@router.post("/leave", summary="Forget an agent of the pool")
def leave(said: PoolLeave, principal: Asking, shared: Shared) -> PoolLeft:
    """Forget an agent of the pool that ends."""
    shared.dispatcher.forget(full_name(said.agent, principal))
    return PoolLeft()

"""Routes for agents: join a study, report runs and claim tickets, leave."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Request
from starlette.concurrency import run_in_threadpool

from tempopt.agent.study_client import THOROUGH_SECONDS
from tempopt.errors import StudyNotFound, UsageError
from tempopt.server.app_state import ServerState
from tempopt.server.auth import annotate_audit, require
from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.monitoring import mark_long_poll
from tempopt.server.openapi_responses import REFUSALS, error_response_doc
from tempopt.server.study_dependencies import Shared
from tempopt.server.study_session import StudySession
from tempopt.storage.http.protocol import (
    JoinRequest,
    JoinResponse,
    Leave,
    LeaveResponse,
    SyncRequest,
    SyncResponse,
)
from tempopt.storage.http.wire import PROTOCOL, serialize
from tempopt.storage.rows import OpenStudy
from tempopt.version import __version__

_LOOK_SECONDS = 1.0
T = TypeVar("T")
Asking = Annotated[Principal, Depends(require("agent"))]


async def speaks(
    principal: Asking,
    version: Annotated[
        int, Header(alias="tempopt-protocol", ge=0, le=10**8, description="Version that the agent speaks.")
    ],
) -> None:
    """Refuse agents that are too old or too new; a dependency of every route for agents."""
    if not PROTOCOL - 1 <= version <= PROTOCOL:
        status, code = (426, "agent_too_old") if version < PROTOCOL else (400, "agent_too_new")
        raise ApiError(
            status,
            code,
            f"This agent speaks version {version} of the protocol, and the server, tempopt {__version__}, "
            f"versions {max(PROTOCOL - 1, 0)} and {PROTOCOL}. Install the server's version of tempopt there.",
        )


router = APIRouter(
    prefix="/api/agents",
    tags=["agents"],
    dependencies=[Depends(speaks)],
    responses={**REFUSALS, 426: error_response_doc("The agent speaks too old a version: `agent_too_old`.")},
)


def _run_in_session(
    shared: ServerState, study: str, do: Callable[[StudySession], T], *, id: int | None = None
) -> T:
    """Call a function with the session of a study; errors are shown without the database's URL."""
    try:
        return shared.study_sessions.run_with_reload(study, do, id=id)
    except StudyNotFound:
        deletion_text = "" if id is None else ", or it was deleted and a different one of that name created"
        raise ApiError(
            404,
            "study_not_found",
            f'The server has no study "{study}"{deletion_text}. Begin it first: tempopt search SPEC, with '
            "the URL of the server as --storage, or after tempopt login.",
        ) from None


def full_name(agent: str, principal: Principal) -> str:
    """Return the name under which the store knows an agent: no agent with another token has the same."""
    return f"{agent}@{principal.name}"


@router.get("/studies", summary="List the unfinished studies, for agents that serve every study")
def open_studies(principal: Asking, shared: Shared) -> list[OpenStudy]:
    """Return the unfinished studies that the token may see, in the order in which agents serve them."""
    return [study for study in shared.store.open_studies() if principal.may_see(study.name)]


@router.post("/join", summary="Join a study")
def join(body: JoinRequest, request: Request, principal: Asking, shared: Shared) -> JoinResponse:
    """Join a study, and return its state."""
    annotate_audit(request, study=body.study, detail=body.agent)
    principal.check(body.study)

    def do(session: StudySession) -> JoinResponse:
        study = shared.store.load_study(body.study)
        if study.state == "paused":
            raise UsageError(
                f'Study "{body.study}" was paused. Continue it first: tempopt resume {body.study}'
            )
        session.register_agent(full_name(body.agent, principal), body.session)
        # agents must not see the URL of the checkpoints
        public_study: dict[str, Any] = serialize(dataclasses.replace(study, checkpoints=None))
        return JoinResponse(
            study=public_study,
            codes=sorted(session.cache.codes),
            snapshot=session.snapshot(),
            server=__version__,
        )

    return _run_in_session(shared, body.study, do)


@router.post("/sync", summary="Report runs, renew their leases, claim a ticket")
async def sync(body: SyncRequest, request: Request, principal: Asking, shared: Shared) -> SyncResponse:
    """Write the changes of an agent; if it requests a ticket, answer as soon as one may begin.

    Safe to repeat: changes that are already written are accepted and have no effect.
    """
    principal.check(body.study)
    agent = full_name(body.agent, principal)

    def work(looking: bool) -> SyncResponse | None:
        def do(session: StudySession) -> SyncResponse | None:
            if not body.dead:
                session.register_agent(agent, body.session)
            return session.sync(agent, body, is_long_poll=looking)

        return _run_in_session(shared, body.study, do, id=body.study_id)

    answer = await run_in_threadpool(work, False)
    assert answer is not None
    if body.take is None or not body.take.wait or not _is_without_ticket(answer):
        return answer

    def look() -> SyncResponse | None:
        # the token may have been revoked while the request waited
        return work(True) if shared.guard.revalidate(principal) else None

    return await _wait_for_answer(answer, body.take.wait, request, shared, body.study, look)


def _is_without_ticket(answer: SyncResponse) -> bool:
    return answer.claim is None and not answer.over and answer.state == "running" and not answer.refused


async def _wait_for_answer(
    answer: SyncResponse, seconds: float, request: Request, shared: ServerState, study: str, look: Any
) -> SyncResponse:
    """Wait some seconds at most until an answer has news, and return the last answer."""
    news, loop = asyncio.Event(), asyncio.get_running_loop()
    began = time.monotonic()
    deadline = began + seconds

    def notify() -> None:
        loop.call_soon_threadsafe(news.set)

    session = await run_in_threadpool(shared.study_sessions.get, study)
    session.listeners.add(notify)
    try:
        while _is_without_ticket(answer) and (seconds_left := deadline - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(news.wait(), min(seconds_left, _LOOK_SECONDS, THOROUGH_SECONDS))
            except TimeoutError:
                pass
            news.clear()
            if shared.is_shutting_down.is_set() or await request.is_disconnected():
                # the client has disconnected: no agent would get the ticket
                return answer
            answer = await run_in_threadpool(look) or answer
    finally:
        session.listeners.discard(notify)
        mark_long_poll(request, time.monotonic() - began)
    return answer


@router.post("/leave", summary="Leave a study")
def leave(body: Leave, request: Request, principal: Asking, shared: Shared) -> LeaveResponse:
    """Release the tickets of an agent that leaves; it has reported its runs before."""
    annotate_audit(request, study=body.study, detail=body.agent)
    principal.check(body.study)
    agent = full_name(body.agent, principal)

    def do(session: StudySession) -> LeaveResponse:
        session.register_agent(agent, body.session)
        return LeaveResponse(released=session.release_agent(agent, body.session))

    return _run_in_session(shared, body.study, do, id=body.study_id)

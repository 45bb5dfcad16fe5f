"""Routes for the operator of a server: liveness, readiness and Prometheus metrics."""

from __future__ import annotations

import time
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tempopt.errors import StorageError
from tempopt.server.auth import require
from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.metrics import Metrics
from tempopt.server.openapi_responses import REFUSALS_OF_TEXT
from tempopt.server.study_dependencies import Shared

router = APIRouter()
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class RequestMetricsMiddleware:
    """ASGI middleware that counts requests and measures their time.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def send_and_keep_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_and_keep_status)
        finally:
            held_seconds: float = scope.get("state", {}).get("long_poll_seconds", 0.0)
            seconds = max(0.0, time.perf_counter() - began - held_seconds)
            route = getattr(scope.get("route"), "path", "other")
            metrics: Metrics = scope["app"].state.tempopt.metrics
            # paths and methods that clients invent would stay in memory
            method = scope["method"] if scope["method"] in _METHODS else "other"
            metrics.requests.labels(method, route, str(status)).observe(seconds)


@router.get("/healthz", include_in_schema=False)
def healthy() -> dict[str, str]:
    """Report that the server is alive."""
    return {"status": "ok"}


@router.get("/readyz", include_in_schema=False)
async def ready(shared: Shared) -> dict[str, str]:
    """Report that the server is ready: its database answers, and it is not shutting down."""
    if shared.is_shutting_down.is_set():
        raise ApiError(503, "leaving", "The server is shutting down.")
    try:
        # not in the thread pool of the other routes, whose threads may all be busy
        await to_thread.run_sync(shared.store.open_studies, limiter=shared.metrics.probes)
    except StorageError:
        # the error would show the database's URL to clients without a token
        raise ApiError(503, "storage_away", "The database cannot be reached now.") from None
    return {"status": "ready"}


@router.get(
    "/metrics",
    tags=["operations"],
    summary="Prometheus metrics",
    response_class=Response,
    responses={**REFUSALS_OF_TEXT, 200: {"description": "Metrics.", "content": {"text/plain": {}}}},
)
def metrics(
    principal: Annotated[Principal, Depends(require("view"))],
    shared: Shared,
) -> Response:
    """Return metrics in the text format of Prometheus, which shows its token as `authorization`."""
    principal.check_whole()
    return Response(generate_latest(shared.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def mark_long_poll(request: Request, seconds: float) -> None:
    """Record how long a long poll held back its answer, which does not count as response time."""
    request.state.long_poll_seconds = getattr(request.state, "long_poll_seconds", 0.0) + seconds

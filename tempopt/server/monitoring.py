"""What an operator of a server watches: whether it lives, whether it can serve, and Prometheus metrics."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tempopt.errors import StorageError
from tempopt.server.app_state import ServerState, get_server_state
from tempopt.server.auth import Principal, require
from tempopt.server.errors import ApiError
from tempopt.server.openapi_responses import REFUSALS_OF_TEXT
from tempopt.storage.liveness import display_state, is_dead
from tempopt.storage.store import Store

router = APIRouter()
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server.

    Args:
        store: Where studies are; it is asked at each scrape.
    """

    def __init__(self, store: Store) -> None:
        self.registry = CollectorRegistry()
        self.probes = CapacityLimiter(2)
        self.requests = Histogram(
            "tempopt_request_seconds",
            "Time of requests, without the time that an answer was held back",
            ["method", "route", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.registry.register(_OfStore(store))


class _OfStore(Collector):
    """What the database tells: studies and tickets."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics as of now."""
        rows = self._store.list_studies()
        states = Counter(
            display_state(row.study.state, sum(not is_dead(agent) for agent in row.agents)) for row in rows
        )
        yield _gauge("studies", "Studies by state", "state", {**dict.fromkeys(_STATES, 0), **states})
        tickets: Counter[str] = Counter()
        for summary in rows:
            for counts in summary.tickets.values():
                tickets.update(counts)
        yield _gauge("tickets", "Tickets by state", "state", {**dict.fromkeys(_TICKETS, 0), **tickets})
        totals = self._store.totals()
        hours: dict[str, float] = defaultdict(float)
        for row in rows:
            if (total := totals.get(row.study.id)) is not None:
                hours[row.study.owner] += (total.gpu_seconds or total.seconds) / 3600.0
        yield _gauge("gpu_hours", "Hours of GPUs, else of training, by user", "user", hours)


_STATES = ("running", "waiting", "paused", "done")
_TICKETS = ("waiting", "running", "done", "failed", "withdrawn")


def _gauge(name: str, about: str, label: str, values: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tempopt_{name}", about, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], float(number))
    return family


class RequestMetricsMiddleware:
    """ASGI middleware: counts requests and the time that they took.

    Args:
        app: What answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            held_seconds: float = scope.get("state", {}).get("held", 0.0)
            seconds = max(0.0, time.perf_counter() - began - held_seconds)
            route = getattr(scope.get("route"), "path", "other")
            metrics: Metrics = scope["app"].state.tempopt.metrics
            # what anybody may invent would be kept for ever
            method = scope["method"] if scope["method"] in _METHODS else "other"
            metrics.requests.labels(method, route, str(status)).observe(seconds)


@router.get("/healthz", include_in_schema=False)
def healthy() -> dict[str, str]:
    """Return that the server lives."""
    return {"status": "ok"}


@router.get("/readyz", include_in_schema=False)
async def ready(shared: Annotated[ServerState, Depends(get_server_state)]) -> dict[str, str]:
    """Return that the server can serve: its database answers, and it was not told to end."""
    if shared.is_shutting_down.is_set():
        raise ApiError(503, "leaving", "The server is about to end.")
    try:
        # not in the threads of the other routes, which may all be busy
        await to_thread.run_sync(shared.store.open_studies, limiter=shared.metrics.probes)
    except StorageError:
        # where the database is, is not told to clients without a token
        raise ApiError(503, "storage_away", "The database cannot be reached just now.") from None
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
    shared: Annotated[ServerState, Depends(get_server_state)],
) -> Response:
    """Return metrics in the text format of Prometheus, which shows its token as `authorization`."""
    principal.check_whole()
    return Response(generate_latest(shared.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def install(app: FastAPI) -> None:
    """Have an application answer these, and its requests counted."""
    app.add_middleware(RequestMetricsMiddleware)
    app.include_router(router)


def mark_long_poll(request: Request, seconds: float) -> None:
    """Take note that an answer was held back on purpose, as that of a long poll is."""
    request.state.held = getattr(request.state, "held", 0.0) + seconds

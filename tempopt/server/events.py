"""Server-sent events of a study: its state, tickets that ended, how far it is.

A study is asked of the store once an interval, however many listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from tempopt.agent.observer import Snapshot, Unobserved
from tempopt.errors import StoreUnreachable, StudyFailed, StudyNotFound, masked
from tempopt.records.rows import OVER, StudyRow, TicketRow
from tempopt.server.app_state import State
from tempopt.server.asked import VIEW, Seen, Shared
from tempopt.server.auth import Principal
from tempopt.server.documented import REFUSALS
from tempopt.server.errors import ApiError
from tempopt.store.store import Store
from tempopt.study.watch import Watch

router = APIRouter(prefix="/api/studies", tags=["studies"], responses=REFUSALS)

LOGGER = logging.getLogger("tempopt.server")
INTERVAL = 1.0
"""Seconds between two looks at a study that somebody listens to."""
HEARTBEAT = 15.0
"""Seconds after which a comment is sent where there is no news, so that nobody between takes it for dead."""
LONGEST = 600.0
"""Seconds after which a stream ends; whoever listens comes again, and is asked for the token again."""
MOST_LISTENERS = 256
MOST_OF_ONE = 32
"""Of one token."""
_MOST_WAITING = 1000
# Clocks of servers differ; an event may come twice, and is not to be missed.
_OVERLAP_MS = 10_000

Event = tuple[str, str, dict[str, Any]]
"""Id, name and data."""


def ended(row: TicketRow) -> Event:
    """Return the event that a ticket has come to its end."""
    moment = _moment(row)
    data = {
        "id": row.id,
        "run": row.name,
        "kind": row.kind,
        "number": row.number,
        "arm": row.arm,
        "state": row.state,
        "outcome": row.outcome,
        "value": row.value,
        "parameters": row.parameters,
        "attempt": row.attempt,
        "finished": None if row.finished is None else row.finished.isoformat(),
    }
    return f"{moment}", "ticket", data


def _moment(row: TicketRow) -> int:
    """Return when a ticket ended, in milliseconds since 1970."""
    return 0 if row.finished is None else round(row.finished.timestamp() * 1000)


def counts(snapshot: Snapshot) -> dict[str, Any]:
    """Return how far a study is, as an event's data."""
    return {
        "done": dict(snapshot.done),
        "asked": dict(snapshot.asked),
        "best": snapshot.best,
        "best_params": dict(snapshot.best_params),
        "baseline": snapshot.baseline_mean,
        "remaining": snapshot.remaining,
        "at_work": sum(not each.silent for each in snapshot.workers),
    }


class _Seen(Unobserved):
    """Keeps what a look at a study has told."""

    def __init__(self) -> None:
        self.tickets: list[TicketRow] = []
        self.snapshot: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def finished(self, ticket: TicketRow) -> None:
        self.tickets.append(ticket)


class Channel:
    """One study, looked at while anybody listens.

    Args:
        store: Where it is.
        name: Its name.
        over: Called with it once it looks no more.
    """

    def __init__(self, store: Store, name: str, over: Callable[[Channel], None]) -> None:
        self._store, self._name, self._over = store, name, over
        self._listeners: set[asyncio.Queue[Event | None]] = set()
        self._last: dict[str, Event] = {}
        self._task: asyncio.Task[None] | None = None

    def enter(self) -> asyncio.Queue[Event | None]:
        """Return a queue of events from now on, how the study stands first; None ends it."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(_MOST_WAITING)
        for event in self._last.values():
            queue.put_nowait(event)
        self._listeners.add(queue)
        if self._task is None:
            self._task = asyncio.create_task(self._look_on())
        return queue

    def leave(self, queue: asyncio.Queue[Event | None]) -> None:
        """Send no more to a queue; the last to leave ends the looking."""
        self._listeners.discard(queue)
        if not self._listeners:
            self._over(self)
            if self._task is not None:
                self._task.cancel()

    async def _look_on(self) -> None:
        seen = _Seen()
        try:
            watch = await run_in_threadpool(Watch, self._store, self._name, seen)
            while True:
                try:
                    state = await run_in_threadpool(watch.look)
                except StoreUnreachable:
                    state = None
                for ticket in seen.tickets:
                    self._send(ended(ticket))
                seen.tickets.clear()
                now = f"{round(time.time() * 1000)}"
                if seen.snapshot is not None:
                    self._send((now, "counts", counts(seen.snapshot)), once=True)
                if state is not None:
                    self._send((now, "state", {"state": state}), once=True)
                await asyncio.sleep(INTERVAL)
        except (StudyFailed, StudyNotFound):
            self._send((f"{round(time.time() * 1000)}", "state", {"state": "deleted"}))
        except Exception as error:
            LOGGER.error("events of %s ended: %s", self._name, masked(repr(error)))
        finally:
            # whoever comes now begins anew
            self._over(self)
            for queue in self._listeners:
                _end(queue)

    def _send(self, event: Event, *, once: bool = False) -> None:
        """Send an event to all who listen; ``once``: only if it tells something else than the last did."""
        _, name, data = event
        if once:
            if name in self._last and self._last[name][2] == data:
                return
            self._last[name] = event
        for queue in list(self._listeners):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                # it comes again and is told what it has missed
                self._listeners.discard(queue)
                _end(queue)


def _end(queue: asyncio.Queue[Event | None]) -> None:
    while queue.full():
        queue.get_nowait()
    queue.put_nowait(None)


class Channels:
    """The studies of one server that somebody listens to; of its event loop alone."""

    def __init__(self) -> None:
        self._channels: dict[int, Channel] = {}
        self.listeners: Counter[str] = Counter()

    def check(self, listener: str) -> None:
        """Refuse a listener where as many listen as may.

        Args:
            listener: Id and name of the token.

        Raises:
            ApiError: They do.
        """
        if self.listeners.total() >= MOST_LISTENERS or self.listeners[listener] >= MOST_OF_ONE:
            raise ApiError(
                429,
                "too_many_listeners",
                f"{MOST_LISTENERS} listeners are served, {MOST_OF_ONE} of one token, and as many there are. "
                "Close some, or try again later.",
                {"retry-after": "10"},
            )

    @contextlib.contextmanager
    def entered(self, listener: str, store: Store, study: StudyRow) -> Iterator[asyncio.Queue[Event | None]]:
        """Yield a queue of the events of a study."""
        channel = self._channels.get(study.id)
        if channel is None:
            channel = self._channels[study.id] = Channel(store, study.name, self._forget)
        queue = channel.enter()
        self.listeners[listener] += 1
        try:
            yield queue
        finally:
            self.listeners[listener] -= 1
            channel.leave(queue)

    def _forget(self, channel: Channel) -> None:
        for id in [id for id, each in self._channels.items() if each is channel]:
            del self._channels[id]


def _channels(request: Request) -> Channels:
    state = request.app.state
    if not hasattr(state, "channels"):
        state.channels = Channels()
    found: Channels = state.channels
    return found


@router.get(
    "/{name}/events",
    summary="Live progress",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Server-sent events: `state`, `counts`, and `ticket` for each that ended.",
            "content": {
                "text/event-stream": {
                    "example": 'event: state\nid: 1793611867123\ndata: {"state": "running"}\n\n'
                }
            },
        }
    },
)
async def events(
    request: Request,
    study: Seen,
    principal: Annotated[Principal, Depends(VIEW)],
    shared: Shared,
    last_event_id: Annotated[str | None, Header(description="Id of the last event that you have.")] = None,
) -> StreamingResponse:
    """Stream what becomes of a study until the client goes away; after ten minutes it comes again.

    With Last-Event-ID, as browsers send it, tickets that ended meanwhile come first. An event may come twice.
    """
    channels = _channels(request)
    listener = f"{principal.id} {principal.name}"
    channels.check(listener)

    async def stream() -> AsyncIterator[str]:
        with channels.entered(listener, shared.store, study) as queue:
            yield "retry: 2000\n\n"
            if last_event_id is not None:
                for event in await run_in_threadpool(_missed, shared.store, study, last_event_id):
                    yield _text(event)
            async for text in _told(queue, shared, principal):
                yield text

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)


async def _told(
    queue: asyncio.Queue[Event | None], shared: State, principal: Principal
) -> AsyncIterator[str]:
    began = spoken = asked = time.monotonic()
    while time.monotonic() - began < LONGEST and not shared.leaving.is_set():
        if time.monotonic() - asked >= INTERVAL:
            asked = time.monotonic()
            if not await run_in_threadpool(shared.guard.still, principal):
                return
        try:
            event = await asyncio.wait_for(queue.get(), INTERVAL)
        except TimeoutError:
            if time.monotonic() - spoken >= HEARTBEAT:
                spoken = time.monotonic()
                yield f": {datetime.now(UTC):%H:%M:%S}\n\n"
            continue
        if event is None:
            return
        spoken = time.monotonic()
        yield _text(event)


def _text(event: Event) -> str:
    id, name, data = event
    return f"event: {name}\nid: {id}\ndata: {json.dumps(data, allow_nan=False)}\n\n"


def _missed(store: Store, study: StudyRow, last: str) -> list[Event]:
    """Return the tickets that ended since an event; none if that is none of ours."""
    if not (last.isascii() and last.isdecimal() and len(last) < 16):
        return []
    since = int(last) - _OVERLAP_MS
    rows = [row for row in store.tickets(study.id) if row.state in OVER and row.outcome is not None]
    return [ended(row) for row in sorted(rows, key=_moment) if _moment(row) >= since]

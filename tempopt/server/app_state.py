"""What the routes of one server share, and how a route gets it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from fastapi import Request

from tempopt.server.authenticator import Authenticator
from tempopt.server.metrics import Metrics
from tempopt.server.pages.study_list import StudyList
from tempopt.server.reports import Reports
from tempopt.server.study_session import StudySessionRegistry
from tempopt.storage.store import Store


@dataclass(slots=True, kw_only=True)
class ServerState:
    """What the routes of one server share.

    Args:
        store: Where studies are; threads share it.
        checkpoints: URL of the folder under which checkpoints lie, absolute.
        guard: Identifies the client of a request.
        study_sessions: The studies that agents are at work on.
        metrics: What Prometheus reads.
        reports: The pages of studies.
        study_list: The rows of the list of studies.
        is_shutting_down: Set once the server is to end: no request waits any more.
    """

    store: Store
    checkpoints: str
    guard: Authenticator
    study_sessions: StudySessionRegistry
    metrics: Metrics
    reports: Reports
    study_list: StudyList
    is_shutting_down: threading.Event = field(default_factory=threading.Event)


async def get_server_state(request: Request) -> ServerState:
    """Return what the routes of the server share; a dependency."""
    state: ServerState = request.app.state.tempopt
    return state

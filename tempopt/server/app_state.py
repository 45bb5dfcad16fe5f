"""The state that the routes of one server share, and the dependency that returns it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from fastapi import Request

from tempopt.server.authenticator import Authenticator
from tempopt.server.metrics import Metrics
from tempopt.server.pages.study_list import StudyList
from tempopt.server.reports import Reports
from tempopt.server.study_session import StudySessionRegistry
from tempopt.server.uploads import UploadQuota
from tempopt.storage.store import Store


@dataclass(slots=True, kw_only=True)
class ServerState:
    """The state that the routes of one server share.

    Args:
        store: The database, shared by threads.
        checkpoints: Absolute URL of the folder for checkpoints.
        guard: Identifies the client of a request.
        study_sessions: The studies with agents.
        metrics: The metrics for Prometheus.
        reports: The pages of studies.
        study_list: The rows of the list of studies.
        uploads: The unfinished uploads of each token.
        is_shutting_down: Set when the server shuts down, so that no request waits any longer.
    """

    store: Store
    checkpoints: str
    guard: Authenticator
    study_sessions: StudySessionRegistry
    metrics: Metrics
    reports: Reports
    study_list: StudyList
    uploads: UploadQuota = field(default_factory=UploadQuota)
    is_shutting_down: threading.Event = field(default_factory=threading.Event)


async def get_server_state(request: Request) -> ServerState:
    """Return the state that the routes of the server share; a dependency."""
    state: ServerState = request.app.state.tempopt
    return state

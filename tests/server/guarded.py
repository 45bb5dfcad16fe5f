"""A guard whose clock the test sets, and requests for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from starlette.requests import Request

from tempopt.server.authenticator import Authenticator
from tempopt.server.errors import ApiError
from tempopt.storage.store import Store


def guard_of(store: Store) -> tuple[Authenticator, SimpleNamespace]:
    """Return a guard of a store, and its clock."""
    clock = SimpleNamespace(now=1000.0)
    return Authenticator(store, clock=lambda: clock.now), clock


def request_of(host: str = "192.0.2.7", **headers: str) -> Request:
    """Return a request of an address with these headers, whose names have ``_`` for ``-``."""
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "client": (host, 5000), "headers": lines, "state": {}})


def code_of(guard: Authenticator, request: Request, token: str | None) -> str:
    """Return the code with which a client is refused."""
    with pytest.raises(ApiError) as error:
        guard.principal(request, token)
    return error.value.code

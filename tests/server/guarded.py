"""A guard whose clock the test sets, and requests for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from starlette.requests import Request

from tempopt.server.auth import Access, Guard
from tempopt.server.errors import ApiError
from tempopt.store.store import Store

NOBODY = Access()


def guard_of(store: Store, access: Access = NOBODY) -> tuple[Guard, SimpleNamespace]:
    """Return a guard of a store, and its clock."""
    clock = SimpleNamespace(now=1000.0)
    return Guard(store, access, clock=lambda: clock.now), clock


def request_of(host: str = "192.0.2.7", **headers: str) -> Request:
    """Return a request of an address with these headers, whose names have ``_`` for ``-``."""
    told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "client": (host, 5000), "headers": told, "state": {}})


def code_of(guard: Guard, request: Request, token: str | None) -> str:
    """Return the code with which somebody is refused."""
    with pytest.raises(ApiError) as refused:
        guard.principal(request, token)
    return refused.value.code

"""Dependencies of all routes except /healthz: identify the client, and check its scopes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPBearer

from tempopt.server.authenticator import SCOPES, Authenticator, Principal, Scope, session_of
from tempopt.server.errors import ApiError


def annotate_audit(request: Request, *, study: str = "", detail: str = "") -> None:
    """Add facts that the path of a request does not have to its row in the audit log.

    Args:
        study: Name of the study.
        detail: The change, in a few words without secrets.
    """
    request.state.about = (study, detail)


_BEARER = HTTPBearer(auto_error=False, description="A token that `tempopt token create` has made.")


async def identify_client(request: Request) -> Principal:
    """Return the client of a request, before its body is read; it is identified once.

    Raises:
        ApiError: The token or session is not valid.
    """
    client: Principal | None = getattr(request.state, "principal", None)
    if client is not None:
        return client
    guard: Authenticator = request.app.state.tempopt.guard
    credentials = await _BEARER(request)
    session = session_of(request) if credentials is None else None
    token = None if credentials is None else credentials.credentials
    principal = await guard.identify(request, token, session)
    if session is not None:
        request.state.session = session
    request.state.principal = principal
    return principal


def check_scopes(principal: Principal, scopes: Collection[Scope]) -> None:
    """Refuse a client that has none of the scopes."""
    if principal.scopes.isdisjoint(scopes):
        scope_text = ", ".join(scope for scope in SCOPES if scope in principal.scopes) or "nothing"
        raise ApiError(
            403,
            "forbidden",
            f"{principal.name} may {scope_text}; this asks for {' or '.join(scopes)}. Use a token with "
            "that scope.",
        )


def require(*scopes: Scope) -> Callable[..., Coroutine[Any, Any, Principal]]:
    """Return the dependency of a route that requires one of the scopes; ``admin`` may do everything."""

    # on the event loop, since most requests only read a cache: a thread would cost more
    async def principal(request: Request, documented: Annotated[object, Security(_BEARER)]) -> Principal:
        client = await identify_client(request)
        check_scopes(client, scopes)
        return client

    principal.__dict__["scopes"] = scopes
    return principal

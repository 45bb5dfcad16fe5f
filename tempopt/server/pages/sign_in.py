"""Signing in with a token and out again; the browser then holds a session, and never the token."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse

from tempopt.server import sessions
from tempopt.server.asked import Shared
from tempopt.server.auth import PERSON, SCOPES, Principal, check_scopes, check_site, require
from tempopt.server.errors import ApiError
from tempopt.server.pages import routing
from tempopt.server.pages.rendering import HEADERS
from tempopt.server.pages.routing import form, sign_in

router = routing.router()
Form = Annotated[dict[str, str], Depends(form)]


def _local(path: str) -> str:
    """Return a path of this server; what is none is the list of studies."""
    # browsers take a backslash for a slash, and drop control characters
    plain = path.isprintable() and "\\" not in path
    return path if plain and path.startswith("/") and not path.startswith("//") else "/"


def _to(path: str) -> Response:
    return RedirectResponse(path, status_code=303, headers=HEADERS)


@router.get("/sign-in")
def asked(request: Request, then: str = "/") -> Response:
    """Ask for a token."""
    return sign_in(request, then=_local(then))


@router.post("/sign-in")
def signed_in(request: Request, shared: Shared, given: Form) -> Response:
    """Begin a session for whoever shows a valid token; whoever does not is refused as everywhere."""
    then = _local(given.get("then", "/"))
    try:
        check_site(request, shared.guard, strict=True)
        found = shared.guard.principal(request, given.get("token", "").strip())
        request.state.principal = found
        check_scopes(found, {"view"})
    except ApiError as refusal:
        return sign_in(request, status=refusal.status, error=refusal, then=then)
    row = shared.store.token(found.id)
    secret, expires = shared.guard.sessions.begin(found.id, until=None if row is None else row.expires)
    answer = _to(then)
    sessions.hold(request, answer, secret, expires, secure=shared.guard.is_secure(request))
    return answer


@router.post("/sign-out")
def signed_out(
    request: Request, shared: Shared, principal: Annotated[Principal, Depends(require(*SCOPES))]
) -> Response:
    """End the session of this browser, on every server."""
    secret = shared.guard.session(request)
    answer = _to("/sign-in")
    if secret is not None and principal.id != PERSON:
        shared.guard.sessions.end(secret)
    sessions.forget(request, answer, secure=shared.guard.is_secure(request))
    return answer

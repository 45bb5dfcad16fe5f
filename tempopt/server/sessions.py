"""Browsers that people have signed in with a token: what a browser holds, whose it is, until when.

A browser holds 256 random bits in a cookie and never the token. The store has their SHA-256, so every server
knows a session, and one that is ended is ended everywhere.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta

from fastapi import Request, Response

from tempopt.server.tokens import digest
from tempopt.storage.access_rows import SessionRow
from tempopt.storage.store import Store

LIFE = timedelta(days=7)
"""A session is over after so long, whatever happens; before if its token is."""
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_MAX_DIGITS = 5


def token_of(store: Store, secret: str) -> str | None:
    """Return the id of the token that a session was begun with, None if there is no such session now."""
    row = store.session(digest(secret)) if _SECRET.fullmatch(secret) else None
    return None if row is None or row.expires <= datetime.now(UTC) else row.token


def begin(store: Store, token: str, *, until: datetime | None) -> tuple[str, datetime]:
    """Begin a session, and return what the browser is to hold and when it ends.

    Args:
        token: Id of the token.
        until: When the token ends; None: never.
    """
    secret, now = secrets.token_urlsafe(32), datetime.now(UTC)
    expires = now + LIFE if until is None else min(now + LIFE, until)
    store.add_session(SessionRow(digest=digest(secret), token=token, created=now, expires=expires))
    return secret, expires


def end(store: Store, secret: str) -> None:
    """End a session, on every server."""
    store.end_session(digest(secret))


def _cookie(request: Request) -> str:
    # browsers tell no ports apart, and there may be another server at another port of this machine
    port = request.headers.get("host", "").rpartition(":")[2]
    is_secure = request.url.scheme == "https"
    if not (port.isascii() and port.isdecimal() and len(port) <= _MAX_DIGITS):
        port = "443" if is_secure else "80"
    return f"{'__Host-' if is_secure else ''}tempopt-{port}"


def read_cookie(request: Request) -> str | None:
    """Return the session that the browser holds, which may have ended; None if it holds none."""
    return request.cookies.get(_cookie(request))


def set_cookie(request: Request, response: Response, secret: str, expires: datetime) -> None:
    """Give the browser a session; no script can read it, and no other site's form or script sends it."""
    response.set_cookie(
        _cookie(request),
        secret,
        expires=expires,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Delete the session in the browser."""
    response.delete_cookie(
        _cookie(request), path="/", secure=request.url.scheme == "https", httponly=True, samesite="lax"
    )

"""Sessions of browsers that users have signed in with a token.

A browser stores 256 random bits in a cookie, never the token. The store has their SHA-256, so that all
servers know a session, and its end.
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
"""Maximal duration of a session, which also ends with its token."""
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_MAX_DIGITS = 5


def token_of(store: Store, secret: str) -> str | None:
    """Return the id of a session's token, None if there is no valid session."""
    row = store.session(digest(secret)) if _SECRET.fullmatch(secret) else None
    return None if row is None or row.expires <= datetime.now(UTC) else row.token


def begin(store: Store, token: str, *, until: datetime | None) -> tuple[str, datetime]:
    """Begin a session, and return its secret and its end.

    Args:
        token: Id of the token.
        until: Expiry of the token; None: it does not expire.
    """
    secret, now = secrets.token_urlsafe(32), datetime.now(UTC)
    expires = now + LIFE if until is None else min(now + LIFE, until)
    store.add_session(SessionRow(digest=digest(secret), token=token, created=now, expires=expires))
    return secret, expires


def end(store: Store, secret: str) -> None:
    """End a session, on every server."""
    store.end_session(digest(secret))


def _cookie_name(request: Request) -> str:
    # cookies ignore ports, and another server may use another port of this machine
    port = request.headers.get("host", "").rpartition(":")[2]
    is_secure = request.url.scheme == "https"
    if not (port.isascii() and port.isdecimal() and len(port) <= _MAX_DIGITS):
        port = "443" if is_secure else "80"
    return f"{'__Host-' if is_secure else ''}tempopt-{port}"


def read_cookie(request: Request) -> str | None:
    """Return the secret of the browser's session, which may have ended; None if there is none."""
    return request.cookies.get(_cookie_name(request))


def set_cookie(request: Request, response: Response, secret: str, expires: datetime) -> None:
    """Set the cookie of a session, which scripts cannot read and other sites cannot send."""
    response.set_cookie(
        _cookie_name(request),
        secret,
        expires=expires,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def delete_cookie(request: Request, response: Response) -> None:
    """Delete the cookie of a session."""
    response.delete_cookie(
        _cookie_name(request), path="/", secure=request.url.scheme == "https", httponly=True, samesite="lax"
    )

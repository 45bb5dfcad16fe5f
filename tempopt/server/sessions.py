"""Browsers that people have signed in with a token: what a browser holds, whose it is, until when.

A browser holds 256 random bits in a cookie and never the token. The store has their SHA-256, so every server
knows a session, and one that is ended is ended everywhere.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from fastapi import Request, Response

from tempopt.storage.access_rows import SessionRow
from tempopt.storage.store import Store

LIFE = timedelta(days=7)
"""A session is over after so long, whatever happens; before if its token is."""
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")
_MOST_KNOWN = 4096
_MAX_DIGITS = 5


class SessionManager:
    """The sessions of a store; threads may share it.

    Args:
        store: Where they are.
        clock: Seconds that only grow.
        fresh: Seconds for which a session that was read is not read again.
    """

    def __init__(self, store: Store, clock: Callable[[], float], *, fresh: float) -> None:
        self._store, self._clock, self._fresh = store, clock, fresh
        self._lock = threading.Lock()
        self._session_cache: OrderedDict[str, tuple[SessionRow, float]] = OrderedDict()

    def asks_store(self, secret: str) -> bool:
        """Return whether :meth:`token_of` has to ask the store."""
        with self._lock:
            entry = self._session_cache.get(_digest(secret))
        return entry is None or self._clock() - entry[1] > self._fresh

    def token_of(self, secret: str) -> str | None:
        """Return the id of the token that a session was begun with, None if there is no such session now."""
        if _SECRET.fullmatch(secret) is None:
            return None
        digest, now = _digest(secret), self._clock()
        with self._lock:
            entry = self._session_cache.get(digest)
        row = entry[0] if entry is not None and now - entry[1] <= self._fresh else self._read(digest, now)
        return None if row is None or row.expires <= datetime.now(UTC) else row.token

    def _read(self, digest: str, now: float) -> SessionRow | None:
        row = self._store.sessions.find(digest)
        with self._lock:
            if row is None:
                self._session_cache.pop(digest, None)
                return None
            self._session_cache[digest] = row, now
            self._session_cache.move_to_end(digest)
            while len(self._session_cache) > _MOST_KNOWN:
                self._session_cache.popitem(last=False)
        return row

    def begin(self, token: str, *, until: datetime | None) -> tuple[str, datetime]:
        """Begin a session, and return what the browser is to hold and when it ends.

        Args:
            token: Id of the token.
            until: When the token ends; None: never.
        """
        secret, now = secrets.token_urlsafe(32), datetime.now(UTC)
        expires = now + LIFE if until is None else min(now + LIFE, until)
        row = SessionRow(digest=_digest(secret), token=token, created=now, expires=expires)
        self._store.sessions.add(row)
        return secret, expires

    def end(self, secret: str) -> None:
        """End a session; other servers know within seconds."""
        self._store.sessions.end(_digest(secret))
        with self._lock:
            self._session_cache.pop(_digest(secret), None)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


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

"""Identify the client of a request by a token or a browser's session.

A token that was revoked is refused within three seconds by every
server; a long poll that it has begun gives nothing more, as soon. A session only reads.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from tempopt.errors import StorageError
from tempopt.server import sessions, tokens
from tempopt.server.auth_throttle import AuthThrottle
from tempopt.server.errors import ApiError
from tempopt.server.tokens import SCOPES as SCOPES
from tempopt.server.tokens import Scope as Scope
from tempopt.storage.access_rows import TokenRow
from tempopt.storage.store import Store

_IMPLIED: dict[Scope, frozenset[Scope]] = {
    "view": frozenset({"view"}),
    "submit": frozenset({"view", "submit"}),
    "agent": frozenset({"agent"}),
    "admin": frozenset(SCOPES),
}
FRESH_SECONDS = 3.0
"""A token that was read is not read again for so long: the longest that a revoked one is still accepted."""
_USED_SECONDS = 60.0
_MOST_KNOWN = 4096
READS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks.

    Args:
        id: Public id of the token.
        name: Name of the token.
        scopes: What they may do, what follows from it included.
        studies: Only on studies whose names begin so; the empty text: on all.
        user: Whose studies they begin.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    studies: str = ""
    user: str = ""

    def may_see(self, study: str) -> bool:
        """Return whether a study is one of those that they may do anything to."""
        return study.startswith(self.studies)

    def check_whole(self) -> None:
        """Refuse what is about all studies to those who have a part of them."""
        if self.studies:
            raise ApiError(
                403, "forbidden", f'{self.name} may do so for studies that begin with "{self.studies}" alone.'
            )

    def check(self, study: str) -> None:
        """Refuse a study that is not theirs, as one that does not exist is refused."""
        if not self.may_see(study):
            raise ApiError(404, "study_not_found", f'There is no study "{study}".')

    def check_new(self, study: str) -> None:
        """Refuse a study that they may not begin, whether there is one of that name or not."""
        if not self.may_see(study):
            raise ApiError(
                403,
                "forbidden",
                f'The token {self.name} may begin studies whose names begin with "{self.studies}" alone, not '
                f'"{study}". Give another name, as in --name {self.studies}NAME',
            )


@dataclass(slots=True)
class _CachedToken:
    """A token that was verified: its row, and by the guard's clock when it was read and its use written."""

    row: TokenRow
    read_at: float
    use_written_at: float


class Authenticator:
    """Knows tokens and sessions; threads may share it.

    Args:
        store: Where tokens are.
        clock: Seconds that only grow.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._token_cache: OrderedDict[str, _CachedToken] = OrderedDict()
        self.failures = AuthThrottle(clock)

    def principal(self, request: Request, token: str | None, session: str | None = None) -> Principal:
        """Return who asks.

        Args:
            token: The token that is shown, which counts alone; None: none is.
            session: What a browser holds of a session.

        Raises:
            ApiError: The token or session is not known.
        """
        address = client_address(request)
        try:
            entry = self._of_session(session) if token is None else self._of_token(token)
            _check_validity(entry.row)
        except ApiError as error:
            raise self._build_refusal(request, address, error) from None
        self._use(entry)
        self.failures.reset(address)
        row = entry.row
        return Principal(
            id=row.id,
            name=row.name,
            scopes=frozenset().union(*(_IMPLIED[scope] for scope in SCOPES if scope in row.scopes)),
            studies=row.studies,
            user=row.user or row.name,
        )

    def _of_session(self, session: str | None) -> _CachedToken:
        if session is None:
            raise ApiError(
                401,
                "token_missing",
                "Show a token: tempopt login URL, or --token-file FILE (over HTTP: Authorization: Bearer "
                "TOKEN).",
            )
        id = sessions.token_of(self._store, session)
        entry = None if id is None else self._fresh(id)
        if entry is None:
            raise ApiError(401, "session_ended", "The session has ended. Sign in again.")
        return entry

    def _of_token(self, token: str) -> _CachedToken:
        parts = tokens.TOKEN.fullmatch(token)
        entry = None if parts is None else self._fresh(parts[1])
        if entry is None or not tokens.token_matches_row(token, entry.row):
            raise ApiError(401, "token_unknown", "This server does not know the token.")
        return entry

    async def identify(self, request: Request, token: str | None, session: str | None = None) -> Principal:
        """Return the client, as :meth:`principal`, in a thread where the store is asked."""
        if self.asks_store(token, session):
            return await run_in_threadpool(self.principal, request, token, session)
        return self.principal(request, token, session)

    async def begin_session(self, principal: Principal) -> tuple[str, datetime]:
        """Begin a session for a token, and return what the browser holds and when it ends."""

        def begin() -> tuple[str, datetime]:
            row = self._store.token(principal.id)
            expiry = None if row is None else row.expires
            return sessions.begin(self._store, principal.id, until=expiry)

        return await run_in_threadpool(begin)

    def asks_store(self, token: str | None, session: str | None = None) -> bool:
        """Return whether :meth:`principal` has to ask the store, or to write to it, about a request."""
        if token is None and session is not None:
            return True
        parts = None if token is None else tokens.TOKEN.fullmatch(token)
        if parts is None:
            return False
        now = self._clock()
        with self._lock:
            entry = self._token_cache.get(parts[1])
        return (
            entry is None
            or now - entry.read_at > FRESH_SECONDS
            or now - entry.use_written_at >= _USED_SECONDS
        )

    def revalidate(self, principal: Principal) -> bool:
        """Return whether a user who was let in would be let in now; the store is asked rarely."""
        try:
            entry = self._fresh(principal.id)
            if entry is not None:
                _check_validity(entry.row)
        except ApiError:
            return False
        except StorageError:
            # nothing that is new can be told either
            return True
        return entry is not None

    def _build_refusal(self, request: Request, address: str, error: ApiError) -> ApiError:
        is_waiting = self.failures.wait(address) > 0
        request.state.unwritten = self.failures.count_failure(address)
        if is_waiting:
            wait = math.ceil(self.failures.wait(address))
            text = f"Too many requests from {address} were refused. Wait {wait} s, then show a valid token."
            return ApiError(429, "rate_limited", text, {"retry-after": f"{wait}"})
        error.headers = {"www-authenticate": "Bearer"}
        return error

    def _fresh(self, id: str) -> _CachedToken | None:
        """Return the token of an id, None if there is none; the store is asked once in a few seconds."""
        now = self._clock()
        with self._lock:
            entry = self._token_cache.get(id)
        if entry is not None and now - entry.read_at <= FRESH_SECONDS:
            return entry
        row = self._store.token(id)
        with self._lock:
            if row is None:
                self._token_cache.pop(id, None)
                return None
            noted_time = -math.inf if entry is None else entry.use_written_at
            self._token_cache[id] = entry = _CachedToken(row, now, noted_time)
            self._token_cache.move_to_end(id)
            while len(self._token_cache) > _MOST_KNOWN:
                self._token_cache.popitem(last=False)
        return entry

    def _use(self, entry: _CachedToken) -> None:
        """Write that a token was accepted, once in a minute."""
        moment, now = datetime.now(UTC), self._clock()
        with self._lock:
            if now - entry.use_written_at < _USED_SECONDS:
                return
            entry.use_written_at = now
        if entry.row.used is not None and moment - entry.row.used < timedelta(seconds=_USED_SECONDS):
            return
        # for people to read: no reason to refuse a request
        with contextlib.suppress(StorageError):
            self._store.use_token(entry.row.id, moment)


def _check_validity(row: TokenRow) -> None:
    """Refuse a token that was revoked or has expired."""
    if row.revoked is not None:
        raise ApiError(401, "token_revoked", f"The token {row.id} ({row.name}) was revoked.")
    if row.expires is not None and row.expires <= datetime.now(UTC):
        expiry = f"{row.expires:%Y-%m-%d at %H:%M} UTC"
        text = f"The token {row.id} ({row.name}) has expired on {expiry}. Ask for another."
        raise ApiError(401, "token_expired", text)


def client_address(request: Request) -> str:
    """Return the address of the client; that of a trusted proxy's client was put there by uvicorn."""
    return request.client.host if request.client else ""


def session_of(request: Request) -> str | None:
    """Return the session of a browser where it counts: it reads pages and the REST, and signs out."""
    if request.method in READS or request.scope["path"] == "/sign-out":
        return sessions.read_cookie(request)
    return None


def check_same_site(request: Request) -> None:
    """Refuse a form that the page of another site has sent.

    Raises:
        ApiError: Another site has sent it.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site:
        is_foreign = site not in ("same-origin", "none")
    else:
        is_foreign = origin is None or urlsplit(origin).netloc != request.headers.get("host")
    if is_foreign:
        raise ApiError(403, "forbidden", "Another site has sent this form. Open the page of this server.")

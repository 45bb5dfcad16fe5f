"""Identify the client of a request by a token or a browser's session.

A revoked token is refused by every server within three seconds, also in a long poll that has begun. A
session can only read.
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
"""Seconds for which a token is cached: the maximal time for which a revoked one is still accepted."""
_USED_SECONDS = 60.0
_MAX_CACHED = 4096
READS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The authenticated client of a request.

    Args:
        id: Public id of the token.
        name: Name of the token.
        scopes: Its scopes, including implied ones.
        studies: Prefix of the names of studies that it may access; empty: all studies.
        user: Owner of the studies that it creates.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    studies: str = ""
    user: str = ""

    def may_see(self, study: str) -> bool:
        """Return whether the client may access a study."""
        return study.startswith(self.studies)

    def check_whole(self) -> None:
        """Refuse requests about all studies to clients with a prefix."""
        if self.studies:
            raise ApiError(
                403, "forbidden", f'{self.name} may do so only for studies that begin with "{self.studies}".'
            )

    def check(self, study: str) -> None:
        """Refuse a study that the client may not access, as if it did not exist."""
        if not self.may_see(study):
            raise ApiError(404, "study_not_found", f'There is no study "{study}".')

    def check_new(self, study: str) -> None:
        """Refuse the name of a study that the client may not create, whether the study exists or not."""
        if not self.may_see(study):
            raise ApiError(
                403,
                "forbidden",
                f'The token {self.name} may create only studies whose names begin with "{self.studies}", not '
                f'"{study}". Give another name, as in --name {self.studies}NAME',
            )


@dataclass(slots=True)
class _CachedToken:
    """A verified token: its row, and the times at which it was read and its use was written."""

    row: TokenRow
    read_at: float
    use_written_at: float


class Authenticator:
    """Verifies tokens and sessions; threads may share it.

    Args:
        store: The database with the tokens.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._token_cache: OrderedDict[str, _CachedToken] = OrderedDict()
        self.failures = AuthThrottle(clock)

    def principal(self, request: Request, token: str | None, session: str | None = None) -> Principal:
        """Return the client of a token or session.

        Args:
            token: The token; if it is given, the session is ignored.
            session: The secret of a browser's session.

        Raises:
            ApiError: The token or session is not valid.
        """
        address = client_address(request)
        try:
            entry = self._find_by_session(session) if token is None else self._find_by_token(token)
            _check_validity(entry.row)
        except ApiError as error:
            raise self._build_refusal(request, address, error) from None
        self._record_use(entry)
        self.failures.reset(address)
        row = entry.row
        return Principal(
            id=row.id,
            name=row.name,
            scopes=frozenset().union(*(_IMPLIED[scope] for scope in SCOPES if scope in row.scopes)),
            studies=row.studies,
            user=row.user or row.name,
        )

    def _find_by_session(self, session: str | None) -> _CachedToken:
        if session is None:
            raise ApiError(
                401,
                "token_missing",
                "Show a token: tempopt login URL, or --token-file FILE (over HTTP: Authorization: Bearer "
                "TOKEN).",
            )
        id = sessions.token_of(self._store, session)
        entry = None if id is None else self._load_token(id)
        if entry is None:
            raise ApiError(401, "session_ended", "The session has ended. Sign in again.")
        return entry

    def _find_by_token(self, token: str) -> _CachedToken:
        parts = tokens.TOKEN.fullmatch(token)
        entry = None if parts is None else self._load_token(parts[1])
        if entry is None or not tokens.token_matches_row(token, entry.row):
            raise ApiError(401, "token_unknown", "This server does not know the token.")
        return entry

    async def identify(self, request: Request, token: str | None, session: str | None = None) -> Principal:
        """Return the client, as :meth:`principal`; in a thread if the store has to be read."""
        if self.asks_store(token, session):
            return await run_in_threadpool(self.principal, request, token, session)
        return self.principal(request, token, session)

    async def begin_session(self, principal: Principal) -> tuple[str, datetime]:
        """Begin a session for a token, and return its secret and its end."""

        def store_session() -> tuple[str, datetime]:
            row = self._store.token(principal.id)
            expiry = None if row is None else row.expires
            return sessions.begin(self._store, principal.id, until=expiry)

        return await run_in_threadpool(store_session)

    def asks_store(self, token: str | None, session: str | None = None) -> bool:
        """Return whether :meth:`principal` has to read or write the store for a request."""
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
        """Return whether a client is still valid; the store is read rarely."""
        try:
            entry = self._load_token(principal.id)
            if entry is not None:
                _check_validity(entry.row)
        except ApiError:
            return False
        except StorageError:
            # without the store there is no news to return
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

    def _load_token(self, id: str) -> _CachedToken | None:
        """Return the token of an id, None if there is none; the store is read once every few seconds."""
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
            while len(self._token_cache) > _MAX_CACHED:
                self._token_cache.popitem(last=False)
        return entry

    def _record_use(self, entry: _CachedToken) -> None:
        """Write that a token was accepted, once per minute."""
        moment, now = datetime.now(UTC), self._clock()
        with self._lock:
            if now - entry.use_written_at < _USED_SECONDS:
                return
            entry.use_written_at = now
        if entry.row.used is not None and moment - entry.row.used < timedelta(seconds=_USED_SECONDS):
            return
        # for display only: a failure is no reason to refuse a request
        with contextlib.suppress(StorageError):
            self._store.use_token(entry.row.id, moment)


def _check_validity(row: TokenRow) -> None:
    """Refuse a revoked or expired token."""
    if row.revoked is not None:
        raise ApiError(401, "token_revoked", f"The token {row.id} ({row.name}) was revoked.")
    if row.expires is not None and row.expires <= datetime.now(UTC):
        expiry = f"{row.expires:%Y-%m-%d at %H:%M} UTC"
        text = f"The token {row.id} ({row.name}) expired on {expiry}. Ask for a new one."
        raise ApiError(401, "token_expired", text)


def client_address(request: Request) -> str:
    """Return the address of the client; uvicorn sets that of a trusted proxy's client."""
    return request.client.host if request.client else ""


def session_of(request: Request) -> str | None:
    """Return the session of a browser if it is allowed: for reading requests and signing out."""
    if request.method in READS or request.scope["path"] == "/sign-out":
        return sessions.read_cookie(request)
    return None


def check_same_site(request: Request) -> None:
    """Refuse a form that was sent by a page of another site.

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

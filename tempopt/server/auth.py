"""Who asks, and whether they may: tokens, people that a proxy has signed in, scopes, studies.

A dependency of every route but /healthz. A token that was revoked is refused within three seconds, by every
server; a stream or a long poll that it has begun ends, or gives nothing more, as soon.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, quote, urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from tempopt.errors import StorageError, UsageError
from tempopt.records.access import TokenRow
from tempopt.server import sessions, tokens
from tempopt.server.app_state import State, state_of
from tempopt.server.errors import ApiError
from tempopt.server.failures import Failures
from tempopt.store.store import Store

Scope = Literal["view", "submit", "agent", "admin"]
SCOPES: tuple[Scope, ...] = ("view", "submit", "agent", "admin")
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
_LONGEST_NAME = 100
READS = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""
PERSON = "person"
MOST_FIELDS = 100
"""Fields of a form of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks.

    Args:
        id: Public id of the token; ``person`` for people that a proxy has signed in.
        name: Name of the token, or of the person.
        scopes: What they may do, what follows from it included.
        studies: Only on studies whose names begin so; the empty text: on all.
        user: Whose studies they begin, in the pool's shares and quotas.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Whom a server believes beside tokens.

    Args:
        proxies: Networks of proxies that sign people in, as oauth2-proxy does: the headers X-Forwarded-Email,
            X-Forwarded-User and X-Forwarded-Groups count from there, and from nowhere else.
        people: What people may do: ``user:NAME``, ``group:NAME`` or ``*`` to a scope. A name with an ``@`` is
            compared with X-Forwarded-Email, one without with X-Forwarded-User, which some let people choose.
    """

    proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    people: Mapping[str, Scope] = field(default_factory=dict)


def access_of(proxies: list[str], people: list[str]) -> Access:
    """Return the settings that options of ``tempopt serve`` give.

    Args:
        proxies: Networks, as in ``10.0.0.0/8``.
        people: As in ``group:ml=submit``.

    Raises:
        UsageError: One of them cannot be read, or people are given and no proxy.
    """
    try:
        networks = tuple(ip_network(each) for each in proxies)
    except ValueError as error:
        raise UsageError(f"--trust-proxy: {error}. Give an address or a network, as in 10.0.0.0/8.") from None
    scopes: dict[str, Scope] = {}
    for each in people:
        who, _, scope = each.rpartition("=")
        if scope not in SCOPES or not (who == "*" or who.partition(":")[0] in ("user", "group")):
            raise UsageError(
                f'--proxy-scope "{each}" is not understood. Give user:NAME=SCOPE, group:NAME=SCOPE or '
                f"*=SCOPE; the scopes are {', '.join(SCOPES)}."
            )
        scopes[who.casefold() if who.startswith("user:") and "@" in who else who] = scope
    if scopes and not networks:
        raise UsageError(
            "--proxy-scope is for people whom a proxy signs in. Give its network: --trust-proxy."
        )
    return Access(proxies=networks, people=scopes)


@dataclass(slots=True)
class _Known:
    """A token that was verified: its row, and by the guard's clock when it was read and its use written."""

    row: TokenRow
    looked: float
    noted: float


class Guard:
    """Knows tokens and people; threads may share it.

    Args:
        store: Where tokens are.
        access: Whom to believe beside them.
        clock: Seconds that only grow.
    """

    def __init__(self, store: Store, access: Access, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._access = access
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self.failures = Failures(clock)
        self.sessions = sessions.Sessions(store, clock, fresh=FRESH_SECONDS)

    def address(self, request: Request) -> str:
        """Return where a request comes from; what a proxy says of it counts only where it is trusted."""
        peer = request.client.host if request.client else ""
        if self.is_behind_proxy(request):
            # a proxy adds to the client's line, or a line after it
            told = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
            return told[:64] or peer
        return peer

    def is_behind_proxy(self, request: Request) -> bool:
        """Return whether a request comes from a proxy that is trusted."""
        try:
            address = ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._access.proxies)

    def is_secure(self, request: Request) -> bool:
        """Return whether a request has come over TLS, to this server or to a proxy that is trusted."""
        if request.scope.get("scheme") == "https":
            return True
        told = ",".join(request.headers.getlist("x-forwarded-proto")).rpartition(",")[2].strip()
        return self.is_behind_proxy(request) and told == "https"

    def session(self, request: Request) -> str | None:
        """Return what the browser holds of a session, which may be over; None if it holds nothing."""
        return sessions.held(request, secure=self.is_secure(request))

    def may_be_known(self, request: Request) -> bool:
        """Return whether a request without a token could be somebody's all the same."""
        return self.session(request) is not None or self.is_behind_proxy(request)

    def principal(self, request: Request, token: str | None, session: str | None = None) -> Principal:
        """Return who asks.

        Args:
            token: The token that is shown, which counts alone; None: none is.
            session: What a browser holds of a session.

        Raises:
            ApiError: Nobody that is known.
        """
        address = self.address(request)
        try:
            found = self._found(request, session) if token is None else self._of_token(token)
        except ApiError as error:
            raise self._refused(request, address, error) from None
        self.failures.forgive(address)
        return found

    def _found(self, request: Request, session: str | None) -> Principal:
        id = None if session is None else self.sessions.token_of(session)
        if id is not None and (known := self._fresh(id)) is not None and _invalid(known.row) is None:
            return self._principal(known)
        if session is None or self.is_behind_proxy(request):
            return self._person(request)
        if id is not None and known is not None and (error := _invalid(known.row)) is not None:
            raise error
        raise ApiError(401, "session_ended", "You are signed out, or have been for too long. Sign in again.")

    def asks_store(self, token: str | None, session: str | None = None) -> bool:
        """Return whether :meth:`principal` has to ask the store, or to write to it, about whoever asks."""
        if token is None and session is not None:
            return True
        parts = None if token is None else tokens.TOKEN.fullmatch(token)
        if parts is None:
            return False
        now = self._clock()
        with self._lock:
            known = self._known.get(parts[1])
        return known is None or now - known.looked > FRESH_SECONDS or now - known.noted >= _USED_SECONDS

    def still(self, principal: Principal) -> bool:
        """Return whether somebody who was let in would be let in now; the store is asked rarely."""
        if principal.id == PERSON:
            return True
        try:
            known = self._fresh(principal.id)
        except StorageError:
            # nothing that is new can be told either
            return True
        return known is not None and _invalid(known.row) is None

    def _refused(self, request: Request, address: str, error: ApiError) -> ApiError:
        waits = self.failures.wait(address) > 0
        request.state.unwritten = self.failures.failed(address)
        if waits:
            wait = math.ceil(self.failures.wait(address))
            text = f"Too many requests from {address} were refused. Wait {wait} s, then show a valid token."
            return ApiError(429, "rate_limited", text, {"retry-after": f"{wait}"})
        error.headers = {"www-authenticate": "Bearer"}
        return error

    def _of_token(self, token: str) -> Principal:
        parts = tokens.TOKEN.fullmatch(token)
        known = None if parts is None else self._fresh(parts[1])
        if known is None or not tokens.is_of(token, known.row):
            raise ApiError(401, "token_unknown", "This server does not know the token.")
        if (error := _invalid(known.row)) is not None:
            raise error
        return self._principal(known)

    def _principal(self, known: _Known) -> Principal:
        row = known.row
        self._use(known)
        scopes: set[Scope] = set()
        for each in SCOPES:
            if each in row.scopes:
                scopes |= _IMPLIED[each]
        return Principal(
            id=row.id,
            name=row.name,
            scopes=frozenset(scopes),
            studies=row.studies,
            user=row.user or row.name,
        )

    def _fresh(self, id: str) -> _Known | None:
        """Return the token of an id, None if there is none; the store is asked once in a few seconds."""
        now = self._clock()
        with self._lock:
            known = self._known.get(id)
        if known is not None and now - known.looked <= FRESH_SECONDS:
            return known
        row = self._store.token(id)
        with self._lock:
            if row is None:
                self._known.pop(id, None)
                return None
            noted = -math.inf if known is None else known.noted
            self._known[id] = known = _Known(row, now, noted)
            self._known.move_to_end(id)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return known

    def _use(self, known: _Known) -> None:
        """Write that a token was accepted, once in a minute."""
        moment, now = datetime.now(UTC), self._clock()
        with self._lock:
            if now - known.noted < _USED_SECONDS:
                return
            known.noted = now
        if known.row.used is not None and moment - known.row.used < timedelta(seconds=_USED_SECONDS):
            return
        try:
            self._store.use_token(known.row.id, moment)
        except StorageError:
            # for people to read: no reason to refuse anybody
            return

    def _person(self, request: Request) -> Principal:
        """Return the person whom a trusted proxy has signed in.

        Raises:
            ApiError: There is none.
        """
        email, user, groups = (_told(request, name) for name in ("email", "user", "groups"))
        missing = ApiError(
            401,
            "token_missing",
            "Show a token: tempopt login URL, or --token-file FILE (over HTTP: Authorization: Bearer TOKEN).",
        )
        if not self.is_behind_proxy(request):
            raise missing
        # what nobody but the proxy can have written comes once
        if email is None or user is None or groups is None:
            raise ApiError(
                401,
                "unauthenticated",
                "X-Forwarded-Email, -User or -Groups came more than once: the proxy passes on what it was "
                "sent. Have it remove these headers from requests.",
            )
        if not (email or user):
            raise missing
        keys = [f"group:{each.strip()}" for each in groups.split(",") if each.strip()] + ["*"]
        keys += [f"user:{email.casefold()}"] if "@" in email else []
        keys += [f"user:{user}"] if user and "@" not in user else []
        scopes: set[Scope] = set()
        for key in keys:
            if key in self._access.people:
                scopes |= _IMPLIED[self._access.people[key]]
        # never the name of a token, nor that of another person: no address ends so, no user has an "@"
        name = quote(email.casefold(), safe="@._+-")
        name = name if "@" in email else f"{quote(email or user, safe='._+-')}@proxy"
        if "@" in email and name.endswith("@proxy"):
            raise ApiError(401, "unauthenticated", f"{email} is no address of a person here.")
        if len(name) > _LONGEST_NAME:
            raise ApiError(
                401, "unauthenticated", f"Names of people have at most {_LONGEST_NAME} characters here."
            )
        return Principal(id=PERSON, name=name, scopes=frozenset(scopes), user=name)


def _invalid(row: TokenRow) -> ApiError | None:
    """Return why a token is not valid any more, None if it is."""
    if row.revoked is not None:
        return ApiError(401, "token_revoked", f"The token {row.id} ({row.name}) was revoked.")
    if row.expires is not None and row.expires <= datetime.now(UTC):
        return ApiError(
            401,
            "token_expired",
            f"The token {row.id} ({row.name}) has expired on {row.expires:%Y-%m-%d at %H:%M} UTC. Ask for "
            "another.",
        )
    return None


def _told(request: Request, what: str) -> str | None:
    """Return what a header of a proxy tells; None if it came more than once."""
    given = request.headers.getlist(f"x-forwarded-{what}")
    return None if len(given) > 1 else "".join(given).encode("latin-1").decode("utf-8", "replace").strip()


def check_site(request: Request, guard: Guard, *, strict: bool = False) -> None:
    """Refuse what the page of another site has a browser send: it carries the cookie of who looks at it.

    Args:
        guard: Knows which proxies to believe.
        strict: Whether what does not tell which page has sent it is refused, too.
    """
    if request.method in READS:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    hosts = {request.headers.get("host")}
    if guard.is_behind_proxy(request):
        hosts.add(request.headers.get("x-forwarded-host"))
    if site:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = strict if origin is None else urlsplit(origin).netloc not in hosts
    if foreign:
        raise ApiError(
            403,
            "forbidden",
            "The page of another site had your browser send this. Open the page of this server, or show a "
            "token.",
        )


def about(request: Request, *, study: str = "", detail: str = "") -> None:
    """Have the audit log say what a request is about, where its path does not.

    Args:
        study: Name of the study.
        detail: What was done, in a few words; no secret.
    """
    request.state.about = (study, detail)


async def asking(
    request: Request, shared: State, scopes: Collection[Scope], token: str | None, *, forms: bool = True
) -> Principal:
    """Return who asks, if they may.

    Args:
        request: Gets ``state.principal`` and, if a browser's session says who it is, ``state.session``.
        scopes: One of these is asked for.
        token: The token that is shown; None: none is.
        forms: Whether a change that a session's browser asks for has to prove that it is from a page of ours;
            False where such pages are not ours to write: then only the browser's word for it counts.

    Raises:
        ApiError: Nobody is known, they may not, or the page of another site has sent this.
    """
    session = shared.guard.session(request) if token is None else None
    found = await _principal(request, shared.guard, token, session)
    request.state.principal = found
    if found.id == PERSON:
        check_site(request, shared.guard)
    elif session is not None:
        request.state.session = session
        check_site(request, shared.guard, strict=True)
        if forms and request.method not in READS:
            await _check_page(request, session)
    check_scopes(found, scopes)
    return found


async def _principal(request: Request, guard: Guard, token: str | None, session: str | None) -> Principal:
    if guard.asks_store(token, session):
        return await run_in_threadpool(guard.principal, request, token, session)
    return guard.principal(request, token, session)


async def known(request: Request) -> Principal:
    """Return who asks, before anything of the body is read.

    Raises:
        ApiError: Nobody is known.
    """
    guard: Guard = request.app.state.tempopt.guard
    shown = await _BEARER(request)
    token = None if shown is None else shown.credentials
    return await _principal(request, guard, token, guard.session(request) if token is None else None)


async def _check_page(request: Request, session: str) -> None:
    """Refuse a change that no page of this session has asked for."""
    given = request.headers.get(sessions.CSRF_HEADER, "")
    if not given and request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        text = (await request.body()).decode("utf-8", "replace")
        # a form of a page has few fields; many take long to read
        fields = parse_qs(text) if text.count("&") < MOST_FIELDS else {}
        given = fields.get(sessions.CSRF_FIELD, [""])[0]
    if not sessions.is_csrf_token(given, session):
        raise ApiError(
            403,
            "forbidden",
            "The page that sent this is of an earlier sign-in. Load it again, and try again.",
        )


def check_scopes(principal: Principal, scopes: Collection[Scope]) -> None:
    """Refuse whoever has none of these scopes."""
    if principal.scopes.isdisjoint(scopes):
        has = ", ".join(each for each in SCOPES if each in principal.scopes) or "nothing"
        raise ApiError(
            403,
            "forbidden",
            f"{principal.name} may {has}; this asks for {' or '.join(scopes)}. Use a token with that scope.",
        )


_BEARER = HTTPBearer(auto_error=False, description="A token that `tempopt token create` has made.")


def require(*scopes: Scope) -> Callable[..., Coroutine[Any, Any, Principal]]:
    """Return the dependency of a route that asks for one of these scopes; admin may do everything."""

    # on the loop, since most requests need no more than a look at what is known: a thread costs more
    async def principal(
        request: Request,
        shared: Annotated[State, Depends(state_of)],
        shown: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)] = None,
    ) -> Principal:
        return await asking(request, shared, scopes, None if shown is None else shown.credentials)

    principal.__dict__["scopes"] = scopes
    return principal

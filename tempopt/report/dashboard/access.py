"""Who may use the dashboard, and for what: a layer around Optuna's own, which lets anybody do everything.

Owns addresses, secrets, foreign pages and what may be written; serves nothing itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import html
import ipaddress
import json
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from tempopt.errors import UsageError
from tempopt.report.dashboard.throttle import Throttle

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

SHORTEST_SECRET = 16
"""Characters that a password or a token has at the least."""

COOKIE_SECONDS = 24 * 3600
"""Seconds after which a visitor has to give the token anew."""

_COOKIE = "tempopt-dashboard"
_READING = ("GET", "HEAD")
_NOTE = re.compile(r"/api/studies/\d+(?:/\d+)?/note")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# What a run has left is looked at and never carried out, whatever its type says.
_OF_ARTIFACTS = {"Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'"}
_READ_ONLY = (
    "This dashboard shows studies and keeps notes; whatever else would change a study is done by tempopt, "
    "whose agents rely on it: tempopt delete NAME, tempopt stop NAME, tempopt search SPEC --name NAME."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a visitor has to know: user and password, or a token, or nothing at all.

    Args:
        user: Name for HTTP Basic; given with a password.
        password: At least ``SHORTEST_SECRET`` characters.
        token: At least ``SHORTEST_SECRET`` characters; given alone.

    Raises:
        UsageError: They do not go together, or a secret is too short.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and (self.user is not None or self.password is not None):
            raise UsageError("A token and a user with a password were both given. Give one of them.")
        if (self.user is None) != (self.password is None):
            missing = "user" if self.user is None else "password"
            raise UsageError(f"The dashboard was given no {missing}. Give user and password, or a token.")
        if self.user is not None and (":" in self.user or not self.user):
            raise UsageError(f'The user "{self.user}" is empty or has a ":" in it. Give another name.')
        for name, secret in (("password", self.password), ("token", self.token)):
            if secret is not None and len(secret) < SHORTEST_SECRET:
                raise UsageError(
                    f"The dashboard's {name} has {len(secret)} characters. Give at least {SHORTEST_SECRET}, "
                    'as in `python -c "import secrets; print(secrets.token_urlsafe())" > dashboard.secret`.'
                )

    @property
    def open(self) -> bool:
        """Whether everybody who reaches the dashboard may use it."""
        return self.password is None and self.token is None


def is_loopback(host: str) -> bool:
    """Return whether an address, or a name, is this machine's own and reached from nowhere else."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def require_secret(host: str, access: Access) -> None:
    """See that an address which others reach is not served to everybody.

    Raises:
        UsageError: It would be.
    """
    if access.open and not is_loopback(host):
        raise UsageError(
            f"The dashboard would be open to everybody who reaches {host}. Give --user with --password-file, "
            "or --token-file; or stay on 127.0.0.1 and reach it through `ssh -L 8080:127.0.0.1:8080 HOST`."
        )


def guarded(app: WSGIApplication, access: Access, throttle: Throttle) -> WSGIApplication:
    """Return an application that lets in whom it should, for looking and for writing notes.

    Reading is what a dashboard is for, and a note is a person's own. All else that Optuna's dashboard can do
    (delete, rename, tell, upload, ...) would pull rows from under tempopt's agents and leave tempopt's tables
    with a study that Optuna does not have, so it is refused, for every study in the database, with the
    command that does it.

    Without a secret, only requests whose Host is this machine's own name for itself are answered: a foreign
    site that has its name point here (DNS rebinding) is not. What a foreign page sends is refused always.

    Args:
        throttle: Counts wrong secrets; an address that sends too many gets 429 until it has waited.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[..., Any]:
            # Optuna's dashboard lets every page on the web read the artifacts.
            kept = [(n, v) for n, v in headers if not n.lower().startswith("access-control-")]
            added = _HEADERS | (_OF_ARTIFACTS if path.startswith("/artifacts/") else {})
            there = {name.lower() for name, _ in kept}
            kept += [(n, v) for n, v in added.items() if n.lower() not in there]
            return start_response(status, kept, exc_info)

        refusal = _refused(environ, access, throttle)
        if refusal is not None:
            return refusal(environ, start)
        return app(environ, start)

    return answer


def may_send(environ: WSGIEnvironment, access: Access) -> bool:
    """Return whether the body of a request is worth reading: a note, from somebody who may write one.

    Args:
        environ: Method, path, query and headers; nothing of a body is needed.
    """
    return _is_note(environ) and (access.open or _is_known(environ, access))


def _is_note(environ: WSGIEnvironment) -> bool:
    path = environ.get("PATH_INFO", "")
    return environ["REQUEST_METHOD"] == "PUT" and _NOTE.fullmatch(path) is not None


def _refused(environ: WSGIEnvironment, access: Access, throttle: Throttle) -> WSGIApplication | None:
    """Return what answers instead of the dashboard, None if nothing does."""
    host = environ.get("HTTP_HOST", "")
    if access.open and not is_loopback(_name(host)):
        return _page(
            "403 Forbidden",
            f'This dashboard answers to 127.0.0.1 and localhost, not to "{host}". Give it a password or a '
            "token to have it answer to other names.",
        )
    if not access.open and (challenge := _challenge(environ, access, throttle)) is not None:
        return challenge
    if environ["REQUEST_METHOD"] in _READING:
        return None
    try:
        foreign = _foreign(environ)
    except ValueError:
        return _page("400 Bad Request", "The Origin of this request is not an address.")
    if foreign:
        return _page("403 Forbidden", "This was sent by a page of another site.")
    if _is_note(environ):
        return None
    return _page("403 Forbidden", _READ_ONLY)


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _foreign(environ: WSGIEnvironment) -> bool:
    """Return whether a browser says that another site's page asks; what is no browser says nothing."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None and site not in ("same-origin", "none"):
        return True
    origin = environ.get("HTTP_ORIGIN")
    return origin is not None and urlsplit(origin).netloc.lower() != environ.get("HTTP_HOST", "").lower()


# ---- secrets


def _challenge(environ: WSGIEnvironment, access: Access, throttle: Throttle) -> WSGIApplication | None:
    """Return what asks a visitor for the secret, or takes it in; None if they are known."""
    if access.token is not None and _is_ticket(_cookie(environ, access.token), access.token):
        # nobody guesses a ticket: whoever has one need not wait for what others at this address do
        return None
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    asked = query.pop("token", [""])[0] if environ["REQUEST_METHOD"] == "GET" else ""
    address = environ.get("REMOTE_ADDR", "")
    if environ.get("HTTP_AUTHORIZATION") or asked:
        left = throttle.seconds_left(address)
        if left:
            pause = ("Retry-After", str(math.ceil(left)))
            return _page("429 Too Many Requests", "Too many wrong secrets came from this address.", pause)
        if _is_known(environ, access):
            throttle.passed(address)
            return None
        if access.token is not None and _same(asked, access.token):
            throttle.passed(address)
            return _welcome(environ, query, access.token)
        throttle.failed(address)
    if access.token is None:
        ask = ("WWW-Authenticate", 'Basic realm="tempopt", charset="UTF-8"')
        return _page("401 Unauthorized", "This dashboard asks for a user and a password.", ask)
    return _page(
        "401 Unauthorized",
        "This dashboard asks for a token. Add ?token=... to its address once, or send it as "
        "Authorization: Bearer.",
        ("WWW-Authenticate", 'Bearer realm="tempopt"'),
    )


def _is_known(environ: WSGIEnvironment, access: Access) -> bool:
    """Return whether the headers of a request hold the secret."""
    scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if access.password is not None:
        user, password = _basic(given) if scheme.lower() == "basic" else ("", "")
        # both are compared, whatever the first comes to
        return _same(user, access.user or "") & _same(password, access.password)
    token = access.token or ""
    if scheme.lower() == "bearer" and _same(given.strip(), token):
        return True
    return _is_ticket(_cookie(environ, token), token)


def _basic(given: str) -> tuple[str, str]:
    try:
        user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return user, password


def _same(given: str, secret: str) -> bool:
    """Return whether two texts are the same, in a time that tells nothing of them."""
    one, other = (
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest() for text in (given, secret)
    )
    return hmac.compare_digest(one, other)


def _sign(token: str, text: str) -> str:
    return hmac.new(token.encode(), f"{_COOKIE} {text}".encode(), hashlib.sha256).hexdigest()


def _ticket(token: str) -> str:
    """Return what the cookie holds: when it ends, signed with the token, which it does not tell."""
    ends = str(int(time.time()) + COOKIE_SECONDS)
    return f"{ends}.{_sign(token, ends)}"


def _is_ticket(held: str, token: str) -> bool:
    ends, _, signature = held.partition(".")
    return _same(signature, _sign(token, ends)) and time.time() < int(ends)


def _cookie_name(token: str) -> str:
    # browsers tell no ports apart, and there may be a dashboard with another token at each of several
    return f"{_COOKIE}-{_sign(token, 'name')[:8]}"


def _cookie(environ: WSGIEnvironment, token: str) -> str:
    try:
        held = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(_cookie_name(token))
    except CookieError:
        return ""
    return "" if held is None else held.value


def _welcome(environ: WSGIEnvironment, query: dict[str, list[str]], token: str) -> WSGIApplication:
    """Return a page that keeps the token in a cookie and leads to where it was asked for.

    A page, not a redirect: a browser that comes from a link elsewhere would follow one without the cookie.
    """
    rest = f"?{urlencode(query, doseq=True)}" if query else ""
    # one slash: two would name another host
    path = "/" + quote(environ.get("PATH_INFO", "").lstrip("/").encode("latin-1"))
    where = html.escape(f"{path}{rest}", quote=True)
    body = (
        '<!DOCTYPE html><html lang="en"><title>tempopt</title>'
        f'<meta http-equiv="refresh" content="0; url={where}">'
        f'<p><a href="{where}">To the dashboard</a></p></html>'
    )
    held = (
        f"{_cookie_name(token)}={_ticket(token)}; Path=/; Max-Age={COOKIE_SECONDS}; HttpOnly; SameSite=Strict"
    )
    if environ.get("wsgi.url_scheme") == "https":
        held += "; Secure"
    return _page("200 OK", body, ("Set-Cookie", held), ("Cache-Control", "no-store"), kind="text/html")


def _page(status: str, text: str, *headers: tuple[str, str], kind: str = "text/plain") -> WSGIApplication:
    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        of_api = environ.get("PATH_INFO", "").startswith("/api/")
        body = (json.dumps({"reason": text}) if of_api else f"{text}\n").encode()
        mime = "application/json" if of_api else f"{kind}; charset=utf-8"
        start_response(status, [("Content-Type", mime), ("Content-Length", str(len(body))), *headers])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    return respond

"""Who is let in, and for what, decided on WSGI requests without any server."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tempopt.errors import UsageError
from tempopt.report.dashboard.access import Access, guarded, is_loopback, require_secret

PASSWORD, TOKEN = "long enough ü", "s3cret-token-of-length"
USER = Access(user="me", password=PASSWORD)
BEARER = Access(token=TOKEN)


class Answer:
    """What came of a request."""

    def __init__(self, app: Any, method: str, path: str, **environ: str) -> None:
        given = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": "127.0.0.1:8080"}
        given |= {"SERVER_PORT": "8080", "QUERY_STRING": ""}
        self.body = b"".join(app({**given, **environ}, self._start)).decode()

    def _start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        self.status, self.headers = int(status[:3]), dict(headers)


@pytest.fixture
def ask() -> Callable[..., Answer]:
    """Ask a guarded application that answers everything with its own permissive headers."""

    def behind(environ: Any, start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain"), ("Access-Control-Allow-Origin", "*")])
        return [b"in"]

    def request(access: Access, method: str = "GET", path: str = "/api/studies", **environ: str) -> Answer:
        return Answer(guarded(behind, access), method, path, **environ)

    return request


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:9", "[::1]:8080", "127.0.0.2"])
def test_this_machines_own_names_are_answered_without_a_secret(ask: Any, host: str) -> None:
    assert ask(Access(), HTTP_HOST=host).body == "in"


@pytest.mark.parametrize(
    "host", ["evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "", "[", "10.0.0.1"]
)
def test_a_foreign_name_that_points_here_is_refused_without_a_secret(ask: Any, host: str) -> None:
    answer = ask(Access(), HTTP_HOST=host)
    assert answer.status == 403
    assert f'not to \\"{host}\\"' in answer.body
    assert ask(BEARER, HTTP_HOST=host, HTTP_AUTHORIZATION=f"Bearer {TOKEN}").body == "in"


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("", 401),
        (_basic("me", "wrong"), 401),
        (_basic("you", PASSWORD), 401),
        (_basic("me", ""), 401),
        ("Basic !!!", 401),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), 401),
        (f"Bearer {PASSWORD}", 401),
        (_basic("me", PASSWORD), 200),
        (_basic("me", PASSWORD).replace("Basic", "basic"), 200),
    ],
)
def test_user_and_password_are_asked_for(ask: Any, given: str, status: int) -> None:
    answer = ask(USER, HTTP_AUTHORIZATION=given)
    assert answer.status == status
    assert (answer.headers.get("WWW-Authenticate", "")[:5] == "Basic") == (status == 401)


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({}, 401),
        ({"HTTP_AUTHORIZATION": "Bearer wrong"}, 401),
        ({"HTTP_AUTHORIZATION": "Bearer "}, 401),
        ({"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}, 200),
        ({"QUERY_STRING": "token=wrong"}, 401),
        ({"QUERY_STRING": "token="}, 401),
        ({"HTTP_COOKIE": f"tempopt-dashboard-8080={TOKEN}"}, 401),
        ({"HTTP_COOKIE": "tempopt-dashboard-8080="}, 401),
        ({"HTTP_COOKIE": "\x00=;;"}, 401),
    ],
)
def test_a_token_is_asked_for(ask: Any, environ: dict[str, str], status: int) -> None:
    assert ask(BEARER, **environ).status == status


def test_a_token_in_the_address_becomes_a_cookie_once(ask: Any) -> None:
    first = ask(BEARER, path="/dashboard/studies/1", QUERY_STRING=f"a=%3C&token={TOKEN}")
    assert first.status == 200
    assert 'url=/dashboard/studies/1?a=%3C"' in first.body
    assert TOKEN not in first.body + str(first.headers)
    assert "HttpOnly" in first.headers["Set-Cookie"] and "SameSite=Strict" in first.headers["Set-Cookie"]
    cookie = first.headers["Set-Cookie"].partition(";")[0]
    assert ask(BEARER, HTTP_COOKIE=f"other=1; {cookie}").body == "in"
    assert ask(BEARER, HTTP_COOKIE=cookie, SERVER_PORT="8081").status == 401
    assert ask(Access(token="another token"), HTTP_COOKIE=cookie).status == 401


def test_a_token_leads_to_no_other_site_and_writes_nothing(ask: Any) -> None:
    answer = ask(BEARER, path='//evil.example/"><script>', QUERY_STRING=f"token={TOKEN}")
    assert 'url=/evil.example/%22%3E%3Cscript%3E"' in answer.body
    assert ask(BEARER, "PUT", "/api/studies/1/note", QUERY_STRING=f"token={TOKEN}").status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"HTTP_ORIGIN": "http://127.0.0.1:8080", "HTTP_SEC_FETCH_SITE": "same-origin"}, 200),
        ({"HTTP_ORIGIN": "http://evil.example"}, 403),
        ({"HTTP_ORIGIN": "http://127.0.0.1:9999"}, 403),
        ({"HTTP_ORIGIN": "null"}, 403),
        ({"HTTP_SEC_FETCH_SITE": "cross-site"}, 403),
        ({"HTTP_SEC_FETCH_SITE": "same-site"}, 403),
    ],
)
def test_a_page_of_another_site_writes_nothing(ask: Any, headers: dict[str, str], status: int) -> None:
    assert ask(Access(), "PUT", "/api/studies/1/note", **headers).status == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/studies/1"),
        ("POST", "/api/studies"),
        ("POST", "/api/studies/1/rename"),
        ("POST", "/api/trials/3/tell"),
        ("POST", "/api/trials/3/user-attrs"),
        ("POST", "/api/artifacts/1/3"),
        ("DELETE", "/api/artifacts/1/3/abc"),
        ("POST", "/incompatible-rdb-schema"),
        ("PUT", "/api/studies/1/preference_feedback_component"),
        ("PUT", "/api/studies/1/note/x"),
        ("OPTIONS", "/api/studies"),
    ],
)
def test_what_would_change_a_study_is_refused_with_what_to_do(ask: Any, method: str, path: str) -> None:
    answer = ask(Access(), method, path)
    assert answer.status == 403
    assert "tempopt delete NAME" in answer.body


@pytest.mark.parametrize("path", ["/api/studies/1/note", "/api/studies/12/345/note"])
def test_a_note_may_be_written(ask: Any, path: str) -> None:
    assert ask(Access(), "PUT", path).body == "in"


def test_no_other_site_may_read_or_frame_what_is_shown(ask: Any) -> None:
    for answer in (ask(Access()), ask(Access(), HTTP_HOST="evil.example"), ask(BEARER)):
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert ask(Access(), path="/artifacts/1/2/a").headers["Content-Security-Policy"].startswith("sandbox")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "my-machine", "127.0.0.1.example"])
def test_an_address_that_others_reach_needs_a_secret(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(UsageError, match=r"open to everybody who reaches .*--token-file"):
        require_secret(host, Access())
    require_secret(host, USER)
    require_secret(host, BEARER)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"user": "me"}, "was given no password"),
        ({"password": "long enough"}, "was given no user"),
        ({"user": "me", "password": "short"}, "password has 5 characters. Give at least 8"),
        ({"token": ""}, "token has 0 characters"),
        ({"user": "m:e", "password": "long enough"}, 'has a ":" in it'),
        ({"user": "me", "password": "long enough", "token": "long enough"}, "both given"),
    ],
)
def test_secrets_that_protect_nothing_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Access(**given)


def test_a_secret_is_not_shown() -> None:
    assert PASSWORD not in repr(USER) and TOKEN not in repr(BEARER)

"""Who is let in, and for what, decided on WSGI requests without any server."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tempopt.errors import UsageError
from tempopt.report.dashboard import access as access_room
from tempopt.report.dashboard.access import Access, guarded, is_loopback, may_send, require_secret
from tempopt.report.dashboard.throttle import FREE, LONGEST_PAUSE, Throttle

PASSWORD, TOKEN = "long enough, with ü", "s3cret-token-of-length"
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

    def request(
        access: Access,
        method: str = "GET",
        path: str = "/api/studies",
        throttle: Throttle | None = None,
        **environ: str,
    ) -> Answer:
        return Answer(guarded(behind, access, throttle or Throttle(print)), method, path, **environ)

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
        ({"HTTP_COOKIE": f"{access_room._cookie_name(TOKEN)}={TOKEN}"}, 401),
        ({"HTTP_COOKIE": f"{access_room._cookie_name(TOKEN)}="}, 401),
        ({"HTTP_COOKIE": f"{access_room._cookie_name(TOKEN)}=9999999999.{TOKEN}"}, 401),
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
    name, _, value = cookie.partition("=")
    ends, _, signature = value.partition(".")
    assert ask(BEARER, HTTP_COOKIE=f"{name}={int(ends) + 1}.{signature}").status == 401
    assert ask(Access(token="another token of length"), HTTP_COOKIE=cookie).status == 401


def test_a_cookie_ends_after_a_day_and_is_secure_behind_tls(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"path": "/dashboard", "QUERY_STRING": f"token={TOKEN}"}
    plain = ask(BEARER, **given).headers["Set-Cookie"]
    secure = ask(BEARER, **given, **{"wsgi.url_scheme": "https"}).headers["Set-Cookie"]
    assert "Secure" not in plain and secure.endswith("; Secure")
    assert re.search(r"Max-Age=86400;", plain)
    cookie, now = plain.partition(";")[0], access_room.time.time()
    for later, status in ((86_390, 200), (86_410, 401)):
        monkeypatch.setattr(access_room.time, "time", lambda later=later: now + later)
        assert ask(BEARER, HTTP_COOKIE=cookie).status == status


@pytest.mark.parametrize(
    ("access", "wrong", "right"),
    [
        (USER, {"HTTP_AUTHORIZATION": _basic("me", "wrong")}, {"HTTP_AUTHORIZATION": _basic("me", PASSWORD)}),
        (BEARER, {"HTTP_AUTHORIZATION": "Bearer x"}, {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}),
        (BEARER, {"QUERY_STRING": "token=x"}, {"QUERY_STRING": f"token={TOKEN}"}),
    ],
    ids=["password", "bearer", "query"],
)
def test_who_guesses_has_to_wait(
    ask: Any, access: Access, wrong: dict[str, str], right: dict[str, str]
) -> None:
    now, notes = 0.0, list[str]()
    throttle = Throttle(notes.append, clock=lambda: now)
    here = {"throttle": throttle, "REMOTE_ADDR": "192.0.2.1"}
    for _ in range(FREE):
        assert ask(access, **wrong, **here).status == 401
    assert notes == [f"{FREE} wrong secrets came from 192.0.2.1. Its further tries have to wait."]
    refused = ask(access, **right, **here)
    assert refused.status == 429 and refused.headers["Retry-After"] == "1"
    assert ask(access, **here).status == 401, "without a secret nothing was tried"
    assert ask(access, **right, **here | {"REMOTE_ADDR": "192.0.2.2"}).status == 200
    now += 1.5
    assert ask(access, **wrong, **here).status == 401
    now += 1.5
    assert ask(access, **right, **here).status == 429, "the pause doubles"
    now += LONGEST_PAUSE
    assert ask(access, **right, **here).status == 200
    assert ask(access, **wrong, **here).status == 401 and throttle.seconds_left("192.0.2.1") == 0


def test_who_has_a_cookie_does_not_wait_for_others_at_the_same_address(ask: Any) -> None:
    throttle = Throttle(print)
    cookie = ask(BEARER, QUERY_STRING=f"token={TOKEN}").headers["Set-Cookie"].partition(";")[0]
    for _ in range(FREE):
        ask(BEARER, throttle=throttle, HTTP_AUTHORIZATION="Bearer x")
    assert ask(BEARER, throttle=throttle, HTTP_AUTHORIZATION=f"Bearer {TOKEN}").status == 429
    assert ask(BEARER, throttle=throttle, HTTP_COOKIE=cookie).status == 200


def test_a_network_of_ipv6_is_one_address_and_the_memory_is_bounded() -> None:
    throttle = Throttle(lambda text: None, clock=lambda: 0.0)
    for host in range(FREE):
        throttle.failed(f"2001:db8::{host:x}")
    assert throttle.seconds_left("2001:db8::ffff") == 1.0
    assert throttle.seconds_left("2001:db8:1::1") == 0.0
    for number in range(3000):
        throttle.failed(f"10.0.{number // 256}.{number % 256}")
    assert len(throttle._failures) == 1000


@pytest.mark.parametrize(
    ("method", "path", "access", "headers", "read"),
    [
        ("PUT", "/api/studies/1/note", Access(), {}, True),
        ("PUT", "/api/studies/1/note", BEARER, {}, False),
        ("PUT", "/api/studies/1/note", BEARER, {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}, True),
        ("PUT", "/api/studies/1/note", USER, {"HTTP_AUTHORIZATION": _basic("me", PASSWORD)}, True),
        ("PUT", "/api/studies/1/note", USER, {"HTTP_AUTHORIZATION": _basic("me", "wrong")}, False),
        ("POST", "/api/studies", Access(), {}, False),
        ("PUT", "/api/artifacts/1/3", Access(), {}, False),
    ],
)
def test_only_a_note_of_somebody_who_may_write_one_is_read(
    method: str, path: str, access: Access, headers: dict[str, str], read: bool
) -> None:
    assert may_send({"REQUEST_METHOD": method, "PATH_INFO": path, **headers}, access) is read


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
        ({"HTTP_ORIGIN": "http://[::1"}, 400),
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
        ({"password": "long enough to do"}, "was given no user"),
        ({"user": "me", "password": "short"}, "password has 5 characters. Give at least 16"),
        ({"token": ""}, "token has 0 characters"),
        ({"user": "m:e", "password": "long enough to do"}, 'has a ":" in it'),
        ({"user": "me", "password": "long enough to do", "token": "long enough to do"}, "both given"),
    ],
)
def test_secrets_that_protect_nothing_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Access(**given)


def test_a_secret_is_not_shown() -> None:
    assert PASSWORD not in repr(USER) and TOKEN not in repr(BEARER)

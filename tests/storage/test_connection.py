"""Requests to a server: what is asked again, what is raised, and when a token is read anew."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tempopt.errors import (
    AccessDenied,
    SpecError,
    StoreBusy,
    StoreUnreachable,
    StudyChanged,
    StudyNotFound,
    UsageError,
)
from tempopt.storage.http import connection
from tempopt.storage.http.address import server_url
from tempopt.storage.http.connection import ServerConnection

URL = "https://tempopt.example.com"
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_RETRY_SECONDS", (0.0, 0.0))


def _connection_with(
    handler: Handler, token: Callable[[], str | None] | str | None = "token"
) -> ServerConnection:
    connection = ServerConnection(URL, token)
    connection.client.close()
    connection.client = httpx.Client(
        base_url=URL, transport=httpx.MockTransport(handler), auth=connection.client.auth
    )
    return connection


@pytest.mark.parametrize(("method", "times"), [("GET", 3), ("POST", 1), ("PUT", 1), ("DELETE", 1)])
def test_what_only_reads_is_asked_again_and_nothing_else_is(method: str, times: int) -> None:
    methods: list[str] = []

    def drop_request(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        _connection_with(drop_request).request(method, "/api/studies")
    assert methods == [method] * times


def test_an_answer_after_a_lost_one_is_the_answer() -> None:
    answers = [httpx.ReadError("reset"), httpx.Response(200, json={"a": 1})]

    def handler(request: httpx.Request) -> httpx.Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert _connection_with(handler).get("/api/studies") == {"a": 1}


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("study_not_found", 404, StudyNotFound),
        ("study_changed", 409, StudyChanged),
        ("spec", 422, SpecError),
        ("storage_busy", 503, StoreBusy),
        ("storage_away", 503, StoreUnreachable),
        ("token_revoked", 401, AccessDenied),
        ("forbidden", 403, AccessDenied),
        ("a_new_code", 400, UsageError),
        ("a_new_code", 503, StoreUnreachable),
        ("internal", 500, StoreUnreachable),
    ],
)
def test_an_error_is_raised_as_it_is_on_a_database(code: str, status: int, kind: type[Exception]) -> None:
    body = {"error": {"code": code, "message": "what is wrong"}}
    with pytest.raises(kind, match="what is wrong") as error:
        _connection_with(lambda request: httpx.Response(status, json=body)).post("/api/studies")
    assert type(error.value) is kind


@pytest.mark.parametrize(
    ("status", "kind"), [(502, StoreUnreachable), (504, StoreUnreachable), (404, UsageError)]
)
def test_what_is_no_answer_of_tempopt_is_told_as_such(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="tempopt.example.com"):
        _connection_with(lambda request: httpx.Response(status, text="<html>proxy</html>")).get(
            "/api/studies"
        )


def test_a_token_that_is_refused_is_read_anew_and_one_that_is_the_same_is_not_shown_twice() -> None:
    authorizations: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        authorizations.append(request.headers["authorization"])
        if request.headers["authorization"] == "Bearer new":
            return httpx.Response(200, json=1)
        return httpx.Response(401, json={"error": {"code": "token_revoked", "message": "revoked"}})

    tokens = ["old", "new", "new"]
    server = _connection_with(handler, lambda: tokens.pop(0))
    assert server.get("/") == 1 and server.get("/") == 1
    assert authorizations == ["Bearer old", "Bearer new", "Bearer new"]
    unchanged_connection = _connection_with(handler, lambda: "old")
    with pytest.raises(AccessDenied):
        unchanged_connection.get("/")
    assert authorizations[3:] == ["Bearer old"]


@pytest.mark.parametrize(
    "url",
    ["tempopt.example.com", "ftp://a", "https://", "https://me:secret@a", "https://a?token=x", "https://a#b"],
)
def test_a_url_that_is_none_of_a_server_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as error:
        server_url(url)
    assert "secret" not in str(error.value)


def test_a_slash_at_the_end_is_no_part_of_a_server() -> None:
    assert server_url("https://a.example/tempopt/ ") == "https://a.example/tempopt"

"""What no client of ours sends: each gets an error with a stable code, and the server goes on serving."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tempopt.server.limits import LARGEST_BODY, LARGEST_ELSEWHERE, LARGEST_FORM, BodyLimitMiddleware
from tempopt.server.serving import LimitedH11Protocol
from tests.server.http_server import RunningServer
from tests.toy_study import toy_spec

AGENT = {"agent": "here:1:m:1.1", "session": "5f3a9c0e7b21"}
BODIES: dict[str, dict[str, Any]] = {
    "/api/agents/join": {"study": "toy", **AGENT},
    "/api/agents/sync": {"study": "toy", "study_id": 1, **AGENT},
    "/api/agents/leave": {"study": "toy", "study_id": 1, **AGENT},
    "/api/checkpoints/where": {
        "study": "toy",
        "run": "search-0000",
        "file": "step-1-1.ckpt",
        "purpose": "get",
    },
    "/api/tokens": {"name": "more", "scopes": ["view"]},
    "/api/studies": {"spec": toy_spec()},
    "/api/studies/toy/resume": {"add_trials": 1},
    "/api/studies/toy/enqueue": {"sets": [{"temperature_init": 1.0}]},
    "/api/studies/toy/gc": {"dry_run": True},
}
"""A right body of each route that takes one."""
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(running_server: RunningServer) -> Iterator[httpx.Client]:
    """A client that may do everything, to a server with the study ``toy``; it serves to the end."""
    with running_server.client() as client:
        assert client.post("/api/studies", json={"spec": toy_spec()}).status_code == 201
        yield client
        assert client.get("/api/studies/toy").status_code == 200
        assert len(client.get("/api/studies").json()) == 1


def _refusal(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"
    assert 0 < len(error["message"]) < 2000
    return answer.status_code, error["code"]


def test_every_route_that_takes_a_body_is_here(running_server: RunningServer) -> None:
    paths = running_server.app.openapi()["paths"]
    taking = {path.replace("{name}", "toy") for path in paths if "requestBody" in paths[path].get("post", {})}
    assert taking == BODIES.keys()


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_refused(client: httpx.Client, path: str) -> None:
    answer = client.post(path, json={**BODIES[path], "of_another_version": 1})
    assert _refusal(answer) == (422, "invalid_request")
    assert "of_another_version" in answer.json()["error"]["message"]


UNFIT = {
    "5000 digits": b"1" * 5000,
    "400 digits": b"-" + b"9" * 400,
    "1e400": b"1e400",
    "NaN": b"NaN",
    "infinite": b"Infinity",
    "NUL": b'"\\u0000"',
    "half a pair": b'"\\ud800"',
    "half a pair in bytes": b'"\xed\xa0\x80"',
    "long": b'"' + b"x" * 100_000 + b'"',
    "600 levels": b'{"a": [' * 300 + b"1" + b"]}" * 300,
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
}
CODES = {
    (400, "bad_request"),
    (400, "usage"),
    (404, "study_not_found"),
    (422, "invalid_request"),
    (422, "spec"),
}


@pytest.mark.parametrize("path", BODIES)
def test_values_that_nothing_can_hold_are_refused_wherever_they_are(client: httpx.Client, path: str) -> None:
    for (name, value), key in itertools.product(UNFIT.items(), BODIES[path]):
        fields = {name: value for name, value in BODIES[path].items() if name != key}
        prefix = json.dumps(fields).encode()[:-1] + (b", " if fields else b"")
        body = prefix + f'"{key}": '.encode() + value + b"}"
        assert _refusal(client.post(path, content=body, headers=JSON)) in CODES, (name, key)


@pytest.mark.parametrize("length", [str(LARGEST_BODY + 1), "9" * 18, "9" * 40])
def test_a_body_that_is_announced_as_too_large_is_not_waited_for(
    client: httpx.Client, running_server: RunningServer, length: str
) -> None:
    with _line(running_server) as line:
        line.sendall(_head(running_server, "/api/studies", f"content-length: {length}"))
        status, error, trailing = _answer(line)
    if len(length) <= 18:
        assert (status, error) == (413, "too_large")
    else:
        # no length that a server could read
        assert status in (400, 413)
    assert trailing == b""


def test_a_body_that_grows_too_large_is_cut_off(client: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(LARGEST_BODY // 2**20 + 1):
            yield b" " * 2**20

    answer = client.post("/api/studies", content=pieces(), headers=JSON)
    assert _refusal(answer) == (413, "too_large")


def test_a_spec_has_no_more_values_than_one_in_a_file(client: httpx.Client) -> None:
    spec = {**toy_spec(), "search": {"lr": list(range(100_000))}}
    assert _refusal(client.post("/api/studies", json={"spec": spec})) == (400, "usage")


def test_a_parameter_that_no_route_takes_is_refused(client: httpx.Client) -> None:
    answer = client.delete("/api/studies/toy", params={"froce": "true"})
    assert _refusal(answer) == (422, "invalid_request")
    assert answer.json()["error"]["message"].startswith('Unknown parameter "froce". Did you mean "force"?')
    assert _refusal(client.get("/api/me", params={"": "0"})) == (422, "invalid_request")


def test_an_unauthenticated_body_is_refused_before_it_is_read(running_server: RunningServer) -> None:
    for head in ("content-length: 1", "transfer-encoding: chunked"):
        with _line(running_server) as line:
            line.sendall(
                _head(running_server, "/api/studies", head).replace(b"authorization: ", b"x-other: ")
            )
            status, error, trailing = _answer(line)
        assert (status, error, trailing) == (401, "token_missing", b""), head


def test_two_lengths_of_a_body_are_refused(running_server: RunningServer) -> None:
    with _line(running_server) as line:
        lines = ("content-length: 2", "transfer-encoding: chunked")
        line.sendall(_head(running_server, "/api/studies", *lines) + b"2\r\n{}\r\n0\r\n\r\n")
        assert _answer(line) == (400, "bad_request", b"")


def test_a_form_for_signing_in_is_short_and_a_refusal_of_its_token_reads_no_more(
    running_server: RunningServer,
) -> None:
    with _line(running_server) as line:
        line.sendall(_head(running_server, "/sign-in", f"content-length: {LARGEST_FORM + 1}"))
        assert _answer(line) == (413, "too_large", b"")


def test_clients_without_a_token_hold_few_connections_and_close_none_of_known_clients(
    running_server: RunningServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedH11Protocol, "max_unknown", 8)
    known_connection = http.client.HTTPConnection(*_address(running_server), timeout=60)
    headers = {"authorization": f"Bearer {running_server.token}"}
    lines = []
    for number in range(40):
        known_connection.request("GET", "/api/me", headers=headers)
        assert known_connection.getresponse().read()
        if number == 0:
            first_address = known_connection.sock.getsockname()
        lines.append(_line(running_server))
        lines[-1].sendall(b"GET /studies/toy HTTP/1.1\r\nhost:" if number % 2 else b"")
    assert known_connection.sock.getsockname() == first_address, "it was closed"
    # the oldest were closed, the newest are open
    assert [_is_closed(line) for line in lines[:30]] == [True] * 30
    lines[-1].sendall(b" a\r\n\r\n")
    assert _answer(lines[-1])[0] == 401
    for line in lines:
        line.close()
    known_connection.close()


def test_what_is_asked_with_few_words_takes_no_large_body(client: httpx.Client) -> None:
    body = b" " * (LARGEST_ELSEWHERE + 1)
    for path in ("/api/tokens", "/studies/toy/pause"):
        assert _refusal(client.post(path, content=body, headers=JSON)) == (413, "too_large"), path


def test_a_body_that_dribbles_in_is_not_waited_for(running_server: RunningServer) -> None:
    running_server.app.add_middleware(BodyLimitMiddleware, longest=0.3)
    with _line(running_server) as line:
        line.sendall(_head(running_server, "/api/studies", "content-length: 1000"))
        for byte in b'{"sp':
            line.sendall(bytes([byte]))
        status, error, trailing = _answer(line)
    assert (status, error, trailing) == (408, "too_slow", b"")


@pytest.mark.parametrize(
    "first", [b"", b"POST /api/stu", b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\nGET /api"]
)
def test_headers_that_dribble_in_are_not_waited_for(
    running_server: RunningServer, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(LimitedH11Protocol, "longest", 0.3)
    with _line(running_server) as line:
        line.sendall(first)
        while line.recv(65536):
            pass


def test_slow_connections_do_not_block_other_clients(
    running_server: RunningServer, client: httpx.Client
) -> None:
    lines = [_line(running_server) for _ in range(100)]
    try:
        for number, line in enumerate(lines):
            head = _head(running_server, "/api/studies", "content-length: 1000")
            line.sendall(head if number % 2 else head[:40])
        for _ in range(20):
            assert client.get("/api/me").status_code == 200
    finally:
        for line in lines:
            line.close()


def test_requests_that_come_twice_do_once_what_they_do(
    running_server: RunningServer, client: httpx.Client
) -> None:
    study = client.get("/api/studies/toy/row").json()
    ids, count = {"study": study["id"]}, len(client.get("/api/studies/toy/tickets").json())
    body = {"add_trials": 2, "version": study["version"]}
    first, second = (client.post("/api/studies/toy/resume", json=body) for _ in range(2))
    assert first.status_code == 200
    assert _refusal(second) == (409, "study_changed")
    assert len(client.get("/api/studies/toy/tickets").json()) == count + 2
    assert [client.post("/api/studies/toy/pause", params=ids).status_code for _ in range(2)] == [200, 200]
    token_row = client.post("/api/tokens", json=BODIES["/api/tokens"]).json()
    revocations = [client.delete(f"/api/tokens/{token_row['id']}").json()["revoked"] for _ in range(2)]
    assert revocations[0] == revocations[1] is not None
    other_spec = {**toy_spec(), "study": {**toy_spec()["study"], "name": "other"}}
    submissions = [client.post("/api/studies", json={"spec": other_spec}) for _ in range(2)]
    assert [submission.status_code for submission in submissions] == [201, 200]
    ids = {"study": submissions[0].json()["id"]}
    assert client.delete("/api/studies/other", params=ids).status_code == 200
    assert _refusal(client.delete("/api/studies/other", params=ids)) == (404, "study_not_found")


# ---- lines by hand


def _address(server: RunningServer) -> tuple[str, int]:
    address = urlsplit(server.url)
    assert address.hostname is not None
    return address.hostname, address.port or 80


def _line(server: RunningServer) -> socket.socket:
    return socket.create_connection(_address(server), timeout=60)


def _is_closed(line: socket.socket) -> bool:
    """Return whether the server has closed a connection on which nothing was asked."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def _head(server: RunningServer, path: str, *lines: str) -> bytes:
    header_lines = [
        "host: server",
        f"authorization: Bearer {server.token}",
        "content-type: application/json",
        *lines,
    ]
    return "\r\n".join([f"POST {path} HTTP/1.1", *header_lines, "", ""]).encode()


def _answer(line: socket.socket) -> tuple[int, str, bytes]:
    """Return status and code of an answer, and what comes after it until the server closes the line."""
    answer = http.client.HTTPResponse(line)
    answer.begin()
    body = answer.read()
    code = json.loads(body)["error"]["code"] if answer.headers["content-type"] == "application/json" else ""
    return answer.status, code, line.recv(1024)

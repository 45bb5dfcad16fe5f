"""The dashboard's server against visitors who send half, too much, too slowly, or too many things."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waitress.trigger import trigger as Trigger

from tempopt.errors import UsageError
from tempopt.report.dashboard import server as room
from tempopt.report.dashboard.server import Server, listen, require_proxy

Serve = Callable[..., tuple[str, int]]


def _echo(environ: Any, start_response: Any) -> list[bytes]:
    told = {name: environ.get(name, "") for name in ("REMOTE_ADDR", "wsgi.url_scheme", "HTTP_HOST")}
    told["body"] = len(environ["wsgi.input"].read())
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(told).encode()]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve an application that tells what it was given; bodies are read where X-Known says so."""
    with contextlib.ExitStack() as opened:

        def start(app: Any = _echo, **named: Any) -> tuple[str, int]:
            bound = opened.enter_context(listen("127.0.0.1", 0))
            address: tuple[str, int] = bound.getsockname()
            server = Server(app, bound, may_send=lambda environ: "HTTP_X_KNOWN" in environ, **named)
            opened.callback(server.close)
            return address

        yield start


def _all(asking: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while more := asking.recv(65536):
            received += more
    return received


def _ask(address: tuple[str, int], *headers: str, body: bytes = b"") -> dict[str, Any]:
    lines = ["POST / HTTP/1.1", "Host: here", "Connection: close", f"Content-Length: {len(body)}", *headers]
    with socket.create_connection(address, timeout=60) as asking:
        asking.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        told: dict[str, Any] = json.loads(_all(asking).partition(b"\r\n\r\n")[2])
    return told


@pytest.mark.parametrize("length", ["Content-Length: 900000000", "Transfer-Encoding: chunked"])
def test_a_body_is_answered_before_it_is_sent_where_it_may_not_be(serve: Serve, length: str) -> None:
    address = serve()
    with socket.create_connection(address, timeout=60) as asking:
        asking.sendall(f"POST / HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\n{length}\r\n\r\n".encode())
        answer = _all(asking)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and b"Connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["body"] == 0


def test_what_follows_a_body_that_is_not_read_is_no_request(serve: Serve) -> None:
    address = serve()
    inner = b"GET /second HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.create_connection(address, timeout=60) as asking:
        head = f"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: {len(inner)}\r\n\r\n".encode()
        asking.sendall(head + inner)
        assert _all(asking).count(b"HTTP/1.1 200") == 1


def test_a_body_that_may_be_sent_is_read_up_to_a_mebibyte(serve: Serve) -> None:
    address = serve()
    assert _ask(address, "X-Known: yes", body=bytes(100_000))["body"] == 100_000
    assert _ask(address, body=bytes(100))["body"] == 0
    with socket.create_connection(address, timeout=60) as asking:
        asking.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nX-Known: yes\r\nContent-Length: 2000000\r\n\r\n")
        assert asking.recv(100).startswith(b"HTTP/1.1 413 ")


def test_half_a_request_is_ended_however_it_trickles_in(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_REQUEST_SECONDS", 2.0)
    address = serve()
    with socket.create_connection(address, timeout=60) as asking:
        asking.sendall(b"GET / HTTP/1.1\r\n")
        ended = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                while not ended.wait(0.1):
                    asking.sendall(b"X: y\r\n")

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            assert _all(asking) == b""
        finally:
            ended.set()
            sender.join()


def test_hundreds_of_half_requests_keep_nobody_out(serve: Serve) -> None:
    address = serve()
    with contextlib.ExitStack() as held:
        for _ in range(room._CONNECTIONS + 50):
            half = held.enter_context(socket.create_connection(address, timeout=60))
            half.sendall(b"GET / HTTP/1.1\r\nHost: he")
        assert _ask(address)["HTTP_HOST"] == "here"


def test_only_a_trusted_proxy_is_believed(serve: Serve) -> None:
    forwarded = ("X-Forwarded-For: 192.0.2.7", "X-Forwarded-Proto: https", "X-Forwarded-Host: name.example")
    believed = _ask(serve(trusted_proxy="127.0.0.1"), *forwarded)
    assert [believed[name] for name in ("REMOTE_ADDR", "wsgi.url_scheme")] == ["192.0.2.7", "https"]
    assert believed["HTTP_HOST"] == "name.example"
    for given in ({"trusted_proxy": "192.0.2.1"}, {}):
        told = _ask(serve(**given), *forwarded)
        assert [told[name] for name in ("REMOTE_ADDR", "wsgi.url_scheme")] == ["127.0.0.1", "http"]
        assert told["HTTP_HOST"] == "here"


@pytest.mark.parametrize("given", ["", "*", "proxy.example", "10.0.0.0/8"])
def test_a_proxy_is_an_ip_address(given: str) -> None:
    with pytest.raises(UsageError, match=r"is no IP address.*--trusted-proxy 127.0.0.1"):
        require_proxy(given)
    assert require_proxy("::1") == "::1"


def test_a_request_in_progress_ends_before_its_server(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(environ: Any, start_response: Any) -> list[bytes]:
        begun.set()
        assert go.wait(30)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"whole"]

    with listen("127.0.0.1", 0) as bound:
        server = Server(slow, bound, may_send=lambda environ: False)
        with socket.create_connection(bound.getsockname(), timeout=60) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            assert begun.wait(30)
            threading.Timer(0.3, go.set).start()
            server.close()
            assert _all(asking).endswith(b"whole")
    assert not caplog.records


def test_a_request_that_ends_at_the_same_moment_closes_nothing_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pull = Trigger._physical_pull

    def beside_a_request(self: Trigger) -> None:
        pull(self)
        time.sleep(0.2)
        pull(self)

    with listen("127.0.0.1", 0) as bound:
        server = Server(_echo, bound, may_send=lambda environ: False)
        monkeypatch.setattr(Trigger, "_physical_pull", beside_a_request)
        server.close()
        assert bound.fileno() == -1

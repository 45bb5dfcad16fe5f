"""Clients that do not finish the handshake of TLS: few are kept, none for long, and others are served."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tempopt.server.serving import LimitedH11Protocol
from tests.server.http_server import RunningServer

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a ClientHello."""


@pytest.fixture
def tls_client(
    running_server: RunningServer, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    """A client that may do everything, to a server with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    monkeypatch.setattr(LimitedH11Protocol, "tls", context)
    headers = {"authorization": f"Bearer {running_server.token}"}
    with httpx.Client(
        base_url=running_server.url.replace("http:", "https:"),
        headers=headers,
        verify=ssl.create_default_context(cafile=certificate[0]),
        timeout=60,
    ) as client:
        yield client


def _connect(server: RunningServer) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port or 443), timeout=60)


def _read_end(connection: socket.socket) -> bytes:
    """Return what the server sends until it closes a connection."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_others_are_served_while_many_do_not_finish_their_handshake(
    running_server: RunningServer, tls_client: httpx.Client
) -> None:
    connections = [_connect(running_server) for _ in range(500)]
    for byte in HELLO:
        for connection in connections[:250]:
            connection.sendall(bytes([byte]))
        assert tls_client.get("/api/me").json()["name"] == "admin"
    for connection in connections:
        connection.close()
    assert tls_client.get("/api/me").status_code == 200


@pytest.mark.parametrize("first", [b"", HELLO])
def test_a_handshake_that_is_not_finished_is_not_waited_for(
    running_server: RunningServer, tls_client: httpx.Client, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(LimitedH11Protocol, "longest", 0.3)
    with _connect(running_server) as connection:
        connection.sendall(first)
        _read_end(connection)


def test_what_is_not_tls_is_answered_with_an_alert(
    running_server: RunningServer, tls_client: httpx.Client
) -> None:
    with _connect(running_server) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b"HTTP" not in _read_end(connection)
    assert tls_client.get("/api/me").status_code == 200


def test_the_oldest_unfinished_handshakes_are_closed(
    running_server: RunningServer, tls_client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedH11Protocol, "max_unknown", 8)
    assert tls_client.get("/api/me").status_code == 200
    connections = [_connect(running_server) for _ in range(40)]
    assert [_read_end(connection) for connection in connections[:30]] == [b""] * 30
    assert tls_client.get("/api/me").status_code == 200
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    running_server: RunningServer,
    tls_client: httpx.Client,
    certificate: tuple[Path, Path],
    version: ssl.TLSVersion,
) -> None:
    context = ssl.create_default_context(cafile=certificate[0])
    context.minimum_version = context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with _connect(running_server) as connection:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(outgoing.read())
                incoming.write(connection.recv(65536))
        client.write(b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        connection.sendall(outgoing.read())
        incoming.write(_read_end(connection))
    assert client.read().startswith(b"HTTP/1.1 200 OK")

"""``tempopt serve``: run the application on a socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tempopt.errors import UsageError
from tempopt.server.app import create_app
from tempopt.server.app_state import ServerState
from tempopt.storage.checkpoints import error_reason, normalize_checkpoint_url
from tempopt.storage.store import Store

# Seconds that requests in progress have when the server shuts down.
_GRACE_SECONDS = 10
LONGEST_HEAD_SECONDS = 30.0
"""Maximal seconds from the opening of a connection, or the first byte of a request, to its last header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Address and certificate of a server.

    Args:
        host: Address or name.
        port: Port; 0: a free one.
        certificate: File with the certificate chain, for TLS; None: plain HTTP.
        key: File with its private key.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def serve(
    store: Store,
    *,
    checkpoints: str,
    listening: Listening,
    proxies: Sequence[str] = (),
    on_start: Callable[[str], None],
) -> None:
    """Serve the studies of a store until SIGINT or SIGTERM.

    Args:
        store: The database.
        checkpoints: Folder for checkpoints, or a URL such as ``s3://bucket/folder``.
        listening: Address and certificate.
        proxies: Addresses and networks of proxies whose X-Forwarded-For and -Proto are trusted.
        on_start: Called with the URL once the server listens.

    Raises:
        UsageError: The server cannot listen on the address, the certificate is invalid, or checkpoints cannot
            be written.
    """
    _check_certificate(listening)
    sock = _bind_socket(listening)
    with sock:
        app = create_app(store, checkpoints=normalize_checkpoint_url(checkpoints))
        config = uvicorn.Config(
            app,
            http=TimeoutH11Protocol,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=listening.certificate,
            ssl_keyfile=listening.key,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
        )
        shared: ServerState = app.state.tempopt
        server = _Server(config, leaving=shared.is_shutting_down.set)
        scheme = "http" if listening.certificate is None else "https"
        host, port = sock.getsockname()[:2]
        on_start(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        logging.getLogger("tempopt.server").setLevel(logging.INFO)
        try:
            server.run(sockets=[sock])
        finally:
            shared.is_shutting_down.set()


class TimeoutH11Protocol(H11Protocol):
    """uvicorn's HTTP protocol with a timeout for the headers of a request."""

    longest = LONGEST_HEAD_SECONDS
    _awaited: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process data; keep waiting while headers are incomplete."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is complete
            self._stop_timeout()
        elif self._awaited is None:
            self._start_timeout()

    def _start_timeout(self) -> None:
        self._awaited = self.loop.call_later(self.longest, self.timeout_keep_alive_handler)

    def _stop_timeout(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None


class _Server(uvicorn.Server):
    """uvicorn's server, which answers waiting requests for tickets when it shuts down."""

    def __init__(self, config: uvicorn.Config, *, leaving: Callable[[], None]) -> None:
        super().__init__(config)
        self._leaving = leaving

    def handle_exit(self, sig: int, frame: object) -> None:
        self._leaving()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]
        # a signal is the normal end of a server
        self._captured_signals.clear()


def _check_certificate(listening: Listening) -> None:
    if listening.certificate is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(listening.certificate, listening.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"The certificate {listening.certificate} and its key {listening.key} cannot be used "
            f"({error_reason(error)}). Give files in PEM: the certificate chain, and the private key "
            "without a password."
        ) from error


def _bind_socket(listening: Listening) -> socket.socket:
    family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((listening.host, listening.port))
        sock.listen(2048)
    except (OSError, OverflowError) as error:
        sock.close()
        raise UsageError(
            f"The server cannot listen on {listening.host}:{listening.port} ({error_reason(error)}). Give "
            "another --host or --port; --port 0 selects a free one."
        ) from error
    return sock

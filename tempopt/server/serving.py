"""``tempopt serve``: run the application on a socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import resource
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

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
"""Maximal seconds from the opening of a connection, or the first byte of a request, to its last header; the
handshake of TLS is included."""
MAX_UNKNOWN = 4096
"""Maximal number of connections of clients that have shown no valid token, and at most half of all."""
# What macOS allows, too.
_MAX_DESCRIPTORS = 10_240
# Seconds between two lines of the log on connections that cannot be accepted.
_LOG_SECONDS = 60.0
# Seconds for the client's answer to the end of TLS: such a connection is not counted as unknown.
_TLS_CLOSE_SECONDS = 1.0
LOGGER = logging.getLogger("tempopt.server")


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
    LimitedH11Protocol.tls = _load_certificate(listening)
    LimitedH11Protocol.max_unknown = min(MAX_UNKNOWN, _raise_descriptor_limit() // 2)
    sock = _bind_socket(listening)
    with sock:
        app = create_app(store, checkpoints=normalize_checkpoint_url(checkpoints))
        config = uvicorn.Config(
            app,
            http=LimitedH11Protocol,
            # uvicorn warns of each request that is not HTTP
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
        )
        shared: ServerState = app.state.tempopt
        server = _Server(config, leaving=shared.is_shutting_down.set)
        scheme = "http" if listening.certificate is None else "https"
        host, port = sock.getsockname()[:2]
        on_start(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        LOGGER.setLevel(logging.INFO)
        try:
            server.run(sockets=[sock])
        finally:
            shared.is_shutting_down.set()


class LimitedH11Protocol(H11Protocol):
    """uvicorn's HTTP protocol with a timeout for headers, and few connections of unknown clients.

    One more closes the oldest of them, so that clients with a token are always accepted. It begins TLS
    itself: uvicorn sees a connection only after its handshake.
    """

    longest = LONGEST_HEAD_SECONDS
    max_unknown = MAX_UNKNOWN
    tls: ssl.SSLContext | None = None
    _handshake: asyncio.Task[None] | None = None
    _early_data = b""
    _awaited: asyncio.TimerHandle | None = None
    _opened_at = 0.0
    _is_known = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._opened_at = self.loop.time()
        self._start_timeout()
        if self.tls is not None:
            # what the client sends is for the handshake
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._shake_hands(transport, self.tls))
        connections = cast(set[LimitedH11Protocol], self.connections)
        if len(connections) <= self.max_unknown:
            return
        unknown = [connection for connection in connections if connection.is_unknown]
        if len(unknown) > self.max_unknown:
            min(unknown, key=lambda connection: connection._opened_at).transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        encrypted = None
        with contextlib.suppress(OSError):  # not TLS, or the client has left
            if not transport.is_closing():
                encrypted = await self.loop.start_tls(
                    transport, self, tls, server_side=True, ssl_shutdown_timeout=_TLS_CLOSE_SECONDS
                )
        if encrypted is None or transport.is_closing():
            transport.abort()
            self.connection_lost(None)
            return
        super().connection_made(encrypted)
        self.tls = None
        if self._early_data:
            self.data_received(self._early_data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timeout()
        super().connection_lost(exc)

    @property
    def is_unknown(self) -> bool:
        """Whether it waits for its client, and no request has shown a valid token or session."""
        self._is_known = self._is_known or (self.scope is not None and "principal" in self.scope["state"])
        # a whole request is answered: its token may be read just now
        is_answered = self.cycle is None or self.cycle.response_complete or self.cycle.more_body
        return is_answered and not (self._is_known or self.transport.is_closing())

    def data_received(self, data: bytes) -> None:
        """Process data; keep waiting while headers are incomplete."""
        if self.tls is not None:
            # came with the last message of the handshake: the encrypted transport is set in a moment
            self._early_data += data
            return
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
        self._logged_at = -math.inf

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, with few lines in the log while connections cannot be accepted."""
        asyncio.get_running_loop().set_exception_handler(self._log_error)
        await super().startup(sockets)

    def _log_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio reports it up to 2,048 times per second
        if getattr(context.get("exception"), "errno", None) not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = loop.time()
            LOGGER.error("Connections are not accepted: the limit of descriptors is reached (ulimit -n).")

    def handle_exit(self, sig: int, frame: object) -> None:
        self._leaving()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]
        # a signal is the normal end of a server
        self._captured_signals.clear()


def _raise_descriptor_limit() -> int:
    """Allow more connections than the usual limit of 1,024, if the system does, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _MAX_DESCRIPTORS:
        return _MAX_DESCRIPTORS
    limit = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def _load_certificate(listening: Listening) -> ssl.SSLContext | None:
    if listening.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(listening.certificate, listening.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"The certificate {listening.certificate} and its key {listening.key} cannot be used "
            f"({error_reason(error)}). Give files in PEM: the certificate chain, and the private key "
            "without a password."
        ) from error
    return context


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

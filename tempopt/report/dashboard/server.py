"""A WSGI application behind a real server, in a thread of its own: a port, an address, a clean end."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import create_server
from waitress.wasyncore import close_all

from tempopt.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication, WSGIEnvironment

_ALL = ("0.0.0.0", "::", "")
_END_SECONDS = 5.0
_LARGEST_BODY = 1024 * 1024
_REQUEST_SECONDS = 10.0
_IDLE_SECONDS = 60
_CONNECTIONS = 500
_CROWDED = 400
_PROXY_HEADERS = {"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"}


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Args:
        port: 0 to 65535; 0 takes one that is free.

    Raises:
        UsageError: The address is not to be had; the message says why and what to do.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"{port} is no port. Give a number from 1 to 65535, or 0 for any that is free.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(
            f'The host "{host}" is not known here: {error.strerror}. Give an address of this machine, as in '
            "--host 127.0.0.1."
        ) from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # a port whose last connections have not quite ended is free
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # what does not listen yet may be bound by others as well, and only one of them will listen
        bound.listen()
    except OSError as error:
        bound.close()
        raise UsageError(_why(error, host, port)) from None
    return bound


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        other = port + 1 if port < 65535 else 8080
        return (
            f"Port {port} of {host} is taken: another program, perhaps another dashboard, listens there. "
            f"Give another one, as in --port {other}, or --port 0 for any that is free."
        )
    if error.errno == errno.EACCES:
        return f"Port {port} may not be used by this user. Give one above 1023, as in --port 8080."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Give one that is, as in --host 127.0.0.1."
    return f"The dashboard cannot listen at {host}, port {port}: {error.strerror}."


def address(bound: socket.socket, host: str) -> str:
    """Return the URL at which a bound socket is reached."""
    port = bound.getsockname()[1]
    name = socket.gethostname() if host in _ALL else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


def require_proxy(given: str) -> str:
    """Return the address of a proxy.

    Raises:
        UsageError: It is not an IP address.
    """
    try:
        return str(ipaddress.ip_address(given))
    except ValueError:
        raise UsageError(
            f'The proxy "{given}" is no IP address. Give the one that the proxy connects from, as in '
            "--trusted-proxy 127.0.0.1."
        ) from None


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """Reads requests, and of their bodies only those that somebody may send; see ``Server``."""

    may_send: Callable[[WSGIEnvironment], bool]
    body_rcv: Any

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        if self.body_rcv is None:
            return
        environ = {"REQUEST_METHOD": self.command, "PATH_INFO": self.path, "QUERY_STRING": self.query}
        environ |= {f"HTTP_{name}": value for name, value in self.headers.items()}
        if not type(self).may_send(environ):
            # what would follow is the body: the connection ends with the answer
            self.body_rcv, self.content_length, self.chunked = None, 0, False
            self.expect_continue = False
            self.headers.pop("CONTENT_LENGTH", None)
            self.headers["CONNECTION"] = "close"


class _Channel(HTTPChannel):  # type: ignore[misc]
    """A connection whose requests have to be complete within seconds, however slowly they trickle in."""

    _began: float | None = None

    def __init__(self, server: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(server, *arguments, **named)
        if len(server.active_channels) > _CROWDED:
            idle = (c for c in server.active_channels.values() if not c.requests and not c.will_close)
            # the first is the oldest: who has sent nothing whole for longest makes room for who comes
            next(idle).will_close = True

    def received(self, data: bytes) -> bool:
        taken: bool = super().received(data)
        if self.request is None:
            self._began = None
        elif self._began is None:
            self._began = time.monotonic()
        return taken

    def readable(self) -> bool:
        if self._began is not None and time.monotonic() - self._began > _REQUEST_SECONDS:
            self.will_close = True
        return bool(super().readable())


class Server:
    """A WSGI server that works from its making until it is closed.

    Args:
        app: What it serves.
        bound: The socket that it listens at; the server closes it.
        may_send: Given method, path, query and headers of a request that has a body: whether the body, of at
            most 1 MiB, is read. Any other body is not, and the connection ends with the answer.
        trusted_proxy: IP address of a proxy whose X-Forwarded-For, -Host and -Proto are believed.
    """

    def __init__(
        self,
        app: WSGIApplication,
        bound: socket.socket,
        *,
        may_send: Callable[[WSGIEnvironment], bool],
        trusted_proxy: str | None = None,
    ) -> None:
        # a page asks for many things at once: that they queue is no news
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._map: dict[int, Any] = {}
        self._server = create_server(
            app,
            map=self._map,
            sockets=[bound],
            ident=None,
            max_request_body_size=_LARGEST_BODY,
            channel_timeout=_IDLE_SECONDS,
            cleanup_interval=5,
            connection_limit=_CONNECTIONS,
            asyncore_use_poll=True,
            trusted_proxy=trusted_proxy,
            trusted_proxy_headers=_PROXY_HEADERS if trusted_proxy is not None else set(),
        )
        parser = type("_Parser", (_Parser,), {"may_send": staticmethod(may_send)})
        self._server.channel_class = type("_Channel", (_Channel,), {"parser_class": parser})
        self._thread = threading.Thread(target=self._server.run, name="tempopt-dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, with every connection; requests in progress are given a moment."""
        # first: a request that ends writes to the trigger, which the next step closes
        self._server.task_dispatcher.shutdown(timeout=_END_SECONDS)
        pulled = threading.Event()
        # in the server's own thread, which else would wait for what is closed under its hands
        self._server.trigger.pull_trigger(lambda: self._close_everything(pulled))
        pulled.set()
        self._thread.join(_END_SECONDS)

    def _close_everything(self, pulled: threading.Event) -> None:
        # a request that ends pulls too: the trigger would be closed before it has been written to
        pulled.wait()
        for each in list(self._map.values()):
            if isinstance(each, HTTPChannel):
                # what nobody has read yet may lie in a file, which close_all would leave open
                each.handle_close()
        close_all(self._map, ignore_all=True)

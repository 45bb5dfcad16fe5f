"""A WSGI application behind a real server, in a thread of its own: a port, an address, a clean end."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from waitress.channel import HTTPChannel
from waitress.server import create_server
from waitress.wasyncore import close_all

from tempopt.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_ALL = ("0.0.0.0", "::", "")
_END_SECONDS = 5.0


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


class Server:
    """A WSGI server that works from its making until it is closed.

    Args:
        app: What it serves.
        bound: The socket that it listens at; the server closes it.
    """

    def __init__(self, app: WSGIApplication, bound: socket.socket) -> None:
        # a page asks for many things at once: that they queue is no news
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._map: dict[int, Any] = {}
        self._server = create_server(app, map=self._map, sockets=[bound], ident=None)
        self._thread = threading.Thread(target=self._server.run, name="tempopt-dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, with every connection; requests in progress are given a moment."""
        # first: a request that ends writes to the trigger, which the next step closes
        self._server.task_dispatcher.shutdown(timeout=_END_SECONDS)
        # in the server's own thread, which else would wait for what is closed under its hands
        self._server.trigger.pull_trigger(self._close_everything)
        self._thread.join(_END_SECONDS)

    def _close_everything(self) -> None:
        for each in list(self._map.values()):
            if isinstance(each, HTTPChannel):
                # what nobody has read yet may lie in a file, which close_all would leave open
                each.handle_close()
        close_all(self._map, ignore_all=True)

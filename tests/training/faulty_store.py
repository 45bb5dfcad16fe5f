"""A line to an S3 server that is slow, refuses, breaks off, or loses half of what goes over it."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.1"
FAULTS = ("slow", "500", "503", "cut", "silent", "half stored", "half sent")
_SLOW_SECONDS = 5.0


@dataclass
class StoreLine:
    """A proxy before an S3 server on this machine.

    Args:
        port: Port of the server.
        fault: One of :data:`FAULTS`; None: requests and answers pass as they are.
        methods: Requests that have the fault.
        num_faults: Number of requests that had it, by method.
    """

    port: int
    fault: str | None = None
    methods: tuple[str, ...] = ("PUT", "GET", "POST")
    num_faults: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

            def _pass(self) -> None:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    line.pass_on(self)

            do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _pass

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Say nothing: clients are killed here."""

        self._server = Listener((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Pass a request on, and its answer back, unless there is a fault."""
        body = _read_body(handler)
        fault = self.fault if handler.command in self.methods else None
        if fault is not None:
            self.num_faults[handler.command] = self.num_faults.get(handler.command, 0) + 1
        if fault == "slow":
            time.sleep(_SLOW_SECONDS)
        elif fault == "silent":
            self._over.wait()
        elif fault in ("500", "503"):
            _answer(handler, int(fault), [], b"<Error><Code>InternalError</Code></Error>")
            return
        elif fault == "half stored":
            body = body[: len(body) // 2]
        if fault in ("cut", "silent"):
            handler.close_connection = True
            return
        status, headers, answer = self._forward(handler, body)
        if fault == "half sent" and handler.command == "GET":
            _answer(handler, status, headers, answer, num_sent=len(answer) // 2)
            handler.close_connection = True
            return
        _answer(handler, status, headers, answer)

    def _forward(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        skipped = ("content-length", "transfer-encoding", "connection", "expect")
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in skipped}
        try:
            connection.request(handler.command, handler.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


def _read_body(handler: BaseHTTPRequestHandler) -> bytes:
    if "chunked" not in handler.headers.get("transfer-encoding", ""):
        return handler.rfile.read(int(handler.headers.get("content-length", 0)))
    chunks = []
    while size := int(handler.rfile.readline().partition(b";")[0], 16):
        chunks.append(handler.rfile.read(size))
        handler.rfile.readline()
    while handler.rfile.readline().strip():
        pass
    return b"".join(chunks)


def _answer(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: list[tuple[str, str]],
    body: bytes,
    *,
    num_sent: int | None = None,
) -> None:
    handler.send_response_only(status)
    length = str(len(body))
    for name, value in headers:
        if name.lower() == "content-length":
            length = value  # of the object, in an answer to HEAD
        elif name.lower() not in ("transfer-encoding", "connection"):
            handler.send_header(name, value)
    handler.send_header("content-length", length)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body[:num_sent])

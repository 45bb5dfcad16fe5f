"""A receiver of webhooks on a port of this machine, which keeps what it gets and answers as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Got:
    """One request: its headers, its body, and how it was answered."""

    headers: dict[str, str]
    body: str
    status: int

    def read(self, secret: str) -> Any:
        """Return what it tells, as the protocol's own library reads it; it refuses a wrong signature."""
        return Webhook(secret).verify(self.body, self.headers)


@dataclass(slots=True)
class Receiver:
    """What a receiver has got, and how it answers.

    Args:
        url: Where it listens.
        answers: Statuses of the answers, the first one first; when they are used up, all others are 204.
        behave: Called with the handler in place of answering; None: it answers.
    """

    url: str = ""
    answers: list[int] = field(default_factory=list)
    behave: Callable[[BaseHTTPRequestHandler], None] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    got: list[Got] = field(default_factory=list)

    def wait_for(self, count: int) -> list[Got]:
        """Return what it has got once that are so many requests."""
        give_up = time.monotonic() + PATIENCE
        while len(self.got) < count:
            assert time.monotonic() < give_up, f"{len(self.got)} of {count} requests came"
            time.sleep(0.02)
        return list(self.got)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Yield a receiver that listens."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Keep silent."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            if receiver.behave is not None:
                receiver.behave(self)
                return
            status = receiver.answers.pop(0) if receiver.answers else 204
            receiver.got.append(Got(dict(self.headers), body, status))
            self.send_response(status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?key=hidden"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)

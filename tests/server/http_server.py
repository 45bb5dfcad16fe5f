"""A server on a free port of this machine, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI

from tempopt.server.serving import LimitedH11Protocol
from tempopt.server.tokens import create_token
from tempopt.storage import Store
from tempopt.storage.http.wire import PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that runs.

    Args:
        url: Of the server.
        storage: URL of the database behind it.
        store: The server's own store, open.
        checkpoints: Folder under which it keeps checkpoints.
        app: What answers.
        token: One that may do everything; TEMPOPT_TOKEN in the test.
    """

    url: str
    storage: str
    store: Store
    checkpoints: Path
    app: FastAPI
    token: str

    def new_token(self, *scopes: str, studies: str = "") -> str:
        """Return a token with these scopes, on studies whose names begin so."""
        return create_token(self.store, name="other", scopes=scopes, studies=studies)[0]

    def client(self, token: str | None = None) -> httpx.Client:
        """Return a client that shows a token; None: the one that may do everything."""
        headers = {"authorization": f"Bearer {token or self.token}", "tempopt-protocol": str(PROTOCOL)}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)


@contextmanager
def serve_app(app: FastAPI, port: int = 0) -> Iterator[str]:
    """Yield the URL of an application that is served in a thread; at port 0 of any port that is free."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        http=LimitedH11Protocol,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        app.state.tempopt.is_shutting_down.set()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"

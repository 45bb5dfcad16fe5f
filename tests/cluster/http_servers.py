"""Servers in front of a study's database, and a line to them that loses replies and says things twice."""

from __future__ import annotations

import contextlib
import http.client
import random
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tempopt.server.tokens import create_token
from tempopt.storage.opening import open_store
from tests.cluster.studies import environment, spawn, tempopt
from tests.servers import free_port

# Beyond the time for which a server holds an answer back.
_PATIENCE = 90.0
TOKEN = "crew"


@dataclass
class Line:
    """A proxy between agents and servers, which picks one of those that are up for each request.

    Args:
        host: Address to listen on.
        ports: Those of the servers, on this machine's loopback.
        dropped: Share of the requests that are passed on and whose reply is lost.
        doubled: Share of the requests that are passed on twice.
    """

    host: str
    ports: list[int]
    dropped: float = 0.0
    doubled: float = 0.0
    seed: int = 0
    requests: int = 0
    lost: int = 0
    said_twice: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        line = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

            def _pass(self) -> None:
                line.pass_on(self)

            do_GET = do_POST = do_PUT = do_DELETE = _pass

        class SocketListener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: object, client_address: object) -> None:
                """Say nothing: clients are killed here."""

        self._server = SocketListener((self.host, 0), Handler)
        self.url = f"http://{self.host}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Pass a request on, and its answer back, unless it is lost."""
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        with self._lock:
            self.requests += 1
            lose = self._random.random() < self.dropped
            is_doubled = self._random.random() < self.doubled
            self.lost += lose
            self.said_twice += is_doubled
        answer = None
        with contextlib.suppress(OSError, http.client.HTTPException):
            if is_doubled:
                self._forward(handler, body)
            answer = self._forward(handler, body)
        if answer is None or lose:
            # the connection breaks, whatever became of the request
            handler.close_connection = True
            with contextlib.suppress(OSError):
                handler.connection.shutdown(socket.SHUT_RDWR)
            return
        status, headers, content = answer
        handler.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                handler.send_header(name, value)
        handler.send_header("content-length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _forward(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        with self._lock:
            ports = self._random.sample(self.ports, k=len(self.ports))
        for port in ports:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
            try:
                connection.connect()
            except OSError:
                # a balancer passes by what does not answer
                continue
            try:
                headers = {n: v for n, v in handler.headers.items() if n.lower() != "connection"}
                connection.request(handler.command, handler.path, body=body or None, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()
        raise ConnectionRefusedError


class HttpServers:
    """Some servers on one database, the line to them, and the token of the agents, which may be replaced.

    Args:
        folder: Where checkpoints, logs and the token lie.
        storage: URL of the database, which the servers alone reach.
        servers: Number of servers.
        host: Address at which agents reach the line.
    """

    def __init__(self, folder: Path, storage: str, servers: int, *, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.storage = storage
        self.ports = [free_port() for _ in range(servers)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * servers
        self.token_file = folder / "token"
        self._token_id = ""
        self.replace_token()
        self.admin_file = folder / "admin-token"
        with open_store(storage) as store:
            write_private(self.admin_file, create_token(store, name="admin", scopes=["admin"])[0])
        for number in range(servers):
            self.start(number)
        self.line = Line(host, self.ports)

    @property
    def url(self) -> str:
        """URL under which agents reach the servers."""
        return self.line.url

    def start(self, number: int) -> None:
        """Start a server, and wait until it answers."""
        log = self.folder / f"server-{number}.log"
        words = ["serve", "--storage", self.storage, "--checkpoints", str(self.folder / "kept")]
        command = tempopt(*words, "--port", str(self.ports[number]))
        process = self.processes[number] = spawn(command, self.folder, log, environment())
        deadline = time.monotonic() + _PATIENCE
        while not _answers(self.ports[number]):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)

    def end(self, number: int, blow: signal.Signals) -> None:
        """End a server: at once with SIGKILL, in good order with SIGTERM."""
        process = self.processes[number]
        assert process is not None
        process.send_signal(blow)
        process.wait()

    def replace_token(self) -> None:
        """Give the agents another token, and revoke the one that they have."""
        with open_store(self.storage) as store:
            token, row = create_token(store, name=TOKEN, scopes=["agent"])
            write_private(self.token_file, token)
            if self._token_id:
                store.revoke_token(self._token_id)
        self._token_id = row.id

    def close(self) -> None:
        """End everything."""
        self.line.close()
        for process in self.processes:
            if process is not None:
                process.kill()
                process.wait()


def write_private(path: Path, text: str) -> None:
    """Write a file that no other user may read."""
    new_path = path.with_suffix(".new")
    new_path.touch(mode=0o600)
    new_path.write_text(text)
    new_path.replace(path)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    return False

"""How a server answers while clients without a token hold connections open and send nothing more.

A third of them send nothing, a third a part of the headers, a third the headers of a body that never comes.
Each connection that the server closes is opened again. An agent trains for the server all the time; the
server starts with the usual limit of 1,024 descriptors.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tempopt.server.tokens import create_token
from tempopt.storage.opening import open_store

DESCRIPTORS = 1024
ROOT = Path(__file__).resolve().parents[1]
TRAIN = """import time, tempopt
run = tempopt.current_run()
for step in range(1, 100_000):
    run.report(1 / step, step=step)
    time.sleep(0.2)
"""
SPEC = {
    "study": {"name": "idle", "metric": "val_loss", "direction": "minimize", "trials": 4, "parallel": 1},
    "program": {"command": "python train.py {seed} {gain}", "metric": "val_loss"},
    "search": {"gain": {"low": 0.5, "high": 4.0, "baseline": 1.0}},
}
HEADS = (
    b"",
    b"GET /studies/idle HTTP/1.1\r\nhost:",
    b"POST /api/studies HTTP/1.1\r\nhost: a\r\ncontent-length: 900\r\n\r\n{",
)


def limit_descriptors() -> None:
    """Set the limit that most systems give a process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@contextmanager
def start(folder: Path, log: str, *words: str, limit: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Yield a tempopt command that runs, with its errors in a file."""
    with (folder / log).open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tempopt", *words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=limit_descriptors if limit else None,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


class Flood(threading.Thread):
    """Holds connections open, and opens those again that the server closes.

    Args:
        address: Host and port of the server.
        count: Number of connections.
    """

    def __init__(self, address: tuple[str, int], count: int) -> None:
        super().__init__(daemon=True)
        self.address, self.count = address, count
        self.opened = 0
        self.is_full, self.is_over = threading.Event(), threading.Event()

    def run(self) -> None:
        """Open connections until the end."""
        selector, connections = selectors.DefaultSelector(), set[socket.socket]()
        while not self.is_over.is_set():
            for _ in range(min(100, self.count - len(connections))):
                try:
                    connection = socket.create_connection(self.address, timeout=0.5)
                    connection.sendall(HEADS[self.opened % 3])
                except OSError:
                    break
                self.opened += 1
                selector.register(connection, selectors.EVENT_READ)
                connections.add(connection)
            if self.opened >= self.count:
                self.is_full.set()
            for key, _ in selector.select(0.2):
                connection = key.fileobj  # type: ignore[assignment]
                selector.unregister(connection)
                connections.discard(connection)
                connection.close()
        for connection in connections:
            connection.close()


def measure(folder: Path, count: int, seconds: float) -> None:
    """Print what pages took with so many idle connections."""
    storage = f"sqlite:///{folder / 'tempopt.db'}"
    with open_store(storage) as store:
        admin, _ = create_token(store, name="ada", scopes=["admin"])
        (folder / "agent.token").write_text(create_token(store, name="agents", scopes=["agent"])[0])
    (folder / "agent.token").chmod(0o600)
    (folder / "train.py").write_text(TRAIN)
    headers = {"authorization": f"Bearer {admin}"}
    with start(folder, "server.log", "serve", "--storage", storage, "--port", "0", limit=True) as server:
        assert server.stdout is not None
        url = next(line for line in server.stdout if " at http" in line).split()[-1]
        httpx.post(f"{url}/api/studies", json={"spec": SPEC}, headers=headers, timeout=60).raise_for_status()
        words = ("agent", "idle", "--server", url, "--token-file", "agent.token", "--workers", "1")
        with start(folder, "agent.log", *words) as agent:

            def num_reports() -> int:
                reports = httpx.get(
                    f"{url}/api/studies/idle/measurements", headers=headers, timeout=60, verify=False
                )
                return len(reports.raise_for_status().json())

            while not num_reports():
                assert agent.poll() is None, (folder / "agent.log").read_text()
                time.sleep(0.5)
            # the first page loads plotly
            httpx.get(f"{url}/studies/idle", headers=headers, timeout=60, verify=False).raise_for_status()
            parts = urlsplit(url)
            assert parts.hostname is not None and parts.port is not None
            flood = Flood((parts.hostname, parts.port), count)
            before, waits, failures = num_reports(), [], 0
            flood.start()
            flood.is_full.wait(60)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                started = time.monotonic()
                try:
                    page = httpx.get(f"{url}/studies/idle", headers=headers, timeout=15, verify=False)
                    assert page.status_code == 200, page.text
                except httpx.HTTPError:
                    failures += 1
                waits.append(time.monotonic() - started)
                time.sleep(0.5)
            flood.is_over.set()
            flood.join()
            log_size = (folder / "server.log").stat().st_size
            result = {
                "connections opened": flood.opened,
                "pages": len(waits),
                "failed": failures,
                "median s": round(statistics.median(waits), 3),
                "longest s": round(max(waits), 3),
                "bytes of log": log_size,
                "agent trains": agent.poll() is None,
            }
            print(json.dumps(result), flush=True)
            assert num_reports() > before and agent.poll() is None, "the agent no longer trains"


def main() -> None:
    """Measure with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.connections, arguments.seconds)


if __name__ == "__main__":
    main()

"""An agent's handle on the fork server, from which workers are forked with torch and Lightning loaded.

A worker that starts as a new interpreter spends some 5 s of CPU on imports; one that is forked, almost none.
The process itself is :mod:`tempopt.training.fork_server`. It is started with the first worker, serves all
agents of its process, and ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from tempopt.agent.interpreter import python_command
from tempopt.training.messages import INT32

# Libraries read variables that begin so when they are loaded, which a fork does no more: a worker is forked
# only from a fork server that was started with the same values.
_READ_AT_START = (
    *(
        "ATEN_",
        "BLIS_",
        "GOMP_",
        "KMP_",
        "LD_",
        "LIGHTNING_",
        "MALLOC_",
        "MKL_",
        "NUMEXPR_",
        "NVIDIA_",
        "OMP_",
    ),
    *("OPENBLAS_", "PL_", "PYTHON", "PYTORCH_", "TORCH", "VIRTUAL_ENV"),
)
# Each holds some 300 MB of memory. More than one is needed where workers have several numbers of threads.
_AT_MOST = 2


class ForkServerError(Exception):
    """The fork server has ended, and forks no more."""


class ForkServer:
    """One warm process, as the agent sees it.

    Args:
        environment: Its environment variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._control, peer_socket = socket.socketpair()
        with peer_socket:
            self._process = subprocess.Popen(
                python_command("tempopt.training.fork_server", str(peer_socket.fileno())),
                pass_fds=[peer_socket.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # Ctrl-C in the terminal is the agent's to handle
                start_new_session=True,
            )

    def fork(
        self,
        environment: Mapping[str, str],
        store: Path | None,
        *,
        connection: socket.socket,
        status: socket.socket,
    ) -> None:
        """Ask for a worker; returns before it is forked.

        Args:
            environment: All of its environment variables.
            store: The file at which the ranks of a worker meet; None for a worker of one process.
            connection: The worker's end of its connection with the agent.
            status: Where the fork server writes the process id and, later, the exit code.

        Raises:
            ForkServerError: It has ended.
        """
        request = {
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "store": store and str(store),
        }
        data = json.dumps(request).encode()
        descriptors = [connection.fileno(), status.fileno()]
        try:
            with self._lock:
                socket.send_fds(self._control, [INT32.pack(len(data))], descriptors)
                self._control.sendall(data)
        except OSError as error:
            raise ForkServerError from error

    def exit_code(self) -> int:
        """Return how it ended, once it has lost a worker."""
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def close(self) -> None:
        """Fork no more; it ends with the last of its workers."""
        self._control.close()

    def end(self) -> None:
        """Fork no more, and wait until it has ended; kills it if its workers keep it from that."""
        self.close()
        # who interrupts once more does not want to wait
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.wait(timeout=10)
            return
        self._process.kill()
        self._process.wait()


_fork_servers: dict[frozenset[tuple[str, str]], ForkServer] = {}
_retired: list[ForkServer] = []
_lock = threading.Lock()


def fork_server_for(environment: Mapping[str, str]) -> ForkServer:
    """Return a fork server whose forks equal new interpreters in an environment; start one if needed."""
    key = frozenset(variable for variable in environment.items() if variable[0].startswith(_READ_AT_START))
    with _lock:
        fork_server = _fork_servers.pop(key, None)
        if fork_server is not None and not fork_server.alive:
            fork_server.close()
            fork_server = None
        fork_server = fork_server or ForkServer(environment)
        _fork_servers[key] = fork_server
        while len(_fork_servers) > _AT_MOST:
            oldest = _fork_servers.pop(next(iter(_fork_servers)))
            oldest.close()
            _retired.append(oldest)
        _retired[:] = [old_server for old_server in _retired if old_server.alive]
        return fork_server


def _forget() -> None:
    """Leave the fork servers to the process that this one was forked from."""
    global _lock
    _lock = threading.Lock()
    _fork_servers.clear()
    _retired.clear()


@atexit.register
def _end() -> None:
    for fork_server in [*_fork_servers.values(), *_retired]:
        fork_server.close()
    for fork_server in [*_fork_servers.values(), *_retired]:
        fork_server.end()


os.register_at_fork(after_in_child=_forget)

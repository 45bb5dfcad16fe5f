"""An agent's handle on the zygote, the process with torch and Lightning loaded that workers are forked from.

A worker that starts as a new interpreter spends some 5 s of CPU on imports; one that is forked, almost none.
The zygote itself is :mod:`tempopt.training.zygote`. It is started with the first worker, serves all agents of
its process, and ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from tempopt.workers.interpreter import interpreter

NUMBER = struct.Struct("=i")
"""Encoding of process ids and exit codes."""

# Libraries read variables that begin so when they are loaded, which a fork does no more: a worker is forked
# only from a zygote that was started with the same values.
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


class ZygoteError(Exception):
    """The zygote has ended, and forks no more."""


class Zygote:
    """One warm process, as the agent sees it.

    Args:
        environment: Its environment variables.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._control, peer_socket = socket.socketpair()
        with peer_socket:
            self._process = subprocess.Popen(
                interpreter("tempopt.training.zygote", str(peer_socket.fileno())),
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
            status: Where the zygote writes the process id and, later, the exit code.

        Raises:
            ZygoteError: It has ended.
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
                socket.send_fds(self._control, [NUMBER.pack(len(data))], descriptors)
                self._control.sendall(data)
        except OSError as error:
            raise ZygoteError from error

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


_zygotes: dict[frozenset[tuple[str, str]], Zygote] = {}
_retired: list[Zygote] = []
_lock = threading.Lock()


def zygote_for(environment: Mapping[str, str]) -> Zygote:
    """Return a zygote whose forks equal new interpreters in an environment; starts one if there is none."""
    key = frozenset(variable for variable in environment.items() if variable[0].startswith(_READ_AT_START))
    with _lock:
        zygote = _zygotes.pop(key, None)
        if zygote is not None and not zygote.alive:
            zygote.close()
            zygote = None
        zygote = zygote or Zygote(environment)
        _zygotes[key] = zygote
        while len(_zygotes) > _AT_MOST:
            oldest = _zygotes.pop(next(iter(_zygotes)))
            oldest.close()
            _retired.append(oldest)
        _retired[:] = [old_zygote for old_zygote in _retired if old_zygote.alive]
        return zygote


def _forget() -> None:
    """Leave the zygotes to the process that this one was forked from."""
    global _lock
    _lock = threading.Lock()
    _zygotes.clear()
    _retired.clear()


@atexit.register
def _end() -> None:
    for zygote in [*_zygotes.values(), *_retired]:
        zygote.close()
    for zygote in [*_zygotes.values(), *_retired]:
        zygote.end()


os.register_at_fork(after_in_child=_forget)

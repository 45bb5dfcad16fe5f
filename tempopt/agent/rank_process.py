"""One operating system process of a worker, forked from a warm parent or started cold."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from tempopt.agent.fork_server import ForkServerError, fork_server_for
from tempopt.agent.interpreter import python_command
from tempopt.training.messages import INT32

COLD = "TEMPOPT_COLD_WORKERS"
"""Environment variable that starts every worker as a new interpreter."""


class RankProcess(Protocol):
    """One process, the leader of a process group with all processes that it starts."""

    connection: Connection

    @property
    def pid(self) -> int:
        """The process id; waits until the process has been started."""

    def end(self) -> None:
        """Kill the process group; does not wait."""

    def wait(self) -> int:
        """Wait until the process has ended and its group is gone; return the exit code, -N for signal N."""


def start_rank(environment: Mapping[str, str], store: Path | None = None) -> RankProcess:
    """Start a process that runs :mod:`tempopt.training.worker`.

    On Linux it is forked from a parent that has torch and Lightning loaded, which saves the seconds of CPU
    that importing them takes. Elsewhere, or if the environment variable ``TEMPOPT_COLD_WORKERS`` is set, it
    is a new interpreter.

    Args:
        environment: All of its environment variables.
        store: The file at which the ranks of a worker meet; None for a worker of one process.
    """
    # the parent of the forked ones has the packages of this process
    if sys.platform == "linux" and COLD not in os.environ:
        with contextlib.suppress(ForkServerError):
            return ForkedRank(environment, store)
    return ColdRank(environment, store)


class ColdRank:
    """A process with an interpreter of its own."""

    def __init__(self, environment: Mapping[str, str], store: Path | None = None) -> None:
        own_socket, peer_socket = socket.socketpair()
        with peer_socket:
            command = python_command("tempopt.training.worker", str(peer_socket.fileno()))
            self._process = subprocess.Popen(
                command if store is None else [*command, str(store)],
                pass_fds=[peer_socket.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # Ctrl-C in the terminal is the agent's to handle
                start_new_session=True,
            )
        self._lock = threading.Lock()
        self.connection = Connection(own_socket.detach())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def end(self) -> None:
        """Kill the process group; does not wait."""
        with self._lock:
            # one that was waited for has left its number, and so its group's, to others
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the process has ended and its group is gone; return the exit code, -N for signal N."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.end()
        with self._lock:
            return self._process.wait()


class ForkedRank:
    """A process that the fork server has forked, and kills and waits for on request.

    The fork server writes the process id to the status socket when it has forked, and the exit code when the
    process and its group are gone; it kills the group when a byte arrives there.
    """

    def __init__(self, environment: Mapping[str, str], store: Path | None = None) -> None:
        own_socket, peer_socket = socket.socketpair()
        self._status, status = socket.socketpair()
        with peer_socket, status:
            try:
                fork_server = fork_server_for(environment)
                fork_server.fork(environment, store, connection=peer_socket, status=status)
            except BaseException:
                own_socket.close()
                self._status.close()
                raise
        self._fork_server = fork_server
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._code: int | None = None
        self.connection = Connection(own_socket.detach())

    @property
    def pid(self) -> int:
        """The process id; waits until the process has been forked."""
        with self._lock:
            if self._pid is None:
                self._pid = self._number()
            if self._pid is None:
                raise ProcessLookupError("the parent of the workers has ended")
            return self._pid

    def end(self) -> None:
        """Kill the process group; does not wait."""
        with contextlib.suppress(OSError):
            self._status.send(b"K")

    def wait(self) -> int:
        """Wait until the process has ended and its group is gone; return the exit code, -N for signal N."""
        with self._lock:
            if self._code is None:
                if self._pid is None:
                    self._pid = self._number()
                code = self._number() if self._pid is not None else None
                self._code = self._fork_server.exit_code() if code is None else code
                self._status.close()
            return self._code

    def _number(self) -> int | None:
        with contextlib.suppress(OSError):
            if data := self._status.recv(INT32.size, socket.MSG_WAITALL):
                return int(INT32.unpack(data)[0])
        return None

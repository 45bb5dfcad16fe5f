"""One operating system process of a worker: forked from the fork server, or started as a new interpreter.

A worker that starts as a new interpreter spends some 5 s of CPU on imports; a forked worker almost none.
The fork server itself is :mod:`tempopt.training.fork_server`. It is started with the first worker, serves all
agents of this process, and ends with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from tempopt.program.process_tree import kill_descendants
from tempopt.training.messages import INT32

COLD = "TEMPOPT_COLD_WORKERS"
"""Environment variable that starts every worker as a new interpreter."""
_RUN = "import runpy, sys; sys.path.append({!r}); runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
# Libraries read variables with these prefixes when they are loaded, which a fork does not repeat: a worker is
# forked only from a fork server that was started with the same values.
_READ_AT_START = tuple(
    "ATEN_ BLIS_ GOMP_ KMP_ LD_ LIGHTNING_ MALLOC_ MKL_ NUMEXPR_ NVIDIA_ OMP_ OPENBLAS_ PL_ PYTHON "
    "PYTORCH_ TORCH VIRTUAL_ENV".split()
)
# A fork server holds some 300 MB of memory. Workers with different numbers of threads need one each.
_MAX_FORK_SERVERS = 2


def start_rank(environment: Mapping[str, str], store: Path | None = None) -> RankProcess:
    """Start a process that runs :mod:`tempopt.training.worker`.

    On Linux it is forked from a parent that has torch and Lightning loaded, which saves the seconds of CPU
    that importing them takes. Elsewhere, or if the environment variable ``TEMPOPT_COLD_WORKERS`` is set, it
    is a new interpreter.

    Args:
        environment: All environment variables of the process.
            store: File for the rendezvous of the ranks of a worker; None for a worker of one process.
    """
    # the fork server has the packages of this process
    if sys.platform == "linux" and COLD not in os.environ:
        with contextlib.suppress(ForkServerError):
            return ForkedRank(environment, store)
    return ColdRank(environment, store)


class ColdRank:
    """A process with its own interpreter."""

    module = "tempopt.training.worker"

    def __init__(self, environment: Mapping[str, str], store: Path | None = None) -> None:
        own_socket, peer_socket = socket.socketpair()
        with peer_socket:
            command = python_command(self.module, str(peer_socket.fileno()))
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
            # after it was waited for, another process may have its id
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


class ProgramRank(ColdRank):
    """A process that runs commands and functions, without torch and Lightning.

    What a command has started may have left the process group, as the processes of torchrun do.
    """

    module = "tempopt.program.worker"

    def end(self) -> None:
        """Kill the process and all that it has started; does not wait."""
        if self._process.returncode is None:
            kill_descendants(self._process.pid)
        super().end()


class ForkedRank:
    """A process that the fork server forks, kills and waits for.

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
                self._pid = self._receive_number()
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
                    self._pid = self._receive_number()
                code = self._receive_number() if self._pid is not None else None
                self._code = self._fork_server.exit_code() if code is None else code
                self._status.close()
            return self._code

    def _receive_number(self) -> int | None:
        with contextlib.suppress(OSError):
            if data := self._status.recv(INT32.size, socket.MSG_WAITALL):
                return int(INT32.unpack(data)[0])
        return None


RankProcess = ColdRank | ForkedRank
"""A process that leads the process group of all processes that it starts."""


class ForkServerError(Exception):
    """The fork server has ended."""


class ForkServer:
    """The agent's handle of one fork server.

    Args:
        environment: Environment variables of the fork server.
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
        """Request a worker; returns before it is forked.

        Args:
            environment: All environment variables of the worker.
            store: File for the rendezvous of the ranks of a worker; None for a worker of one process.
            connection: The worker's end of its connection with the agent.
            status: Socket to which the fork server writes the process id and, later, the exit code.

        Raises:
            ForkServerError: The fork server has ended.
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
        """Return the exit code of the fork server; call this after a worker of it was lost."""
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    @property
    def alive(self) -> bool:
        """Whether it can still fork."""
        return self._process.poll() is None

    def close(self) -> None:
        """Let the fork server end with the last of its workers; it forks no more."""
        self._control.close()

    def end(self) -> None:
        """Close the fork server and wait until it has ended; kill it if its workers do not end in 10 s."""
        self.close()
        # a second interrupt means: do not wait
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.wait(timeout=10)
            return
        self._process.kill()
        self._process.wait()


_fork_servers: dict[frozenset[tuple[str, str]], ForkServer] = {}
_retired: list[ForkServer] = []
_lock = threading.Lock()


def fork_server_for(environment: Mapping[str, str]) -> ForkServer:
    """Return a fork server whose forks equal new interpreters with an environment; start it if needed."""
    key = frozenset(variable for variable in environment.items() if variable[0].startswith(_READ_AT_START))
    with _lock:
        fork_server = _fork_servers.pop(key, None)
        if fork_server is not None and not fork_server.alive:
            fork_server.close()
            fork_server = None
        fork_server = fork_server or ForkServer(environment)
        _fork_servers[key] = fork_server
        while len(_fork_servers) > _MAX_FORK_SERVERS:
            oldest = _fork_servers.pop(next(iter(_fork_servers)))
            oldest.close()
            _retired.append(oldest)
        _retired[:] = [old_server for old_server in _retired if old_server.alive]
        return fork_server


def _forget() -> None:
    """Forget the fork servers in a forked process: they belong to its parent."""
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


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of tempopt as a program.

    As ``python -m``, except that the current folder is not first on the path: else torch would import a
    ``random.py`` of the user there.

    Args:
        module: Name of the module.
        arguments: Its arguments.
    """
    # the folder of this package, which need not be installed
    folder = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-P", "-c", _RUN.format(folder, module), *arguments]

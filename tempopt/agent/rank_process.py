"""One operating system process of a worker, forked from a warm parent, the fork server, or started cold.

A worker that starts as a new interpreter spends some 5 s of CPU on imports; one that is forked, almost none.
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
# Libraries read variables that begin so when they are loaded, which a fork does no more: a worker is forked
# only from a fork server that was started with the same values.
_READ_AT_START = tuple(
    "ATEN_ BLIS_ GOMP_ KMP_ LD_ LIGHTNING_ MALLOC_ MKL_ NUMEXPR_ NVIDIA_ OMP_ OPENBLAS_ PL_ PYTHON "
    "PYTORCH_ TORCH VIRTUAL_ENV".split()
)
# Each holds some 300 MB of memory. More than one is needed where workers have several numbers of threads.
_AT_MOST = 2


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


RankProcess = ColdRank | ForkedRank
"""One process, the leader of a process group with all processes that it starts."""


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


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of tempopt as a program.

    As ``python -m``, but that the current folder is not searched from the beginning: a person's own
    ``random.py`` there would be what torch imports.

    Args:
        module: Name of the module.
        arguments: Its arguments.
    """
    # where this package was found, which may have been by the folder alone
    folder = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-P", "-c", _RUN.format(folder, module), *arguments]

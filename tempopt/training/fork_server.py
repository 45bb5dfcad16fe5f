"""The process from which workers are forked: it has torch and Lightning loaded, and does not train.

Started by :mod:`tempopt.agent.rank_process` as ``python -m tempopt.training.fork_server FD``. It is the
parent of the workers, so that only it can kill and wait for one without a race for its process id. It has one
thread, has not initialised CUDA and has run no parallel region, all of which a fork would break.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from tempopt.class_loading import find_modules_in
from tempopt.training.messages import INT32

_PR_SET_PDEATHSIG = 1
# Workers exit by themselves after their agent; one that hangs is killed after this many seconds.
_PATIENCE = 10.0


@dataclasses.dataclass(frozen=True)
class _Child:
    pid: int
    status: socket.socket


class ForkServerProcess:
    """Forks workers on request, kills them on request, and reports their exit.

    Args:
        control: Socket of the requests; its end means that there will be no more.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, _Child] = {}
        self._orphaned_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._request)
        # the standard way to wait for children and sockets at once
        self._wakeup, wakeup = socket.socketpair()
        for wakeup_socket in (self._wakeup, wakeup):
            wakeup_socket.setblocking(False)
        self._wakeup_writer = wakeup
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._drain_wakeup_socket)

    def serve(self) -> None:
        """Serve until no more requests can come and the last child has exited."""
        while self._control.fileno() >= 0 or self._children:
            for key, _ in self._selector.select(timeout=self._orphan_seconds_left()):
                key.data(key.fileobj)
            for child in list(self._children.values()):
                if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
                    self._reap(child)
            if self._orphan_seconds_left() == 0.0:
                for child in self._children.values():
                    _kill(child.pid)

    def _orphan_seconds_left(self) -> float | None:
        """Return the seconds after which workers without an agent are killed; None if there is an agent."""
        if self._orphaned_at is None or not self._children:
            return None
        return max(0.0, self._orphaned_at + _PATIENCE - time.monotonic())

    def _drain_wakeup_socket(self, wakeup: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while wakeup.recv(4096):
                pass

    def _request(self, control: socket.socket) -> None:
        data, fds, _, _ = socket.recv_fds(control, INT32.size, 2)
        if not data:
            self._selector.unregister(control)
            control.close()
            return
        while len(data) < INT32.size:
            data += control.recv(INT32.size - len(data))
        request = json.loads(control.recv(INT32.unpack(data)[0], socket.MSG_WAITALL))
        connection, status = fds
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(status)
            self._become_worker(connection, request, parent)
        os.close(connection)
        child = _Child(pid, socket.socket(fileno=status))
        self._children[pid] = child
        # the end of the agent is detected where its socket is read
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            child.status.send(INT32.pack(pid))
        self._selector.register(child.status, selectors.EVENT_READ, lambda _: self._on_status_readable(child))

    def _on_status_readable(self, child: _Child) -> None:
        """Kill a child at the agent's request, or if the agent has exited."""
        with contextlib.suppress(ConnectionResetError):
            if child.status.recv(64):
                _kill(child.pid)
                return
        self._selector.unregister(child.status)
        self._orphaned_at = time.monotonic()

    def _reap(self, child: _Child) -> None:
        # the process id cannot be reused before it has been waited for
        _kill(child.pid)
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.pid]
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.status)
        with contextlib.suppress(OSError):
            child.status.send(INT32.pack(os.waitstatus_to_exitcode(status)))
        child.status.close()

    def _become_worker(self, connection: int, request: dict[str, Any], parent: int) -> NoReturn:
        """Make the child equal to a new interpreter, and serve the agent."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # if only the fork server is killed, no process stays without a parent that waits for it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            self._selector.close()
            for open_socket in (self._control, self._wakeup, self._wakeup_writer):
                open_socket.close()
            for child in self._children.values():
                child.status.close()
            _apply_environment(request["environment"], request["folder"])
            from tempopt.training.worker import main

            main(connection, request["store"] and Path(request["store"]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)


def _apply_environment(environment: dict[str, str], folder: str) -> None:
    from tempopt.training.lightning_internals import set_rank

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    find_modules_in(folder)
    importlib.invalidate_caches()
    set_rank(int(environment.get("RANK", 0)))


def _kill(pid: int) -> None:
    """Kill a child that has not been waited for, and its process group if it has one."""
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _prepare() -> None:
    import torch

    import tempopt.training.dry_run
    import tempopt.training.gpu_memory
    import tempopt.training.ranks
    import tempopt.training.worker  # noqa: F401

    if torch.cuda.is_initialized():
        raise SystemExit("CUDA is initialised in the parent of the workers: set TEMPOPT_COLD_WORKERS=1.")
    # freeze existing objects, so that collection in children does not copy their pages
    gc.collect()
    gc.freeze()


def main(descriptor: int) -> None:
    """Load torch and Lightning, and fork workers until the agent has exited.

    Args:
        descriptor: Socket of the agent's requests.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _prepare()
    ForkServerProcess(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""An agent's handle on a trainer process; loads neither torch nor Lightning."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from tempopt.training.messages import Message, Ready, decode, encode


class TrainerProcess:
    """A warm trainer in a process of its own, which takes nothing down with it when it dies.

    Args:
        slot: Which of the agent's trainers it is, from 0.
        threads: CPU threads that its training may use, >= 1.
    """

    def __init__(self, *, slot: int, threads: int) -> None:
        self.slot = slot
        self.ready = False
        """Whether it is known to be warm."""
        ours, theirs = socket.socketpair()
        # MKL follows OpenMP; two numbers that differ have threads wait for each other. The store's URL may
        # hold a password, which is nothing to a person's training code.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "MKL_NUM_THREADS" and not name.startswith("TEMPOPT_STORAGE")
        }
        environment["OMP_NUM_THREADS"] = str(threads)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tempopt.training.serve", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                # Ctrl-C in the terminal is the agent's to handle
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Send one message; a trainer that has died shows on the next :meth:`receive`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send_bytes(encode(message))

    def receive(self) -> Message | None:
        """Return the next message, or None if the trainer has died."""
        try:
            message = decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        self.ready = self.ready or isinstance(message, Ready)
        return message

    def obituary(self) -> str:
        """Return in words how the process ended."""
        code = self._process.wait()
        if code < 0:
            names = {each.value: each.name for each in signal.Signals}
            return f"the trainer was killed by {names.get(-code, f'signal {-code}')}"
        return f"the trainer ended with exit code {code}"

    def end(self) -> None:
        """End the process, and what it has started, at once; that shows on the next :meth:`receive`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process at once, and wait until it has gone."""
        self.end()
        self._process.wait()
        self.connection.close()

"""Ctrl-C and SIGTERM as a wish that is heard between two steps of work, so that none is left half done."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupt:
    """Whether somebody wants the work to end, and a socket that becomes readable when they do."""

    def __init__(self) -> None:
        self.asked = False
        self.wake, self._signal = socket.socketpair()

    def ask(self, signum: int, frame: FrameType | None) -> None:
        """Take note of a signal; the second one does not wait."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._signal.send(b"!")

    def close(self) -> None:
        """Close the sockets."""
        self.wake.close()
        self._signal.close()


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Turn SIGINT and SIGTERM into an :class:`Interrupt` (main thread only: elsewhere they are not ours)."""
    interrupt = Interrupt()
    ours = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, interrupt.ask) for s in (signal.SIGINT, signal.SIGTERM)} if ours else {}
    try:
        yield interrupt
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        interrupt.close()

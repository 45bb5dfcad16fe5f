"""Ctrl-C and SIGTERM as a request that is read between two steps of work, so that each step is completed."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask an agent to shut down gracefully."""


class Interrupt:
    """A request to end the work, and a socket that becomes readable with it."""

    def __init__(self) -> None:
        self.is_requested = False
        self.wake, self._signal = socket.socketpair()

    def ask(self, signum: int, frame: FrameType | None) -> None:
        """Request the end; a second signal raises KeyboardInterrupt."""
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        self._signal.send(b"!")

    def close(self) -> None:
        """Close the sockets."""
        self.wake.close()
        self._signal.close()


@contextlib.contextmanager
def sigterm_as_keyboard_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at each of the signals (main thread only)."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _install_handler(interrupt):
        yield


@contextlib.contextmanager
def capture_signals() -> Iterator[Interrupt]:
    """StudyTurn the signals into an :class:`Interrupt` (main thread only)."""
    interrupt = Interrupt()
    try:
        with _install_handler(interrupt.ask):
            yield interrupt
    finally:
        interrupt.close()


@contextlib.contextmanager
def _install_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    is_main_thread = threading.current_thread() is threading.main_thread()
    # nohup ignores SIGHUP, so that the process outlives its terminal
    signums = [s for s in STOP_SIGNALS if signal.getsignal(s) != signal.SIG_IGN] if is_main_thread else []
    before = {signum: signal.signal(signum, handler) for signum in signums}
    try:
        yield
    finally:
        for signum, old_handler in before.items():
            signal.signal(signum, old_handler)

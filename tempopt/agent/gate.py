"""Whether an agent of the pool goes on with its study: one thread says so, another hears it between steps."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable

from tempopt.records.pool import Order

PATIENCE_SECONDS = 2.0
"""An agent that has found no run to begin for so long leaves its study to others."""
_ASKED_AFTER_SECONDS = 0.5
_ASKED_AGAIN_SECONDS = 5.0


class Gate:
    """What an agent is to do with the study that it serves; threads may share it.

    An agent that finds no run to begin says at which mark of the study it found none, and nobody is sent
    there until the mark is another. So it first gets the mark, and then looks once more: whatever may be
    begun at that mark it finds.

    Args:
        ask: Has the mark of the study got, which is then given to :meth:`marked`; does not wait for it.
    """

    def __init__(self, ask: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._order: Order = "serve"
        self._ask = ask
        self._asked = self._marked = -math.inf
        self.wake, self._ring = socket.socketpair()
        self.wake.setblocking(False)
        self._ring.setblocking(False)
        self.mark = ""
        """Mark of the study before it was looked for a run for the last time; empty: not known."""
        self.found_nothing = False
        """Whether the agent has left because there was no run to begin."""

    @property
    def order(self) -> Order:
        """What was said last."""
        return self._order

    def say(self, order: Order) -> None:
        """Have the agent do something else than before; it is woken."""
        with self._lock:
            if order == self._order:
                return
            self._order = order
            with contextlib.suppress(OSError):
                self._ring.send(b"!")

    def marked(self, mark: str) -> None:
        """Take note of a mark that the study had a moment ago; the empty text is none."""
        with self._lock:
            self.mark = mark
            self._marked = time.monotonic() if mark else -math.inf

    def heard(self) -> None:
        """Take note that the agent was woken."""
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)

    def dismisses(self, *, busy: bool, idle: float, looked: float) -> bool:
        """Return whether the agent leaves its study now.

        Args:
            busy: Whether it has a run in progress.
            idle: Seconds since it had one.
            looked: When it began to look for a run and then found that there is none, by the monotonic
                clock; minus infinity: never.
        """
        if self._order == "preempt":
            return True
        if busy:
            with self._lock:
                # a mark from before this run tells nothing of what comes after it
                self._asked = self._marked = -math.inf
            return False
        if self._order == "finish":
            return True
        now = time.monotonic()
        with self._lock:
            asks = idle >= _ASKED_AFTER_SECONDS and now - self._asked >= _ASKED_AGAIN_SECONDS
            if asks:
                self._asked = now
            self.found_nothing = idle >= PATIENCE_SECONDS and looked > self._marked > -math.inf
        if asks and not self.found_nothing:
            self._ask()
        return self.found_nothing

    def close(self) -> None:
        """Close what the agent is woken by; nothing is said any more."""
        with self._lock:
            self.wake.close()
            self._ring.close()

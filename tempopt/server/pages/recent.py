"""What was looked up a moment ago: looked up once for everybody who asks within seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Something that costs to look up; threads may share it.

    Args:
        look: Looks it up.
        seconds: For so long it is not looked up again.
        clock: Seconds that only grow.
    """

    def __init__(
        self, look: Callable[[], T], *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._seconds, self._clock = look, seconds, clock
        self._lock = threading.Lock()
        self._found: tuple[float, T] | None = None

    def now(self) -> T:
        """Return it, as it was no longer than those seconds ago."""
        # who comes while it is looked up waits, and looks it up no second time
        with self._lock:
            if self._found is None or self._clock() - self._found[0] >= self._seconds:
                self._found = self._clock(), self._look()
            return self._found[1]

    def forget(self) -> None:
        """Look it up the next time: something was changed here."""
        with self._lock:
            self._found = None

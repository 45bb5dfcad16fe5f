"""An agent's connection to the store, which is tried again while the store is away, but not for ever."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from tempopt.errors import StorageError, StoreBusy, StoreUnreachable, StudyFailed, StudyNotFound

T = TypeVar("T")
_LONGEST_PAUSE_SECONDS = 15.0
# An agent that cannot begin knows no spec, and so not its study.store_timeout: the default.
_BEGINNING_SECONDS = 1800.0
# not the global generator: waiting must not move anybody's random numbers
_JITTER = random.SystemRandom()


class StoreUnavailableError(Exception):  # not an error: a state of affairs that passes
    """The store cannot be reached just now."""


class StoreTimeoutError(StudyFailed):
    """The store has been away for longer than the study allows."""


class StoreRetryPolicy:
    """The line to the store: when it is broken, it is tried again after a while, but not for ever.

    Args:
        timeout: Seconds without the store after which there is no more trying.
        note: Called with a sentence when the store goes away and when it is back.
    """

    def __init__(self, *, timeout: float, note: Callable[[str], None]) -> None:
        self._timeout = timeout
        self.note = note
        self._pause = 0.0
        self._next = 0.0
        self._broken: float | None = None
        self._back = -math.inf
        # nothing but reading has failed since it broke
        self._still = True

    @property
    def broken(self) -> bool:
        """Whether the last thing that was tried failed."""
        return self._broken is not None

    def check(self) -> None:
        """Raise StoreUnavailableError if the store could not be reached a moment ago."""
        if time.monotonic() < self._next:
            raise StoreUnavailableError

    def call(self, work: Callable[[], T], *, reads: bool = False) -> T:
        """Return what the work returns.

        Args:
            work: What is to be done.
            reads: Whether it writes nothing. A store that gives answers and takes no writes stays broken.

        Raises:
            StoreUnavailableError: The store cannot be reached, or was not a moment ago.
            StoreTimeoutError: It has been away for too long.
            StudyNotFound: It is there, and the study is not.
            StudyFailed: It refuses the work, and would again.
        """
        self.check()
        try:
            result = work()
        except StoreUnreachable as error:
            self._fail(error, reads)
            raise StoreUnavailableError from error
        except StudyNotFound:
            raise
        except StorageError as error:
            # no outage: it would fail again for ever
            raise StudyFailed(str(error)) from error
        if self._broken is not None and (self._still or not reads):
            self.note(f"The store is back after {time.monotonic() - self._broken:.0f} s.")
            self._broken, self._pause, self._still = None, 0.0, True
            self._back = time.monotonic()
        return result

    @property
    def is_recovered(self) -> bool:
        """Whether other agents that lost the store at the same time have had time to reach it again."""
        return time.monotonic() - self._back > 2 * _LONGEST_PAUSE_SECONDS

    def _fail(self, error: StoreUnreachable, reads: bool) -> None:
        self._still = self._still and reads
        now = time.monotonic()
        if self._broken is None:
            self._broken = now
            self.note(
                f"{error} Training continues; results are kept on disk until the store can be reached again."
            )
        elif now - self._broken > self._timeout:
            raise StoreTimeoutError(
                f"The store has been away for {now - self._broken:.0f} s (study.store_timeout allows "
                f"{self._timeout:g} s). {error}"
            ) from error
        self._pause = min(max(2 * self._pause, 0.5), _LONGEST_PAUSE_SECONDS)
        self._next = now + self._pause * _JITTER.uniform(0.5, 1.0)


def retry_while_busy(work: Callable[[], T], *, note: Callable[[str], None]) -> T:
    """Return what the work returns, done anew as long as a store answers and cannot serve.

    Args:
        work: What is to be done; nothing of it is lost when it ends so.
        note: Called with a sentence when the waiting begins.

    Raises:
        StoreBusy: It has been so for half an hour.
    """
    began: float | None = None
    pause = 0.5
    while True:
        try:
            return work()
        except StoreBusy as error:
            now = time.monotonic()
            if began is None:
                began = now
                note(f"{error} This agent waits for it, for up to {_BEGINNING_SECONDS / 60:g} minutes.")
            if now - began > _BEGINNING_SECONDS:
                raise
        time.sleep(pause * _JITTER.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

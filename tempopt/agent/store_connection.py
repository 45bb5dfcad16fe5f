"""An agent's connection to the store: retries with a growing pause, up to a timeout."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from tempopt.errors import StorageError, StoreBusy, StoreUnreachable, StudyFailed, StudyNotFound

T = TypeVar("T")
_MAX_PAUSE_SECONDS = 15.0
# An agent that has not begun does not know study.store_timeout of the spec: its default.
_MAX_BUSY_SECONDS = 1800.0
# not the global generator: waiting must not change the user's random numbers
_JITTER = random.SystemRandom()


class StoreUnavailableError(Exception):  # not an error, but a temporary state
    """The store cannot be reached now."""


class StoreTimeoutError(StudyFailed):
    """The store could not be reached for longer than the study allows."""


class StoreRetryPolicy:
    """Calls of the store: after a failure, the next call is made after a pause, until a timeout.

    Args:
        timeout: Seconds without the store after which calls raise :class:`StoreTimeoutError`.
        note: Called with a sentence when the store cannot be reached, and when it can be reached again.
    """

    def __init__(self, *, timeout: float, note: Callable[[str], None]) -> None:
        self._timeout = timeout
        self.note = note
        self._pause_seconds = 0.0
        self._next_try_at = 0.0
        self._broken_at: float | None = None
        self._recovered_at = -math.inf
        # only reads have failed since then
        self._has_only_failed_to_read = True

    @property
    def is_broken(self) -> bool:
        """Whether the last call failed."""
        return self._broken_at is not None

    def check(self) -> None:
        """Raise StoreUnavailableError during the pause after a failed call."""
        if time.monotonic() < self._next_try_at:
            raise StoreUnavailableError

    def call(self, work: Callable[[], T], *, reads: bool = False) -> T:
        """Call a function that uses the store, and return its result.

        Args:
            work: The function.
            reads: Whether it only reads. After a failed write, a successful read does not end the outage.

        Raises:
            StoreUnavailableError: The store cannot be reached, or the pause after a failure is not over.
            StoreTimeoutError: It could not be reached for longer than the timeout.
            StudyNotFound: The study is not in the store.
            StudyFailed: The store refuses the request, and would refuse it again.
        """
        self.check()
        try:
            result = work()
        except StoreUnreachable as error:
            self._record_failure(error, reads)
            raise StoreUnavailableError from error
        except StudyNotFound:
            raise
        except StorageError as error:
            # not an outage: a retry would fail again
            raise StudyFailed(str(error)) from error
        if self._broken_at is not None and (self._has_only_failed_to_read or not reads):
            self.note(f"The store is back after {time.monotonic() - self._broken_at:.0f} s.")
            self._broken_at, self._pause_seconds, self._has_only_failed_to_read = None, 0.0, True
            self._recovered_at = time.monotonic()
        return result

    @property
    def is_recovered(self) -> bool:
        """Whether other agents that lost the store at the same time have had time to reach it again."""
        return time.monotonic() - self._recovered_at > 2 * _MAX_PAUSE_SECONDS

    def _record_failure(self, error: StoreUnreachable, reads: bool) -> None:
        self._has_only_failed_to_read = self._has_only_failed_to_read and reads
        now = time.monotonic()
        if self._broken_at is None:
            self._broken_at = now
            self.note(
                f"{error} Training continues; results are kept on disk until the store can be reached again."
            )
        elif now - self._broken_at > self._timeout:
            raise StoreTimeoutError(
                f"The store could not be reached for {now - self._broken_at:.0f} s (study.store_timeout "
                f"allows {self._timeout:g} s). {error}"
            ) from error
        self._pause_seconds = min(max(2 * self._pause_seconds, 0.5), _MAX_PAUSE_SECONDS)
        self._next_try_at = now + self._pause_seconds * _JITTER.uniform(0.5, 1.0)


def retry_while_busy(work: Callable[[], T], *, note: Callable[[str], None]) -> T:
    """Call a function until it no longer raises StoreBusy, and return its result.

    Args:
        work: The function; has to be repeatable.
        note: Called with a sentence when the waiting begins.

    Raises:
        StoreBusy: The store has been busy for half an hour.
    """
    busy_since: float | None = None
    pause = 0.5
    while True:
        try:
            return work()
        except StoreBusy as error:
            now = time.monotonic()
            if busy_since is None:
                busy_since = now
                note(f"{error} This agent waits for it, for up to {_MAX_BUSY_SECONDS / 60:g} minutes.")
            if now - busy_since > _MAX_BUSY_SECONDS:
                raise
        time.sleep(pause * _JITTER.uniform(0.5, 1.0))
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)

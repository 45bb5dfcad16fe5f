"""The turn of an agent on one of several studies: one thread writes when it ends, the agent reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Turn:
    """When an agent leaves its study for another one.

    Args:
        idle_seconds: It leaves after so long without a run to begin.
        better: Name of a study of higher priority: no more runs are begun, and the agent leaves when those
            in progress have ended; None: there is none.
        has_trained: Whether the agent has begun a run.
        found_no_run: Whether it left because there was no run to begin.
        reason: Why it left, as the end of a sentence; empty: nothing is left to do, or it was paused.
    """

    idle_seconds: float
    better: str | None = None
    has_trained: bool = False
    found_no_run: bool = False
    reason: str = ""

    def ends(self, *, idle_seconds: float, has_looked: bool) -> bool:
        """Return whether an agent without a run in progress leaves now.

        Args:
            idle_seconds: Seconds since it had one.
            has_looked: Whether it has looked for a run since then, and there was none.
        """
        if self.better is not None:
            self.reason = f": {self.better} has a higher priority"
            return True
        if has_looked and idle_seconds >= self.idle_seconds:
            self.found_no_run = True
            self.reason = ": no run of it can be begun now"
            return True
        return False

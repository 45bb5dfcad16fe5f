"""What an agent's disks refuse: told once when it begins and once when it is over, and waited for.

A run whose own code cannot write is returned and tried again after a pause. Checkpoints and logs that
cannot be written end no run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tempopt.agent.study_client import RunFolders
from tempopt.errors import StudyFailed
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import is_terminal

_LONGEST_PAUSE_SECONDS = 30.0


class DiskErrorTracker:
    """Keeps in mind what could not be written.

    Args:
        spec: The study's spec; ``study.store_timeout`` is how long a run that a disk refuses is tried.
        folders: Where runs are written.
        note: Called with a sentence when something cannot be written, and when it can be again.
    """

    def __init__(self, spec: StudySpec, folders: RunFolders, *, note: Callable[[str], None]) -> None:
        self._study = spec.study.name
        self._timeout = spec.study.store_timeout
        self._folders = folders
        self._note = note
        self._since: dict[str, float] = {}
        self._refused: dict[int, float] = {}
        self._pause = 0.0
        self.until = 0.0
        """When, by the monotonic clock, a run may be begun again."""

    def checkpoint(self, why: str) -> None:
        """Take note of a checkpoint: the empty text if it was written, or why it was not."""
        self._see(
            "Checkpoints",
            why,
            f"Checkpoints cannot be written to {self._folders.checkpoints} ({why}). Training continues "
            "without them: a run that is interrupted now continues from an earlier one, or begins again. "
            "Free some space there, or allow writing.",
        )

    def log(self, why: str | None) -> None:
        """Take note of a run's log: the empty text if it is whole, why it is not, or None if it is empty."""
        if why is None:
            return
        self._see(
            "Logs",
            why,
            f"Some of what runs print cannot be written to {self._folders.logs} ({why}) and is lost. "
            "Training continues. Free some space there, or allow writing.",
        )

    def _see(self, what: str, why: str, message: str) -> None:
        if why and what not in self._since:
            self._since[what] = time.monotonic()
            self._note(message)
        elif not why and what in self._since:
            self._note(f"{what} are written again after {time.monotonic() - self._since.pop(what):.0f} s.")

    def record_write_failure(self, ticket: TicketRow, why: str, tickets: Mapping[int, TicketRow]) -> None:
        """Take note of a run that could not write, was returned and is to be tried again after a pause.

        Args:
            ticket: Its ticket.
            why: The error.
            tickets: All tickets by id, as far as is known.

        Raises:
            StudyFailed: This went on for too long.
        """
        now = time.monotonic()
        # what another agent has trained meanwhile is none to wait for
        open_ids = {id for id, row in tickets.items() if not is_terminal(row)}
        self._refused = {id: start for id, start in self._refused.items() if id in open_ids}
        is_first = not self._refused
        seconds = now - self._refused.setdefault(ticket.id, now)
        name = f"{ticket.kind} {ticket.number}"
        if seconds > self._timeout:
            raise StudyFailed(
                f"The training of {name} could not write for {seconds:.0f} s (study.store_timeout allows "
                f"{self._timeout:g} s): {why}. The run is released. Free some space, or allow writing, and "
                f"continue: tempopt resume {self._study}"
            )
        if is_first:
            self._note(
                f"{name}: the training could not write: {why}. Free some space, or allow writing. The run is "
                f"tried again, for up to {self._timeout:g} s (study.store_timeout); no attempt is counted."
            )
        self._pause = min(max(2 * self._pause, 1.0), _LONGEST_PAUSE_SECONDS)
        self.until = now + self._pause

    def record_success(self, ticket: TicketRow) -> None:
        """Take note of a run that came to its end."""
        self._pause = self.until = 0.0
        start = self._refused.pop(ticket.id, None)
        if start is not None and not self._refused:
            self._note(
                f"{ticket.kind} {ticket.number}: the training could write again after "
                f"{time.monotonic() - start:.0f} s, and has ended."
            )

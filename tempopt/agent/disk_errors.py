"""Errors of an agent's disks: reported once when they begin and once when they are over.

A run whose own code cannot write is released and repeated after a pause. Checkpoints and logs that cannot be
written do not end a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tempopt.agent.study_client import RunFolders
from tempopt.errors import StudyFailed
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import is_terminal

_MAX_PAUSE_SECONDS = 30.0


class DiskErrorTracker:
    """Records what could not be written, and decides when runs may begin again.

    Args:
        spec: The study's spec; a run whose disk refuses to write is repeated for ``study.store_timeout``
            seconds.
        folders: Where runs are written.
        note: Called with a sentence when something cannot be written, and when it can be written again.
    """

    def __init__(self, spec: StudySpec, folders: RunFolders, *, note: Callable[[str], None]) -> None:
        self._study = spec.study.name
        self._timeout = spec.study.store_timeout
        self._folders = folders
        self._note = note
        self._refused_since: dict[str, float] = {}
        self._first_refusal_by_ticket: dict[int, float] = {}
        self._pause_seconds = 0.0
        self.paused_until = 0.0
        """Time on the monotonic clock from which runs may begin again."""

    def record_checkpoint(self, why: str) -> None:
        """Record a checkpoint: ``why`` is empty if it was written, else the reason why it was not."""
        self._record(
            "Checkpoints",
            why,
            f"Checkpoints cannot be written to {self._folders.checkpoints} ({why}). Training continues "
            "without them: a run that is interrupted now resumes from an earlier one, or starts again. "
            "Free some space there, or allow writing.",
        )

    def record_log(self, why: str | None) -> None:
        """Record a run's log: ``why`` is empty if the log is complete, None if nothing was printed."""
        if why is None:
            return
        self._record(
            "Logs",
            why,
            f"Some output of runs cannot be written to {self._folders.logs} ({why}) and is lost. "
            "Training continues. Free some space there, or allow writing.",
        )

    def _record(self, what: str, why: str, message: str) -> None:
        if why and what not in self._refused_since:
            self._refused_since[what] = time.monotonic()
            self._note(message)
        elif not why and what in self._refused_since:
            self._note(
                f"{what} are written again after {time.monotonic() - self._refused_since.pop(what):.0f} s."
            )

    def record_write_failure(self, ticket: TicketRow, why: str, tickets: Mapping[int, TicketRow]) -> None:
        """Record a run that could not write and was released; no run begins before a pause is over.

        Args:
            ticket: Its ticket.
            why: The error.
            tickets: All tickets by id, as known to this agent.

        Raises:
            StudyFailed: The run could not write for longer than ``study.store_timeout``.
        """
        now = time.monotonic()
        # a run that another agent has finished need not be waited for
        open_ids = {id for id, row in tickets.items() if not is_terminal(row)}
        self._first_refusal_by_ticket = {
            id: start for id, start in self._first_refusal_by_ticket.items() if id in open_ids
        }
        is_first = not self._first_refusal_by_ticket
        seconds = now - self._first_refusal_by_ticket.setdefault(ticket.id, now)
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
                f"repeated, for up to {self._timeout:g} s (study.store_timeout); no attempt is counted."
            )
        self._pause_seconds = min(max(2 * self._pause_seconds, 1.0), _MAX_PAUSE_SECONDS)
        self.paused_until = now + self._pause_seconds

    def record_success(self, ticket: TicketRow) -> None:
        """Record a run that reached its end."""
        self._pause_seconds = self.paused_until = 0.0
        start = self._first_refusal_by_ticket.pop(ticket.id, None)
        if start is not None and not self._first_refusal_by_ticket:
            self._note(
                f"{ticket.kind} {ticket.number}: the training could write again after "
                f"{time.monotonic() - start:.0f} s, and has ended."
            )

"""Queue of an agent's changes for the store; on disk while the store cannot be reached.

Every change has its attempt and may arrive twice; the order is preserved. The queue decides when changes are
sent.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tempopt.agent.store_connection import StoreRetryPolicy, StoreUnavailableError
from tempopt.errors import StudyFailed, UsageError
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    Change,
    ClaimRequest,
    RunEnded,
    WriteResult,
)
from tempopt.storage.http.wire import change_from_plain, change_to_plain
from tempopt.storage.liveness import is_dead

MAX_DELAY_SECONDS = 30.0
"""Maximal seconds for which changes are held back, and between two reads of the study's state."""
_URGENT = (RunEnded, AttemptLost, AttemptReleased)


class Writer(Protocol):
    """Receiver of changes: a database or a server."""

    def write(
        self,
        study_id: int,
        changes: Sequence[Change],
        *,
        agent: str,
        renew: Mapping[int, int],
        steps: Mapping[int, int],
        lease: float,
        take: ClaimRequest | None,
        version: int | None,
    ) -> WriteResult:
        """Write changes, as :meth:`tempopt.storage.store.Store.write`."""


class WriteQueue:
    """Changes on their way to the store, and the leases to renew.

    Args:
        store: Receiver of the changes.
        agent: Name of the agent.
        connection: Retry policy of the calls.
        study_id: Id of the study.
        lease: Seconds of a lease.
        folder: Folder of the file for changes that could not be delivered.
    """

    file_prefix = "undelivered-store-"
    """Prefix of the name of its file, which differs between database and server: a server does not know the
    checkpoints of agents that use the database, nor these those of a server."""
    min_delay_seconds = 2.0
    """Reports wait this long for others to be sent with them."""
    share_of_age = 0.2
    """Share of a run's age for which its reports may wait, if that is longer."""

    def __init__(
        self,
        *,
        store: Writer,
        agent: str,
        connection: StoreRetryPolicy,
        study_id: int,
        lease: float,
        folder: Path,
    ) -> None:
        self._store = store
        self.agent = agent
        self.connection = connection
        self._study_id = study_id
        self._lease = lease
        self._path = outbox_path(folder, agent, self.file_prefix)
        self._changes: list[Change] = []
        self._num_on_disk = self._file_bytes = 0
        self._is_full = False
        self._renewals: dict[int, tuple[int, float, int | None]] = {}
        self._due_at = math.inf
        self._delivered_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Change, *, age: float = 0.0) -> None:
        """Add a change.

        Args:
            change: The change.
            age: Seconds that its run has trained: reports of a long run may wait longer.
        """
        self._changes.append(change)
        delay = 0.0 if isinstance(change, _URGENT) else max(self.min_delay_seconds, self.share_of_age * age)
        self._due_at = min(self._due_at, time.monotonic() + delay)
        if self.connection.is_broken:
            self._spill()

    def renew(self, ticket_id: int, attempt: int, seconds: float, *, step: int | None = None) -> None:
        """Renew the lease of a run that has made progress, with the next delivery.

        Args:
            seconds: Seconds that the run has for its next progress.
            step: Optimizer steps that it has done, for display; None: not known yet.
        """
        self._renewals[ticket_id] = (attempt, seconds, step)

    def forget_lease(self, ticket_id: int) -> None:
        """Do not renew the lease of a run, which this agent no longer holds."""
        self._renewals.pop(ticket_id, None)

    @property
    def has_unreported_end(self) -> bool:
        """Whether the end of a run is not reported yet, so that the store still assigns its ticket to us."""
        return any(isinstance(change, _URGENT) for change in self._changes)

    def is_due(self) -> bool:
        """Return whether the queue should be flushed now."""
        now = time.monotonic()
        if self.connection.is_broken:
            # after an outage deliver first of all: our leases may be about to expire
            return True
        return now >= self._due_at or now - self._delivered_at >= min(MAX_DELAY_SECONDS, self._lease / 3)

    def flush(self, take: ClaimRequest | None = None, *, version: int | None = None) -> WriteResult:
        """Deliver all changes in one transaction.

        Args:
            take: Request for a ticket; see :meth:`tempopt.storage.store.Store.write`.
            version: Version of the tickets on which the changes are based.

        Raises:
            StoreUnavailableError: The store cannot be reached; the changes are kept, on disk too.
            StoreTimeoutError: The same, for longer than the timeout.
            StudyNotFound: The study has been deleted.
        """
        renew = {ticket_id: attempt for ticket_id, (attempt, _, _) in self._renewals.items()}
        steps = {ticket_id: step for ticket_id, (_, _, step) in self._renewals.items() if step is not None}
        # one lease for all runs: the longest of them
        lease = max((seconds for _, seconds, _ in self._renewals.values()), default=self._lease)
        try:
            write_result = self.connection.call(
                lambda: self._store.write(
                    self._study_id,
                    self._changes,
                    agent=self.agent,
                    renew=renew,
                    steps=steps,
                    lease=lease,
                    take=take,
                    version=version,
                ),
                reads=not (self._changes or renew or take),
            )
        except (StoreUnavailableError, StudyFailed):
            self._spill()
            raise
        self._changes, self._renewals, self._due_at = [], {}, math.inf
        self._delivered_at = time.monotonic()
        if self._num_on_disk:
            # if the file cannot be removed, the next agent delivers it again, which has no effect
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._num_on_disk = self._file_bytes = 0
        return write_result

    def _spill(self) -> None:
        """Write the new changes to disk; changes that cannot be written are kept, and tried again."""
        new_changes = self._changes[self._num_on_disk :]
        if not new_changes:
            return
        try:
            self._append("".join(_encode(change) for change in new_changes).encode())
        except OSError as error:
            if not self._is_full:
                why = error.strerror or str(error)
                self.connection.note(
                    f"Results cannot be written to {self._path.parent} either ({why}): they are only in the "
                    "memory of this process. Free some space, or allow writing, and do not end the process "
                    "before the store can be reached again; runs whose results are lost are repeated."
                )
            self._is_full = True
            return
        self._num_on_disk, self._is_full = len(self._changes), False

    def _append(self, lines: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # remove an incomplete line that a full disk has left
            file.truncate(self._file_bytes)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._file_bytes += len(lines)


def outbox_path(folder: Path, agent: str, prefix: str = WriteQueue.file_prefix) -> Path:
    """Return the file for the changes that an agent could not deliver."""
    return folder / f"{prefix}{agent.replace(':', '+')}.jsonl"


def iter_orphaned_queues(
    folder: Path, prefix: str = WriteQueue.file_prefix
) -> Iterable[tuple[Path, str, list[Change]]]:
    """Yield file, agent and changes of agents that died on this machine with undelivered changes."""
    for path in sorted(folder.glob(f"{prefix}*.jsonl")):
        agent = path.stem.removeprefix(prefix).replace("+", ":")
        if is_dead(agent):
            # another agent may have delivered and removed it
            with contextlib.suppress(FileNotFoundError):
                lines = path.read_text().splitlines()
                yield path, agent, [change for line in lines if (change := _decode(line))]


def _encode(change: Change) -> str:
    return json.dumps(change_to_plain(change)) + "\n"


def _decode(line: str) -> Change | None:
    """Return the change on one line, None if the line is incomplete."""
    try:
        return change_from_plain(json.loads(line))
    except (ValueError, TypeError, UsageError):
        return None

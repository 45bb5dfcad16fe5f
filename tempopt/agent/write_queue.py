"""What an agent has to tell the store: kept until it has arrived, on disk while the store is away.

Every change carries its attempt and may arrive twice; the order is kept. Decides when to speak, not what.
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

LATEST_SECONDS = 30.0
"""No longer is anything kept back, and so often at least an agent at work looks how the study stands."""
_URGENT = (RunEnded, AttemptLost, AttemptReleased)


class Writer(Protocol):
    """Where changes go: a store, or a server."""

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
        """Write changes; as :meth:`tempopt.storage.store.Store.write`."""


class WriteQueue:
    """Changes on their way to the store, and the leases that training has earned.

    Args:
        store: Where they go.
        agent: Whose runs they are about.
        connection: How it is reached.
        study_id: The study.
        lease: Seconds of a lease.
        folder: Folder of the file that holds what could not be delivered.
    """

    file_prefix = "undelivered-store-"
    """Start of the name of its file. An agent delivers what was to go the same way: a server does not know
    the checkpoints of agents that reach the database, nor they those of a server."""
    soonest_seconds = 2.0
    """Reports wait this long for others to go with them."""
    share_of_age = 0.2
    """Share of the age of a run for which its news may wait for more."""

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
        self._written = self._size = 0
        self._is_full = False
        self._renew: dict[int, tuple[int, float, int | None]] = {}
        self._due = math.inf
        self._delivered = time.monotonic()

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: Change, *, age: float = 0.0) -> None:
        """Take in a change.

        Args:
            change: What happened.
            age: Seconds that its run has trained: the news of a long run may wait a little longer.
        """
        self._changes.append(change)
        patience = 0.0 if isinstance(change, _URGENT) else max(self.soonest_seconds, self.share_of_age * age)
        self._due = min(self._due, time.monotonic() + patience)
        if self.connection.broken:
            self._spill()

    def renew(self, ticket_id: int, attempt: int, seconds: float, *, step: int | None = None) -> None:
        """Take note that a run has made progress, and has so many seconds for the next.

        Args:
            step: Optimizer steps that it has done, for others to see; None: not known yet.
        """
        self._renew[ticket_id] = (attempt, seconds, step)

    def forget_lease(self, ticket_id: int) -> None:
        """Forget what a run has earned: it is no longer ours."""
        self._renew.pop(ticket_id, None)

    @property
    def urgent(self) -> bool:
        """Whether the end of a run is still to be reported: the store takes its ticket for ours."""
        return any(isinstance(change, _URGENT) for change in self._changes)

    def is_due(self) -> bool:
        """Return whether something should be said now."""
        now = time.monotonic()
        if self.connection.broken:
            # once it is back, this comes before all else: what was ours may be about to be given away
            return True
        return now >= self._due or now - self._delivered >= min(LATEST_SECONDS, self._lease / 3)

    def flush(self, take: ClaimRequest | None = None, *, version: int | None = None) -> WriteResult:
        """Say everything in one transaction.

        Args:
            take: The ticket to take in it; see :meth:`tempopt.storage.store.Store.write`.
            version: That of the tickets from which this follows.

        Raises:
            StoreUnavailableError: The store cannot be reached; everything is kept, on disk too.
            StoreTimeoutError: The same, and there is no more waiting.
            StudyNotFound: The study has been deleted.
        """
        renew = {ticket_id: attempt for ticket_id, (attempt, _, _) in self._renew.items()}
        steps = {ticket_id: step for ticket_id, (_, _, step) in self._renew.items() if step is not None}
        # one lease for all of them: the longest that any of them has earned
        lease = max((seconds for _, seconds, _ in self._renew.values()), default=self._lease)
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
        self._changes, self._renew, self._due = [], {}, math.inf
        self._delivered = time.monotonic()
        if self._written:
            # what stays there is told once more by the next agent, which changes nothing
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._written = self._size = 0
        return write_result

    def _spill(self) -> None:
        """Write what is not yet on disk to it; what cannot be written is kept, and tried again."""
        new_changes = self._changes[self._written :]
        if not new_changes:
            return
        try:
            self._append("".join(_line(change) for change in new_changes).encode())
        except OSError as error:
            if not self._is_full:
                why = error.strerror or str(error)
                self.connection.note(
                    f"Results cannot be kept on disk either, in {self._path.parent} ({why}): they are in the "
                    "memory of this process. Free some space, or allow writing, and "
                    "do not end it before the store is back; what is lost with it is trained again."
                )
            self._is_full = True
            return
        self._written, self._is_full = len(self._changes), False

    def _append(self, lines: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # the half of a line that a full disk has left would spoil the next
            file.truncate(self._size)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(lines)


def outbox_path(folder: Path, agent: str, prefix: str = WriteQueue.file_prefix) -> Path:
    """Return the file for what an agent could not deliver."""
    return folder / f"{prefix}{agent.replace(':', '+')}.jsonl"


def iter_orphaned_queues(
    folder: Path, prefix: str = WriteQueue.file_prefix
) -> Iterable[tuple[Path, str, list[Change]]]:
    """Yield file, agent and changes of those that died on this machine before they could deliver."""
    for path in sorted(folder.glob(f"{prefix}*.jsonl")):
        agent = path.stem.removeprefix(prefix).replace("+", ":")
        if is_dead(agent):
            # another agent that begins now may have been faster
            with contextlib.suppress(FileNotFoundError):
                lines = path.read_text().splitlines()
                yield path, agent, [change for line in lines if (change := _change(line))]


def _line(change: Change) -> str:
    return json.dumps(change_to_plain(change)) + "\n"


def _change(line: str) -> Change | None:
    """Return the change on one line, None if its writer died over it."""
    try:
        return change_from_plain(json.loads(line))
    except (ValueError, TypeError, UsageError):
        return None

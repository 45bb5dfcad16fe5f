"""Watch a study through the store, and report its progress to an observer; changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from tempopt.agent.observer import Observer
from tempopt.agent.study_cache import StudyCache
from tempopt.agent.study_lookup import find_study
from tempopt.errors import StoreUnreachable, StudyFailed, StudyNotFound, one_line
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TERMINAL_STATES, StudyState, TicketRow
from tempopt.storage.store import Store

POLL_SECONDS = 2.0
"""Seconds between two polls of a study."""


class StudyPoller:
    """Reports the progress of a study to an observer from now on.

    Args:
        store: The store of the study, which need not exist yet.
        name: Name of the study.
        observer: Receives progress and notes.
    """

    def __init__(self, store: Store, name: str, observer: Observer) -> None:
        self._store = store
        self._name = name
        self._observer = observer
        self._started_at = time.monotonic()
        self._cache: StudyCache | None = None
        self.is_reachable = True
        """Whether the store could be reached in the last :meth:`poll_patiently`."""
        self._open()
        # tickets that were over before are not reported
        self._notified_ticket_ids = {row.id for row in self._list_ended_tickets()}
        self._failures = {row.id: row.failures for row in self._cached_tickets()}

    def poll(self) -> StudyState | None:
        """Report news, and return the study's state; None while it does not exist.

        Raises:
            StudyFailed: The study was deleted.
            StorageError: The store cannot be read now; poll again.
        """
        if not self._open():
            return None
        assert self._cache is not None
        try:
            self._cache.refresh()
        except StudyNotFound as error:
            raise StudyFailed(f"The study was deleted while it was being watched: {error}") from error
        self._report_news()
        return self._cache.state

    def poll_patiently(self) -> StudyState | None:
        """Poll; if the store cannot be reached, note that once and return ``running``."""
        try:
            state, self.is_reachable = self.poll(), True
            return state
        except StoreUnreachable as error:
            if self.is_reachable:
                self._observer.note(f"{error} Trying again until it answers.")
            self.is_reachable = False
            return "running"

    def _open(self) -> bool:
        if self._cache is None and (study := find_study(self._store, self._name)) is not None:
            self._cache = StudyCache(StudySpec.from_json(study.spec), study, self._store)
        return self._cache is not None

    def _cached_tickets(self) -> list[TicketRow]:
        return [] if self._cache is None else list(self._cache.tickets.values())

    def _list_ended_tickets(self) -> list[TicketRow]:
        # withdrawn tickets have no result
        return [
            row for row in self._cached_tickets() if row.state in TERMINAL_STATES and row.outcome is not None
        ]

    def _report_news(self) -> None:
        assert self._cache is not None
        for row in self._cached_tickets():
            if row.failures > self._failures.get(row.id, 0):
                self._failures[row.id] = row.failures
                reason = one_line(row.error or "an attempt was lost")
                self._observer.note(f"{row.kind} {row.number}: {reason}")
        elapsed = time.monotonic() - self._started_at
        now = self._cache.snapshot(self._cache.worker_views(), elapsed)
        new_rows = [row for row in self._list_ended_tickets() if row.id not in self._notified_ticket_ids]
        # an observer receives the end of a ticket before the snapshot that counts it
        counts = Counter(row.kind for row in new_rows)
        before = {kind: done - counts[kind] for kind, done in now.done.items()}
        self._observer.update(replace(now, done=before))
        for row in sorted(new_rows, key=lambda row: row.finished.timestamp() if row.finished else 0.0):
            self._notified_ticket_ids.add(row.id)
            self._observer.on_ticket_end(row)
        self._observer.update(now)


def watch_study(store: Store, name: str, observer: Observer) -> None:
    """Watch a study that other agents train, until it is done or paused.

    Raises:
        StudyNotFound: There is no study of that name.
        StudyFailed: The study was deleted while it was watched.
    """
    study = store.load_study(name)
    if study.state == "done":
        return
    if not any(summary.agents for summary in store.list_studies() if summary.study.id == study.id):
        observer.note(
            f"No agent works on {name} yet. To start one that serves every study: tempopt agent --any"
        )
    watch = StudyPoller(store, name, observer)
    while watch.poll_patiently() not in ("done", "paused"):
        time.sleep(POLL_SECONDS)

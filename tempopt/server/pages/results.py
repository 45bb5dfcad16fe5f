"""Studies as they were read, for verdicts, plots and reports: each once for all, until there is news."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from tempopt.records.rows import StudyRow, TicketRow
from tempopt.results.study_result import StudyResult, load
from tempopt.store.store import Store

_MOST = {False: 64, True: 4}
_MOMENT_SECONDS = 1.0


def mark(study: StudyRow, tickets: Sequence[TicketRow]) -> str:
    """Return what is the same, on every server, as long as no run of a study has begun or ended."""
    states = [(each.id, each.state, each.attempt) for each in tickets]
    facts = repr((study.id, study.spec_hash, study.state, study.version, states))
    return hashlib.blake2b(facts.encode(), digest_size=12).hexdigest()


class Results:
    """The studies that were read last; threads may share it.

    Args:
        store: Where studies are.
        clock: Seconds that only grow.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._kept: dict[bool, OrderedDict[int, tuple[str, StudyResult]]]
        self._kept = {False: OrderedDict(), True: OrderedDict()}
        self._rows: OrderedDict[int, tuple[Hashable, float, list[TicketRow]]] = OrderedDict()
        self._reading: dict[tuple[bool | None, int], threading.Lock] = {}

    def of(
        self, study: StudyRow, tickets: Sequence[TicketRow], *, whole: bool = False
    ) -> tuple[str, StudyResult]:
        """Return a study, and what is the same as long as it is.

        Args:
            study: As it was just read.
            tickets: Its tickets, as they were just read.
            whole: As for :func:`tempopt.results.study_result.load`.

        Raises:
            StudyNotFound: It was deleted.
        """
        key, now = (whole, study.id), mark(study, tickets)
        with self._lock:
            reading = self._reading.setdefault(key, threading.Lock())
        # who comes while it is read waits for it, and reads it no second time
        with reading:
            with self._lock:
                kept = self._kept[whole].get(study.id)
            if kept is None or kept[0] != now:
                kept = now, load(self._store, study.name, whole=whole)
                self._keep(key, kept)
            return kept

    def tickets(self, study: StudyRow) -> list[TicketRow]:
        """Return the tickets of a study as they are now, or were a moment ago if nothing was asked since.

        Args:
            study: As it was just read.
        """
        key, now = (study.version, study.state, study.spec_hash), self._clock()
        with self._lock:
            reading = self._reading.setdefault((None, study.id), threading.Lock())
        with reading:
            with self._lock:
                kept = self._rows.get(study.id)
            if kept is None or kept[0] != key or now - kept[1] >= _MOMENT_SECONDS:
                # large ones take long to read: the moment begins when they are there
                rows = self._store.tickets(study.id)
                kept = key, self._clock(), rows
                with self._lock:
                    self._rows[study.id] = kept
                    self._rows.move_to_end(study.id)
                    while len(self._rows) > _MOST[True]:
                        old, _ = self._rows.popitem(last=False)
                        self._reading.pop((None, old), None)
            return kept[2]

    def _keep(self, key: tuple[bool, int], found: tuple[str, StudyResult]) -> None:
        whole, id = key
        with self._lock:
            results = self._kept[whole]
            results[id] = found
            results.move_to_end(id)
            while len(results) > _MOST[whole]:
                old, _ = results.popitem(last=False)
                self._reading.pop((whole, old), None)

"""What studies have found, in a few words: read in the background, once for each state of a study."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from tempopt.errors import StudyNotFound, masked
from tempopt.records.rows import SEARCHING, StudySummary
from tempopt.report import headline
from tempopt.results.study_result import load
from tempopt.results.verdict_text import GAIN
from tempopt.store.store import Store

LOGGER = logging.getLogger("tempopt.server")
_LONGEST_REST = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one study has found.

    Args:
        answer: In a few words, as the report leads with.
        gain: Whether it is a gain.
        todo: What to do, in a few words; empty before a verdict.
        best: Value of the best complete trial in the search space of now; None: there is none.
    """

    answer: str
    gain: bool
    todo: str
    best: float | None


def stamp(summary: StudySummary) -> Hashable:
    """Return what is the same as long as a study has found the same."""
    counts = tuple((kind, *sorted(states.items())) for kind, states in sorted(summary.tickets.items()))
    row = summary.study
    return row.id, row.spec_hash, row.state, row.version, counts


def may_have_found(summary: StudySummary) -> bool:
    """Return whether a study may have more to say than its best trial; it takes long to find out."""
    judged = any(states.get("done", 0) for kind, states in summary.tickets.items() if kind not in SEARCHING)
    amended = bool(summary.study.amendments)
    return judged or amended or summary.study.state == "done"


class Findings:
    """What the studies of a store have found; threads may share it.

    Reading a study takes up to seconds, so a thread of its own does it, half of the time at most, and whoever
    asks meanwhile gets what was found before.

    Args:
        store: Where the studies are.
        leaving: Whether the server is to end: then nothing more is read.
    """

    def __init__(self, store: Store, leaving: Callable[[], bool]) -> None:
        self._store, self._leaving = store, leaving
        self._lock = threading.Lock()
        self._found: dict[int, tuple[Hashable, Finding]] = {}
        self._wanted: dict[int, StudySummary] = {}
        self._thread: threading.Thread | None = None

    def of(self, summaries: Iterable[StudySummary]) -> dict[int, Finding]:
        """Return by id of the study what is known to be found, and have what is new read."""
        there = {each.study.id: each for each in summaries}
        asked = {id: each for id, each in there.items() if may_have_found(each)}
        with self._lock:
            self._found = {id: each for id, each in self._found.items() if id in asked}
            self._wanted = {
                id: each
                for id, each in asked.items()
                if id not in self._found or self._found[id][0] != stamp(each)
            }
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(target=self._read, name="tempopt-findings", daemon=True)
                self._thread.start()
            return {id: finding for id, (_, finding) in self._found.items()}

    def wait(self, seconds: float) -> bool:
        """Wait until all that was asked for is read, and return whether it is."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return self._thread is None

    def _read(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or self._leaving():
                    self._thread = None
                    return
                # the newest first: it is what people look for
                summary = self._wanted.pop(max(self._wanted))
            began = time.monotonic()
            finding = self._finding(summary)
            with self._lock:
                self._found[summary.study.id] = stamp(summary), finding
            time.sleep(min(time.monotonic() - began, _LONGEST_REST))

    def _finding(self, summary: StudySummary) -> Finding:
        try:
            result = load(self._store, summary.study.name)
            answer = headline.answer(result)
            return Finding(
                answer=answer,
                gain=answer.startswith(GAIN),
                todo=headline.in_short(result),
                best=None if result.best is None else result.best.value,
            )
        except StudyNotFound:
            return Finding(answer="deleted", gain=False, todo="", best=None)
        except Exception as error:
            # one study that cannot be read takes no other from the list
            LOGGER.warning("%s cannot be told in words: %s", summary.study.name, masked(repr(error)))
            return Finding(answer="cannot be told", gain=False, todo="", best=None)

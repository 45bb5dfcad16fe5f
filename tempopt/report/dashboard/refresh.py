"""Keeps the studies' pages up to date while the dashboard is open: a thread that polls seldom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tempopt.report.dashboard.study_page import publish, stamp
from tempopt.store.store import Store

PAUSE_SECONDS = 20.0
"""Between two looks at the store; each writes one page at most, so that is three commits a minute."""

_SHARE = 0.05
_END_SECONDS = 5.0


class Refresher:
    """Keeps the pages of a store's studies up to date, from its making until it is closed.

    Args:
        url: URL of the store; the thread opens its own.
        first: Name of the study whose page is brought up to date before others'.
        note: Told once why a page cannot be written.
    """

    def __init__(self, url: str, *, first: str | None, note: Callable[[str], None]) -> None:
        self._store = Store.open(url, create=False)
        self._first = first
        self._note = note
        self._seen: dict[str, str] = {}
        self._told: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tempopt-pages", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """End, once a page that is being written is."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)
        self._store.close()

    def turn(self) -> int:
        """Look at the store, write one page at most, and return how many rows of it were written."""
        studies = {each.study.name: each for each in self._store.list_studies()}
        self._seen = {name: seen for name, seen in self._seen.items() if name in studies}
        # those that were written longest ago come first: what was written goes to the end
        ranks = {name: rank for rank, name in enumerate(self._seen)}
        for name in sorted(studies, key=lambda each: (each != self._first, ranks.get(each, -1))):
            now = stamp(studies[name])
            if self._seen.get(name) == now:
                continue
            rows = publish(self._store, name, studies[name])
            self._seen.pop(name, None)
            self._seen[name] = now
            if rows:
                return rows
        return 0

    def _work(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            began = time.thread_time()
            try:
                self.turn()
            except Exception as error:
                # a page that cannot be drawn, or a database that is away, is no reason to show nothing
                self._tell(f"The plots and notes cannot be brought up to date just now: {error}")
            # a large study takes long to draw, and the pages are to be answered meanwhile
            pause = max(PAUSE_SECONDS, (time.thread_time() - began) / _SHARE)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._note(text)

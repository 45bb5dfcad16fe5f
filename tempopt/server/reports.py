"""Reports of studies as HTML pages, rendered once until a run begins or ends."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal

from tempopt.report.study_result import load
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store

if TYPE_CHECKING:
    from tempopt.report.page.html import Site

_MAX_PAGES = 16
# Rendering uses a core for seconds, for which agents must not wait.
_MAX_RENDERING = 2


class Reports:
    """A cache of rendered reports; threads may share it.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._rendering = threading.BoundedSemaphore(_MAX_RENDERING)
        self._pages: OrderedDict[tuple[str, ...], str] = OrderedDict()

    def page(
        self, study: StudyRow, *, plotlyjs: Literal["inline", "cdn"] = "inline", site: Site | None = None
    ) -> str:
        """Return the report of a study.

        Args:
            study: Its current row.
            plotlyjs: As for :func:`tempopt.report.page.html.render_report`.
            site: Parts that a page of the server has; None: the page is a file.

        Raises:
            StudyNotFound: It was deleted.
        """
        # lazy import: plotly is slow to load
        from tempopt.report.page.html import render_report

        key = (self._build_mark(study), plotlyjs, repr(site))
        # a client that comes while the page is rendered waits for it
        with self._rendering:
            with self._lock:
                text = self._pages.get(key)
            if text is None:
                text = render_report(
                    load(self._store, study.name, needs_measurements=True), plotlyjs=plotlyjs, site=site
                )
            with self._lock:
                self._pages[key] = text
                self._pages.move_to_end(key)
                while len(self._pages) > _MAX_PAGES:
                    self._pages.popitem(last=False)
        return text

    def _build_mark(self, study: StudyRow) -> str:
        """Return a value that changes whenever a run of the study begins or ends."""
        attempts = self._store.attempts(study.id)
        facts = repr((study.id, study.spec_hash, study.state, study.version, attempts))
        return hashlib.blake2b(facts.encode(), digest_size=12).hexdigest()

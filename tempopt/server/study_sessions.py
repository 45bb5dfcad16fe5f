"""The studies that a server is at work on: one desk each, made when an agent comes, closed when none does."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from tempopt.errors import StudyNotFound
from tempopt.server.study_session import StudySession
from tempopt.storage.store import Store

T = TypeVar("T")
_MAX_SESSIONS = 64


class StudySessionRegistry:
    """One desk for each study with agents; threads may share them.

    Args:
        store: Where studies are.
        checkpoints: URL of the folder under which checkpoints lie.
    """

    def __init__(self, store: Store, *, checkpoints: str) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._desks: OrderedDict[str, StudySession] = OrderedDict()
        self._opening = threading.Lock()

    def get(self, name: str, *, id: int | None = None) -> StudySession:
        """Return the desk of a study.

        Args:
            id: Id that the study had when the caller saw it; None: whatever it has.

        Raises:
            StudyNotFound: There is no study of that name, or it is another one by now.
        """
        desk = self._desks.get(name)
        if desk is None:
            # a study is read once, however many agents come for it at the same moment
            with self._opening:
                desk = self._desks.get(name) or self._opened(name)
        with self._lock:
            if name in self._desks:
                self._desks.move_to_end(name)
        if id is not None and desk.study.id != id:
            raise StudyNotFound(f'The study "{name}" was deleted, and another one of that name begun.')
        return desk

    def _opened(self, name: str) -> StudySession:
        study = self._store.load_study(name)
        desk = StudySession(self._store, study, checkpoints=self._checkpoints, started=self._started)
        with self._lock:
            self._desks[name] = desk
            while len(self._desks) > _MAX_SESSIONS:
                self._desks.popitem(last=False)
        return desk

    def close(self, name: str) -> None:
        """Forget what is known of a study; it is read anew when an agent comes for it."""
        with self._lock:
            self._desks.pop(name, None)

    def run_with_reload(self, name: str, do: Callable[[StudySession], T], *, id: int | None = None) -> T:
        """Return what is done at the desk of a study.

        Raises:
            StudyNotFound: There is no such study any more.
        """
        desk = self.get(name, id=id)
        try:
            return do(desk)
        except StudyNotFound:
            self.close(name)
            raise

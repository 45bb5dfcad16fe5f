"""An agent that serves every study, one at a time: the highest priority first, then the oldest.

A study that fails here is skipped and tried again after a pause that doubles, so that it does not block
others.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tempopt.agent.agent_loop import StudyTurn
from tempopt.agent.observer import NullObserver, Observer
from tempopt.agent.store_connection import StoreTimeoutError
from tempopt.agent.study_runner import StudyRunner, run_remote_agent
from tempopt.errors import AccessDenied, StoreUnreachable, StudyNotFound, TempoptError, mask_secrets
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.paths import OPEN_STUDIES
from tempopt.storage.http.wire import deserialize
from tempopt.storage.rows import OpenStudy
from tempopt.storage.store import Store

LOOK_SECONDS = 5.0
"""Seconds between two queries for the unfinished studies."""
_OUTAGE_SECONDS = 1800.0
# Seconds without a run to begin after which an agent leaves its study if another study has one.
_SWITCH_SECONDS = 2.0


class Studies(Protocol):
    """The studies of a database, or behind a server."""

    def list_open(self) -> list[OpenStudy]:
        """Return the unfinished studies, in the order in which they are served.

        Raises:
            StoreUnreachable: The database or the server cannot be reached.
            AccessDenied: The server does not accept the token.
        """

    def serve(self, name: str, turn: StudyTurn, observer: Observer) -> None:
        """Work on a study until nothing is left to do or the turn is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseStudies:
    """The studies of a database.

    Args:
        store: The database.
        workers: As for :func:`tempopt.search`, at most ``study.parallel``; None: as each spec says.
        checkpoints: Folder or URL for checkpoints; None: that of each study.
    """

    store: Store
    workers: Workers | None = None
    checkpoints: str | Path | None = None

    def list_open(self) -> list[OpenStudy]:
        """Return the unfinished studies, in the order in which they are served."""
        return self.store.open_studies()

    def serve(self, name: str, turn: StudyTurn, observer: Observer) -> None:
        """Work on a study until nothing is left to do or the turn is over."""
        study = self.store.load_study(name)
        if study.state != "running":
            return
        spec = StudySpec.from_json(study.spec)
        import_schedules(spec)
        options = (self.workers, self.checkpoints, observer)
        StudyRunner(self.store, spec, study, *options, resume_if_paused=False, turn=turn).run_until_idle()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStudies:
    """The studies behind a server; arguments as for :class:`DatabaseStudies`.

    Args:
        token_file: File from which workers read the token for checkpoints; None: the source of this process's
            token.
    """

    connection: ServerConnection
    workers: Workers | None = None
    token_file: str | Path | None = None

    def list_open(self) -> list[OpenStudy]:
        """Return the unfinished studies, in the order in which they are served."""
        return deserialize(list[OpenStudy], self.connection.get(OPEN_STUDIES))

    def serve(self, name: str, turn: StudyTurn, observer: Observer) -> None:
        """Work on a study until nothing is left to do or the turn is over."""
        file = self.token_file
        run_remote_agent(
            self.connection, name, workers=self.workers, token_file=file, observer=observer, turn=turn
        )


class Pauses:
    """Studies that are skipped for a while, each time for twice as long."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds, self._max_seconds = first_seconds, max_seconds
        self._pauses: dict[int, tuple[float, float]] = {}

    def extend(self, study_id: int) -> float:
        """Skip a study from now on, and return for how many seconds."""
        last_seconds, _ = self._pauses.get(study_id, (self._first_seconds / 2, 0.0))
        seconds = min(2 * last_seconds, self._max_seconds)
        self._pauses[study_id] = (seconds, time.monotonic() + seconds)
        return seconds

    def reset(self, study_id: int) -> None:
        """Forget the pauses of a study."""
        self._pauses.pop(study_id, None)

    def is_paused(self, study_id: int) -> bool:
        """Return whether a study is skipped now."""
        return study_id in self._pauses and time.monotonic() < self._pauses[study_id][1]


class AnyAgent:
    """Serves every study, one after another.

    Args:
        studies: The studies, in a database or behind a server.
        idle_seconds: Seconds without a run to begin after which the agent ends; it ends at once when no study
            is unfinished. None: it waits for new studies.
        note: Called with each log line.
    """

    def __init__(self, studies: Studies, *, idle_seconds: float | None, note: Callable[[str], None]) -> None:
        self._studies = studies
        self._idle_seconds = math.inf if idle_seconds is None else idle_seconds
        self._note = note
        self._failure_pauses = Pauses(15.0, 1800.0)
        self._idle_pauses = Pauses(5.0, 60.0)
        self._reached_at = time.monotonic()
        self._idle_for = 0.0
        self._skipped: dict[int, str] = {}
        self._is_waiting = self._is_store_away = False

    def run(self) -> list[str]:
        """Serve studies, and return the names of the unfinished ones that failed here.

        Raises:
            KeyboardInterrupt: Re-raised; the runs in progress were saved and released.
            AccessDenied: The server does not accept the token.
            StoreUnreachable: The database or the server could not be reached for half an hour.
        """
        while True:
            try:
                studies = self._studies.list_open()
            except StoreUnreachable as error:
                self._wait_for_store(error)
                continue
            self._reached_at, self._is_store_away = time.monotonic(), False
            self._skipped = {study.id: study.name for study in studies if study.id in self._skipped}
            if self._idle_for >= self._idle_seconds or (not studies and self._idle_seconds < math.inf):
                return list(self._skipped.values())
            study = next(iter(self._iter_servable(studies)), None)
            if study is not None:
                self._serve(study)
                continue
            if not self._is_waiting:
                self._note("No run can begin now. Waiting.")
                self._is_waiting = True
            time.sleep(LOOK_SECONDS)
            self._idle_for += LOOK_SECONDS

    def _iter_servable(self, studies: list[OpenStudy]) -> Iterator[OpenStudy]:
        for study in studies:
            is_paused = self._failure_pauses.is_paused(study.id) or self._idle_pauses.is_paused(study.id)
            if study.needs_agent and not is_paused:
                yield study

    def _wait_for_store(self, error: TempoptError) -> None:
        if time.monotonic() - self._reached_at >= _OUTAGE_SECONDS:
            raise error
        if not self._is_store_away:
            self._note(f"{error} Trying again for {_OUTAGE_SECONDS / 60:.0f} minutes.")
            self._is_store_away = True
        time.sleep(LOOK_SECONDS)

    def _serve(self, study: OpenStudy) -> None:
        self._is_waiting = False
        self._note(f"Serves {study.name} (priority {study.priority}).")
        turn = StudyTurn(idle_seconds=self._idle_seconds)
        try:
            with self._update_in_background(turn, study):
                self._studies.serve(study.name, turn, _NoteForwarder(study.name, self._note))
        except AccessDenied:
            raise
        except StudyNotFound:
            self._note(f"{study.name} was deleted.")
            return
        except (StoreUnreachable, StoreTimeoutError) as error:
            self._reached_at = time.monotonic()
            self._wait_for_store(error)
            return
        except Exception as error:  # an error of one study must not keep the others from being served
            text = str(error) if isinstance(error, TempoptError) else f"{type(error).__name__}: {error}"
            seconds = self._failure_pauses.extend(study.id)
            self._skipped[study.id] = study.name
            self._note(f"Skips {study.name} for {seconds:g} s: {mask_secrets(text)}")
            return
        if turn.has_trained:
            self._idle_for = 0.0
            self._failure_pauses.reset(study.id)
            self._idle_pauses.reset(study.id)
            self._skipped.pop(study.id, None)
        if turn.found_no_run:
            self._idle_for += turn.idle_seconds
        if turn.found_no_run or not (turn.has_trained or turn.higher_priority_study):
            self._idle_pauses.extend(study.id)
        self._note(f"Leaves {study.name}{turn.reason}.")

    @contextlib.contextmanager
    def _update_in_background(self, turn: StudyTurn, study: OpenStudy) -> Iterator[None]:
        """Keep a turn informed about the other studies while the context is open."""
        done_event = threading.Event()

        def update() -> None:
            while not done_event.wait(LOOK_SECONDS):
                # the agent of the study handles a store that cannot be reached
                with contextlib.suppress(TempoptError):
                    self._update(turn, study)

        thread = threading.Thread(target=update, name="tempopt-any", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done_event.set()

    def _update(self, turn: StudyTurn, served_study: OpenStudy) -> None:
        studies = self._studies.list_open()
        priority = next(
            (study.priority for study in studies if study.id == served_study.id), served_study.priority
        )
        other_studies = [study for study in self._iter_servable(studies) if study.id != served_study.id]
        turn.higher_priority_study = next(
            (study.name for study in other_studies if study.priority > priority), None
        )
        switch_seconds = _SWITCH_SECONDS if other_studies else math.inf
        turn.idle_seconds = min(switch_seconds, self._idle_seconds)


class _NoteForwarder(NullObserver):
    """Forwards the notes of a study, with its name.

    Args:
        study: Name of the study.
        note: Called with each log line.
    """

    def __init__(self, study: str, note: Callable[[str], None]) -> None:
        self._study = study
        self._note = note

    def note(self, text: str) -> None:
        """Forward a note."""
        self._note(f"{self._study}: {text}")

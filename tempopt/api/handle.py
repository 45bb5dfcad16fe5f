"""StudyHandle: a study that is carried out by a child process in the background."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Literal, Self

from tempopt.agent.observer import NullObserver, Snapshot
from tempopt.agent.study_lookup import find_study
from tempopt.errors import StudyNotFound, TempoptError, UsageError
from tempopt.launch.local import LocalLauncher
from tempopt.launch.study_launch import StudyLaunch
from tempopt.launch.watch import StudyPoller
from tempopt.report.study_result import StudyResult, load
from tempopt.service import lifecycle
from tempopt.service.progress import format_number, progress_for_python
from tempopt.service.studies import load_study
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store

State = Literal["starting", "running", "paused", "done", "failed"]
"""State of a study in the background; ``starting`` until its dry run is over."""


class StudyHandle:
    """A study that an agent in a child process carries out, as returned with ``wait=False``.

    The agent ends with this process: when the interpreter exits, the handle is closed or its ``with`` block
    is left, the agent saves its runs and leaves. It also does so when the process is killed or a kernel is
    restarted. ``tempopt resume NAME``, or the same call again, then continues the study.

    Attributes:
        name: Name of the study.
    """

    def __init__(
        self,
        store: Store,
        spec: StudySpec,
        study: StudyRow | None,
        *,
        workers: Workers | None,
        checkpoints: str | Path | None,
    ) -> None:
        self.name = spec.study.name
        self._store = store
        self._error: TempoptError | None = None
        self._open = True
        self._launcher = LocalLauncher({})
        self._launch = StudyLaunch(self._launcher, "local", store, spec, workers=workers)
        self._ids: list[str] = []
        self._snapshot_observer = _LatestSnapshotObserver()
        self._watch = StudyPoller(store, self.name, self._snapshot_observer)
        atexit.register(self.close)
        if study is None or store.load_study(self.name).state != "done":
            self._launch.start(study, spec, checkpoints_at=checkpoints, overrides=spec.local_overrides)

    @property
    def state(self) -> State:
        """Current state: starting, running, paused, done or failed."""
        if self._error is not None:
            return "failed"
        if not self._open:
            return "done" if load_study(self._store.url, self.name).state == "done" else "paused"
        unended_job_ids = self._launch.unended_job_ids()
        study = find_study(self._store, self.name)
        if study is not None and study.state == "done":
            return "done"
        if not unended_job_ids:
            return "failed" if self._launch.errors() else "paused"
        if study is None:
            return "starting"
        return "paused" if study.state == "paused" else "running"

    def progress(self) -> Snapshot | None:
        """Return the progress: finished and all tickets by kind, the best value, the remaining time.

        None before the study exists.
        """
        if self._open:
            self._watch.poll()
        return self._snapshot_observer.snapshot

    def result(self, timeout: float | None = None, *, progress: bool = True) -> StudyResult:
        """Wait until the study is done or paused, and return its result.

        Args:
            timeout: Maximal seconds to wait; None: no limit.
            progress: Whether to show the progress, as :func:`tempopt.search`.

        Raises:
            TempoptError: The error of the study, as for :func:`tempopt.search`.
            TimeoutError: The study has not ended within the timeout; it continues.
            KeyboardInterrupt: Waiting was interrupted; the study continues.
        """
        if self._error is not None:
            raise self._error
        if not self._open:
            return load_study(self._store.url, self.name)
        try:
            with progress_for_python(progress) as observer:
                self._launch.watch(observer, timeout)
        except TempoptError as error:
            self._error = error
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f'Waiting was interrupted; the study "{self.name}" continues. result() waits again, pause() '
                "has it rest."
            ) from None
        return load(self._store, self.name, needs_measurements=True)

    def pause(self) -> None:
        """Pause the study: its agents save their runs and leave. Wait until the handle's agent has left.

        ``tempopt resume NAME``, or the same search again, continues it.
        """
        if not self._open:
            return
        if find_study(self._store, self.name) is not None:
            lifecycle.pause(self._store.url, self.name)
        self._launch.cancel()

    def stop(self) -> None:
        """Stop the search: runs in progress are completed, and the best so far is confirmed.

        Raises:
            UsageError: The study has not begun yet, so that there are no results.
        """
        try:
            lifecycle.stop(self._store.url, self.name)
        except StudyNotFound as error:
            raise UsageError(
                f'The study "{self.name}" has not begun yet, so there is nothing to confirm. '
                "Try again later, or use pause()."
            ) from error

    def close(self) -> None:
        """Let the agent save its runs and leave if it is still at work, and wait for its end."""
        if self._open:
            self._open = False
            atexit.unregister(self.close)
            self._launcher.close()
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state, snapshot = self.state, self.progress()
        text = f'StudyHandle("{self.name}"): {state}'
        if snapshot is None:
            return text
        text += f", {sum(snapshot.done.values())} of {sum(snapshot.requested.values())} trainings done"
        return text if snapshot.best is None else f"{text}, best so far {format_number(snapshot.best)}"


class _LatestSnapshotObserver(NullObserver):
    """The observer that keeps the last snapshot."""

    snapshot: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

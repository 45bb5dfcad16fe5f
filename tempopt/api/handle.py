"""StudyHandle: a study that goes on in a process of its own while Python does something else."""

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
"""How a study stands for the process that has begun it; ``starting`` until its dry run is over."""


class StudyHandle:
    """A study that an agent in a process of its own carries out; ``wait=False`` returns one.

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
        """How the study stands now: starting, running, paused, done or failed."""
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
        """Return how far the study is: tickets done and asked by kind, the best value, the time that is left.

        None before it has begun.
        """
        if self._open:
            self._watch.poll()
        return self._snapshot_observer.snapshot

    def result(self, timeout: float | None = None, *, progress: bool = True) -> StudyResult:
        """Wait until the study is done or paused, and return its result.

        Args:
            timeout: Most seconds to wait; None: as long as it takes.
            progress: Whether to show the progress meanwhile, as :func:`tempopt.search` does.

        Raises:
            TempoptError: What kept the study from being carried out, as for :func:`tempopt.search`.
            TimeoutError: It has not ended by then; it goes on.
            KeyboardInterrupt: Waiting was interrupted; the study goes on.
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
                f'Waiting was interrupted; the study "{self.name}" goes on. result() waits again, pause() '
                "has it rest."
            ) from None
        return load(self._store, self.name, needs_measurements=True)

    def pause(self) -> None:
        """Have every agent of the study save its runs and leave; returns once the handle's own has left.

        ``tempopt resume NAME``, or the same search again, continues it.
        """
        if not self._open:
            return
        if find_study(self._store, self.name) is not None:
            lifecycle.pause(self._store.url, self.name)
        self._launch.cancel()

    def stop(self) -> None:
        """End the searching: runs at work end, and what was found is confirmed.

        Raises:
            UsageError: The study has not begun yet, so that nothing was found.
        """
        try:
            lifecycle.stop(self._store.url, self.name)
        except StudyNotFound as error:
            raise UsageError(
                f'The study "{self.name}" has not begun yet, so nothing was found that could be confirmed. '
                "Try again later, or use pause()."
            ) from error

    def close(self) -> None:
        """Have the agent save its runs and leave if it is still at work, and wait until it has."""
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

"""Start the agents of a study with a launcher, and watch the study.

Trains nothing and claims no ticket. The process may end before its agents if the launcher allows that.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from tempopt.agent.observer import Observer
from tempopt.agent.study_runner import find_stored_checkpoints, resolve_worker_count
from tempopt.errors import StudyFailed, TempoptError, UsageError
from tempopt.launch.launcher import Job, Launcher, Task, build_tasks
from tempopt.launch.watch import StudyPoller
from tempopt.report.study_result import StudyResult, load
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage import checkpoints
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store

USAGE_EXIT_CODE = 2
"""Exit code of an agent whose request is invalid."""
_ERROR = "tempopt: error: "
_TERMINAL_JOB_STATES = ("done", "failed", "gone")


class StudyLaunch:
    """One study on one launcher.

    Args:
        launcher: The launcher.
        launcher_spec: Its name on the command line, by which it is found again.
        store: The database of the study.
        spec: The spec, with this machine's overrides.
        workers: Number of concurrent trials; None: that of the spec, or as many as fit.

    Raises:
        UsageError: The launcher's agents cannot reach the store, there is no room for a trial, or more
            workers were requested than ``study.parallel`` allows.
    """

    def __init__(
        self,
        launcher: Launcher,
        launcher_spec: str,
        store: Store,
        spec: StudySpec,
        *,
        workers: Workers | None,
    ) -> None:
        self._launcher = launcher
        self._launcher_spec = launcher_spec
        self._store = store
        self._name = spec.study.name
        self._grace = spec.resources_here.grace
        check_shared_database(launcher, store)
        num_requested = resolve_worker_count(workers, spec, None)
        self._need = spec.resource_need(gpus=launcher.has_gpus())
        self.room = launcher.capacity(self._need)
        """How many trials fit at a time."""
        if self.room == 0 and not (launcher.allows_queueing and num_requested):
            memory_text = f", {self._need.memory} bytes of memory" if self._need.memory else ""
            raise UsageError(
                f"A trial takes {self._need.gpus:g} GPUs, {self._need.cpus} CPU cores{memory_text}, and the "
                f"launcher {launcher.name} has no room for one. Reduce resources: of the spec."
            )
        self.workers = num_requested or min(self.room, spec.study.parallel)
        """Number of concurrent trials."""
        self._ids: list[str] = []

    def start(
        self,
        study: StudyRow | None,
        spec: StudySpec | None,
        *,
        checkpoints_at: str | Path | None,
        overrides: Sequence[str] = (),
    ) -> list[str]:
        """Start the agents, and return notes for the user.

        Args:
            study: The study, if it exists; a paused study is continued.
            spec: The spec of a new study; None: it is in the store.
            checkpoints_at: Folder or URL for checkpoints; None: the stored one, or ``tempopt-runs`` here.
            overrides: ``a.b=c`` settings for the agents' machines.

        Raises:
            TempoptError: They cannot be started.
        """
        if checkpoints_at is None:
            stored_url = find_stored_checkpoints(study, is_multi_host=self._launcher.is_multi_host)
            checkpoints_at = stored_url or checkpoints.DEFAULT_FOLDER
        checkpoints_url = checkpoints.absolute(checkpoints_at)
        base = Task(
            study=self._name,
            storage=self._store.url,
            spec=None if spec is None else spec.to_json(),
            options=(
                "--checkpoints",
                checkpoints_url,
                *(word for override in overrides for word in ("--set", override)),
            ),
            folder=str(Path.cwd()),
            environment=agent_environment(),
            grace=self._grace,
        )
        split = self._launcher.split(self._need, self.workers)
        was_paused = study is not None and self._store.load_study(self._name).state == "paused"
        if study is not None and was_paused:
            # only here: agents do not continue a study that is paused later
            self._store.set_state(study.id, "running")
        try:
            self._ids = self._launcher.start(build_tasks(base, self._need, split))
            if self._launcher.survives_command:
                self._store.add_jobs(self._name, self._launcher_spec, self._launcher.options, self._ids)
        except BaseException:
            # agents without a record in the store could not be found again
            self._launcher.cancel(self._ids)
            if study is not None and was_paused:
                self._store.set_state(study.id, "paused")
            raise
        return self._build_start_notes(checkpoints_url, len(split))

    def _build_start_notes(self, checkpoints_url: str, agents: int) -> list[str]:
        count = f"{agents} agent{'s' * (agents > 1)}"
        trials = f"{self.workers} trial{'s' * (self.workers > 1)}"
        notes = [f"Launched {count} on {self._launcher.name}, for {trials} at a time."]
        if self.workers > self.room:
            notes.append(f"There is room for {self.room} at a time; the others wait for it.")
        if self._launcher.is_multi_host and checkpoints.is_local(checkpoints_url):
            notes.append(
                f"Checkpoints go to {checkpoints_url}, which has to be a folder that all machines share: "
                "else a run that moves to another machine starts again. Another folder: --checkpoints URL."
            )
        return notes

    def watch(self, observer: Observer, timeout: float | None = None) -> StudyResult:
        """Watch until the study is done or paused, and return its result.

        Args:
            observer: Receives progress and notes.
            timeout: Seconds after which TimeoutError is raised; None: no limit.

        Raises:
            UsageError: The request is invalid for all agents.
            StudyFailed: Every agent has failed or left, or the study was deleted.
            TimeoutError: The timeout is over.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        watch = StudyPoller(self._store, self._name, observer)
        announcements: set[str] = set()
        while True:
            # in this order: an agent reports to the store before it ends
            jobs = self._launcher.jobs(self._ids)
            try:
                state = watch.poll_patiently()
            except StudyFailed:
                # waiting agents would create the deleted study again
                self.cancel()
                raise
            if state in ("done", "paused"):
                self._dismiss(jobs, all_of_them=state == "done")
                return load(self._store, self._name)
            failed = [job for job in jobs if job.state == "failed"]
            if state is None and any(job.code == USAGE_EXIT_CODE for job in failed):
                raise self._cancel_and_explain(failed)
            for job in (job for job in failed if job.id not in announcements):
                announcements.add(job.id)
                observer.note(f"Agent {job.id} has failed: {exit_reason(job)}")
            for job in jobs:
                # one note for all agents that wait for the same
                if job.state == "waiting" and job.message and job.message not in announcements:
                    announcements.add(job.message)
                    observer.note(f"Agent {job.id} waits: {job.message}")
            if watch.is_reachable and all(job.state in _TERMINAL_JOB_STATES for job in jobs):
                raise self._cancel_and_explain(failed)
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise TimeoutError(f'Study "{self._name}" has not ended within {timeout:g} s.')
            time.sleep(min(seconds_left, 5.0 if self._launcher.survives_command else 1.0))

    def cancel(self) -> None:
        """Shut down the agents gracefully, and wait until they have left."""
        self._launcher.cancel(self._ids)
        self._forget(self._ids)

    def _dismiss(self, jobs: Sequence[Job], *, all_of_them: bool) -> None:
        """Cancel waiting jobs, and jobs that do not end by themselves though nothing is left to do."""
        waiting_ids = [job.id for job in jobs if job.state == "waiting"]
        self._cancel_jobs(waiting_ids)
        if not all_of_them:
            self._forget(waiting_ids)
            return
        deadline = time.monotonic() + self._grace
        while (active_ids := self.unended_job_ids()) and time.monotonic() < deadline:
            time.sleep(0.2)
        self._cancel_jobs(active_ids)
        self._forget(self._ids)

    def _cancel_jobs(self, ids: Sequence[str]) -> None:
        # ignore an engine that does not answer now: its agents will find nothing to do
        with contextlib.suppress(UsageError):
            if ids:
                self._launcher.cancel(ids)

    def unended_job_ids(self) -> list[str]:
        """Return the ids of the jobs that have not ended."""
        return [job.id for job in self._launcher.jobs(self._ids) if job.state not in _TERMINAL_JOB_STATES]

    def errors(self) -> list[str]:
        """Return why agents have failed, each reason once."""
        return _reasons([job for job in self._launcher.jobs(self._ids) if job.state == "failed"])

    def _forget(self, ids: Sequence[str]) -> None:
        if self._launcher.survives_command and ids:
            self._store.forget_jobs(self._name, ids)

    def _cancel_and_explain(self, failed: Sequence[Job]) -> TempoptError:
        """Cancel the remaining agents, and return the error with their reasons."""
        self.cancel()
        if not failed:
            return StudyFailed(
                f"Every agent has left, and the study is not done. To continue: tempopt resume {self._name}"
            )
        kind = UsageError if any(job.code == USAGE_EXIT_CODE for job in failed) else StudyFailed
        return kind("\n".join(_reasons(failed)))


def check_shared_database(launcher: Launcher, store: Store) -> None:
    """Raise UsageError if a launcher's agents would write a database file from several machines."""
    if launcher.is_multi_host and store.url.startswith("sqlite"):
        raise UsageError(
            f"The launcher {launcher.name} starts agents on other machines, and {store.masked_url} is a "
            "file that only one machine can safely write. Give --storage postgresql://user@host/database "
            "or mysql://user@host/database."
        )


def _reasons(failed: Sequence[Job]) -> list[str]:
    return list(dict.fromkeys(map(exit_reason, failed)))


def exit_reason(job: Job) -> str:
    """Return why an agent ended: its error if there is one, else the end of its output."""
    _, separator, error = job.message.rpartition(_ERROR)
    return error if separator else job.message or "no reason is known"


def agent_environment() -> dict[str, str]:
    """Return the environment variables with which agents elsewhere find the modules of this process."""
    path = os.environ.get("PYTHONPATH")
    if not path:
        return {}
    return {"PYTHONPATH": os.pathsep.join(str(Path(folder).absolute()) for folder in path.split(os.pathsep))}

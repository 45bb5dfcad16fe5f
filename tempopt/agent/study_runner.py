"""Run one agent on a study, from its current state to the verdict or until the agent leaves.

Connects spec, store, workers and agent; makes no decisions itself.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tempopt.agent.agent_loop import Agent, StudyTurn
from tempopt.agent.dry_run import check_spec_on_worker, note_long_stages, run_dry_run, start_workers
from tempopt.agent.gpu_locks import claim_gpus
from tempopt.agent.local_client import LocalStudyClient
from tempopt.agent.machine import Machine, this_machine
from tempopt.agent.observer import NullObserver, Observer
from tempopt.agent.placement import Placement, assign_placements, count_workers
from tempopt.agent.process import WorkerProcess
from tempopt.agent.remote_client import AgentRpcClient, RemoteStudyClient, to_study_row
from tempopt.agent.signals import sigterm_as_keyboard_interrupt
from tempopt.agent.store_connection import retry_while_busy
from tempopt.agent.study_cache import StudyCache
from tempopt.agent.study_client import RunFolders, StudyClient
from tempopt.agent.study_creation import ensure_study_exists
from tempopt.errors import UsageError
from tempopt.files import remove_new_empty_folders
from tempopt.report.study_result import StudyResult, load
from tempopt.sampling.optuna_factories import try_strategies
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.checkpoints import DEFAULT_FOLDER, is_local, join, normalize_checkpoint_url
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.filesystem import SERVER
from tempopt.storage.liveness import user
from tempopt.storage.rows import StudyRow, StudyState
from tempopt.storage.store import Store
from tempopt.verdict.forecast_text import runs_text
from tempopt.verdict.planned_runs import planned_runs


class StudyRunner:
    """One agent's work on one study, from the start of the workers to the result.

    Args:
        store: The database of the study.
        spec: Its spec.
        study: Its row; None: it does not exist yet.
        workers: As for :func:`search`.
        checkpoints: As for :func:`search`.
        observer: Receives notes and snapshots.
        resume_if_paused: Whether a paused study is continued.
        turn: When the agent leaves the study to serve another; None: it stays until nothing is left to do.
    """

    def __init__(
        self,
        store: Store,
        spec: StudySpec,
        study: StudyRow | None,
        workers: Workers | None,
        checkpoints: str | Path | None,
        observer: Observer,
        *,
        resume_if_paused: bool = True,
        turn: StudyTurn | None = None,
    ) -> None:
        self._turn = turn
        self._store = store
        self._spec = spec
        self._study = study
        self._wake = resume_if_paused
        self._observer = observer
        self._num_workers = resolve_worker_count(workers, spec, turn)
        stored_url = find_stored_checkpoints(study) if checkpoints is None else None
        folder = DEFAULT_FOLDER if checkpoints is None else checkpoints
        self._checkpoints = stored_url or normalize_checkpoint_url(folder)

    def run(self) -> StudyResult:
        """Work until nothing is left to do or the study is paused, and return its result."""
        self.run_until_idle()
        return load(self._store, self._spec.study.name, needs_measurements=True)

    def run_until_idle(self) -> None:
        """Work until nothing is left to do, the study is paused, or its turn is over."""
        spec, store = self._spec, self._store
        validate_sampler_and_pruner(spec)
        name = spec.study.name
        state = None if self._study is None else store.load_study(name).state
        if state == "done" or (state == "paused" and not self._wake):
            return
        if self._study is not None:
            note_program(spec, self._observer)
        logs = self._checkpoints if is_local(self._checkpoints) else DEFAULT_FOLDER
        with _start_local_workers(spec, self._num_workers, Path(logs).absolute() / name) as (folder, workers):
            if self._study is not None and state != "running":
                store.set_state(self._study.id, "running")
            # a class may be missing on this machine: check before a ticket is claimed
            if self._study is None:
                on_stage = note_long_stages(self._observer.note)
                spec, _ = run_dry_run(spec, workers[0], task="dry_run", on_stage=on_stage)
            else:
                spec = check_spec_on_worker(spec, workers[0], again=self._turn is None)
            self._spec = spec
            on_note = self._observer.note
            study = ensure_study_exists(
                store, spec, self._study, checkpoints=self._checkpoints, owner=user(), on_note=on_note
            )
            folders = RunFolders(logs=folder, checkpoints=join(self._checkpoints, name))
            cache = StudyCache(spec, study, store)
            client = LocalStudyClient(
                cache=cache, folders=folders, workers=len(workers), observer=self._observer
            )
            if self._study is None and not isinstance(self._observer, NullObserver):
                runs = runs_text(planned_runs(spec))
                on_note(f"{name}: {spec.study.direction} {spec.study.metric}; {runs}")
            _run_agent(spec, client, workers, folders, self._observer, self._turn)


def find_stored_checkpoints(study: StudyRow | None, *, is_multi_host: bool = False) -> str | None:
    """Return the stored URL of a study's checkpoints, None if its agents cannot reach it.

    Args:
        is_multi_host: Whether agents run on other machines; if not, a local folder has to exist here.
    """
    url = None if study is None else study.checkpoints
    if url is None or is_multi_host or not is_local(url):
        return url
    return url if Path(url).is_dir() else None


def run_remote_agent(
    connection: ServerConnection,
    name: str,
    *,
    workers: Workers | None,
    folder: str | Path | None = None,
    token_file: str | Path | None = None,
    observer: Observer,
    turn: StudyTurn | None = None,
) -> StudyState:
    """Work on a study behind a server until nothing is left to do, and return its state.

    Needs no access to the database or to the bucket with the checkpoints.

    Args:
        connection: The server.
        name: Name of the study.
        workers: As for :func:`tempopt.search`.
        folder: Local folder for logs; None: ``tempopt-runs`` in the current one.
        token_file: File from which workers read the token for checkpoints; None: the source of this process's
            token.
        observer: Receives notes and snapshots.
        turn: When the agent leaves the study to serve another; None: it stays until nothing is left to do.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: The study was paused, or the server does not serve this agent.
        SpecError: A class of the spec is not found on this machine.
        StudyFailed: Nothing can be trained, or the server could not be reached for ``study.store_timeout``
            seconds.
    """
    joined = retry_while_busy(lambda: AgentRpcClient(connection, name, 1).join(), note=observer.note)
    study = to_study_row(joined)
    if study.state == "done":
        return study.state
    spec = StudySpec.from_json(study.spec)
    import_schedules(spec)
    note_program(spec, observer)
    # workers upload and download checkpoints themselves
    os.environ[SERVER] = connection.url
    if token_file is not None:
        os.environ["TEMPOPT_TOKEN_FILE"] = str(Path(token_file).absolute())
        os.environ.pop("TEMPOPT_TOKEN", None)
    logs = Path(DEFAULT_FOLDER if folder is None else folder).absolute() / name
    num_workers = resolve_worker_count(workers, spec, turn)
    with _start_local_workers(spec, num_workers, logs) as (log_folder, worker_processes):
        spec = check_spec_on_worker(spec, worker_processes[0], again=turn is None)
        rpc_client = AgentRpcClient(connection, name, len(worker_processes))
        folders = RunFolders(logs=log_folder, checkpoints=connection.url)
        client = RemoteStudyClient(
            spec=spec,
            joined=rpc_client.join(),
            rpc_client=rpc_client,
            folders=folders,
            observer=observer,
            stays=turn is None,
        )
        _run_agent(spec, client, worker_processes, folders, observer, turn)
    # a study that is over or was deleted gets no further report
    client.disconnect()
    return "done" if client.is_finished() else client.state


@contextlib.contextmanager
def _start_local_workers(
    spec: StudySpec, num_requested: int | None, logs: Path
) -> Iterator[tuple[Path, list[WorkerProcess]]]:
    """Start the workers of an agent, and make its folder for logs; SIGTERM and SIGHUP act as Ctrl-C."""
    with (
        ensure_writable_dir(logs) as folder,
        sigterm_as_keyboard_interrupt(),
        claim_local_placements(spec, num_requested) as places,
        start_workers(places) as workers,
    ):
        yield folder, workers


def _run_agent(
    spec: StudySpec,
    client: StudyClient,
    workers: list[WorkerProcess],
    folders: RunFolders,
    observer: Observer,
    turn: StudyTurn | None,
) -> None:
    """Work on a study until nothing is left to do; afterwards ``workers`` holds those that are alive."""
    agent = Agent(spec=spec, client=client, workers=workers, folders=folders, observer=observer, turn=turn)
    try:
        agent.run()
    finally:
        workers[:] = agent.workers


def note_program(spec: StudySpec, observer: Observer) -> None:
    """Show what a study of a database has this machine run, before it does."""
    if spec.program is not None:
        observer.note(f"{spec.study.name} runs {spec.program.label}")


def validate_sampler_and_pruner(spec: StudySpec) -> None:
    """Refuse a sampler or pruner that cannot be created.

    Raises:
        SpecError: It does not accept an option.
    """
    try_strategies(spec.study.sampler, spec.study.pruner)


def claim_local_placements(
    spec: StudySpec, num_requested: int | None
) -> AbstractContextManager[list[Placement]]:
    """Return the placements of workers, on GPUs that this agent holds until the end of the context.

    Args:
        spec: The study's spec.
        num_requested: Number of workers; None: as many as fit.
    """
    machine = this_machine()
    need = spec.resource_need(gpus=machine.has_gpus)
    # the same number of threads on every machine: another order of sums changes the results
    threads = spec.resources_here.threads

    def assign(free: Machine) -> list[Placement]:
        count = count_workers(need, free, num_requested=num_requested, max_workers=spec.study.parallel)
        return assign_placements(need, count, free, threads=threads)

    return claim_gpus(machine, assign)


@contextlib.contextmanager
def ensure_writable_dir(folder: Path) -> Iterator[Path]:
    """Make a writable folder for logs; new folders that stay empty are removed at the end of the context.

    Raises:
        UsageError: The folder cannot be made or written to.
    """
    # a study that is refused leaves no empty folder
    with remove_new_empty_folders(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(
                f"Checkpoints and logs cannot be written to {folder}: {error.strerror}. "
                "Give a writable folder with --checkpoints."
            ) from error
        yield folder


def resolve_worker_count(workers: Workers | None, spec: StudySpec, turn: StudyTurn | None) -> int | None:
    """Return the requested number of workers, None for as many as fit.

    Args:
        workers: Number given to the command; None: that of the spec.
        turn: The turn of an agent of several studies, for which ``study.parallel`` is a limit; None: the
            agent serves one study, and a higher number is an error.

    Raises:
        UsageError: The number is not between 1 and ``study.parallel``.
    """
    num_workers = workers or spec.resources_here.workers
    if num_workers is None or num_workers == "auto":
        return None
    if turn is not None:
        return min(num_workers, spec.study.parallel)
    if not 1 <= num_workers <= spec.study.parallel:
        raise UsageError(
            f"{num_workers} workers were requested; study.parallel allows 1 to {spec.study.parallel}, "
            "because a run must not depend on which other run has finished first. Raise it in a new study."
        )
    return num_workers

"""Runs one agent on a study: takes it from where it stands to its verdict, or until the agent leaves.

Puts the rooms together: spec, store, workers and agent; each decision is made elsewhere.
"""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tempopt.agent.agent_loop import Agent
from tempopt.agent.dry_run import check_spec_on_worker, format_stage, run_dry_run, start_workers
from tempopt.agent.gpu_locks import claim_gpus
from tempopt.agent.local_client import LocalStudyClient
from tempopt.agent.machine import Machine, this_machine
from tempopt.agent.observer import Observer
from tempopt.agent.placement import Placement, assign_placements, count_workers
from tempopt.agent.process import WorkerProcess
from tempopt.agent.signals import sigterm_as_keyboard_interrupt
from tempopt.agent.study_creation import ensure_study_exists
from tempopt.agent.turn import Turn
from tempopt.errors import SpecError, UsageError
from tempopt.files import removed_if_empty
from tempopt.report.study_result import StudyResult, load
from tempopt.sampling.optuna_factories import try_strategies
from tempopt.spec.program import Program
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.checkpoints import DEFAULT_FOLDER, is_local, join, normalize_checkpoint_url
from tempopt.storage.liveness import user
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store
from tempopt.training.messages import Stage

# A search says of the parts of its dry run only those for which a person has waited.
_LONG = 5.0


class StudyRunner:
    """One agent's work on one study, from the workers' start to the result.

    Args:
        store: Where the study is, or will be.
        spec: Its spec.
        study: Its row; None if it is to be begun.
        workers: As for :func:`search`.
        checkpoints: As for :func:`search`.
        observer: Is told what happens.
        resume_if_paused: Whether a study that was paused goes on; False: it is left at rest.
        turn: Says when the agent leaves the study to serve another; None: it stays until nothing is left.
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
        turn: Turn | None = None,
    ) -> None:
        self._turn = turn
        self._store = store
        self._spec = spec
        self._study = study
        self._wake = resume_if_paused
        self._observer = observer
        self._num_workers = resolve_worker_count(workers, spec, turn)
        self._checkpoints = self._kept_at(checkpoints)

    def run(self) -> StudyResult:
        """Return the study's result when there is nothing left to do, or it was told to rest."""
        self.run_until_idle()
        return load(self._store, self._spec.study.name, needs_measurements=True)

    def run_until_idle(self) -> None:
        """Work until nothing is left to do, the study was told to rest, or its turn is over."""
        spec, store = self._spec, self._store
        validate_sampler_and_pruner(spec)
        name = spec.study.name
        state = None if self._study is None else store.load_study(name).state
        if state == "done" or (state == "paused" and not self._wake):
            return
        logs = self._checkpoints if is_local(self._checkpoints) else DEFAULT_FOLDER
        writable = ensure_writable_dir(Path(logs).absolute() / name)
        with (
            writable as folder,
            sigterm_as_keyboard_interrupt(),
            claim_local_placements(self._spec, self._num_workers) as places,
            start_workers(places) as workers,
        ):
            if self._study is not None and state != "running":
                store.set_state(self._study.id, "running")
            # on another machine than before, a class may not be there; better seen before a ticket is taken
            try:
                if self._study is None:
                    spec, _ = run_dry_run(spec, workers[0], task="dry_run", on_stage=self._note_stage)
                else:
                    spec = check_spec_on_worker(spec, workers[0], again=self._turn is None)
            except SpecError as error:
                raise SpecError(f"{error}{self._where_begun(str(error))}") from error
            self._spec, program = spec, spec.program()
            study = ensure_study_exists(
                store,
                spec,
                self._study,
                checkpoints=self._checkpoints,
                owner=user(),
                on_note=self._observer.note,
            )
            self._train(study, program, workers, folder)

    def _train(self, study: StudyRow, program: Program, workers: list[WorkerProcess], folder: Path) -> None:
        """Work on a study until nothing is left to do."""
        checkpoints_url = join(self._checkpoints, study.name)
        client = LocalStudyClient(
            spec=self._spec,
            program=program,
            study=study,
            store=self._store,
            folder=folder,
            workers=len(workers),
            checkpoints=checkpoints_url,
            observer=self._observer,
        )
        agent = Agent(
            spec=self._spec,
            client=client,
            workers=workers,
            folder=folder,
            checkpoints=checkpoints_url,
            observer=self._observer,
            new=self._study is None,
            turn=self._turn,
        )
        try:
            agent.run()
        finally:
            workers[:] = agent.workers

    def _where_begun(self, refusal: str) -> str:
        """Return where the modules of a study that is there may be, if one was not found here."""
        stored_url = None if self._study is None else self._study.checkpoints
        if (
            not stored_url
            or not is_local(stored_url)
            or Path(stored_url).name != DEFAULT_FOLDER
            or "Looked in " not in refusal
        ):
            return ""
        folder = str(Path(stored_url).parent)
        return f"\nThe study was begun in {folder}. Go there, or run: export PYTHONPATH={shlex.quote(folder)}"

    def _note_stage(self, stage: Stage) -> None:
        if stage.seconds >= _LONG:
            self._observer.note(format_stage(stage))

    def _kept_at(self, checkpoints: str | Path | None) -> str:
        stored_url = self._study.checkpoints if self._study is not None else None
        if (
            checkpoints is None
            and stored_url is not None
            and (not is_local(stored_url) or Path(stored_url).is_dir())
        ):
            return stored_url
        return normalize_checkpoint_url(DEFAULT_FOLDER if checkpoints is None else checkpoints)


def validate_sampler_and_pruner(spec: StudySpec) -> None:
    """Refuse a sampler or pruner that cannot be made.

    Raises:
        SpecError: It does not take an option.
    """
    try_strategies(spec.study.sampler, spec.study.pruner)


def claim_local_placements(
    spec: StudySpec, num_requested: int | None
) -> AbstractContextManager[list[Placement]]:
    """Return where workers train, on cards that are this agent's until the end of the context.

    Args:
        spec: The study's spec.
        num_requested: Number of workers; None: as many as there is room for.
    """
    machine = this_machine()
    need = spec.resource_need(gpus=machine.has_gpus)
    # one thread, whatever the machine: sums in another order would be other numbers
    threads = spec.resources_here.threads

    def dealt(free: Machine) -> list[Placement]:
        count = count_workers(need, free, num_requested=num_requested, max_workers=spec.study.parallel)
        return assign_placements(need, count, free, threads=threads)

    return claim_gpus(machine, dealt)


@contextlib.contextmanager
def ensure_writable_dir(folder: Path) -> Iterator[Path]:
    """Have a folder for logs, made and open to writing; of what was made, what stays empty is removed.

    Raises:
        UsageError: It cannot be made or written to.
    """
    # what is refused has written nothing there
    with removed_if_empty(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(
                f"Checkpoints and logs cannot be written to {folder}: {error.strerror}. "
                "Give a folder that can be, with --checkpoints."
            ) from error
        yield folder


def resolve_worker_count(workers: Workers | None, spec: StudySpec, turn: Turn | None) -> int | None:
    """Return the number of workers that was asked for, None for as many as there is room for.

    Args:
        workers: What this command was given; None: what the spec says.
        turn: The turn of an agent of several studies, which uses at most ``study.parallel``; None: no such.

    Raises:
        UsageError: It is more than ``study.parallel`` allows.
    """
    num_workers = workers or spec.resources_here.workers
    if num_workers is None or num_workers == "auto":
        return None
    if turn is not None:
        return min(num_workers, spec.study.parallel)
    if not 1 <= num_workers <= spec.study.parallel:
        raise UsageError(
            f"{num_workers} workers were asked for; study.parallel allows 1 to {spec.study.parallel}, "
            "because a run may not depend on which of the others has finished first. Raise it in a new study."
        )
    return num_workers

"""A study from beginning to end, in Python: search, resume, check and load_study.

It puts the rooms together: spec, store, trainers and agent; each decision is made elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tempopt.errors import SpecError, StudyChanged, StudyFailed, StudyNotFound, UsageError
from tempopt.store.rows import Kind, NewTicket, StudyRow
from tempopt.store.store import Store
from tempopt.study.agent import Agent
from tempopt.study.confirm import evaluations
from tempopt.study.optimizers import make_pruner, make_sampler
from tempopt.study.progress import Observer, Unobserved
from tempopt.study.results import StudyResult, load
from tempopt.study.spec import StudySpec, diff, load_spec
from tempopt.study.trials import Trials
from tempopt.training.messages import Failed, Finished, RunRequest, Started
from tempopt.training.process import TrainerProcess
from tempopt.training.seeds import derive

DEFAULT_STORAGE = "sqlite:///tempopt.db"
DEFAULT_CHECKPOINTS = "tempopt-runs"


def search(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: int | None = None,
    checkpoints: str | Path | None = None,
    trials: int | None = None,
    observer: Observer | None = None,
) -> StudyResult:
    """Carry a study through to its verdict, or go on with it if the store has begun it.

    Args:
        spec: The spec: loaded, as plain data, the path of a YAML file or the name of a bundled one.
        storage: URL of the database.
        workers: Trainers at work at a time; None: one a CPU core, ``study.parallel`` at the most.
        checkpoints: Folder for checkpoints and logs; None: ``tempopt-runs`` in the current folder.
        trials: Search tickets, instead of the spec's number.
        observer: Who looks on.

    Raises:
        SpecError: The spec cannot be carried out; nothing has been written.
        StudyChanged: The store has a study of that name that asks something else.
        StudyFailed: Nothing could be trained.
        KeyboardInterrupt: After everything was saved.
    """
    spec = _loaded(spec)
    if trials is not None:
        spec = spec.with_overrides([f"study.trials={trials}"])
    with Store.open(storage, create=True) as store:
        try:
            study: StudyRow | None = store.load_study(spec.study.name)
        except StudyNotFound:
            study = None
        if study is not None:
            spec = _unchanged(study, spec)
        return _carry_out(spec, study, store, workers, checkpoints, observer or Unobserved())


def resume(
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: int | None = None,
    checkpoints: str | Path | None = None,
    observer: Observer | None = None,
) -> StudyResult:
    """Go on with a study from the database alone; arguments and errors as for :func:`search`.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with Store.open(storage, create=False) as store:
        study = store.load_study(name)
        spec = StudySpec.from_json(study.spec)
        return _carry_out(spec, study, store, workers, checkpoints, observer or Unobserved())


def load_study(storage: str, name: str) -> StudyResult:
    """Return what a store knows of a study.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with Store.open(storage, create=False) as store:
        return load(store, name)


def check(spec: StudySpec | Mapping[str, Any] | str | Path, *, dry_run: bool = False) -> list[str]:
    """Validate a spec against the classes it names, in a trainer; return what to tell a person.

    Args:
        spec: As for :func:`search`.
        dry_run: Whether to train two steps and validate once too.

    Raises:
        SpecError: The spec cannot be carried out.
    """
    spec = _loaded(spec)
    _optimizers(spec)
    with _trainers(1, threads=1) as trainers:
        started = _rehearse(spec, trainers[0], task="rehearse" if dry_run else "check")
    lines = [f'The spec of study "{spec.study.name}" is valid.']
    if started is not None:
        lines += [
            f"Two steps were trained and one validation ran, on {started.device} at {started.precision} "
            "precision.",
            f"Tempered layers: {', '.join(started.layers)}.",
            f"A run takes {started.total_steps} optimizer steps.",
        ]
    return lines


def _loaded(spec: StudySpec | Mapping[str, Any] | str | Path) -> StudySpec:
    if isinstance(spec, StudySpec):
        return spec
    if isinstance(spec, Mapping):
        return StudySpec.parse(spec, source="the study spec")
    return load_spec(spec)


def _optimizers(spec: StudySpec) -> None:
    """Refuse a sampler or pruner that cannot be made.

    Raises:
        SpecError: It does not take an option.
    """
    make_sampler(spec.study.sampler, seed=0)
    make_pruner(spec.study.pruner)


def _folder(checkpoints: str | Path | None, study: str) -> Path:
    """Return the folder of a study's runs, made and open to writing.

    Raises:
        UsageError: It cannot be made or written to.
    """
    folder = Path(checkpoints or DEFAULT_CHECKPOINTS).absolute() / study
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UsageError(
            f"Checkpoints and logs cannot be written to {folder}: {error.strerror}. "
            "Give a folder that can be, with --checkpoints."
        ) from error


def _unchanged(study: StudyRow, spec: StudySpec) -> StudySpec:
    stored = StudySpec.from_json(study.spec)
    if changes := diff(stored, spec):
        listed = "\n".join(f"  {line}" for line in changes)
        raise StudyChanged(
            f'The store has a study "{study.name}" that was begun with another spec:\n{listed}\n'
            "Give this one another name (--name), or go on with that one: "
            f"tempopt resume {study.name}."
        )
    counted, asked = (
        f"{each.num_unit} unit, {each.num_constant} constant and {each.study.trials} search tickets"
        for each in (stored, spec)
    )
    if counted != asked:
        raise StudyChanged(
            f'The store has a study "{study.name}" of {counted}, and {asked} are asked now. '
            "Give this one another name (--name), or ask for as many."
        )
    return spec


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _workers(asked: int | None, spec: StudySpec) -> int:
    wanted = asked or spec.resources.workers
    if wanted is None:
        return min(_cores(), spec.study.parallel)
    if not 1 <= wanted <= spec.study.parallel:
        raise UsageError(
            f"{wanted} workers were asked for; study.parallel allows 1 to {spec.study.parallel}, because a "
            "run may not depend on which of the others has finished first. Raise it in a new study."
        )
    return wanted


@contextlib.contextmanager
def _trainers(count: int, *, threads: int) -> Iterator[list[TrainerProcess]]:
    trainers = [TrainerProcess(slot=slot, threads=threads) for slot in range(count)]
    try:
        yield trainers
    finally:
        for trainer in trainers:
            trainer.kill()


def _carry_out(
    spec: StudySpec,
    study: StudyRow | None,
    store: Store,
    workers: int | None,
    checkpoints: str | Path | None,
    observer: Observer,
) -> StudyResult:
    _optimizers(spec)
    program = spec.program()
    count = _workers(workers, spec)
    # one thread, whatever the machine: sums in another order would be other numbers
    threads = spec.resources.threads or 1
    folder = _folder(checkpoints, spec.study.name)
    if study is not None:
        if study.state == "done":
            return load(store, study.name)
        _alone(store, study)
    with _terminable(), _trainers(count, threads=threads) as trainers:
        if study is None:
            for note in spec.notes:
                observer.note(note)
            _rehearse(spec, trainers[0], task="rehearse")
        trials = Trials(
            url=store.url,
            name=spec.study.name,
            direction=spec.study.direction,
            metric=spec.study.metric,
        )
        study = study or store.create_study(spec.study.name, spec.to_json(), spec.identity())
        # every time, since whoever began the study may have died before it had its tickets
        store.add_tickets(study.id, _first_tickets(spec))
        agent = Agent(
            spec=spec,
            program=program,
            study=study,
            store=store,
            trials=trials,
            trainers=trainers,
            folder=folder,
            threads=threads,
            observer=observer,
        )
        try:
            agent.run()
        finally:
            trainers[:] = agent.trainers
    return load(store, study.name)


def _rehearse(
    spec: StudySpec, trainer: TrainerProcess, *, task: Literal["rehearse", "check"]
) -> Started | None:
    """Have a trainer try what the spec asks, before anything is written.

    Raises:
        SpecError: It cannot be carried out.
        StudyFailed: The trainer died over it.
    """
    probes = {name: list(domain.probes) for name, domain in spec.search.items()}
    sampled = {name: values[-1] for name, values in probes.items()}
    measured = evaluations("confirm", "search", spec, {}) if spec.confirms else []
    trainer.send(
        RunRequest(
            ticket=0,
            attempt=0,
            program=spec.program(),
            parameters=spec.parameters("search", sampled),
            seed=derive(spec.study.seed, task),
            evaluations=measured,
            task=task,
            space=probes,
        )
    )
    started: Started | None = None
    while (message := trainer.receive()) is not None:
        if isinstance(message, Failed):
            raise SpecError(_explained(message))
        if isinstance(message, Started):
            started = message
        if isinstance(message, Finished):
            return started
    raise StudyFailed(f"The rehearsal of two steps did not survive: {trainer.obituary()}.")


def _explained(failure: Failed) -> str:
    if failure.kind == "usage":
        return failure.message
    places = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    # the person's own line, not that of the library it ends in
    own = [
        place for place in places if "site-packages" not in place and f"{os.sep}tempopt{os.sep}" not in place
    ]
    return "\n".join([f"The rehearsal of two steps ended in {failure.message}", *(own or places)[-1:]])


def _first_tickets(spec: StudySpec) -> list[NewTicket]:
    counts: dict[Kind, int] = {
        "unit": spec.num_unit,
        "constant": spec.num_constant,
        "search": spec.study.trials,
    }
    if not spec.confirms:
        # a frozen model has no runs to compare: what is asked is where its optimum lies
        counts = {"search": spec.study.trials}
    return [
        NewTicket(kind=kind, arm=kind, number=number, seed=derive(spec.study.seed, kind, number))
        for kind, count in counts.items()
        for number in range(count)
    ]


def _alone(store: Store, study: StudyRow) -> None:
    """Take over the tickets of an agent that is gone; refuse while it is at work on this machine."""
    for agent in {t.agent for t in store.tickets(study.id) if t.state == "running" and t.agent}:
        host, _, pid = agent.rpartition(":")
        if host == socket.gethostname() and _lives(int(pid)):
            raise UsageError(
                f'Study "{study.name}" is being worked on by process {pid} on this machine. '
                "Wait for it, or end it first (Ctrl-C there)."
            )
    store.release_agent(study.id, None)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM end a search as Ctrl-C does: in good order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

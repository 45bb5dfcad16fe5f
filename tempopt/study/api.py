"""A study in Python: search, resume, join, check and load_study. Each is carried out elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tempopt.errors import UsageError
from tempopt.store.rows import StudyRow, TicketRow
from tempopt.store.store import Store
from tempopt.study.errand import Errand, find, go_on_with, optimizers, rehearse, trainers_of
from tempopt.study.progress import Observer, Unobserved
from tempopt.study.results import StudyResult, load
from tempopt.study.spec import StudySpec, load_spec
from tempopt.study.stages import more_tickets

DEFAULT_STORAGE = "sqlite:///tempopt.db"


def search(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: int | None = None,
    checkpoints: str | Path | None = None,
    trials: int | None = None,
    more: int = 0,
    enqueue: Sequence[Mapping[str, Any]] = (),
    observer: Observer | None = None,
) -> StudyResult:
    """Carry a study through to its verdict, or go on with it if the store has begun it.

    Others may be at work on it at the same time, on this machine or another.

    Args:
        spec: The spec: loaded, as plain data, the path of a YAML file or the name of a bundled one.
        storage: URL of the database.
        workers: Trainers at work at a time; None: one a CPU core, ``study.parallel`` at the most.
        checkpoints: Folder, or fsspec URL, for checkpoints; None: where the study has kept them so far
            if that can be reached, else ``tempopt-runs`` in the current folder.
        trials: Search tickets of a study that is begun, instead of the spec's number.
        more: Search tickets to add to a study that has been begun.
        enqueue: Parameter sets to try: the first tickets of a new study, tickets more of one that is there.
        observer: Who looks on.

    Raises:
        SpecError: The spec cannot be carried out; nothing has been written.
        StudyChanged: The store has a study of that name that asks something else.
        StudyFailed: Nothing could be trained, or the store was away for too long.
        KeyboardInterrupt: After everything was saved.
    """
    spec = _loaded(spec)
    if trials is not None:
        spec = spec.with_overrides([f"study.trials={trials}"])
    with Store.open(storage, create=True) as store:
        study = find(store, spec.study.name)
        if study is None and more:
            raise UsageError(
                f'{more} trials were to be added, but the store has no study "{spec.study.name}" yet. '
                f"Give their whole number: --trials {spec.study.trials + more}"
            )
        if study is None and enqueue:
            wanted = [*spec.study.enqueue, *enqueue]
            spec = spec.with_overrides([f"study.enqueue={json.dumps(wanted)}"])
        elif study is not None:
            go_on_with(store, study, spec)
            _add(store, study, spec, more, enqueue)
        errand = Errand(store, spec, study, workers, checkpoints, observer or Unobserved())
        return errand.carry_out()


def resume(
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: int | None = None,
    checkpoints: str | Path | None = None,
    more: int = 0,
    observer: Observer | None = None,
) -> StudyResult:
    """Go on with a study from the database alone; arguments and errors as for :func:`search`.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with Store.open(storage, create=False) as store:
        study = store.load_study(name)
        spec = StudySpec.from_json(study.spec)
        _add(store, study, spec, more)
        return Errand(store, spec, study, workers, checkpoints, observer or Unobserved()).carry_out()


def join(
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: int | None = None,
    checkpoints: str | Path | None = None,
    observer: Observer | None = None,
) -> StudyResult:
    """Work on a study that is being worked on, until it ends; arguments and errors as for :func:`resume`.

    Raises:
        UsageError: The study was paused.
    """
    with Store.open(storage, create=False) as store:
        study = store.load_study(name)
        if study.state == "paused":
            raise UsageError(f'Study "{name}" was paused. Let it go on first: tempopt resume {name}')
        spec = StudySpec.from_json(study.spec)
        return Errand(store, spec, study, workers, checkpoints, observer or Unobserved()).carry_out()


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
    optimizers(spec)
    with trainers_of(1, threads=1) as trainers:
        started = rehearse(spec, trainers[0], task="rehearse" if dry_run else "check")
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


def _add(
    store: Store, study: StudyRow, spec: StudySpec, count: int, enqueue: Sequence[Mapping[str, Any]] = ()
) -> None:
    given = spec.enqueued(enqueue)
    while True:
        version = store.load_study(study.name).version
        rows = store.tickets(study.id)
        # the same command may be typed twice
        wanted = [each for each in given if not any(_tries(row, each) for row in rows)]
        tickets = more_tickets(rows, spec, max(count, len(wanted)), wanted)
        if not tickets:
            return
        # if somebody else adds tickets at the same moment, or the search ends, ours follow from other ones
        if store.add_tickets(study.id, tickets, version=version, resume=True):
            return


def _tries(row: TicketRow, wanted: Mapping[str, Any]) -> bool:
    return row.kind == "search" and row.sampled is not None and wanted.items() <= row.sampled.items()

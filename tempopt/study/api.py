"""A study in Python: search, resume, join, check, plan and load_study. Each is carried out elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tempopt.agent.continuation import find, same_question
from tempopt.agent.dry_run import rehearse, workers_of
from tempopt.agent.observer import Observer, Unobserved
from tempopt.agent.runner import StudyRunner, optimizers
from tempopt.errors import UsageError
from tempopt.results.study_result import StudyResult, load
from tempopt.spec.own_schedules import import_schedules
from tempopt.spec.sections import Workers
from tempopt.spec.study_spec import StudySpec, load_spec
from tempopt.store.store import Store
from tempopt.study.enlarge import add_pairs, grow, ordered
from tempopt.study.planning import StudyForecast, forecast
from tempopt.workers.placement import Placement

DEFAULT_STORAGE = "sqlite:///tempopt.db"


def search(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: Workers | None = None,
    checkpoints: str | Path | None = None,
    trials: int | None = None,
    more: int = 0,
    enqueue: Sequence[Mapping[str, Any]] = (),
    observer: Observer | None = None,
) -> StudyResult:
    """Carry a study through to its verdict, or continue it if the store has begun it.

    Others may be at work on it at the same time, on this machine or another.

    Args:
        spec: The spec: loaded, as plain data, the path of a YAML file or the name of a bundled one.
        storage: URL of the database.
        workers: Trials side by side; ``auto``: as many as there is room for, ``study.parallel`` at most;
            None: what the spec says, else ``auto``.
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
    import_schedules(spec)
    with Store.open(storage, create=True) as store:
        spec, study = ordered(store, spec, trials=trials, more=more, enqueue=enqueue)
        runner = StudyRunner(store, spec, study, workers, checkpoints, observer or Unobserved())
        return runner.carry_out()


def resume(
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: Workers | None = None,
    checkpoints: str | Path | None = None,
    more: int = 0,
    pairs: int = 0,
    observer: Observer | None = None,
) -> StudyResult:
    """Continue a study from the database alone; other arguments and errors as for :func:`search`.

    Args:
        name: Name of the study.
        pairs: Confirming seeds to add to its verdict, instead of trials.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: Pairs were to be added, and there is no verdict.
    """
    with Store.open(storage, create=False) as store:
        study = store.load_study(name)
        spec = StudySpec.from_json(study.spec)
        import_schedules(spec)
        grow(store, study, spec, more)
        add_pairs(store, study, spec, pairs)
        return StudyRunner(store, spec, study, workers, checkpoints, observer or Unobserved()).carry_out()


def join(
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: Workers | None = None,
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
        import_schedules(spec)
        runner = StudyRunner(store, spec, study, workers, checkpoints, observer or Unobserved(), wake=False)
        return runner.carry_out()


def take_part(
    spec: StudySpec | None,
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: Workers | None = None,
    checkpoints: str | Path | None = None,
    overrides: Sequence[str] = (),
    observer: Observer | None = None,
) -> StudyResult:
    """Work on a study as one of the agents that somebody has launched; arguments and errors as for `search`.

    Whoever is first begins it. A study that was paused meanwhile is left at rest, and what is stored of one
    that is there holds, however long this agent has waited for its turn.

    Args:
        spec: The spec; None: the study is in the store.
        name: Name of the study.
        overrides: ``a.b=c`` settings of this machine's own, as for :meth:`StudySpec.with_overrides`.
    """
    with Store.open(storage, create=spec is not None) as store:
        study = store.load_study(name) if spec is None else find(store, name)
        if study is not None:
            spec = StudySpec.from_json(study.spec) if spec is None else same_question(study, spec)
        assert spec is not None
        spec = spec.with_overrides(overrides)
        import_schedules(spec)
        runner = StudyRunner(store, spec, study, workers, checkpoints, observer or Unobserved(), wake=False)
        return runner.carry_out()


def load_study(storage: str, name: str) -> StudyResult:
    """Return all that a store knows of a study, what its runs measured included.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with Store.open(storage, create=False) as store:
        return load(store, name, whole=True)


def check(spec: StudySpec | Mapping[str, Any] | str | Path, *, dry_run: bool = False) -> list[str]:
    """Validate a spec against the classes it names, in a worker; return what to tell a person.

    Args:
        spec: As for :func:`search`.
        dry_run: Whether to train two steps and validate once too.

    Raises:
        SpecError: The spec cannot be carried out.
    """
    spec = _loaded(spec)
    import_schedules(spec)
    optimizers(spec)
    with workers_of([Placement(ranks=spec.ranks if dry_run else 1)]) as workers:
        started = rehearse(spec, workers[0], task="rehearse" if dry_run else "check")
    lines = [f'The spec of study "{spec.study.name}" is valid.']
    if started is not None:
        lines += [
            f"Two steps were trained and one validation ran, on {started.device} at {started.precision} "
            "precision.",
            f"Tempered layers: {', '.join(started.layers)}.",
            f"A run takes {started.total_steps} optimizer steps.",
        ]
    return lines


def plan(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: Workers | None = None,
    trials: int | None = None,
    earlier: str | None = None,
) -> StudyForecast:
    """Return what a study costs and what gain it can show, after a dry run; nothing is stored.

    Args:
        spec: As for :func:`search`.
        storage: URL of the database whose runs tell of the noise, if it has any of this study.
        workers: Trials side by side; as for :func:`search`, but any machine's.
        trials: Search trials, instead of the spec's number.
        earlier: Name of a study in the database whose runs tell of the noise; None: this study itself, or
            one of ``study.warm_start``.

    Raises:
        SpecError: The spec cannot be carried out.
        StudyNotFound: There is no study ``earlier``.
        UsageError: Its runs say nothing of this study's noise.
    """
    spec = _loaded(spec)
    if trials is not None:
        spec = spec.with_overrides([f"study.trials={trials}"])
    import_schedules(spec)
    optimizers(spec)
    return forecast(spec, storage=storage, workers=workers, earlier=earlier)


def _loaded(spec: StudySpec | Mapping[str, Any] | str | Path) -> StudySpec:
    if isinstance(spec, StudySpec):
        return spec
    if isinstance(spec, Mapping):
        return StudySpec.parse(spec, source="the study spec")
    return load_spec(spec)

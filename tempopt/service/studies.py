"""Carry out, join, check and load studies, for the command line and tempopt.api."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tempopt.agent.dry_run import format_stage, run_dry_run, start_workers
from tempopt.agent.observer import NullObserver, Observer
from tempopt.agent.placement import Placement
from tempopt.agent.store_connection import retry_while_busy
from tempopt.agent.study_creation import ensure_study_exists
from tempopt.agent.study_lookup import check_same_study, find_study
from tempopt.agent.study_runner import StudyRunner, validate_sampler_and_pruner
from tempopt.errors import UsageError
from tempopt.launch.watch import watch_study
from tempopt.report.study_result import StudyResult, load
from tempopt.service import remote_study
from tempopt.service.extend import check_request, extend_study
from tempopt.service.lifecycle import Storage, open_storage
from tempopt.service.requests import ResumeRequest, SearchRequest, hint_at_without_option
from tempopt.spec.collect_errors import with_all_faults
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.load import load_spec
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.storage.checkpoints import DEFAULT_FOLDER, normalize_checkpoint_url
from tempopt.storage.liveness import user
from tempopt.storage.opening import as_remote_store, open_store
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store
from tempopt.storage.urls import DEFAULT_STORAGE
from tempopt.temperature.towers import describe_layers
from tempopt.verdict.forecast_text import runs_text
from tempopt.verdict.planned_runs import planned_runs
from tempopt.verdict.set_comparison import check_comparison

_NO_LAYERS = "none. No attention temperature acts: the model is trained as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of this process for carrying out a study.

    Args:
        storage: The storage of the study.
        workers: Number of concurrent trials; None: that of the spec, behind a server none.
        checkpoints: Folder or URL for checkpoints; None: that of the study, or the default.
        submit: Whether other agents train while this process watches; always so behind a server.
        wait: Whether to wait for the end of a study that a server's agents train.
    """

    storage: Storage = DEFAULT_STORAGE
    workers: Workers | None = None
    checkpoints: str | Path | None = None
    submit: bool = False
    wait: bool = True


def carry_out(
    request: SearchRequest | ResumeRequest, options: RunOptions, observer: Observer | None = None
) -> StudyResult:
    """Carry out a study to its verdict, in a database or behind a server.

    Raises the errors of :func:`tempopt.search`, :func:`tempopt.compare` and :func:`tempopt.resume`.

    Args:
        observer: Receives the progress.
    """
    study_observer = observer or NullObserver()
    check_request(request)
    is_search = isinstance(request, SearchRequest)
    with hint_at_without_option(request), open_storage(options.storage, create=is_search) as store:
        if server := as_remote_store(store):
            check_no_checkpoint_url(options.checkpoints)
            remote_study.submit(server, request, workers=options.workers, observer=study_observer)
            if options.wait:
                remote_study.wait_until_over(
                    server, request.study, workers=options.workers, observer=study_observer
                )
            return load(store, request.study, needs_measurements=True)
        spec, study = extend_study(store, request, on_note=study_observer.note)
        if options.submit:
            return _submit(store, spec, study, options.checkpoints, study_observer)
        runner = StudyRunner(store, spec, study, options.workers, options.checkpoints, study_observer)
        return runner.run()


def _submit(
    store: Store,
    spec: StudySpec,
    study: StudyRow | None,
    checkpoints: str | Path | None,
    observer: Observer,
) -> StudyResult:
    """Create or continue a study, and watch it while other agents train."""
    validate_sampler_and_pruner(spec)
    if study is None:
        spec = remote_study.dry_run_locally(spec, observer)
    elif study.state == "paused":
        store.set_state(study.id, "running")
    stored_url = None if study is None else study.checkpoints
    checkpoints_url = normalize_checkpoint_url(DEFAULT_FOLDER if checkpoints is None else checkpoints)
    checkpoints_url = stored_url if stored_url and checkpoints is None else checkpoints_url
    row = ensure_study_exists(
        store,
        spec,
        study,
        checkpoints=checkpoints_url,
        owner=user(),
        on_note=observer.note,
    )
    watch_study(store, row.name, observer)
    return load(store, row.name, needs_measurements=True)


def check_no_checkpoint_url(checkpoints: str | Path | None) -> None:
    """Refuse a URL for checkpoints behind a server, which has its own.

    Raises:
        UsageError: One was given.
    """
    if checkpoints is not None:
        raise UsageError(
            "A server stores the checkpoints of its studies under the URL of tempopt serve --checkpoints. "
            "Leave out --checkpoints."
        )


def run_agent(
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: Workers | None = None,
    checkpoints: str | Path | None = None,
    observer: Observer | None = None,
) -> StudyResult:
    """Work on a study that others work on, until it ends; arguments and errors as for :func:`tempopt.resume`.

    Waits for a database that answers but cannot serve now, for example without a free connection.

    Raises:
        UsageError: The study was paused.
    """
    study_observer = observer or NullObserver()

    def work() -> StudyResult:
        with open_store(storage, create=False) as store:
            study = store.load_study(name)
            if study.state == "paused":
                raise UsageError(f'Study "{name}" was paused. Continue it first: tempopt resume {name}')
            spec = StudySpec.from_json(study.spec)
            import_schedules(spec)
            runner = StudyRunner(
                store, spec, study, workers, checkpoints, study_observer, resume_if_paused=False
            )
            return runner.run()

    return retry_while_busy(work, note=study_observer.note)


def run_launched_agent(
    spec: StudySpec | None,
    name: str,
    *,
    storage: str = DEFAULT_STORAGE,
    workers: Workers | None = None,
    checkpoints: str | Path | None = None,
    overrides: Sequence[str] = (),
    observer: Observer | None = None,
) -> StudyResult:
    """Work on a study as one of the agents of a launcher; arguments and errors as for `search`.

    The first agent creates the study. A study that has been paused is not continued, and the stored spec of
    an existing study holds, even if this agent had to wait for a long time.

    Args:
        spec: The spec; None: the study is in the store.
        name: Name of the study.
        overrides: ``a.b=c`` settings of this machine, as for :meth:`StudySpec.with_overrides`.
    """
    with open_store(storage, create=spec is not None) as store:
        study = store.load_study(name) if spec is None else find_study(store, name)
        if study is not None:
            spec = StudySpec.from_json(study.spec) if spec is None else check_same_study(study, spec)
        assert spec is not None
        spec = spec.with_overrides(overrides)
        import_schedules(spec)
        study_observer = observer or NullObserver()
        runner = StudyRunner(store, spec, study, workers, checkpoints, study_observer, resume_if_paused=False)
        return runner.run()


def load_study(storage: Storage, name: str) -> StudyResult:
    """Return a study with the measurements of its runs.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with open_storage(storage) as store:
        return load(store, name, needs_measurements=True)


def check(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    *,
    dry_run: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> list[str]:
    """Validate a spec against the classes that it names, in a worker, and return lines for the user.

    Args:
        spec: As for :func:`search`.
        dry_run: Whether to train two steps and validate once, too.
        on_line: Called with a line on each stage of the dry run, once it is over; None: no lines.

    Raises:
        SpecError: The spec cannot be trained.
    """
    try:
        spec = parse_any_spec(spec)
    except FaultySpecError as error:
        raise with_all_faults(error) from error
    import_schedules(spec)
    if spec.compare is not None:
        check_comparison(spec)
    validate_sampler_and_pruner(spec)
    with start_workers(
        [Placement(ranks=spec.ranks if dry_run else 1, loads_torch=spec.program is None)]
    ) as workers:
        spec, started = run_dry_run(
            spec,
            workers[0],
            task="dry_run" if dry_run else "check",
            on_stage=lambda stage: on_line(format_stage(stage)) if on_line is not None else None,
        )
    lines = [f'The spec of study "{spec.study.name}" is valid.']
    if spec.program is not None:
        lines.append(f"Found {spec.program.label}. Keys and placeholders were checked; it was not run.")
    elif started is None:
        lines.append(
            "Keys, classes and arguments were checked. Whether the model has attention on which a "
            "temperature acts is seen only when it runs: add --dry-run."
        )
    else:
        lines += [
            f"Two steps were trained and one validation ran, on {started.device} at {started.precision} "
            "precision.",
            f"Temperatures act at: {describe_layers(started.layers) or _NO_LAYERS}.",
            f"A run takes {started.total_steps} steps.",
            *started.notes,
        ]
    lines += spec.notes
    runs = runs_text(planned_runs(spec))
    lines.append(f"{runs[0].upper()}{runs[1:]}. How long that takes, and what it can show: tempopt plan.")
    return lines


def parse_any_spec(spec: StudySpec | Mapping[str, Any] | str | Path) -> StudySpec:
    """Return the spec that is given loaded, as plain data, as the path of a file or as a bundled name."""
    if isinstance(spec, StudySpec):
        return spec
    if isinstance(spec, Mapping):
        return StudySpec.parse(spec, source="the study spec")
    return load_spec(spec)

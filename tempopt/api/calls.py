"""search, compare, resume and plan as Python calls them; tempopt.service does what they do."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, cast, overload

from tempopt.agent.observer import Observer
from tempopt.api.classes import (
    Spec,
    load_portable_spec,
    load_search_spec,
    portable_comparison,
    spec_of_function,
    with_paths,
)
from tempopt.api.handle import StudyHandle
from tempopt.api.main_module import FOLDER
from tempopt.errors import StudyChanged, UsageError
from tempopt.report.study_result import StudyResult
from tempopt.run_handle import Run
from tempopt.service import lifecycle, studies
from tempopt.service.evaluation.evaluate import evaluate as evaluate_weights
from tempopt.service.evaluation.result import EvaluationResult
from tempopt.service.extend import check_request, extend_study
from tempopt.service.forecast import StudyForecast, forecast_study
from tempopt.service.progress import progress_for_python
from tempopt.service.requests import CompareRequest, ResumeRequest, SearchRequest, Sets
from tempopt.service.studies import RunOptions
from tempopt.spec.compared_sets import MAX_COMPARISON_RUNS
from tempopt.spec.resources import Workers
from tempopt.storage import urls
from tempopt.storage.http.address import is_server
from tempopt.storage.opening import open_store

Function = Callable[[Run], float | None]
"""A function that trains a run."""


class SearchKeywords(TypedDict, total=False):
    """Keyword arguments of a request to search."""

    trials: int | None
    add_trials: int
    enqueue: Sequence[Mapping[str, Any]]


class FunctionKeywords(TypedDict, total=False):
    """Keyword arguments of a search of a function."""

    space: Mapping[str, Any] | None
    metric: str | None
    direction: str | None
    name: str | None


_FUNCTION_KEYWORDS = tuple(FunctionKeywords.__annotations__)


class CompareKeywords(TypedDict, total=False):
    """Keyword arguments of a request to compare."""

    name: str | None
    vary: Mapping[str, Sequence[Any]] | None
    all_pairs: bool
    from_study: str | None
    from_storage: str | None
    top: int | None
    without: Sequence[str]
    pairs: int | None
    max_runs: int


class ResumeKeywords(TypedDict, total=False):
    """Keyword arguments of a request to resume."""

    add_trials: int
    add_pairs: int
    retry_failed: bool
    explain: bool


class _Common(TypedDict, total=False):
    storage: str | None
    workers: Workers | None
    checkpoints: str | Path | None
    progress: bool
    observer: Observer | None


class _SearchOptions(_Common, FunctionKeywords, total=False): ...


class _Search(_SearchOptions, SearchKeywords, total=False):
    submit: bool


class _Compare(_Common, CompareKeywords, total=False): ...


class _Resume(_Common, ResumeKeywords, total=False): ...


@overload
def search(
    spec: Spec | Function, *, wait: Literal[True] = True, **options: Unpack[_Search]
) -> StudyResult: ...
@overload
def search(spec: Spec | Function, *, wait: Literal[False], **options: Unpack[_Search]) -> StudyHandle: ...
def search(
    spec: Spec | Function,
    *,
    trials: int | None = None,
    add_trials: int = 0,
    enqueue: Sequence[Mapping[str, Any]] = (),
    submit: bool = False,
    wait: bool = True,
    **options: Unpack[_SearchOptions],
) -> StudyResult | StudyHandle:
    """Carry a study through to its verdict, or continue it if the store has begun it.

    Others may be at work on it at the same time, on this machine or another.

    In place of a spec a function can be given that takes a :class:`tempopt.Run`, trains and returns the
    value: ``tempopt.search(train, space={...}, metric="val_loss", direction="minimize")``.

    In a spec that is plain data, a class can be given as itself: ``"model": MyModel`` or
    ``"model": {"class_path": MyModel, "init_args": {...}}``, and so the data module and callbacks. Workers
    import it. A class that the running script or notebook defines is first written to a module, with what it
    uses of the program, in the folder ``tempopt_modules`` of the current folder. The module's name has a hash
    of its source: a class that was changed is another one, and belongs to another study.

    Args:
        spec: The spec: loaded, as plain data, the path of a YAML file or the name of a bundled one; or a
            function.
        trials: Number of search trials of a new study, in place of the spec's.
        add_trials: Number of search trials to add to an existing study.
        enqueue: Parameter sets to try: the first tickets of a new study, tickets more of one that is there.
        submit: Whether to leave the trainings to agents (``tempopt agent --any``), and watch; always so on a
            server.
        wait: False: begin in a process of its own, and return a handle at once.
        options: ``storage``: URL of the database, or of a tempopt server; None, the default: that of the
            environment variable ``TEMPOPT_STORAGE``, else of ``tempopt login``, else
            ``sqlite:///tempopt.db``, as on the command line.

            ``workers``: trials side by side; ``"auto"``: as many as there is room for, ``study.parallel`` at
            most; None, the default: what the spec says, else ``"auto"``; on a server none, for its agents
            train.

            ``checkpoints``: folder, or fsspec URL, for checkpoints; None, the default: where the study has
            them so far if that can be reached, else ``tempopt-runs`` in the current folder.

            ``progress``: whether to show the progress, True by default: in a notebook in the cell, on a
            terminal live, else a line for each training, the latter two on standard error.

            ``observer``: an observer of the progress in place of that.

            ``space``, ``metric``, ``direction``: of a function, what the sections ``search:`` and ``study:``
            have; ``name``: of its study, by default that of the function.

    Raises:
        SpecError: The spec cannot be carried out, or a class cannot be imported by workers; nothing has been
            written but the module.
        UsageError: Options of a function are missing, or were given with a spec.
        StudyChanged: The store has a study of that name that asks something else.
        StudyFailed: Nothing could be trained, or the store was away for too long.
        KeyboardInterrupt: After everything was saved; the message says how to go on.
    """
    other_options: dict[str, Any] = dict(options)
    of_function = {name: other_options.pop(name, None) for name in _FUNCTION_KEYWORDS}
    if callable(spec):
        spec = spec_of_function(spec, **of_function)
    elif names := [name for name, value in of_function.items() if value is not None]:
        raise UsageError(f"{', '.join(names)}: for a function alone. A spec says it itself.")
    request = SearchRequest(
        spec=load_search_spec(spec), trials=trials, add_trials=add_trials, enqueue=enqueue
    )
    return _carry_out(request, wait=wait, submit=submit, **cast(_Common, other_options))


@overload
def compare(
    spec: Spec, sets: Sets = (), *, wait: Literal[True] = True, **options: Unpack[_Compare]
) -> StudyResult: ...
@overload
def compare(
    spec: Spec, sets: Sets = (), *, wait: Literal[False], **options: Unpack[_Compare]
) -> StudyHandle: ...
def compare(
    spec: Spec,
    sets: Sets = (),
    *,
    name: str | None = None,
    pairs: int | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    all_pairs: bool = False,
    from_study: str | None = None,
    from_storage: str | None = None,
    top: int | None = None,
    without: Sequence[str] = (),
    max_runs: int = MAX_COMPARISON_RUNS,
    wait: bool = True,
    **options: Unpack[_Common],
) -> StudyResult | StudyHandle:
    """Compare parameter sets on fresh paired seeds: each with the first one, the reference.

    What was found is in ``comparison`` of what is returned. The same comparison asked again continues the
    study that the store has of it, or returns its result.

    Args:
        spec: As for :func:`search`, with or without ``search:``, which is not read.
        sets: Mappings of parameters to values, by name if they are given as a mapping; ``{}`` is the spec as
            it stands. A text is one in YAML, or the path of a YAML file. None: those of the spec's section
            ``compare:``.
        name: Name of the study; None: the spec's with a short hash of the sets.
        pairs: Number of fresh seeds in place of ``study.seeds.confirm``.
        vary: In place of ``sets``: values by parameter, as in ``{"model.num_heads": [1, 2, 4]}``, each
            combination of which is a set.
        all_pairs: Whether each two sets are compared, in place of each with the first.
        from_study: In place of ``sets``: name of a finished study, whose best sets are compared with its
            baseline.
        from_storage: URL of the database or server that has it; None: ``storage``.
        top: How many of its sets, beside the baseline; None: three.
        without: Names of parameters that are left out of all of them.
        max_runs: Most runs that it may take; one that could take more is refused.
        wait: As for :func:`search`.
        options: As for :func:`search`.

    Raises:
        SpecError: The spec or a set is wrong, or two sets train the same; nothing has been written.
        UsageError: It could take more runs than are allowed, or there is nothing to compare.
        StudyChanged: The store has a study of that name that asks something else.
        StudyFailed: Nothing could be trained, or the store was away for too long.
        KeyboardInterrupt: After everything was saved; the message says how to go on.
    """
    request = CompareRequest(
        spec=with_paths(spec),
        sets=sets,
        vary=vary,
        all_pairs=all_pairs,
        name=name,
        pairs=pairs,
        from_study=from_study,
        from_storage=from_storage,
        top=top,
        without=without,
        max_runs=max_runs,
    )
    return _carry_out(request, wait=wait, **options)


def evaluate(
    spec: Spec,
    weights: str | Path,
    *,
    storage: str | None = None,
    trials: int | None = None,
    name: str | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> EvaluationResult:
    """Find the best temperatures at inference, and generation, of trained weights; nothing is trained.

    Args:
        spec: As for :func:`search`. Of ``search:`` only what acts in an evaluation is searched.
        weights: A checkpoint, a state dict or a folder that ``save_pretrained`` wrote.
        storage: URL of the database, as for :func:`search`; no server.
        trials: How many parameter sets are evaluated in all; None: ``study.trials``.
        name: Name of the Optuna study that has the evaluations; None: the spec's with a short hash.
        on_progress: Called with a line on each evaluation.

    Raises:
        SpecError: The spec is wrong, or the weights do not fit it.
        UsageError: There are no such weights, or the storage is a server.
        StudyChanged: The storage has a study of that name that asks something else.
        StudyFailed: Nothing could be evaluated.
    """
    return evaluate_weights(
        with_paths(spec),
        weights,
        storage=urls.storage_url(storage),
        trials=trials,
        name=name,
        on_progress=on_progress,
    )


@overload
def resume(name: str, *, wait: Literal[True] = True, **options: Unpack[_Resume]) -> StudyResult: ...
@overload
def resume(name: str, *, wait: Literal[False], **options: Unpack[_Resume]) -> StudyHandle: ...
def resume(
    name: str,
    *,
    add_trials: int = 0,
    add_pairs: int = 0,
    retry_failed: bool = False,
    explain: bool = False,
    wait: bool = True,
    **options: Unpack[_Common],
) -> StudyResult | StudyHandle:
    """Continue a study from the database alone; ``wait``, options and errors as for :func:`search`.

    Args:
        name: Name of the study.
        add_trials: Number of search trials to add; a new verdict follows.
        add_pairs: Number of confirming seeds to add to its verdict.
        retry_failed: Whether runs that failed on every attempt are trained again, with all attempts.
        explain: Whether its verdict is explained: the worth of each part of the winner, of a simpler plan and
            of learned temperatures.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: More was asked with ``retry_failed`` or ``explain``. Pairs were to be added, and there is
            no verdict; or a change is none of a search space.
    """
    request = ResumeRequest(
        study=name, add_trials=add_trials, add_pairs=add_pairs, retry_failed=retry_failed, explain=explain
    )
    return _carry_out(request, wait=wait, **options)


def plan(
    spec: Spec,
    *,
    storage: str | None = None,
    workers: Workers | None = None,
    trials: int | None = None,
    earlier: str | None = None,
    run_hours: float | None = None,
) -> StudyForecast:
    """Return how many runs a study takes, for how long, and what gain it can show; nothing is stored.

    Args:
        spec: As for :func:`search`.
        storage: URL of the database whose runs tell of the noise, if it has any of this study; None: as for
            :func:`search`.
        workers: Trials side by side; as for :func:`search`, but any machine's.
        trials: Search trials, instead of the spec's number.
        earlier: Name of a study in the database whose runs tell of the noise and of the time of a run; None:
            this study itself, or one of ``study.warm_start``.
        run_hours: Hours of one run; None: measured in that study, or else in a dry run.

    Raises:
        SpecError: The spec cannot be carried out.
        StudyNotFound: There is no study ``earlier``.
        UsageError: Its runs say nothing of this study's noise.
    """
    overrides = [] if trials is None else [f"study.trials={trials}"]
    return forecast_study(
        load_portable_spec(spec).with_overrides(overrides),
        storage=urls.storage_url(storage),
        workers=workers,
        earlier=earlier,
        run_hours=run_hours,
    )


def _carry_out(
    request: SearchRequest | CompareRequest | ResumeRequest,
    *,
    wait: bool,
    submit: bool = False,
    storage: str | None = None,
    workers: Workers | None = None,
    checkpoints: str | Path | None = None,
    progress: bool = True,
    observer: Observer | None = None,
) -> StudyResult | StudyHandle:
    """Carry a request out, or return the handle of a process that does."""
    if submit and (workers is not None or not wait):
        raise UsageError(
            "With submit=True other agents train the study, and this call watches. Take workers and wait out."
        )
    url = urls.storage_url(storage)
    options = RunOptions(storage=url, workers=workers, checkpoints=checkpoints, submit=submit)
    if isinstance(request, CompareRequest):
        request = portable_comparison(request, url)
    with _explain_study_changes():
        if not wait:
            return _start_background_study(request, url, options)
        try:
            with progress_for_python(progress, observer) as study_observer:
                return studies.carry_out(request, options, study_observer)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_resume_hint(request.study, url)) from None


def _start_background_study(
    request: SearchRequest | ResumeRequest, storage: str, options: RunOptions
) -> StudyHandle:
    """Return the handle of a study that is begun or continued in a process of its own."""
    check_request(request)
    if is_server(storage):
        raise UsageError(
            f"wait=False begins an agent in a process of its own, and {storage} is a tempopt server, whose "
            "agents are started by themselves. Use tempopt.connect(url).search(spec, wait=False)."
        )
    store = open_store(storage, create=isinstance(request, SearchRequest))
    try:
        spec, study = extend_study(store, request)
        return StudyHandle(store, spec, study, workers=options.workers, checkpoints=options.checkpoints)
    except BaseException:
        store.close()
        raise


@contextmanager
def _explain_study_changes() -> Iterator[None]:
    """Have a study that was changed since its class was say so."""
    try:
        yield
    except StudyChanged as error:
        if f"{FOLDER}." not in str(error):
            raise
        raise StudyChanged(
            f"{error}\nThe name of a module in {FOLDER} has a hash of what was written to it: a class of the "
            "running program, or something that it uses there, is not what it was when the study was begun. "
            "Define it as it was, or give the changed one another name of the study: study.name."
        ) from None


def _resume_hint(name: str, storage: str) -> str:
    if not lifecycle.study_may_exist(storage, name):
        return "Interrupted before the study was begun; nothing was written."
    if is_server(storage):
        look = f"tempopt.load_study({storage!r}, {name!r})"
        return f"Waiting was interrupted; the study goes on. To look again:\n  {look}"
    shown_url = urls.parse_database_url(storage).masked
    is_default = storage == urls.storage_url(None)
    call = f"tempopt.resume({name!r}" + ("" if is_default else f", storage={shown_url!r}") + ")"
    command = f"tempopt resume {shlex.quote(name)}" + (
        "" if is_default else f" --storage {shlex.quote(shown_url)}"
    )
    return (
        "Interrupted. Everything that was reported is saved. To go on, make the same call again, or:\n"
        f"  {call}\n  {command}"
    )

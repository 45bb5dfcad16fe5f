"""Create a study in the store: Optuna's study, the warm-start runs of earlier studies, the first tickets.

Used by agents and by servers. Trains nothing, and does not import the classes that a spec names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tempopt.agent.study_lookup import check_distinct_param_names, find_study, reconcile_spec
from tempopt.errors import SpecError, StorageError, StudyNotFound
from tempopt.sampling.features import Features
from tempopt.spec.sections import MIN_MODEL_RUNS
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.rows import SEARCH_KINDS, PriorRuns, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.storage.ticket_queries import is_usable, to_maximize
from tempopt.verdict.stages import initial_tickets


def ensure_study_exists(
    store: Store,
    spec: StudySpec,
    study: StudyRow | None,
    *,
    checkpoints: str,
    owner: str = "",
    on_note: Callable[[str], None] = lambda text: None,
) -> StudyRow:
    """Create the study of a spec if it does not exist, with its first tickets, and return it.

    May be called again and by several processes at the same time: existing rows are left unchanged.

    Args:
        store: The database of the study.
        spec: Its spec, completed by a dry run.
        study: Its row; None: it does not exist yet.
        checkpoints: Absolute URL under which its runs write checkpoints.
        owner: The user to whom a new study belongs.
        on_note: Called with each line on how the study begins.

    Raises:
        SpecError: The database cannot distinguish two of its parameters, or a warm-start study has too few
            runs.
        UsageError: Another program has an Optuna study of that name.
        StudyChanged: Another process has created a different study of that name at the same time.
    """
    settings = spec.study
    # on every call: it may have been deleted in a dashboard
    make_study(store.url, name=settings.name, direction=settings.direction, metric=settings.metric)
    if study is None:
        check_distinct_param_names(store, spec)
    row = study or _create_study(store, spec, owner, on_note)
    # before there are tickets: an agent that claims one needs the URL
    if row.checkpoints != checkpoints:
        store.set_checkpoints(row.id, checkpoints)
    # on every call: the process that created the study may have died before it added the tickets
    store.add_tickets(row.id, initial_tickets(spec))
    return row


def _create_study(store: Store, spec: StudySpec, owner: str, on_note: Callable[[str], None]) -> StudyRow:
    for note in spec.notes:
        on_note(note)
    prior_studies = load_warm_start_runs(store, spec)
    for prior_study in prior_studies:
        on_note(f"Begins with the results of {len(prior_study['runs'])} runs of {prior_study['name']}.")
    try:
        return store.create_study(
            spec.study.name,
            spec.to_json(),
            spec.identity(),
            warm_start=prior_studies,
            owner=owner,
            priority=spec.study.priority,
            parallel=spec.study.parallel,
        )
    except StorageError:
        # another process has created the same study at the same time
        stored_study = find_study(store, spec.study.name)
        if stored_study is None:
            raise
        reconcile_spec(store, stored_study, spec)
        return stored_study


def load_warm_start_runs(store: Store, spec: StudySpec) -> PriorRuns:
    """Return the runs of the studies that ``study.warm_start`` names.

    Args:
        store: The database of these studies.
        spec: The spec of the new study.

    Raises:
        SpecError: There is no such study, or too few of its runs are complete.
    """
    return [{"name": name, "runs": _load_runs(store, name, spec)} for name in spec.study.warm_start]


def _load_runs(store: Store, name: str, spec: StudySpec) -> list[tuple[Mapping[str, Any], float]]:
    # lazy import: a study without warm_start should not load scipy
    from tempopt.sampling.knowledge_gradient import subsample_informative

    try:
        study = store.load_study(name)
    except StudyNotFound:
        # behind a server, names of other studies and the database's URL must not be shown
        raise SpecError(
            f'study.warm_start: there is no study "{name}". To list the studies: tempopt list'
        ) from None
    features, direction = Features(spec), StudySpec.from_json(study.spec).study.direction
    runs: list[tuple[Mapping[str, Any], float]] = [
        (dict(row.parameters), to_maximize(row.value, direction))
        for row in store.tickets(study.id, SEARCH_KINDS)
        if is_usable(row)
        and row.value is not None
        and row.parameters is not None
        and _is_valid_plan(row, features)
    ]
    if len(runs) < MIN_MODEL_RUNS:
        raise SpecError(
            f'study.warm_start: {len(runs)} complete runs of the study "{name}" fit into this search, and '
            f"{MIN_MODEL_RUNS} are needed. Let that study complete more runs, or remove it from the list."
        )
    return subsample_informative(runs)


def _is_valid_plan(row: TicketRow, features: Features) -> bool:
    """Return whether a run's parameters make a valid plan with the fixed parameters of this study."""
    try:
        features(row.parameters or {})
    except (ValueError, TypeError):
        return False
    return True

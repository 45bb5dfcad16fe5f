"""How a study is begun in the store: Optuna's record of it, what it keeps of earlier ones, its first tickets.

Shared by an agent and by a server. Trains nothing, and imports nothing of what a spec names.
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
    """Return the study of a spec, begun if it is not there, with its first tickets and its place.

    May be called again and by several at one moment: what is there is left alone.

    Args:
        store: Where it is, or will be.
        spec: Its spec, which a dry run has completed.
        study: Its row; None if it is to be begun.
        checkpoints: URL under which its runs keep their checkpoints, absolute.
        owner: The user whose study it is, if it is begun.
        on_note: Called with each line on how it begins.

    Raises:
        SpecError: The database cannot tell two of its parameters apart, or an earlier study tells too little.
        UsageError: Another program keeps an Optuna study of that name.
        StudyChanged: Another process has begun another study of that name at the same moment.
    """
    settings = spec.study
    # every time: it may have been deleted in a dashboard
    make_study(store.url, name=settings.name, direction=settings.direction, metric=settings.metric)
    if study is None:
        check_distinct_param_names(store, spec)
    row = study or _create_study(store, spec, owner, on_note)
    # before there are tickets to take: who takes one may look there for the study's code
    if row.checkpoints != checkpoints:
        store.set_checkpoints(row.id, checkpoints)
    # every time, since the process that began the study may have died before it had its tickets
    store.add_tickets(row.id, initial_tickets(spec))
    return row


def _create_study(store: Store, spec: StudySpec, owner: str, on_note: Callable[[str], None]) -> StudyRow:
    for note in spec.notes:
        on_note(note)
    prior_studies = load_warm_start_runs(store, spec)
    for prior_study in prior_studies:
        on_note(f"Begins with what {len(prior_study['runs'])} runs of {prior_study['name']} have shown.")
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
        # another process has begun the same study at the same moment
        stored_study = find_study(store, spec.study.name)
        if stored_study is None:
            raise
        reconcile_spec(store, stored_study, spec)
        return stored_study


def load_warm_start_runs(store: Store, spec: StudySpec) -> PriorRuns:
    """Return what is kept of the studies that ``study.warm_start`` names.

    Args:
        store: Where they are.
        spec: The spec of the new study.

    Raises:
        SpecError: There is no such study, or too few of its runs are complete.
    """
    return [{"name": name, "runs": _runs(store, name, spec)} for name in spec.study.warm_start]


def _runs(store: Store, name: str, spec: StudySpec) -> list[tuple[Mapping[str, Any], float]]:
    # it loads scipy, for which who begins from nothing should not wait
    from tempopt.sampling.knowledge_gradient import subsample_informative

    try:
        study = store.load_study(name)
    except StudyNotFound:
        # behind a server, the names of the others and the place of the database are not for everybody
        raise SpecError(
            f'study.warm_start: there is no study "{name}" there. tempopt list has those that there are.'
        ) from None
    features, direction = Features(spec), StudySpec.from_json(study.spec).study.direction
    runs: list[tuple[Mapping[str, Any], float]] = [
        (dict(row.parameters), to_maximize(row.value, direction))
        for row in store.tickets(study.id, SEARCH_KINDS)
        if is_usable(row) and row.value is not None and row.parameters is not None and _fits(row, features)
    ]
    if len(runs) < MIN_MODEL_RUNS:
        raise SpecError(
            f'study.warm_start: of the study "{name}" {len(runs)} runs are complete that have a place in '
            f"this search; it takes {MIN_MODEL_RUNS} to begin from. Let it come further, or take it out."
        )
    return subsample_informative(runs)


def _fits(row: TicketRow, features: Features) -> bool:
    """Whether a run's parameters make a plan together with what this study holds fixed."""
    try:
        features(row.parameters or {})
    except (ValueError, TypeError):
        return False
    return True

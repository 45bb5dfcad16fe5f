"""How a study is begun in the store: Optuna's record of it, what it keeps of earlier ones, its first tickets.

Shared by an agent and by a server. Trains nothing, and imports nothing of what a spec names.
"""

from __future__ import annotations

from collections.abc import Callable

from tempopt.agent.study_lookup import check_distinct_param_names, find_study, reconcile_spec
from tempopt.agent.warm_start import load_warm_start_runs
from tempopt.errors import StorageError
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store
from tempopt.verdict.stages import first_tickets


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
    _register(store, spec, new=study is None)
    row = study or _create_study(store, spec, owner, on_note)
    # before there are tickets to take: who takes one may look there for the study's code
    if row.checkpoints != checkpoints:
        store.set_checkpoints(row.id, checkpoints)
    # every time, since the process that began the study may have died before it had its tickets
    store.add_tickets(row.id, first_tickets(spec))
    return row


def _register(store: Store, spec: StudySpec, *, new: bool) -> None:
    """Have Optuna's study made, if it is not there: it may have been deleted in a dashboard."""
    study = spec.study
    make_study(store.url, name=study.name, direction=study.direction, metric=study.metric)
    if new:
        check_distinct_param_names(store, spec)


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

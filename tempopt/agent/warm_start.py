"""What a new study keeps of earlier ones in the same store, so that it can begin where they ended.

It is kept with the study when it is begun: what becomes of the earlier ones later changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tempopt.errors import SpecError, StudyNotFound
from tempopt.sampling.features import Features
from tempopt.spec.sections import FEWEST
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import SEARCH_KINDS, PriorRuns, TicketRow
from tempopt.storage.store import Store
from tempopt.storage.ticket_queries import is_usable, to_maximize


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
    from tempopt.sampling.arm_model import subsample_informative

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
    if len(runs) < FEWEST:
        raise SpecError(
            f'study.warm_start: of the study "{name}" {len(runs)} runs are complete that have a place in '
            f"this search; it takes {FEWEST} to begin from. Let it come further, or take it out."
        )
    return subsample_informative(runs)


def _fits(row: TicketRow, features: Features) -> bool:
    """Whether a run's parameters make a plan together with what this study holds fixed."""
    try:
        features(row.parameters or {})
    except (ValueError, TypeError):
        return False
    return True

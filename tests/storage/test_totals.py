"""The totals of all runs of a study, on every database."""

from __future__ import annotations

import pytest

from tempopt.storage import Store
from tempopt.storage.changes import RunOutcome
from tempopt.storage.rows import StudyRow, StudyTotals
from tests.storage.scenes import HOUR, complete, make_end, new_ticket, take_next


def _end(store: Store, study: StudyRow, outcomes: RunOutcome) -> None:
    """Have the next ticket of a study taken, and end so."""
    change = make_end(take_next(store, study), outcomes)
    assert not store.write(study.id, [change], agent="agent", lease=HOUR).refused


def test_totals_are_of_each_study_and_the_best_of_complete_search_trials_alone(store: Store) -> None:
    first_study, second_study, empty = (
        store.create_study(name, {}, "0") for name in ("one", "other", "empty")
    )
    store.add_tickets(
        first_study.id, [new_ticket(0, "baseline"), *(new_ticket(number) for number in range(3))]
    )
    store.add_tickets(second_study.id, [new_ticket(0)])
    # the baseline's comes first, and is the highest
    for value in (9.0, 0.25, 0.75):
        _end(store, first_study, complete(value, gpu_seconds=1.5))
    take_next(store, first_study)
    _end(store, second_study, complete(0.5))
    totals = store.totals()
    assert totals[first_study.id] == StudyTotals(lowest=0.25, highest=0.75, seconds=7.5, gpu_seconds=4.5)
    assert totals[second_study.id] == StudyTotals(lowest=0.5, highest=0.5, seconds=2.5, gpu_seconds=0.0)
    assert empty.id not in totals


def test_there_is_no_best_before_a_search_trial_is_complete(store: Store) -> None:
    study = store.create_study("one", {}, "0")
    store.add_tickets(study.id, [new_ticket(0, "baseline"), new_ticket(0)])
    _end(store, study, complete(0.5))
    assert store.totals()[study.id].highest is None
    assert store.totals()[study.id].seconds == pytest.approx(2.5)

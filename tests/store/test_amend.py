"""Another search space of a study: written with its tickets, all or nothing, and seen by every agent."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import StaleAttempt, StudyNotFound
from tempopt.records import StudyRow
from tempopt.store import Store
from tests.store.scenes import PARAMETERS, SAMPLED, new, take

CHANGE = {"spec": {"study": {"name": "example"}}, "round": 1, "missing": {"x": 0.5}, "fixed": {}}


def amend(store: Store, study: StudyRow, **more: Any) -> bool:
    row = store.load_study(study.name)
    asked: dict[str, Any] = {
        "spec": {"study": {"name": "example", "changed": True}},
        "spec_hash": "1" * 64,
        "amendments": [*(row.amendments or []), CHANGE],
        "tickets": [],
        "sampled": {},
        "withdraw": [],
        "version": row.version,
    }
    return store.amend(study.id, **{**asked, **more})


def test_an_amendment_is_written_with_its_tickets(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0), new(1)])
    store.set_state(study.id, "done")
    before = store.load_study(study.name)
    assert before.amendments is None
    assert amend(store, study, tickets=[new(2, round=1)])
    after = store.load_study(study.name)
    assert (after.spec, after.spec_hash) == ({"study": {"name": "example", "changed": True}}, "1" * 64)
    assert after.amendments == [CHANGE]
    assert after.state == "running" and after.version > before.version
    assert [(t.number, t.round, t.space) for t in store.tickets(study.id)] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 1, 1),
    ]


def test_nothing_of_it_is_written_where_others_were_first(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0)])
    seen = store.load_study(study.name)
    store.add_tickets(study.id, [new(1)])
    assert not amend(store, study, tickets=[new(2)], version=seen.version)
    assert store.load_study(study.name).amendments is None
    assert len(store.tickets(study.id)) == 2
    with pytest.raises(StudyNotFound):
        store.amend(
            study.id + 1,
            spec={},
            spec_hash="",
            amendments=[],
            tickets=[],
            sampled={},
            withdraw=[],
            version=0,
        )


def test_values_are_given_to_tickets_that_were_not_begun(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0), new(1, sampled={"x": 0.1}), new(2, sampled={"x": 0.2})])
    begun = take(store, study.id)
    assert begun is not None
    store.begin(begun.id, begun.attempt, PARAMETERS, SAMPLED, None)
    _, one, two = store.tickets(study.id)
    assert amend(store, study, sampled={begun.id: {"x": 0.9}, one.id: {"x": 0.8}, two.id: None})
    assert [t.sampled for t in store.tickets(study.id)] == [SAMPLED, {"x": 0.8}, None]


def test_only_tickets_that_wait_are_withdrawn(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0, "choose"), new(1, "choose")])
    taken = take(store, study.id)
    assert taken is not None
    ids = [t.id for t in store.tickets(study.id)]
    assert amend(store, study, withdraw=ids)
    assert [t.state for t in store.tickets(study.id)] == ["running", "withdrawn"]


def test_what_was_sampled_from_the_space_before_is_not_begun(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0), new(1)])
    taken = take(store, study.id)
    assert taken is not None
    assert amend(store, study)
    with pytest.raises(StaleAttempt, match="search space .* was amended"):
        store.begin(taken.id, taken.attempt, PARAMETERS, SAMPLED, None)
    assert all(t.parameters is None for t in store.tickets(study.id))
    store.begin(taken.id, taken.attempt, PARAMETERS, SAMPLED, None, space=1)
    begun, _ = store.tickets(study.id)
    assert (begun.parameters, begun.space) == (PARAMETERS, 1)
    # an attempt after it that is older than that is refused as well
    assert amend(store, study)
    assert store.load_study(study.name).amendments == [CHANGE, CHANGE]
    with pytest.raises(StaleAttempt):
        store.begin(taken.id, taken.attempt, PARAMETERS, SAMPLED, None, space=1)

"""A study that is there, and a spec that asks for it again: what of the spec is stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import SpecError, UsageError
from tempopt.service.extend import (
    add_explanation,
    add_pairs,
    extend_for_resume,
    extend_for_search,
)
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.storage.opening import open_store
from tempopt.storage.rows import NewTicket, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.explanation import explanation_tickets
from tests.simulated import SimulatedStudy
from tests.storage.scenes import HOUR, complete, make_end, take

LOGGER = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "http://host/"}}
SECRET = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "http://bob:hunter22@host/"}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        yield store


@pytest.fixture
def studies(make_spec: Any) -> tuple[SimulatedStudy, SimulatedStudy]:
    """Return a study with a verdict, and one that has none yet."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        return float(t.seed % 97 / 9700 + (t.parameters["temperature_init"] != 1.0))

    study, open_yet = (SimulatedStudy(make_spec(name=name, trials=4), worth) for name in ("pairs", "open"))
    study.run()
    open_yet.search()
    return study, open_yet


def test_a_logger_is_changed_in_what_is_stored_and_one_with_a_password_is_not_stored(
    make_spec: Any, store: Store
) -> None:
    spec, changed_spec, secret = (
        make_spec({"trainer": {"max_steps": 10, "logger": logger}}) for logger in (True, LOGGER, SECRET)
    )
    name = spec.study.name
    store.create_study(name, spec.to_json(), spec.identity())
    extend_for_search(store, SearchRequest(spec=changed_spec))
    assert store.load_study(name).spec["trainer"]["logger"] == LOGGER
    with pytest.raises(SpecError, match="holds a password or a key") as error:
        extend_for_search(store, SearchRequest(spec=secret))
    assert "hunter22" not in str(error.value)
    assert store.load_study(name).spec["trainer"]["logger"] == LOGGER


def store_study(store: Store, study: SimulatedStudy) -> StudyRow:
    """Put a study that is over into a store."""
    name = study.spec.study.name
    row = store.create_study(name, study.spec.to_json(), study.spec.identity())
    new_tickets = [
        NewTicket(**{field.name: getattr(t, field.name) for field in dataclasses.fields(NewTicket)})
        for t in study.rows
    ]
    store.add_tickets(row.id, new_tickets)
    while taken_ticket := take(store, row.id):
        planned_row = next(
            t for t in study.rows if (t.kind, t.number) == (taken_ticket.kind, taken_ticket.number)
        )
        assert planned_row.parameters is not None and planned_row.value is not None
        if taken_ticket.parameters is None:
            store.begin(
                taken_ticket.id, taken_ticket.attempt, planned_row.parameters, planned_row.sampled or {}, None
            )
        end_change = make_end(taken_ticket, complete(planned_row.value))
        store.write(row.id, [end_change], agent="agent", lease=HOUR)
    return store.load_study(name)


def test_pairs_are_added_to_a_verdict_and_only_to_one(
    studies: tuple[SimulatedStudy, SimulatedStudy], store: Store
) -> None:
    study, open_yet = studies
    unproved = store_study(store, open_yet)
    with pytest.raises(UsageError, match=r"3 pairs cannot be added.*Let it reach a verdict first"):
        add_pairs(store, unproved, open_yet.spec, 3)
    row = store_study(store, study)
    add_pairs(store, row, study.spec, 0)
    assert len(store.tickets(row.id)) == len(study.rows)
    add_pairs(store, row, study.spec, 3)
    new_tickets = [t for t in store.tickets(row.id) if t.round == 1]
    assert {(t.kind, t.state) for t in new_tickets} == {("confirm", "waiting")}
    assert {t.pair for t in new_tickets} == {0, 1, 2}
    assert store.load_study("pairs").state == "running"


@pytest.mark.parametrize("growth", [{"add_trials": 3}, {"add_pairs": 3}])
def test_the_share_of_the_next_verdict_is_told_where_one_was_spent(
    studies: tuple[SimulatedStudy, SimulatedStudy], store: Store, growth: dict[str, int]
) -> None:
    study, open_yet = studies
    notes: list[str] = []
    row, unproved = store_study(store, study), store_study(store, open_yet)
    share = "The next verdict has the level 2.5 %; the first had 5 %."
    extend_for_resume(store, unproved, ResumeRequest(study="open", add_trials=3), on_note=notes.append)
    extend_for_resume(store, row, ResumeRequest(study="pairs"), on_note=notes.append)
    assert share not in notes
    extend_for_resume(store, row, ResumeRequest(study="pairs", **growth), on_note=notes.append)
    extend_for_search(store, SearchRequest(spec=study.spec, add_trials=2), on_note=notes.append)
    assert notes.count(share) == 2


def test_an_explanation_is_of_a_verdict_that_there_is_and_of_nothing_else(
    studies: tuple[SimulatedStudy, SimulatedStudy], store: Store
) -> None:
    study, open_yet = studies
    unproved = store_study(store, open_yet)
    with pytest.raises(UsageError, match=r"cannot be explained.*Let it reach a verdict first: tempopt "):
        add_explanation(store, unproved, open_yet.spec)
    row = store_study(store, study)
    for options in ({"add_trials": 3}, {"add_pairs": 3}, {"retry_failed": True}):
        with pytest.raises(UsageError, match="and an explanation were requested together"):
            ResumeRequest(study="pairs", explain=True, **options)
    assert len(store.tickets(row.id)) == len(study.rows)
    notes: list[str] = []
    store.set_state(row.id, "done")
    request = ResumeRequest(study="pairs", explain=True)
    assert extend_for_resume(store, row, request, on_note=notes.append) == study.spec
    study_keys = {(t.kind, t.number) for t in study.rows}
    added_tickets = [t for t in store.tickets(row.id) if (t.kind, t.number) not in study_keys]
    begin = f"{len(added_tickets)} trainings begin to explain the verdict; at most "
    (note,) = notes
    assert note.startswith(begin) and added_tickets
    assert {t.state for t in added_tickets} == {"waiting"}
    assert store.load_study("pairs").state == "running"
    num_rows = len(study.rows)
    while tickets := explanation_tickets(study.rows, study.spec, is_requested=True):
        study.do(tickets)
    limit = int(note.removeprefix(begin).removesuffix(" in all."))
    assert len(added_tickets) < len(study.rows) - num_rows <= limit

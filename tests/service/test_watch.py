"""A study as one sees it who looks at the store alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tempopt.agent.observer import Snapshot
from tempopt.errors import StudyFailed
from tempopt.launch.watch import StudyPoller
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import AttemptLost, RunStarted
from tempopt.storage.opening import open_store
from tempopt.storage.rows import NewTicket, TicketRow
from tempopt.storage.store import Store
from tests.storage.scenes import HOUR, make_end, reported, take

AGENT = "far:1:2:3"


@dataclass
class RecordingObserver:
    """Record the messages of an observer in order."""

    snapshots: list[Snapshot] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def update(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def on_ticket_end(self, ticket: TicketRow) -> None:
        num_done = self.snapshots[-1].done[ticket.kind]
        self.messages.append(f"{ticket.kind} {ticket.number} after {num_done}")

    def note(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/tempopt.db") as store:
        yield store


def _begin_study(store: Store, make_spec: Any) -> int:
    spec: StudySpec = make_spec(trials=3)
    study = store.create_study("pairs", spec.to_json(), spec.identity())
    store.add_tickets(
        study.id, [NewTicket(kind="baseline", arm="baseline", number=n, seed=n) for n in range(3)]
    )
    return study.id


def _take_ticket(store: Store, study: int, **fields: Any) -> TicketRow:
    ticket = take(store, study, AGENT, **fields)
    assert ticket is not None
    store.begin(ticket.id, ticket.attempt, {"temperature_init": 1.0}, {}, None)
    return ticket


def test_observers_are_notified_only_after_the_study_has_begun(store: Store, make_spec: Any) -> None:
    observer = RecordingObserver()
    watch = StudyPoller(store, "pairs", observer)
    assert watch.poll() is None and not observer.snapshots
    study = _begin_study(store, make_spec)
    store.write(study, [make_end(_take_ticket(store, study))], agent=AGENT, lease=HOUR)
    assert watch.poll() == "running"
    assert observer.messages == ["baseline 0 after 0"]
    assert observer.snapshots[-1].done["baseline"] == 1 and observer.snapshots[-1].requested["baseline"] == 3
    assert watch.poll() == "running"
    assert len(observer.messages) == 1


def test_a_run_in_work_is_shown_with_its_last_report_and_a_lost_attempt_is_noted(
    store: Store, make_spec: Any
) -> None:
    study = _begin_study(store, make_spec)
    observer = RecordingObserver()
    watch = StudyPoller(store, "pairs", observer)
    ticket = _take_ticket(store, study)
    reports = [reported(ticket, step, step / 10) for step in (4, 8)]
    store.write(study, reports, agent=AGENT, lease=60.0)
    watch.poll()
    (view,) = observer.snapshots[-1].workers
    assert (view.kind, view.number, view.step, view.value) == ("baseline", 0, 8, 0.8)
    assert (view.agent, view.machine, view.silent) == ("far:1", None, False)
    lost_change = AttemptLost(
        ticket_id=ticket.id, attempt=1, error="the worker was killed by SIGKILL", max_attempts=3
    )
    store.write(study, [lost_change], agent=AGENT, lease=60.0)
    _take_ticket(store, study)
    watch.poll()
    assert observer.messages == ["baseline 0: the worker was killed by SIGKILL"]


def test_the_state_of_the_study_is_told_and_its_deletion_is_an_error(store: Store, make_spec: Any) -> None:
    study = _begin_study(store, make_spec)
    watch = StudyPoller(store, "pairs", RecordingObserver())
    store.set_state(study, "paused")
    assert watch.poll() == "paused"
    store.delete_study("pairs")
    with pytest.raises(StudyFailed, match="deleted while it was being watched"):
        watch.poll()


def test_where_a_run_is_trained_and_how_far_it_is_is_seen_between_its_reports(
    store: Store, make_spec: Any
) -> None:
    study = _begin_study(store, make_spec)
    observer = RecordingObserver()
    watch = StudyPoller(store, "pairs", observer)
    ticket = _take_ticket(store, study)
    start_change = RunStarted(
        ticket_id=1, attempt=1, total_steps=100, code="c", machine="far", device="cuda:0"
    )
    store.write(study, [start_change], agent=AGENT, renew={ticket.id: 1}, steps={ticket.id: 37}, lease=60.0)
    watch.poll()
    (view,) = observer.snapshots[-1].workers
    assert (view.machine, view.device, view.step, view.total_steps) == ("far", "cuda:0", 37, 100)
    store.write(study, [], agent=AGENT, renew={ticket.id: 1}, lease=-1.0)
    watch.poll()
    assert observer.snapshots[-1].workers[0].silent


@pytest.mark.parametrize("num_over", [2, 20])
def test_a_look_takes_as_many_statements_however_many_trials_there_are(
    store: Store, make_spec: Any, num_over: int
) -> None:
    spec: StudySpec = make_spec(trials=30)
    study = store.create_study("pairs", spec.to_json(), spec.identity()).id
    tickets = [NewTicket(kind="search", arm="search", number=n, seed=n) for n in range(30)]
    store.add_tickets(study, tickets)
    for n in range(num_over + 4):
        ticket = _take_ticket(store, study, held_ticket_ids=range(1, 31))
        changes: list[Any] = [reported(ticket, 1, 0.5)]
        changes += [make_end(ticket)] if n < num_over else []
        store.write(study, changes, agent=AGENT, lease=60.0)
    observer = RecordingObserver()
    watch = StudyPoller(store, "pairs", observer)
    statements: list[str] = []

    def count(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(Engine, "before_cursor_execute", count)
    try:
        watch.poll()
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert len([statement for statement in statements if not statement.startswith("BEGIN")]) == 3
    assert len(observer.snapshots[-1].workers) == 4
    assert observer.snapshots[-1].done["search"] == num_over

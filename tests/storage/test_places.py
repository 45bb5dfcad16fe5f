"""Where runs are trained and how far they are, as a reader of the store sees it."""

from __future__ import annotations

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tempopt.storage import Store
from tempopt.storage.changes import AttemptReleased, RunOutcome, RunStarted
from tempopt.storage.rows import NewTicket, StudyRow, TicketRow
from tests.storage.scenes import (
    HOUR,
    PARAMETERS,
    SAMPLED,
    TRIAL,
    complete,
    make_end,
    make_kept,
    new_ticket,
    only_ticket,
    reported,
    take_next,
)


@pytest.fixture
def ticket(store: Store, study: StudyRow) -> TicketRow:
    store.add_tickets(study.id, [new_ticket(0, "baseline")])
    return take_next(store, study)


def make_start(ticket: TicketRow, machine: str = "node7", device: str = "NVIDIA H200 (cuda:0)") -> RunStarted:
    return RunStarted(
        ticket_id=ticket.id,
        attempt=ticket.attempt,
        total_steps=100,
        code="c",
        machine=machine,
        device=device,
    )


def test_the_machine_and_the_device_are_those_of_the_latest_attempt(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    assert (ticket.machine, ticket.device, ticket.steps) == (None, None, None)
    returned_change = AttemptReleased(ticket_id=ticket.id, attempt=1)
    store.write(study.id, [make_start(ticket), returned_change], agent="agent", lease=HOUR)
    row = only_ticket(store, study.id)
    assert (row.agent, row.machine, row.device) == (None, "node7", "NVIDIA H200 (cuda:0)")
    retaken = take_next(store, study, "another agent")
    store.write(
        study.id, [make_start(retaken, "node8", "cpu\0" + "x" * 999)], agent="another agent", lease=HOUR
    )
    row = only_ticket(store, study.id)
    assert (row.machine, row.device) == ("node8", ("cpu\\0" + "x" * 999)[:255])


def test_steps_are_told_with_the_leases_that_they_earn(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(n, "baseline") for n in range(4)])
    runs = [take_next(store, study) for _ in range(4)]
    renew = {run.id: 1 for run in runs}
    steps = {runs[0].id: 10, runs[1].id: 20, runs[2].id: 30}
    changes = [make_start(runs[0]), reported(runs[1], 19, 0.5)]
    store.write(study.id, changes, agent="agent", renew=renew, steps=steps, lease=HOUR)
    assert [t.steps for t in store.tickets(study.id)] == [10, 20, 30, None]
    # an attempt that begins again from a checkpoint is where it is, and the end of a run has the last word
    steps = {runs[0].id: 5, runs[1].id: 99}
    store.write(study.id, [make_end(runs[1])], agent="agent", renew=renew, steps=steps, lease=HOUR)
    assert [t.steps for t in store.tickets(study.id)] == [5, 100, 30, None]


def test_steps_of_an_attempt_that_is_another_s_by_now_are_refused(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    store.release(study.id, ["agent"])
    other_ticket = take_next(store, study, "another agent")
    renewed = {"renew": {ticket.id: 2}, "steps": {ticket.id: 3}}
    store.write(study.id, [], agent="another agent", lease=HOUR, **renewed)  # type: ignore[arg-type]
    stale = {"renew": {ticket.id: 1}, "steps": {ticket.id: 70}}
    reply = store.write(study.id, [], agent="agent", lease=HOUR, **stale)  # type: ignore[arg-type]
    assert list(reply.refused) == [other_ticket.id]
    assert only_ticket(store, study.id).steps == 3


def test_steps_cost_no_statement_more_than_the_leases_do(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(n, "baseline") for n in range(5)])
    runs = [take_next(store, study) for _ in range(5)]
    renew = {run.id: 1 for run in runs}
    statements: list[str] = []

    def count(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    event.listen(Engine, "before_cursor_execute", count)
    try:
        store.write(study.id, [], agent="agent", renew=renew, lease=HOUR)
        bare = len(statements)
        statements.clear()
        steps = {run.id: run.number for run in runs}
        store.write(study.id, [], agent="agent", renew=renew, steps=steps, lease=HOUR)
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert len(statements) == bare


def test_a_run_is_read_with_its_study_and_its_reports(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(0), NewTicket(kind="baseline", arm="baseline", number=0, seed=1)])
    other_ticket, ticket = take_next(store, study), take_next(store, study)
    changes = [reported(ticket, 20, 0.5), reported(ticket, 10, 0.25), reported(other_ticket, 10, 0.75)]
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, None)
    store.write(study.id, [*changes, make_kept(ticket, 20)], agent="agent", lease=HOUR)
    run = store.run(ticket.id)
    assert run is not None
    assert (run.study.name, run.study.spec, run.ticket.name) == (study.name, study.spec, "search-0")
    assert list(run.reports.items()) == [(10, 0.25), (20, 0.5)]
    assert store.run(999) is None


def test_nothing_is_taken_of_a_study_that_rests(store: Store, study: StudyRow, ticket: TicketRow) -> None:
    store.add_tickets(study.id, [new_ticket(1, "baseline")])
    store.set_state(study.id, "paused")
    with pytest.raises(AssertionError):
        take_next(store, study, "another agent")
    # what was begun may end
    assert store.write(study.id, [make_end(ticket)], agent="agent", lease=HOUR).refused == {}
    store.set_state(study.id, "running")
    assert take_next(store, study, "another agent").number == 1


@pytest.mark.usefixtures("optuna_study")
def test_a_trial_ends_with_one_statement_for_its_numbers(store: Store, study: StudyRow) -> None:
    """However many end together, their numbers are one statement."""
    store.add_tickets(study.id, [new_ticket(n) for n in range(8)])
    runs = [take_next(store, study) for _ in range(8)]
    for run in runs:
        store.begin(run.id, 1, PARAMETERS, SAMPLED, TRIAL)
    statements: list[str] = []

    def count(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    def end(tickets: list[TicketRow], outcomes: RunOutcome) -> list[str]:
        statements.clear()
        store.write(study.id, [make_end(run, outcomes) for run in tickets], agent="agent", lease=HOUR)
        return [statement for statement in statements if "attributes" in statement]

    event.listen(Engine, "before_cursor_execute", count)
    try:
        numbers = {"tau_final": 0.5, "gain": 0.125}
        assert len(end(runs[:1], complete(0.5, attributes=numbers))) == 1
        assert len(end(runs[1:], complete(0.5, attributes=numbers))) == 1
    finally:
        event.remove(Engine, "before_cursor_execute", count)

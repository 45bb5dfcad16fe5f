"""What is written about runs: in one transaction, once, and only by who holds the ticket."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import optuna
import pytest

from tempopt.errors import StaleAttempt
from tempopt.storage import Store
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    Change,
    RunOutcome,
    RunStarted,
    WriteResult,
)
from tempopt.storage.rows import Measurement, StudyRow, TicketRow
from tests.rows import HEAD_MAP, MAPS
from tests.storage.scenes import (
    HOUR,
    PARAMETERS,
    SAMPLED,
    TRIAL,
    assert_fields,
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
    store.add_tickets(study.id, [new_ticket(0)])
    return take_next(store, study)


def make_lost(ticket: TicketRow, max_attempts: int = 3, **fields: object) -> AttemptLost:
    return AttemptLost(
        ticket_id=ticket.id, attempt=ticket.attempt, error="out of memory", max_attempts=max_attempts
    )


def make_returned(ticket: TicketRow, **fields: float) -> AttemptReleased:
    return AttemptReleased(ticket_id=ticket.id, attempt=ticket.attempt, **fields)


def write(store: Store, ticket: TicketRow, *changes: Change) -> WriteResult:
    """Write changes, which must be accepted."""
    reply = store.write(ticket.study_id, changes, agent=ticket.agent or "", lease=HOUR)
    assert reply.refused == {}
    return reply


def test_a_finished_ticket_knows_how_its_run_ended(store: Store, ticket: TicketRow) -> None:
    measurement = Measurement(ticket_id=ticket.id, step=100, name="validate", value=0.1 + 0.2)
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, None)
    write(store, ticket, RunStarted(ticket_id=ticket.id, attempt=1, total_steps=500, code="sha256:1"))
    outcomes = complete(0.1 + 0.2, measurements=[measurement], checkpoint_seconds=0.25)
    reply = write(store, ticket, make_end(ticket, outcomes))
    assert reply == WriteResult(refused={}, state="running", version=1)
    ended_ticket = only_ticket(store, ticket.study_id)
    assert_fields(ended_ticket, state="done", outcome="complete", value=0.1 + 0.2, steps=100)
    assert_fields(ended_ticket, total_steps=500, code="sha256:1", parameters=PARAMETERS)
    assert_fields(ended_ticket, seconds=2.5, checkpoint_seconds=0.25, error=None, lease=None)
    assert ended_ticket.finished is not None and ended_ticket.started is not None
    assert ended_ticket.finished >= ended_ticket.started
    assert store.measurements(ticket.study_id) == [measurement]


@pytest.mark.parametrize(
    ("state", "fields"),
    [("done", {"outcome": "diverged", "diverged_at": 7}), ("failed", {"outcome": "failed", "error": "no"})],
)
def test_a_run_without_a_value_ends_with_what_happened(
    store: Store, ticket: TicketRow, state: str, fields: dict[str, Any]
) -> None:
    outcomes = RunOutcome(value=None, steps=7, seconds=1.0, **fields)
    write(store, ticket, make_end(ticket, outcomes))
    assert_fields(only_ticket(store, ticket.study_id), state=state, value=None, **fields)


def test_a_ticket_given_back_is_taken_again_as_the_next_attempt(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    write(store, ticket, make_returned(ticket, seconds=1.5))
    waiting = only_ticket(store, study.id)
    assert (waiting.state, waiting.agent, waiting.lease, waiting.failures) == ("waiting", None, None, 0)
    retaken = take_next(store, study, "second")
    assert (retaken.attempt, retaken.agent, retaken.seconds) == (2, "second", 1.5)


def test_a_ticket_fails_for_good_after_the_last_attempt(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    write(store, ticket, make_lost(ticket, 2))
    waiting = only_ticket(store, study.id)
    assert (waiting.state, waiting.error, waiting.failures) == ("waiting", "out of memory", 1)
    retaken = take_next(store, study)
    write(store, retaken, make_returned(retaken, seconds=1.0))
    last = take_next(store, study)
    write(store, last, make_lost(last, 2))
    failed_ticket = only_ticket(store, study.id)
    assert_fields(failed_ticket, state="failed", outcome="failed", error="out of memory")
    assert (failed_ticket.attempt, failed_ticket.failures, failed_ticket.seconds) == (3, 2, 1.0)
    assert failed_ticket.finished is not None


def test_reports_are_written_once_and_the_last_one_of_a_step_counts(store: Store, ticket: TicketRow) -> None:
    write(store, ticket, reported(ticket, 10, 0.1), reported(ticket, 20, 0.2))
    write(store, ticket, reported(ticket, 20, 0.2), reported(ticket, 30, math.nan))
    write(store, ticket, reported(ticket, 10, 0.7), reported(ticket, 10, 0.8))
    read = {m.step: m.value for m in store.measurements(ticket.study_id, names=["report"])}
    assert math.isnan(read.pop(30))
    assert read == {10: 0.8, 20: 0.2}


def test_reports_that_a_lost_attempt_made_past_the_end_that_counts_are_forgotten(
    store: Store, study: StudyRow, optuna_study: optuna.Study, ticket: TicketRow
) -> None:
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
    write(store, ticket, *(reported(ticket, step, float(step)) for step in (10, 20, 30)), make_lost(ticket))
    retaken = take_next(store, study)
    pruned_outcomes = RunOutcome(outcome="pruned", value=20.0, steps=20, seconds=1.0)
    write(store, retaken, reported(retaken, 20, 20.0), make_end(retaken, pruned_outcomes))
    assert [m.step for m in store.measurements(study.id)] == [10, 20]
    assert optuna_study.get_trials()[0].intermediate_values == {10: 10.0, 20: 20.0}


def test_the_two_newest_checkpoints_are_known_until_the_run_has_ended(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    write(store, ticket, make_kept(ticket, 1), make_kept(ticket, 2), make_kept(ticket, 3))
    write(store, ticket, make_kept(ticket, 2), make_kept(ticket, 3))
    newest = tuple(make_kept(ticket, step).checkpoint for step in (3, 2))
    assert only_ticket(store, study.id).checkpoints == newest
    write(store, ticket, make_returned(ticket))
    retaken = take_next(store, study)
    assert retaken.checkpoints == newest
    write(store, retaken, make_kept(retaken, 3, "-again"), make_lost(retaken))
    last = take_next(store, study)
    assert last.checkpoints == (make_kept(retaken, 3, "-again").checkpoint, newest[0])
    write(store, last, make_end(last))
    assert only_ticket(store, study.id).checkpoints == ()


def test_the_end_of_what_each_attempt_printed_is_kept(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    write(store, ticket, replace(make_lost(ticket), log="first\0"))
    retaken = take_next(store, study, "second")
    write(store, retaken, replace(make_returned(retaken), log="\N{SNOWMAN}" * 40_000 + "end"))
    last = take_next(store, study)
    write(store, last, make_end(last))
    first, second = store.logs(study.id)
    assert (first.attempt, first.agent, first.text) == (1, "agent", "first\\0")
    assert (second.attempt, second.agent) == (2, "second")
    assert second.text.endswith("\N{SNOWMAN}end")
    assert 64 * 1024 - 3 < len(second.text.encode()) <= 64 * 1024
    assert store.logs(study.id, [ticket.id]) == [first, second]
    assert store.logs(study.id, []) == []


def test_what_heads_attend_to_is_kept_once_and_goes_with_the_study(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    maps = {**MAPS, "moments": {"end": {"step": 3, "heads": [HEAD_MAP] * 3000, "measures": []}}}
    end = make_end(ticket)
    changes = [reported(ticket, 1, 1.0), replace(end, outcomes=replace(end.outcomes, maps=maps))]
    for _ in range(2):
        store.write(study.id, changes, renew={ticket.id: 1}, agent="agent", lease=HOUR)
    assert store.attention_maps(study.id, [ticket.id]) == {ticket.id: maps}
    assert store.attention_maps(study.id, []) == {}
    stale = replace(end, attempt=2, outcomes=replace(end.outcomes, maps={"moments": {}, "notes": []}))
    assert store.write(study.id, [stale], agent="agent", lease=HOUR).refused
    assert store.attention_maps(study.id, [ticket.id]) == {ticket.id: maps}
    store.delete_study("example")
    assert store.attention_maps(study.id, [ticket.id]) == {}


def test_an_error_with_characters_that_databases_refuse_is_stored(store: Store, ticket: TicketRow) -> None:
    error = "nul \0, half \udc80, whole \N{SNOWMAN}" + "x" * 100_000
    write(store, ticket, replace(make_lost(ticket), error=error))
    stored_error = "nul \\0, half \\udc80, whole \N{SNOWMAN}" + "x" * 100_000
    assert only_ticket(store, ticket.study_id).error == stored_error


def test_many_runs_are_written_about_at_the_same_time(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(4)])
    first, second, third, fourth = (take_next(store, study) for _ in range(4))
    write(store, third, make_returned(third))
    changes = [
        reported(second, 1, 2.0),
        reported(first, 1, 1.0),
        make_end(second),
        reported(third, 1, 3.0),
        make_kept(first, 1),
    ]
    renew = {first.id: 1, second.id: 1, fourth.id: 1}
    reply = store.write(study.id, changes, renew=renew, agent="agent", lease=2 * HOUR)
    assert reply.refused.keys() == {third.id}
    assert [t.state for t in store.tickets(study.id)] == ["running", "done", "waiting", "running"]
    assert [m.value for m in store.measurements(study.id)] == [1.0, 2.0]
    leases = [t.lease is not None and t.lease > 1.5 * HOUR for t in store.tickets(study.id)]
    assert leases == [True, False, False, True]


def test_what_is_written_tells_how_the_study_stands(store: Store, study: StudyRow) -> None:
    store.set_state(study.id, "paused")
    store.add_tickets(study.id, [new_ticket(0)])
    reply = store.write(study.id, [], agent="agent", lease=HOUR)
    assert reply == WriteResult(refused={}, state="paused", version=1)


# ---- stale attempts


EVERY: dict[str, Callable[[TicketRow], Change]] = {
    "began": lambda t: RunStarted(ticket_id=t.id, attempt=t.attempt, total_steps=1, code=""),
    "reported": lambda t: reported(t, 1, 1.0),
    "kept": lambda t: make_kept(t, 1),
    "ended": make_end,
    "lost": make_lost,
    "returned": make_returned,
}


@pytest.mark.parametrize("change", EVERY.values(), ids=EVERY)
def test_every_change_of_a_stale_attempt_is_refused(
    store: Store, study: StudyRow, ticket: TicketRow, change: Callable[[TicketRow], Change]
) -> None:
    store.release(study.id, ["agent"])
    take_next(store, study, "second")
    ticket_before = only_ticket(store, study.id)
    reply = store.write(study.id, [change(ticket)], renew={ticket.id: 1}, agent="agent", lease=3 * HOUR)
    assert "running at attempt 2, held by second; attempt 1 is discarded" in reply.refused[ticket.id]
    assert replace(only_ticket(store, study.id), lease=None) == replace(ticket_before, lease=None)
    assert store.measurements(study.id) == store.logs(study.id) == []
    assert (only_ticket(store, study.id).lease or 0.0) <= HOUR


def test_a_stale_beginning_is_refused(store: Store, study: StudyRow, ticket: TicketRow) -> None:
    store.release(study.id, ["agent"])
    with pytest.raises(StaleAttempt, match=r"search 0\) is waiting at attempt 1; attempt 1 is discarded"):
        store.begin(ticket.id, 1, PARAMETERS, SAMPLED, None)
    take_next(store, study, "second")
    with pytest.raises(StaleAttempt, match="attempt 2, held by second"):
        store.begin(ticket.id, 1, PARAMETERS, SAMPLED, None)
    with pytest.raises(StaleAttempt, match="deleted"):
        store.begin(ticket.id + 1, 1, PARAMETERS, SAMPLED, None)
    assert only_ticket(store, study.id).parameters is None


@pytest.mark.parametrize("end", [make_end, make_lost, lambda t: make_lost(t, max_attempts=1), make_returned])
def test_changes_that_come_again_are_accepted_and_change_nothing(
    store: Store, study: StudyRow, ticket: TicketRow, end: Callable[[TicketRow], Change]
) -> None:
    """The answer to the first commit was lost, so that the agent says everything again."""
    changes = [reported(ticket, 1, 1.0), make_kept(ticket, 1), end(ticket)]
    first = store.write(study.id, changes, renew={ticket.id: 1}, agent="agent", lease=HOUR)
    rows_before = store.tickets(study.id), store.measurements(study.id), store.logs(study.id)
    second = store.write(study.id, changes, renew={ticket.id: 1}, agent="agent", lease=HOUR)
    assert second == first
    assert (store.tickets(study.id), store.measurements(study.id), store.logs(study.id)) == rows_before


def test_of_a_ticket_that_its_agent_has_taken_again_only_the_latest_attempt_speaks(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    write(store, ticket, make_returned(ticket))
    retaken = take_next(store, study)
    reply = store.write(
        study.id, [make_returned(ticket), reported(retaken, 1, 1.0)], agent="agent", lease=HOUR
    )
    assert reply.refused == {}
    assert only_ticket(store, study.id).state == "running"
    assert len(store.measurements(study.id)) == 1


# ---- what attempts took of cards


def write_twice(store: Store, study: StudyRow, change: Change) -> TicketRow:
    """Write a change twice, as after a lost answer, and return the ticket."""
    for _ in range(2):
        assert store.write(study.id, [change], agent="agent", lease=HOUR).refused == {}
    return only_ticket(store, study.id)


def test_seconds_of_cards_add_up_over_attempts_and_the_highest_memory_stays(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    assert (ticket.gpu_seconds, ticket.peak_memory, ticket.alone) == (0.0, None, False)
    returned_change = AttemptReleased(
        ticket_id=ticket.id, attempt=1, seconds=4.0, gpu_seconds=1.0, peak_memory=3 * 2**40
    )
    row = write_twice(store, study, returned_change)
    assert (row.gpu_seconds, row.peak_memory) == (1.0, 3 * 2**40)
    take_next(store, study)
    lost_change = AttemptLost(
        ticket_id=ticket.id, attempt=2, error="x", max_attempts=9, seconds=2.0, gpu_seconds=0.5
    )
    row = write_twice(store, study, lost_change)
    assert (row.gpu_seconds, row.peak_memory) == (1.5, 3 * 2**40)
    last = take_next(store, study)
    assert (last.gpu_seconds, last.peak_memory) == (1.5, 3 * 2**40)
    outcomes = RunOutcome(
        outcome="complete", value=0.5, steps=1, seconds=8.0, gpu_seconds=16.0, peak_memory=2 * 2**40
    )
    row = write_twice(store, study, make_end(last, outcomes))
    assert (row.seconds, row.gpu_seconds, row.peak_memory) == (14.0, 17.5, 3 * 2**40)


def test_a_claim_says_that_the_run_needs_a_gpu_of_its_own(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    lost_change = AttemptLost(
        ticket_id=ticket.id, attempt=1, error="CUDA out of memory", max_attempts=2, alone=True
    )
    assert write_twice(store, study, lost_change).alone
    retaken = take_next(store, study, "another agent")
    assert (retaken.alone, retaken.failures) == (True, 1)
    # and it stays so when that agent is lost, and when it gives the ticket back
    returned_change = AttemptReleased(ticket_id=ticket.id, attempt=2)
    assert store.write(study.id, [returned_change], agent="another agent", lease=HOUR).refused == {}
    third = take_next(store, study, "third agent", lease=-1.0)
    assert third.alone
    assert take_next(store, study, "fourth agent", max_attempts=9).alone


# ---- where runs are trained and how far they are


def make_start(ticket: TicketRow, machine: str = "node7", device: str = "NVIDIA H200 (cuda:0)") -> RunStarted:
    return RunStarted(
        ticket_id=ticket.id, attempt=ticket.attempt, total_steps=100, code="c", machine=machine, device=device
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


def test_nothing_is_taken_of_a_study_that_rests(store: Store, study: StudyRow, ticket: TicketRow) -> None:
    store.add_tickets(study.id, [new_ticket(1)])
    store.set_state(study.id, "paused")
    with pytest.raises(AssertionError):
        take_next(store, study, "another agent")
    # what was begun may end
    assert store.write(study.id, [make_end(ticket)], agent="agent", lease=HOUR).refused == {}
    store.set_state(study.id, "running")
    assert take_next(store, study, "another agent").number == 1


@pytest.mark.usefixtures("optuna_study")
def test_a_trial_ends_with_one_statement_for_its_numbers(
    store: Store, study: StudyRow, statements: list[str]
) -> None:
    """However many end together, their numbers are one statement."""
    store.add_tickets(study.id, [new_ticket(n) for n in range(8)])
    runs = [take_next(store, study) for _ in range(8)]
    for run in runs:
        store.begin(run.id, 1, PARAMETERS, SAMPLED, TRIAL)
    for tickets in (runs[:1], runs[1:]):
        statements.clear()
        outcomes = complete(0.5, attributes={"tau_final": 0.5, "gain": 0.125})
        store.write(study.id, [make_end(run, outcomes) for run in tickets], agent="agent", lease=HOUR)
        assert sum("attributes" in statement for statement in statements) == 1

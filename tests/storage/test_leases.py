"""Leases: who loses a ticket and who does not, by the clock of the database."""

from __future__ import annotations

import threading
from dataclasses import replace

import optuna
import pytest
from sqlalchemy import Connection, select, text

from tempopt.storage import Store
from tempopt.storage.changes import AttemptLost, AttemptReleased, ClaimRequest
from tempopt.storage.claims import claim_ticket as take_on
from tempopt.storage.clock import Clock
from tempopt.storage.rows import StudyRow, TicketRow
from tests.storage.scenes import (
    ALL,
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
    take,
    take_next,
)

OVER = -1.0


@pytest.fixture
def ticket(store: Store, study: StudyRow) -> TicketRow:
    store.add_tickets(study.id, [new_ticket(0)])
    return take_next(store, study)


def expire(store: Store, ticket: TicketRow) -> None:
    store.write(ticket.study_id, [], renew={ticket.id: ticket.attempt}, agent=ticket.agent or "", lease=OVER)


def test_the_clock_is_the_databases_own_and_counts_seconds_since_1970(store: Store, backend: str) -> None:
    queries = {
        "sqlite": "SELECT strftime('%s', 'now')",
        "postgresql": "SELECT extract(epoch FROM now())",
        "mariadb": "SELECT UNIX_TIMESTAMP()",
    }[backend]

    def both_clocks(connection: Connection) -> tuple[float, float]:
        return float(connection.scalar(text(queries))), connection.scalar(select(Clock())) or 0.0

    seconds, clock = store._database.read(both_clocks)
    assert isinstance(clock, float)
    assert abs(clock - seconds) < 60


def test_a_lease_is_given_out_as_the_seconds_that_are_left(store: Store, ticket: TicketRow) -> None:
    assert ticket.lease == HOUR
    lease = only_ticket(store, ticket.study_id).lease
    assert lease is not None
    assert HOUR - 300 < lease <= HOUR
    expire(store, ticket)
    expired_lease = only_ticket(store, ticket.study_id).lease
    assert expired_lease is not None
    assert expired_lease < 0


def test_a_lease_that_is_over_is_taken_by_the_next_and_counted_as_a_failure(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    expire(store, ticket)
    retaken = take_next(store, study, "second")
    assert (retaken.id, retaken.attempt, retaken.failures, retaken.agent) == (ticket.id, 2, 1, "second")
    assert retaken.error is not None
    assert "Attempt 1" in retaken.error and "agent" in retaken.error


def test_tickets_of_agents_that_are_known_to_be_dead_are_lost_at_once(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    assert take(store, study.id, "second", dead=["stranger"]) is None
    retaken = take_next(store, study, "second", dead=["agent", "stranger"])
    assert (retaken.attempt, retaken.failures) == (2, 1)
    assert retaken.error == "Attempt 1 was lost: its agent agent died."


def test_a_ticket_that_was_lost_too_often_fails_with_its_trial(
    store: Store, study: StudyRow, optuna_study: optuna.Study, ticket: TicketRow
) -> None:
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
    assert take(store, study.id, "second", dead=["agent"], max_attempts=1) is None
    failed_ticket = only_ticket(store, study.id)
    assert (failed_ticket.state, failed_ticket.outcome, failed_ticket.failures) == ("failed", "failed", 1)
    assert (failed_ticket.lease, failed_ticket.agent) == (None, "agent")
    (trial,) = optuna_study.get_trials()
    assert trial.state == optuna.trial.TrialState.FAIL
    assert trial.user_attrs["error"] == failed_ticket.error == "Attempt 1 was lost: its agent agent died."


@pytest.mark.parametrize("is_over", [False, True])
def test_a_ticket_that_its_agent_does_not_know_of_is_given_out_again(
    store: Store, study: StudyRow, ticket: TicketRow, is_over: bool
) -> None:
    """The answer to its taking was lost on the way, and perhaps a long outage followed."""
    if is_over:
        expire(store, ticket)
    retaken = store.take_ticket(
        study.id, "agent", ClaimRequest(max_number_by_kind=ALL, lease=HOUR, max_attempts=1)
    )
    assert retaken is not None
    assert (retaken.id, retaken.attempt, retaken.failures, retaken.error) == (ticket.id, 2, 0, None)
    assert (
        store.take_ticket(
            study.id,
            "agent",
            ClaimRequest(max_number_by_kind=ALL, lease=HOUR, max_attempts=1, held_ticket_ids=[ticket.id]),
        )
        is None
    )


# ---- an agent that was silent for longer than its lease, and comes back


@pytest.fixture
def silent_ticket(store: Store, study: StudyRow, optuna_study: optuna.Study, ticket: TicketRow) -> TicketRow:
    """A ticket that was taken from "agent" for its silence, and that no agent has begun since."""
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
    expire(store, ticket)
    store.add_tickets(study.id, [new_ticket(0, "baseline")])
    assert take_next(store, study, "second", max_number_by_kind={"baseline": None}).id != ticket.id
    return ticket


def of_search(store: Store, study: StudyRow) -> TicketRow:
    (ticket,) = store.tickets(study.id, ["search"])
    return ticket


def test_late_work_counts_if_the_next_attempt_has_not_begun(
    store: Store, study: StudyRow, optuna_study: optuna.Study, silent_ticket: TicketRow
) -> None:
    assert (of_search(store, study).state, of_search(store, study).failures) == ("waiting", 1)
    changes = [
        reported(silent_ticket, 1, 1.0),
        make_kept(silent_ticket, 1),
        make_end(silent_ticket, complete(0.25), log="printed"),
    ]
    for _ in range(2):
        assert store.write(study.id, changes, agent="agent", lease=HOUR).refused == {}
    ended_ticket = of_search(store, study)
    assert_fields(ended_ticket, state="done", outcome="complete", value=0.25, attempt=1)
    assert_fields(ended_ticket, failures=0, error=None, agent="agent", lease=None)
    assert [m.value for m in store.measurements(study.id)] == [1.0]
    assert [(log.agent, log.text) for log in store.logs(study.id)] == [("agent", "printed")]
    (trial,) = optuna_study.get_trials()
    assert (trial.state, trial.value) == (optuna.trial.TrialState.COMPLETE, 0.25)
    assert trial.intermediate_values == {1: 1.0}


def test_work_that_comes_after_the_ticket_has_failed_for_good_or_was_withdrawn_is_refused(
    store: Store, study: StudyRow, optuna_study: optuna.Study
) -> None:
    store.add_tickets(study.id, [new_ticket(0), new_ticket(1)])
    first, second = take_next(store, study, "one"), take_next(store, study, "two")
    assert take(store, study.id, "other", dead=["one"], max_attempts=1) is None
    assert take(store, study.id, "other", dead=["two"], max_number_by_kind={}) is None
    store.withdraw(study.id, ["search"])
    for ticket in (first, second):
        reply = store.write(study.id, [make_end(ticket)], agent=ticket.agent or "", lease=HOUR)
        assert reply.refused.keys() == {ticket.id}
    assert [t.state for t in store.tickets(study.id)] == ["failed", "withdrawn"]


def test_nothing_is_taken_over_for_an_agent_that_is_dead(
    store: Store, study: StudyRow, silent_ticket: TicketRow
) -> None:
    reply = store.write(
        study.id, [make_end(silent_ticket)], agent="agent", lease=HOUR, allow_readoption=False
    )
    assert reply.refused.keys() == {silent_ticket.id}
    assert (of_search(store, study).state, of_search(store, study).failures) == ("waiting", 1)


@pytest.mark.parametrize("end", [AttemptLost, AttemptReleased])
def test_an_attempt_that_did_not_come_to_its_end_changes_nothing_after_the_lease(
    store: Store, study: StudyRow, silent_ticket: TicketRow, end: type[AttemptLost | AttemptReleased]
) -> None:
    lost_fields = {"error": "died", "max_attempts": 1} if end is AttemptLost else {}
    ticket_before = of_search(store, study)
    changes = [reported(silent_ticket, 1, 1.0), end(ticket_id=silent_ticket.id, attempt=1, **lost_fields)]  # type: ignore[arg-type]
    assert store.write(study.id, changes, agent="agent", lease=HOUR).refused == {}
    assert of_search(store, study) == ticket_before
    assert store.measurements(study.id) == []


@pytest.mark.parametrize("is_over", [False, True], ids=["running", "waiting again"])
@pytest.mark.parametrize("allow_readoption", [False, True])
def test_an_attempt_of_the_same_number_by_another_agent_is_refused(
    store: Store, study: StudyRow, ticket: TicketRow, is_over: bool, allow_readoption: bool
) -> None:
    """What an agent could not deliver to one database may meet another with the same ids."""
    if is_over:
        assert take(store, study.id, "second", max_number_by_kind={}, dead=["agent"]) is None
    ticket_before = only_ticket(store, study.id)
    reply = store.write(
        study.id,
        [make_end(ticket)],
        agent="stranger",
        renew={ticket.id: 1},
        lease=3 * HOUR,
        allow_readoption=allow_readoption,
    )
    assert "attempt 1 is discarded" in reply.refused[ticket.id]
    assert replace(only_ticket(store, study.id), lease=None) == replace(ticket_before, lease=None)
    assert (only_ticket(store, study.id).lease or 0.0) <= HOUR


# ---- giving back


@pytest.mark.parametrize("backend", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize(
    "max_number_by_kind", [ALL, {"baseline": 5, "search": 5}, {"constant": 0, "search": None}]
)
def test_an_uncommitted_claim_does_not_block_other_claims(
    store: Store, study: StudyRow, max_number_by_kind: dict[str, int | None]
) -> None:
    """A server locks the rows that it reads: of what one taker has passed, another must find the rest."""
    store.add_tickets(study.id, [new_ticket(n) for n in range(6)])
    criteria = ClaimRequest(max_number_by_kind=max_number_by_kind, lease=HOUR, max_attempts=3)  # type: ignore[arg-type]
    is_taken, may_end = threading.Event(), threading.Event()
    first: list[TicketRow | None] = []

    def take_slowly(connection: Connection) -> None:
        first.append(take_on(connection, study.id, "slow", criteria))
        is_taken.set()
        assert may_end.wait(30)

    thread = threading.Thread(target=store._database.write, args=(take_slowly,))
    thread.start()
    try:
        assert is_taken.wait(30)
        second = take_next(store, study, "quick", max_number_by_kind=max_number_by_kind)
        third = take_next(store, study, "quick", max_number_by_kind=max_number_by_kind)
    finally:
        may_end.set()
        thread.join()
    assert [t.number for t in (*first, second, third) if t is not None] == [0, 1, 2]

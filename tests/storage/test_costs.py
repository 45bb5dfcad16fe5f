"""What attempts took of cards adds up, and a run that needs a card to itself needs it on every agent."""

from __future__ import annotations

import pytest

from tempopt.storage import Store
from tempopt.storage.changes import AttemptLost, AttemptReleased, Change, RunOutcome
from tempopt.storage.rows import StudyRow, TicketRow
from tests.storage.scenes import HOUR, make_end, new_ticket, only_ticket, take_next


@pytest.fixture
def ticket(store: Store, study: StudyRow) -> TicketRow:
    store.add_tickets(study.id, [new_ticket(0, "baseline")])
    return take_next(store, study)


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


def test_a_run_without_a_card_has_taken_nothing_of_any(
    store: Store, study: StudyRow, ticket: TicketRow
) -> None:
    row = write_twice(store, study, make_end(ticket))
    assert (row.gpu_seconds, row.peak_memory) == (0.0, None)


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

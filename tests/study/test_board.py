"""What an agent knows of the tickets: what others did counts, and what is over is not ended twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tempopt.store.rows import Ended, Outcomes, Reported, TicketRow, Wanted
from tempopt.store.store import Store
from tempopt.study.board import Board
from tempopt.study.spec import StudySpec
from tempopt.study.stages import first_tickets


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/tempopt.db") as opened:
        yield opened


@pytest.fixture
def spec(make_spec: Callable[..., StudySpec]) -> StudySpec:
    return make_spec(trials=6, arms={"unit": 1, "constant": 2}, parallel=2)


@pytest.fixture
def board(store: Store, spec: StudySpec) -> Board:
    study = store.create_study(spec.study.name, spec.to_json(), spec.identity())
    store.add_tickets(study.id, first_tickets(spec))
    return Board(spec, study, store)


def take(store: Store, board: Board, agent: str, *, lease: float = 60.0) -> TicketRow:
    ticket = store.take_ticket(1, agent, Wanted(limits=board.limits(), lease=lease, max_attempts=3))
    assert ticket is not None
    if ticket.parameters is not None:
        return ticket
    parameters = {"temperature_init": 1.0}
    store.begin(ticket.id, ticket.attempt, parameters, {}, None)
    return dataclasses.replace(ticket, parameters=parameters, sampled={})


def end(store: Store, ticket: TicketRow, value: float) -> None:
    outcomes = Outcomes(outcome="complete", value=value, steps=4, seconds=2.0)
    changes = [
        Reported(ticket_id=ticket.id, attempt=ticket.attempt, step=4, value=value),
        Ended(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes),
    ]
    assert ticket.agent is not None
    assert not store.write(1, changes, agent=ticket.agent, lease=60.0).refused


def ended(ticket: TicketRow, value: float) -> TicketRow:
    return dataclasses.replace(ticket, state="done", outcome="complete", value=value, seconds=2.0)


def test_only_tickets_whose_past_is_known_may_begin(board: Board, store: Store) -> None:
    assert board.limits() == {"unit": 1, "constant": 1, "search": 1}
    first = take(store, board, "me")
    board.take_in(first, {})
    board.take_in(ended(first, 0.5), {4: 0.5})
    # the only unit ticket is over; what follows of the others waits for its own past
    assert board.limits() == {"constant": 1, "search": 1}


def test_what_another_agent_ended_lets_more_begin(board: Board, store: Store) -> None:
    for _ in range(3):
        end(store, take(store, board, "another"), 0.5)
    assert board.done["constant"] == 0
    board.refresh()
    assert (board.done["unit"], board.done["constant"]) == (1, 2)
    assert board.limits() == {"search": 1}


def test_a_run_that_another_has_ended_already_ends_here_without_a_word(board: Board, store: Store) -> None:
    mine = take(store, board, "me", lease=-1.0)
    board.take_in(mine, {})
    theirs = take(store, board, "another")
    assert (theirs.id, theirs.attempt) == (mine.id, 2)
    end(store, theirs, 0.7)
    board.refresh()
    board.take_in(ended(mine, 0.1), {4: 0.1})
    assert board.tickets[mine.id].value == 0.7 and board.done["unit"] == 1


def test_a_run_that_another_has_taken_over_is_not_ended_here(board: Board, store: Store) -> None:
    mine = take(store, board, "me", lease=-1.0)
    board.take_in(mine, {})
    theirs = take(store, board, "another")
    board.refresh()
    board.take_in(ended(mine, 0.1), {4: 0.1})
    assert board.tickets[mine.id].state == "running" and board.tickets[mine.id].agent == "another"
    end(store, theirs, 0.7)
    board.refresh()
    assert board.tickets[mine.id].value == 0.7


def test_tickets_that_others_add_are_seen(board: Board, store: Store, spec: StudySpec) -> None:
    store.add_tickets(1, first_tickets(spec.with_overrides(["study.trials=8", "study.arms.constant=2"])))
    assert board.asked()["search"] == 6
    board.refresh()
    assert board.asked()["search"] == 8


def test_a_study_whose_search_was_withdrawn_is_over_when_its_runs_are(board: Board, store: Store) -> None:
    ticket = take(store, board, "me")
    store.withdraw(1, ["unit", "constant", "search"])
    board.refresh()
    assert not board.over()
    end(store, ticket, 0.5)
    board.refresh()
    assert board.over() and not board.startable()


def test_what_others_have_given_back_waits_here_too(store: Store, board: Board) -> None:
    theirs = take(store, board, "another")
    board.refresh()
    assert board.tickets[theirs.id].state == "running"
    store.release(1, ["another"])
    board.refresh()
    assert (board.tickets[theirs.id].state, board.tickets[theirs.id].agent) == ("waiting", None)
    assert take(store, board, "third").id == theirs.id


def test_a_gain_is_told_once_what_it_is_compared_with_is_settled(
    store: Store, board: Board, spec: StudySpec
) -> None:
    assert (board.baseline(), board.gain(0.75)) == (None, None)
    unit = take(store, board, "another")
    assert unit.kind == "unit"
    end(store, unit, 0.5)
    board.refresh()
    better = 0.25 if board._spec.study.direction == "maximize" else -0.25
    assert (board.baseline(), board.gain(0.75), board.gain(None)) == (0.5, better, None)
    store.add_tickets(1, first_tickets(spec.with_overrides(["study.arms.unit=2"])))
    board.refresh()
    assert (board.baseline(), board.gain(0.75)) == (0.5, None)

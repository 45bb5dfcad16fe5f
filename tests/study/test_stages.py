"""Which tickets a study gets from its first to its last, in every round of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tempopt.store.rows import KINDS, NewTicket, TicketRow
from tempopt.study.confirm import winner_of
from tempopt.study.stages import (
    current_round,
    first_tickets,
    more_tickets,
    next_tickets,
    reserve,
    to_come,
)
from tempopt.study.tickets import finished

PROVING = ("choose", "confirm", "init_only")
Run = Callable[[NewTicket], TicketRow]


@pytest.fixture
def run(run_ticket: Any) -> Run:
    """Return what trains a ticket: hotter is better, and every run takes 2 s."""

    def trained(ticket: NewTicket, **fields: Any) -> TicketRow:
        tau = {"constant": 2.0, "search": 3.0}.get(ticket.arm, 1.0)
        if tau != 1.0:
            tau += ticket.number / 100
        parameters = ticket.parameters or {"temperature_init": tau}
        row: TicketRow = run_ticket(
            ticket, parameters["temperature_init"], parameters=parameters, round=ticket.round, **fields
        )
        return row

    return trained


def carried_through(tickets: list[TicketRow], spec: Any, run: Run) -> list[TicketRow]:
    """Return the tickets of a study that goes on until nothing follows."""
    while new := next_tickets(tickets, spec):
        tickets = [*tickets, *map(run, new)]
    return tickets


def ended(ticket: NewTicket, run_ticket: Any, state: str) -> TicketRow:
    row: TicketRow = run_ticket(ticket, None, state=state, round=ticket.round)
    return row


def test_a_study_begins_with_the_runs_of_its_three_arms(make_spec: Any) -> None:
    tickets = first_tickets(make_spec(trials=6))
    assert [(t.kind, t.number) for t in tickets] == [
        *(("unit", n) for n in range(3)),
        *(("constant", n) for n in range(3)),
        *(("search", n) for n in range(6)),
    ]
    # the trials of the search share two by turns
    assert len({t.seed for t in tickets}) == 3 + 3 + 2
    assert [t.seed for t in tickets][6:8] * 3 == [t.seed for t in tickets][6:]
    assert {(t.round, t.sampled) for t in tickets} == {(0, None)}
    frozen = first_tickets(make_spec(trials=6, evaluate_only="m.ckpt"))
    assert {t.kind for t in frozen} == {"search"}


def test_the_seeds_of_the_first_round_are_the_ones_they_have_always_been(make_spec: Any, run: Run) -> None:
    # From a study that an earlier version has begun: it must be able to go on.
    tickets = carried_through([run(t) for t in first_tickets(make_spec())], make_spec(), run)
    firsts = {kind: next(t.seed for t in tickets if t.kind == kind) for kind in KINDS}
    assert firsts == {
        "unit": 4797198654560859574,
        "constant": 1776894181857862516,
        "search": 7490143876721514577,
        "choose": 1118836708800866042,
        "confirm": 8539310396652297572,
        "init_only": 8539310396652297572,
    }


def test_what_a_person_wants_tried_comes_first(make_spec: Any, run: Run) -> None:
    wanted = [{"temperature_init": 2.0}, {"temperature_init": 0.5}]
    spec = make_spec(trials=4, enqueue=wanted)
    search = [t for t in first_tickets(spec) if t.kind == "search"]
    assert [t.sampled for t in search] == [*wanted, None, None]
    more = more_tickets([run(t) for t in search], spec, 3, [{"temperature_init": 4.0}])
    assert [(t.number, t.sampled) for t in more] == [(4, {"temperature_init": 4.0}), (5, None), (6, None)]


def test_choosing_follows_the_search_and_confirming_the_choice(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=6)
    searched = [run(t) for t in first_tickets(spec)]
    choosing = next_tickets(searched, spec)
    assert {t.kind for t in choosing} == {"choose"}
    chosen = [*searched, *map(run, choosing)]
    confirming = next_tickets(chosen, spec)
    assert {t.kind for t in confirming} == {"confirm", "init_only"}
    assert next_tickets([*chosen, *map(run, confirming)], spec) == []


def test_more_trials_before_the_choice_belong_to_the_same_round(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=4)
    searched = [run(t) for t in first_tickets(spec)]
    more = more_tickets(searched, spec, 2)
    assert [(t.kind, t.number, t.round) for t in more] == [("search", 4, 0), ("search", 5, 0)]
    at_once = [t.seed for t in first_tickets(make_spec(trials=6)) if t.kind == "search"]
    assert [t.seed for t in more] == at_once[4:]


def test_more_trials_after_a_verdict_open_a_round_on_fresh_seeds(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=4, candidates=2)
    first = carried_through([run(t) for t in first_tickets(spec)], spec, run)
    more = more_tickets(first, spec, 3)
    assert [(t.number, t.round) for t in more] == [(4, 1), (5, 1), (6, 1)]
    assert current_round([*first, *map(run, more)]) == 1
    second = carried_through([*first, *map(run, more)], spec, run)
    third = carried_through([*second, *map(run, more_tickets(second, spec, 1))], spec, run)
    assert current_round(third) == 2
    for kind in PROVING:
        numbers = [t.number for t in third if t.kind == kind]
        assert sorted(numbers) == list(range(len(numbers)))
        seeds = [{t.seed for t in third if (t.kind, t.round) == (kind, r)} for r in range(3)]
        assert len(set.union(*seeds)) == sum(map(len, seeds))
    others = {t.seed for t in third if t.kind != "init_only"}
    pairs = {(t.kind, t.round, t.pair) for t in third if t.kind in ("choose", "confirm")}
    arms = sum(t.kind in ("unit", "constant") for t in third)
    assert len(others) == len(pairs) + arms + 2  # the seeds that the search shares


def test_a_later_round_chooses_among_the_trials_of_all_rounds(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=4, candidates=2)
    first = carried_through([run(t) for t in first_tickets(spec)], spec, run)
    more = [dataclasses.replace(run(t), value=9.0 - t.number) for t in more_tickets(first, spec, 2)]
    choosing = next_tickets([*first, *more], spec)
    assert {t.round for t in choosing} == {1}
    assert [t.parameters for t in choosing if (t.arm, t.pair) == ("search", 0)] == [
        more[0].parameters,
        more[1].parameters,
    ]
    worse = [dataclasses.replace(t, value=-1.0) for t in more]
    kept = [t.parameters for t in next_tickets([*first, *worse], spec) if (t.arm, t.pair) == ("search", 0)]
    assert kept == [{"temperature_init": 3.03}, {"temperature_init": 3.02}]


def test_the_winner_of_a_round_stays_what_it_was(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=4, candidates=2)
    first = carried_through([run(t) for t in first_tickets(spec)], spec, run)
    before = winner_of(first, spec)
    more = [dataclasses.replace(run(t), value=9.0) for t in more_tickets(first, spec, 1)]
    assert winner_of([*first, *more], spec) is None
    second = carried_through([*first, *more], spec, run)
    assert winner_of(second, spec) == more[0].parameters != before
    assert winner_of(second, spec, of_round=0) == before


def test_trials_added_while_a_round_is_being_confirmed_wait_for_the_next(
    make_spec: Any, run: Run, run_ticket: Any
) -> None:
    spec = make_spec(trials=4)
    searched = [run(t) for t in first_tickets(spec)]
    waiting = [ended(t, run_ticket, "waiting") for t in next_tickets(searched, spec)]
    assert {t.round for t in more_tickets([*searched, *waiting], spec, 1)} == {1}


@pytest.mark.parametrize("begun", range(13))
def test_a_study_that_was_stopped_comes_to_an_end(
    make_spec: Any, run: Run, run_ticket: Any, result_of: Any, begun: int
) -> None:
    spec = make_spec(trials=6, candidates=2)
    first = first_tickets(spec)
    tickets = [run(t) for t in first[:begun]] + [ended(t, run_ticket, "withdrawn") for t in first[begun:]]
    tickets = [dataclasses.replace(t, parameters=None) if t.state == "withdrawn" else t for t in tickets]
    assert finished(tickets)
    over = carried_through(tickets, spec, run)
    searched = max(0, begun - 6)
    kinds = {t.kind for t in over}
    assert ("confirm" in kinds) == (searched > 0)
    assert ("choose" in kinds) == (searched > 0)
    assert {t.arm for t in over if t.kind == "choose"} <= {"constant", "search"}
    result = result_of(spec, over, state="done")
    assert (result.verdict is not None) == (searched > 0)


def test_a_search_without_any_run_at_one_is_compared_with_it_all_the_same(
    make_spec: Any, run: Run, run_ticket: Any
) -> None:
    spec = make_spec(trials=4, candidates=1)
    tickets = [
        dataclasses.replace(ended(t, run_ticket, "withdrawn"), parameters=None)
        if t.kind == "unit"
        else run(t)
        for t in first_tickets(spec)
    ]
    unit = next(t for t in next_tickets(tickets, spec) if t.arm == "unit")
    assert unit.parameters == {"temperature_init": 1.0}
    lr = {"search": {"temperature_init": {"low": 0.5, "high": 4.0}, "lr": {"low": 0.1, "high": 1.0}}}
    # which learning rate tau = 1 would have had nobody can know
    assert next_tickets(tickets, make_spec(lr, trials=4, candidates=1)) == []


def test_what_proving_will_take_is_set_aside(make_spec: Any, run: Run, run_ticket: Any) -> None:
    spec = make_spec(trials=6, candidates=3, seeds={"choose": 4, "confirm": 8})
    first = first_tickets(spec)
    waiting = [ended(t, run_ticket, "waiting") for t in first]
    assert reserve(waiting, spec) == 0.0
    begun = [dataclasses.replace(run(t), seconds=5.0 + t.number) for t in first[:3]]
    # 3 candidates of two arms on 4 seeds, then three arms and init-only on 8 seeds, of 6 s on average
    assert reserve([*begun, *waiting[3:]], spec) == pytest.approx(6.0 * (2 * 3 * 4 + 4 * 8))
    tickets = [run(t) for t in first]
    expected = to_come(tickets, spec)
    while new := next_tickets(tickets, spec):
        # who leaves the race takes less with it than was set aside, and nothing takes more
        assert len(new) <= to_come(tickets, spec) <= expected
        asked = [ended(t, run_ticket, "waiting") for t in new]
        expected = to_come(tickets, spec)
        assert reserve([*tickets, *asked], spec) == pytest.approx(2.0 * expected)
        tickets = [*tickets, *map(run, new)]
        expected -= len(new)
    assert expected == reserve(tickets, spec) == 0


def test_a_trained_model_that_is_only_evaluated_needs_no_proof(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=3, evaluate_only="m.ckpt")
    tickets = [run(t) for t in first_tickets(spec)]
    assert next_tickets(tickets, spec) == []
    assert reserve(tickets, spec) == 0.0
    assert {t.round for t in more_tickets(tickets, spec, 2)} == {0}

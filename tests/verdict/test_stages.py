"""Which tickets a study gets from its first to its last, in every round of it."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from tempopt.storage.rows import NewTicket, TicketRow
from tempopt.storage.ticket_queries import are_over, arms_of
from tempopt.verdict.pairs import find_winner
from tempopt.verdict.stages import (
    count_tickets_to_come,
    current_round,
    initial_tickets,
    more_tickets,
    next_tickets,
    remaining_confirmation_runs,
)
from tests.simulated import SimulatedStudy, Worth
from tests.verdict.test_planned_runs import drawn_spec, worth_of
from tests.verdict.verdicts import LR_SPACE

CONFIRMING_KINDS = ("choose", "confirm")
LR = {"search": LR_SPACE}
PLAN = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "temperature_final": {"low": 0.25, "high": 4.0},
    "schedule": ["constant", "cosine"],
    "length_scaling": ["none", "log_n"],
    "lr": {"low": 0.1, "high": 1.0, "log": True},
}
Run = Callable[[NewTicket], TicketRow]


@pytest.fixture
def run(run_ticket: Any) -> Run:
    """Return what trains a ticket: hotter is better, and every run takes 2 s."""

    def train_ticket(ticket: NewTicket, **fields: Any) -> TicketRow:
        tau = {"constant": 2.0, "search": 3.0}.get(ticket.arm, 1.0)
        if tau != 1.0:
            tau += ticket.number / 100
        parameters = ticket.parameters or {"temperature_init": tau}
        row: TicketRow = run_ticket(
            ticket, parameters["temperature_init"], parameters=parameters, round=ticket.round, **fields
        )
        return row

    return train_ticket


def carried_through(tickets: list[TicketRow], spec: Any, run: Run) -> list[TicketRow]:
    """Return the tickets of a study that goes on from these, or its first, until nothing follows."""
    tickets = tickets or [run(t) for t in initial_tickets(spec)]
    while new_tickets := next_tickets(tickets, spec):
        tickets = [*tickets, *map(run, new_tickets)]
    return tickets


def end_ticket(ticket: NewTicket, run_ticket: Any, state: str) -> TicketRow:
    row: TicketRow = run_ticket(ticket, None, state=state, round=ticket.round)
    return row


@pytest.mark.parametrize(("sections", "num_baseline", "num_search"), [({}, 2, 12), (LR, 4, 16)])
def test_a_study_begins_with_its_design_and_its_search(
    make_spec: Any, sections: dict[str, Any], num_baseline: int, num_search: int
) -> None:
    spec = make_spec(sections)
    tickets = initial_tickets(spec)
    assert [(t.kind, t.number) for t in tickets] == [
        *(("baseline", n) for n in range(num_baseline)),
        *(("constant", n) for n in range(4)),
        *(("search", n) for n in range(num_search)),
    ]
    # all of them share two seeds, each of which has one of two runs that follow each other
    assert len({t.seed for t in tickets}) == 2
    by_number = {t.number: t.seed for t in tickets}
    assert all(t.seed == by_number[t.number] for t in tickets)
    assert all(by_number[number] != by_number[number + 1] for number in range(0, 12, 2))
    assert {(t.round, t.sampled) for t in tickets} == {(0, None)}


def test_the_numbers_of_the_design_are_the_specs_to_say(make_spec: Any) -> None:
    tickets = initial_tickets(
        make_spec(LR, trials=3, arms={"baseline": 4, "constant": 1}, seeds={"search": None})
    )
    assert [t.kind for t in tickets] == ["baseline"] * 4 + ["constant"] + ["search"] * 3
    assert len({t.seed for t in tickets}) == 8


def test_what_a_person_wants_tried_comes_first(make_spec: Any, run: Run) -> None:
    enqueued_sets = [{"temperature_init": 2.0}, {"temperature_init": 0.5}]
    spec = make_spec(trials=4, enqueue=enqueued_sets)
    search = [t for t in initial_tickets(spec) if t.kind == "search"]
    assert [t.sampled for t in search] == [*enqueued_sets, None, None]
    extra_tickets = more_tickets([run(t) for t in search], spec, 3, [{"temperature_init": 4.0}])
    assert [(t.number, t.sampled) for t in extra_tickets] == [
        (4, {"temperature_init": 4.0}),
        (5, None),
        (6, None),
    ]


def test_more_trials_after_a_verdict_open_a_round_on_fresh_seeds(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=4, candidates=2)
    first = carried_through([], spec, run)
    extra_tickets = more_tickets(first, spec, 3)
    assert [(t.number, t.round) for t in extra_tickets] == [(4, 1), (5, 1), (6, 1)]
    assert current_round([*first, *map(run, extra_tickets)]) == 1
    second = carried_through([*first, *map(run, extra_tickets)], spec, run)
    third = carried_through([*second, *map(run, more_tickets(second, spec, 1))], spec, run)
    assert current_round(third) == 2
    for kind in CONFIRMING_KINDS:
        numbers = [t.number for t in third if t.kind == kind]
        assert sorted(numbers) == list(range(len(numbers)))
        seeds = [{t.seed for t in third if (t.kind, t.round) == (kind, r)} for r in range(3)]
        assert len(set.union(*seeds)) == sum(map(len, seeds))
    pairs = {(t.kind, t.round, t.pair) for t in third if t.kind in CONFIRMING_KINDS}
    assert len({t.seed for t in third}) == len(pairs) + 2  # the seeds that the search and its design share


def test_a_later_round_chooses_among_the_trials_of_all_rounds(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=4, candidates=2)
    first = carried_through([], spec, run)
    extra_rows = [dataclasses.replace(run(t), value=9.0 - t.number) for t in more_tickets(first, spec, 2)]
    choose_tickets = next_tickets([*first, *extra_rows], spec)
    assert {t.round for t in choose_tickets} == {1}
    worse_rows = [dataclasses.replace(t, value=-1.0) for t in extra_rows]
    chosen_params, other_params = (
        [t.parameters for t in tickets if (t.arm, t.pair) == ("search", 0)]
        for tickets in (choose_tickets, next_tickets([*first, *worse_rows], spec))
    )
    assert chosen_params == [t.parameters for t in extra_rows]
    assert other_params == [{"temperature_init": 3.03}, {"temperature_init": 3.02}]


def test_the_winner_of_a_round_stays_what_it_was(make_spec: Any, run: Run) -> None:
    spec = make_spec(trials=4, candidates=2)
    first = carried_through([], spec, run)
    first_winner = find_winner(first, spec)
    extra_rows = [dataclasses.replace(run(t), value=9.0) for t in more_tickets(first, spec, 1)]
    assert find_winner([*first, *extra_rows], spec) is None
    second = carried_through([*first, *extra_rows], spec, run)
    assert find_winner(second, spec) == extra_rows[0].parameters != first_winner
    assert find_winner(second, spec, of_round=0) == first_winner


def test_trials_added_while_a_round_is_being_confirmed_wait_for_the_next(
    make_spec: Any, run: Run, run_ticket: Any
) -> None:
    spec = make_spec(trials=4)
    search_rows = [run(t) for t in initial_tickets(spec)]
    waiting = [end_ticket(t, run_ticket, "waiting") for t in next_tickets(search_rows, spec)]
    assert {t.round for t in more_tickets([*search_rows, *waiting], spec, 1)} == {1}


@pytest.mark.parametrize("num_begun", range(0, 14, 2))
def test_a_study_that_was_stopped_comes_to_an_end(
    make_spec: Any, run: Run, run_ticket: Any, result_of: Any, num_begun: int
) -> None:
    spec = make_spec(trials=6, candidates=2, arms={"baseline": 3, "constant": 3})
    first = initial_tickets(spec)
    withdrawn = [end_ticket(t, run_ticket, "withdrawn") for t in first[num_begun:]]
    tickets = [run(t) for t in first[:num_begun]]
    tickets += [dataclasses.replace(t, parameters=None) for t in withdrawn]
    assert are_over(tickets)
    all_rows = carried_through(tickets, spec, run)
    num_searched = max(0, num_begun - 6)
    kinds = {t.kind for t in all_rows}
    assert ("confirm" in kinds) == (num_searched > 0)
    assert ("choose" in kinds) == (num_searched > 1)
    assert {t.arm for t in all_rows if t.kind == "choose"} <= {"search"}
    result = result_of(spec, all_rows, state="done")
    assert (result.verdict is not None) == (num_searched > 0)


# ---- what is still to come


def test_what_proving_will_take_is_set_aside(make_spec: Any, run: Run, run_ticket: Any) -> None:
    spec = make_spec(trials=6, candidates=3, seeds={"choose": 4, "confirm": 8})
    first = initial_tickets(spec)
    waiting = [end_ticket(t, run_ticket, "waiting") for t in first]
    # 3 candidates on 4 seeds, then winner and baseline on 8 seeds
    assert remaining_confirmation_runs(waiting, spec) == 3 * 4 + 2 * 8
    tuned_spec = make_spec(LR, trials=6, candidates=3, seeds={"choose": 4, "confirm": 8})
    waiting_too = [end_ticket(t, run_ticket, "waiting") for t in initial_tickets(tuned_spec)]
    # The baseline is tuned_spec; at an exchange both sets may need runs, and the twin is confirmed, too.
    assert remaining_confirmation_runs(waiting_too, tuned_spec) == (4 + 2) + (3 + 2) * 4 + 3 * 8
    tickets = [run(t) for t in first]
    expected = count_tickets_to_come(tickets, spec)
    while new_tickets := next_tickets(tickets, spec):
        # who leaves the race takes less with it than was set aside, and nothing takes more
        assert len(new_tickets) <= count_tickets_to_come(tickets, spec) <= expected
        waiting_rows = [end_ticket(t, run_ticket, "waiting") for t in new_tickets]
        expected = count_tickets_to_come(tickets, spec)
        assert remaining_confirmation_runs([*tickets, *waiting_rows], spec) == expected
        tickets = [*tickets, *map(run, new_tickets)]
        expected -= len(new_tickets)
    assert expected == remaining_confirmation_runs(tickets, spec) == 0


def is_constant(ticket: TicketRow) -> bool:
    """Return whether a run confirms a constant, which follows a gain that is shown."""
    return ticket.kind == "confirm" and set(arms_of(ticket)) <= {"constant", "constant_twin"}


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_to_come_is_an_upper_bound_of_the_tickets_until_the_round_is_decided(
    make_spec: Any, start: int
) -> None:
    for number in range(start, start + 50):
        study = SimulatedStudy(drawn_spec(make_spec, number, explain=False), worth_of(number))
        study.search()
        bounds = []
        while True:
            num_before, bound = len(study.rows), count_tickets_to_come(study.rows, study.spec)
            if not study.step():
                break
            if is_constant(study.batches[-1][0]):
                # they follow a gain, which is decided then
                assert bound == 0, number
                continue
            bounds.append((num_before, bound))
        num_deciding = sum(not is_constant(t) for t in study.rows)
        for num_before, bound in bounds:
            assert num_deciding - num_before <= bound, (number, num_before)
        assert count_tickets_to_come(study.rows, study.spec) == 0 or not study.tickets_of("confirm"), number


def by_chance(name: str) -> Worth:
    """Return a world of noise, another for each name."""
    return lambda t: random.Random(f"{name} {t.parameters} {t.seed}").gauss(0.5, 0.1)


def helped(gain: float, name: str = "") -> Worth:
    """Return a world in which any temperature but 1 is worth as much."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        noise = by_chance(name)(t) / 10
        tau = t.parameters.get("temperature_init", 1.0)
        return noise + gain * (tau != 1.0 or "temperature_final" in t.parameters)

    return worth


def test_the_stages_of_a_study_in_their_order(make_spec: Any) -> None:
    plan = {**PLAN, "schedule": ["cosine"], "length_scaling": ["log_n"]}
    study = SimulatedStudy(make_spec({"search": plan}, trials=8, explain=True), helped(1.0)).run()
    stages: list[tuple[str, ...]] = []
    for batch in study.batches:
        arms = sorted({arm for t in batch for arm in arms_of(t)}) if batch[0].kind != "ablation" else []
        stages.append((batch[0].kind, *arms))
    assert [stage for stage in stages if stage[0] != "confirm" or "search" not in stage] == [
        ("baseline", "baseline", "constant", "search"),
        ("baseline", "baseline"),
        ("choose", "search"),
        ("choose", "exchange"),
        ("confirm", "constant", "constant_twin"),
        ("choose", "simpler"),
        ("ablation",),
    ]
    deciding_stages = [
        index for index, stage in enumerate(stages) if "search" in stage and stage[0] == "confirm"
    ]
    assert deciding_stages == list(range(4, 4 + len(deciding_stages)))


def test_what_follows_does_not_hang_on_the_order_in_which_a_store_gives_its_rows(make_spec: Any) -> None:
    spec = make_spec({"search": PLAN}, trials=8, explain=True, seeds={"confirm": {"min": 4, "max": 8}})
    for name in "abcd":
        study, shuffle = SimulatedStudy(spec, by_chance(name)), random.Random(name)
        study.search()
        while True:
            shuffled_rows = shuffle.sample(study.rows, len(study.rows))
            assert next_tickets(shuffled_rows, spec) == next_tickets(study.rows, spec)
            assert count_tickets_to_come(shuffled_rows, spec) == count_tickets_to_come(study.rows, spec)
            if not study.step():
                break
        assert study.tickets_of("confirm")


# ---- interim looks


@pytest.mark.parametrize(
    ("gains", "confirm", "looks"),
    [
        # the first look that shows a gain
        ([1.0, 1.001], {"min": 4, "max": 16}, [4]),
        ([0.3, -0.2, 0.3, 0.1, *[1.0, 1.1] * 6], {"min": 4, "max": 16}, [4, 8, 12]),
        # the last one while it is open
        ([0.3, -0.2, 0.3, -0.25], {"min": 4, "max": 14}, [4, 8, 12, 14]),
        # the first at which the winner is behind
        ([-0.3, 0.2, -0.3, 0.25], {"min": 4, "max": 16}, [4]),
        # a fixed number of pairs is trained at once whatever they show
        ([1.0, 1.001], 12, [12]),
        ([-1.0, -0.999], 12, [12]),
        ([1.0], {"min": 12, "max": 12}, [12]),
    ],
)
def test_a_confirmation_ends_at_the_look_that_decides_it(
    make_spec: Any, gains: list[float], confirm: Any, looks: list[int]
) -> None:
    def worth(t: TicketRow) -> float:
        if t.kind != "confirm":
            return t.parameters["temperature_init"] if t.parameters else 0.0
        return 0.5 + gains[(t.pair or 0) % len(gains)] * (t.arm == "search")

    study = SimulatedStudy(make_spec(trials=4, seeds={"confirm": confirm}), worth).run()
    confirm_batches = [batch for batch in study.batches if batch[0].kind == "confirm"]
    pairs_by_batch = [sorted({t.pair for t in batch if t.pair is not None}) for batch in confirm_batches]
    assert pairs_by_batch == [list(range(*ends)) for ends in itertools.pairwise([0, *looks])]
    assert [t.number for t in study.tickets_of("confirm")] == list(range(len(study.tickets_of("confirm"))))

"""Which candidates are taken on, on which seeds, and which arms are confirmed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import DECIDING_ARMS, arms_of
from tempopt.temperature import is_neutral
from tempopt.verdict.pairs import (
    candidates,
    confirm_tickets,
    deciding_arms,
    find_winner,
    more_pairs,
    select_arm_params,
)
from tempopt.verdict.stages import next_tickets
from tests.simulated import SimulatedStudy
from tests.verdict.verdicts import LR_SPACE, SCHEDULED_SPACE


@pytest.fixture
def search_rows(make_ticket: Any) -> list[TicketRow]:
    """Three runs of tau = 1, two constants, four search trials of which the third is the best."""
    return [
        *(make_ticket("baseline", i, 0.5, parameters={"temperature_init": 1.0}) for i in range(3)),
        *(
            make_ticket(kind, i, value, parameters={"temperature_init": lowest + i})
            for kind, lowest, values in (("constant", 2.0, [0.5, 0.6]), ("search", 0.5, [0.6, 0.7, 0.9, 0.8]))
            for i, value in enumerate(values)
        ),
    ]


def test_candidates_are_the_best_distinct_complete_trials(make_ticket: Any) -> None:
    def trial(number: int, value: float | None, **fields: Any) -> TicketRow:
        return make_ticket("search", number, value, **fields)

    flat = {"schedule": "constant", "temperature_init": 2.0}
    tickets = [
        trial(0, 0.6, parameters=flat),
        trial(1, 0.9, parameters={**flat, "temperature_init": 3.0}),
        trial(2, 0.95, parameters=flat | {"temperature_init": 4.0}, outcome="pruned"),
        trial(3, None, parameters=flat | {"temperature_init": 5.0}, outcome="diverged"),
        trial(4, None, parameters=None, state="running"),
        trial(5, 0.7, parameters=flat | {"temperature_init": 6.0}),
        trial(6, 0.8, parameters={**flat, "temperature_final": 2.0}),
    ]
    best_params = candidates(tickets, 3, "maximize")
    assert [parameters["temperature_init"] for parameters in best_params] == [3.0, 2.0, 6.0]
    assert [p["temperature_init"] for p in candidates(tickets, 1, "minimize")] == [2.0]


def test_choosing_pairs_the_candidates_of_the_search_on_seeds_of_their_own(
    make_spec: Any, search_rows: list[TicketRow]
) -> None:
    spec = make_spec(candidates=3, seeds={"choose": 2})
    tickets = next_tickets(search_rows, spec)
    assert [(t.pair, t.arm, t.candidate) for t in tickets] == [
        (pair, "search", candidate) for pair in range(2) for candidate in range(3)
    ]
    assert [t.number for t in tickets] == list(range(6))
    assert [t.parameters for t in tickets[:3]] == [{"temperature_init": tau} for tau in (2.5, 3.5, 1.5)]
    assert len({t.seed for t in tickets}) == 2
    assert {t.seed for t in tickets}.isdisjoint(t.seed for t in search_rows)


def test_what_is_chosen_on_is_never_estimated_on(
    make_spec: Any, run_ticket: Any, search_rows: list[TicketRow]
) -> None:
    spec = make_spec(seeds={"choose": 4, "confirm": 8})
    choose_rows: list[TicketRow] = []
    while (new_tickets := next_tickets([*search_rows, *choose_rows], spec))[0].kind == "choose":
        choose_rows += [run_ticket(t, 0.5) for t in new_tickets]
    assert {t.pair for t in choose_rows} == {0, 1, 2, 3}
    seeds = {t.pair: t.seed for t in new_tickets}
    assert len(set(seeds.values())) == 8
    assert all(t.seed == seeds[t.pair] for t in new_tickets)
    assert set(seeds.values()).isdisjoint(t.seed for t in [*search_rows, *choose_rows])
    other_tickets = confirm_tickets(
        [*search_rows, *choose_rows], make_spec(seed=1, seeds={"choose": 4, "confirm": 8})
    )
    assert len(other_tickets) == len(new_tickets)
    assert set(seeds.values()).isdisjoint(t.seed for t in other_tickets)


def test_the_best_mean_over_the_choosing_seeds_wins(
    make_spec: Any, run_ticket: Any, search_rows: list[TicketRow]
) -> None:
    for direction, best in (("maximize", {"temperature_init": 3.5}), ("minimize", {"temperature_init": 1.5})):
        spec = make_spec(direction=direction, candidates=4)
        tickets = next_tickets(search_rows, spec)
        value = {2.5: 0.7, 3.5: 0.8, 1.5: 0.3, 0.5: 0.5}
        runs = [run_ticket(t, value[t.parameters["temperature_init"]] + t.pair) for t in tickets]
        assert select_arm_params([*search_rows, *runs], spec)["search"] == best


@pytest.mark.parametrize("loss", [{"outcome": "diverged"}, {"state": "failed", "outcome": "failed"}])
def test_a_candidate_that_is_lost_on_a_seed_ranks_below_those_that_are_not(
    make_spec: Any, run_ticket: Any, search_rows: list[TicketRow], loss: dict[str, Any]
) -> None:
    spec = make_spec()
    runs = [
        run_ticket(t, None, **loss)
        if (t.candidate, t.pair) == (0, 1)
        else run_ticket(t, 0.9 - t.candidate / 10)
        for t in next_tickets(search_rows, spec)
    ]
    assert select_arm_params([*search_rows, *runs], spec)["search"] == {"temperature_init": 3.5}


def test_an_arm_is_not_decided_before_its_choosing_is_over(
    make_spec: Any, run_ticket: Any, search_rows: list[TicketRow]
) -> None:
    spec = make_spec(seeds={"choose": 2})
    tickets = next_tickets(search_rows, spec)
    runs = [run_ticket(t, 0.5) for t in tickets]
    assert {t.arm for t in tickets} == {"search"}
    assert select_arm_params(search_rows, spec) == {}
    assert select_arm_params([*search_rows, *runs], spec).keys() == {"search", "baseline", "twin"}
    runs[-1] = run_ticket(tickets[-1], None, state="running")
    assert select_arm_params([*search_rows, *runs], spec) == {}
    assert confirm_tickets([*search_rows, *runs], spec) == []
    assert find_winner([*search_rows, *runs], spec) is None


def test_one_candidate_is_not_chosen_among(make_spec: Any, search_rows: list[TicketRow]) -> None:
    spec = make_spec(candidates=1)
    assert {t.kind for t in next_tickets(search_rows, spec)} == {"confirm"}
    assert [t.arm for t in confirm_tickets(search_rows, spec)[:3]] == ["search", "baseline+twin", "search"]


def test_the_arms_that_decide_are_confirmed_on_the_same_seeds(make_spec: Any) -> None:
    spec = make_spec({"search": SCHEDULED_SPACE}, trials=6, seeds={"confirm": 8})
    study = SimulatedStudy(spec, lambda t: t.seed % 997 / 997)
    study.search()
    assert study.run_until("confirm")
    batch = study.batches[-1]
    assert [arms_of(t) for t in batch if t.pair == 0] == [(arm,) for arm in DECIDING_ARMS]
    assert [t.kind for t in batch] == ["confirm"] * 24
    assert [t.number for t in batch] == [*range(24)]
    assert all(len({t.seed for t in batch if t.pair == pair}) == 1 for pair in range(8))
    by_arm = {t.arm: t.parameters for t in batch}
    winner, twin = by_arm["search"], by_arm["twin"]
    assert winner is not None and winner["schedule"] == "linear"
    assert twin == {"temperature_init": 1.0, "schedule": "constant", "lr": winner["lr"]}
    assert by_arm["baseline"] in [t.parameters for t in study.tickets_of("baseline")]
    assert deciding_arms(batch) == by_arm
    assert find_winner(study.rows, study.spec) == winner


def test_a_baseline_that_diverged_everywhere_gives_way_to_what_is_known_to_train(
    make_spec: Any, make_ticket: Any
) -> None:
    spec = make_spec({"search": LR_SPACE}, candidates=1)
    params = {"temperature_init": 3.0, "lr": 0.15}
    fields = {"outcome": "diverged", "parameters": {"temperature_init": 1.0, "lr": 0.9}}
    tickets = [make_ticket("baseline", i, None, **fields) for i in range(4)]
    tickets.append(make_ticket("search", 0, 0.9, parameters=params))
    arms = select_arm_params(tickets, spec)
    assert arms["baseline"] == arms["twin"] == {"temperature_init": 1.0, "lr": 0.15}
    assert [t.arm for t in confirm_tickets(tickets, spec) if t.pair == 0] == ["search", "baseline+twin"]


def test_without_a_complete_search_trial_there_is_nothing_to_confirm(
    make_spec: Any, search_rows: list[TicketRow]
) -> None:
    spec = make_spec()
    assert next_tickets(search_rows[:5], spec) == confirm_tickets(search_rows[:5], spec) == []
    assert confirm_tickets([], spec) == next_tickets([], spec) == []


def test_another_normaliser_is_a_baselines_own_affair(make_spec: Any, make_ticket: Any) -> None:
    # it is no temperature: the winner at one is confirmed with it, and is its own baseline
    spec = make_spec(
        {"search": {"temperature_init": {"low": 0.5, "high": 4.0}, "normaliser": ["softmax", "sparsemax"]}},
        candidates=1,
    )
    tickets = [
        make_ticket("baseline", 0, 0.5, parameters={"temperature_init": 1.0, "normaliser": "softmax"}),
        make_ticket("search", 0, 0.9, parameters={"temperature_init": 1.0, "normaliser": "sparsemax"}),
    ]
    assert [(t.kind, t.arm) for t in next_tickets(tickets, spec)] == [("confirm", "search+baseline+twin")] * 4


# ---- more pairs


def test_added_pairs_train_the_arms_that_decide_on_fresh_seeds(make_spec: Any) -> None:
    def worth(t: TicketRow) -> float:
        return 1.0 * (not is_neutral(t.parameters or {})) + random.Random(str((t.seed, t.arm))).gauss(0, 0.01)

    study = SimulatedStudy(make_spec({"search": SCHEDULED_SPACE}, trials=6), worth).run()
    first = study.tickets_of("confirm")
    assert {t.arm for t in first} == {"search", "baseline", "twin", "constant", "constant_twin"}
    new_rows = study.do(more_pairs(study.rows, study.spec, 3))
    assert {t.round for t in new_rows} == {1}
    assert [t.pair for t in new_rows if t.arm == "search"] == [0, 1, 2]
    # constants do not decide whether a gain is shown
    assert {(t.kind, t.arm, str(t.parameters)) for t in new_rows} == {
        (t.kind, t.arm, str(t.parameters)) for t in first if t.arm in DECIDING_ARMS
    }
    assert {t.seed for t in new_rows}.isdisjoint(t.seed for t in study.rows if t not in new_rows)
    study.run()
    assert [t.number for t in study.tickets_of("confirm")] == list(range(len(study.tickets_of("confirm"))))
    assert {t.round for t in study.do(more_pairs(study.rows, study.spec, 1))} == {2}


def test_pairs_are_added_to_nothing_but_a_verdict(make_spec: Any, run_ticket: Any) -> None:
    study = SimulatedStudy(make_spec({"search": SCHEDULED_SPACE}, trials=6), lambda t: t.seed % 997 / 997)
    assert more_pairs([], study.spec, 4) == []
    study.search()
    while not study.tickets_of("confirm"):
        assert more_pairs(study.rows, study.spec, 4) == []
        rows_before = list(study.rows)
        assert study.step()
    last = study.rows[-1]
    running_rows = [*study.rows[:-1], dataclasses.replace(last, state="running", outcome=None, value=None)]
    assert more_pairs(running_rows, study.spec, 4) == more_pairs(rows_before, study.spec, 4) == []
    study.run()
    assert more_pairs(study.rows, study.spec, 4)

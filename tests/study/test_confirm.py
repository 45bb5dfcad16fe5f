"""Which candidates are taken on, on which seeds, and what is measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tempopt.store.rows import TicketRow
from tempopt.study.choose import candidates, choose_tickets, pick
from tempopt.study.confirm import POSTHOC_CONSTANTS, confirm_tickets, counted, evaluations, winner_of


@pytest.fixture
def searched(make_ticket: Any) -> list[TicketRow]:
    """Three runs of tau = 1, two constants, four search trials of which the third is the best."""
    return [
        *(make_ticket("unit", i, 0.5, parameters={"temperature_init": 1.0}) for i in range(3)),
        *(
            make_ticket("constant", i, 0.5 + i / 10, parameters={"temperature_init": 2.0 + i})
            for i in range(2)
        ),
        *(
            make_ticket("search", i, value, parameters={"temperature_init": 0.5 + i})
            for i, value in enumerate([0.6, 0.7, 0.9, 0.8])
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
    found = candidates(tickets, 3, "maximize")
    assert [parameters["temperature_init"] for parameters in found] == [3.0, 2.0, 6.0]
    assert [p["temperature_init"] for p in candidates(tickets, 1, "minimize")] == [2.0]


def test_of_equal_candidates_the_earlier_goes_first(make_ticket: Any) -> None:
    tickets = [make_ticket("search", i, 0.5, parameters={"temperature_init": 9.0 - i}) for i in range(3)]
    for direction in ("maximize", "minimize"):
        assert candidates(reversed(tickets), 1, direction) == [{"temperature_init": 9.0}]


def test_choosing_pairs_every_candidate_on_seeds_of_its_own(
    make_spec: Any, searched: list[TicketRow]
) -> None:
    spec = make_spec(candidates=3, seeds={"choose": 2})
    tickets = choose_tickets(searched, spec)
    assert [(t.pair, t.arm, t.candidate) for t in tickets] == [
        (pair, *who)
        for pair in range(2)
        for who in [("constant", 0), ("constant", 1), ("search", 0), ("search", 1), ("search", 2)]
    ]
    assert [t.number for t in tickets] == list(range(10))
    assert [t.parameters for t in tickets[2:5]] == [{"temperature_init": tau} for tau in (2.5, 3.5, 1.5)]
    assert len({t.seed for t in tickets}) == 2
    assert {t.seed for t in tickets}.isdisjoint(t.seed for t in searched)


def test_what_is_chosen_on_is_never_estimated_on(
    make_spec: Any, run_ticket: Any, searched: list[TicketRow]
) -> None:
    spec = make_spec(seeds={"choose": 4, "confirm": 8})
    chosen: list[TicketRow] = []
    while new := choose_tickets([*searched, *chosen], spec):
        chosen += [run_ticket(t, 0.5) for t in new]
    assert {t.pair for t in chosen} == {0, 1, 2, 3}
    confirmed = confirm_tickets([*searched, *chosen], spec)
    seeds = {t.pair: t.seed for t in confirmed}
    assert len(set(seeds.values())) == 8
    assert all(t.seed == seeds[t.pair] for t in confirmed)
    assert set(seeds.values()).isdisjoint(t.seed for t in [*searched, *chosen])
    other = confirm_tickets([*searched, *chosen], make_spec(seed=1))
    assert set(seeds.values()).isdisjoint(t.seed for t in other)


def test_the_best_mean_over_the_choosing_seeds_wins(
    make_spec: Any, run_ticket: Any, searched: list[TicketRow]
) -> None:
    for direction, best in (("maximize", {"temperature_init": 3.5}), ("minimize", {"temperature_init": 1.5})):
        spec = make_spec(direction=direction, candidates=4)
        tickets = choose_tickets(searched, spec)
        value = {2.5: 0.7, 3.5: 0.8, 1.5: 0.3, 0.5: 0.5, 2.0: 0.6, 3.0: 0.4}
        runs = [run_ticket(t, value[t.parameters["temperature_init"]] + t.pair) for t in tickets]
        assert pick([*searched, *runs], spec)["search"] == best


@pytest.mark.parametrize("loss", [{"outcome": "diverged"}, {"state": "failed", "outcome": "failed"}])
def test_a_candidate_that_is_lost_on_a_seed_ranks_below_those_that_are_not(
    make_spec: Any, run_ticket: Any, searched: list[TicketRow], loss: dict[str, Any]
) -> None:
    spec = make_spec()
    runs = [
        run_ticket(t, None, **loss)
        if (t.candidate, t.pair) == (0, 1)
        else run_ticket(t, 0.9 - t.candidate / 10)
        for t in choose_tickets(searched, spec)
    ]
    assert pick([*searched, *runs], spec)["search"] == {"temperature_init": 3.5}


def test_an_arm_is_not_decided_before_its_choosing_is_over(
    make_spec: Any, run_ticket: Any, searched: list[TicketRow]
) -> None:
    spec = make_spec(seeds={"choose": 2})
    tickets = choose_tickets(searched, spec)
    runs = [run_ticket(t, None, state="running") if t is tickets[-1] else run_ticket(t, 0.5) for t in tickets]
    assert pick(searched, spec) == {"unit": {"temperature_init": 1.0}}
    assert pick([*searched, *runs], spec).keys() == {"unit", "constant"}
    assert confirm_tickets([*searched, *runs], spec) == []
    assert winner_of([*searched, *runs], spec) is None


def test_one_candidate_is_not_chosen_among(make_spec: Any, searched: list[TicketRow]) -> None:
    spec = make_spec(candidates=1)
    assert choose_tickets(searched, spec) == []
    assert [t.arm for t in confirm_tickets(searched, spec)[:3]] == ["unit", "constant", "search"]


def test_every_arm_tunes_what_is_not_temperature_and_init_only_keeps_the_winners(
    make_spec: Any, make_ticket: Any, run_ticket: Any
) -> None:
    spec = make_spec(
        {"search": {"temperature_init": {"low": 0.5, "high": 4.0}, "lr": {"low": 0.1, "high": 1.0}}}
    )
    tickets = [
        make_ticket(arm, i, 0.5 + i / 10, parameters={"temperature_init": tau, "lr": 0.1 + i / 10})
        for arm, tau in (("unit", 1.0), ("constant", 2.0), ("search", 3.0))
        for i in range(4)
    ]
    choosing = choose_tickets(tickets, spec)
    assert {t.arm for t in choosing} == {"unit", "constant", "search"}
    # On the choosing seeds the second candidate of the search is the best, of the others the first.
    runs = [run_ticket(t, float(t.candidate == (t.arm == "search"))) for t in choosing]
    confirmed = confirm_tickets([*tickets, *runs], spec)
    by_arm = {t.arm: t.parameters for t in confirmed}
    assert by_arm == {
        "unit": {"temperature_init": 1.0, "lr": 0.4},
        "constant": {"temperature_init": 2.0, "lr": 0.4},
        "search": {"temperature_init": 3.0, "lr": pytest.approx(0.3)},
        "init_only": {"temperature_init": 1.0, "lr": pytest.approx(0.3)},
    }
    assert [t.kind for t in confirmed] == ["confirm"] * 24 + ["init_only"] * 8
    assert [t.number for t in confirmed] == [*range(24), *range(8)]
    finished = [run_ticket(t, 0.5) for t in confirmed]
    assert winner_of([*tickets, *runs], spec) == winner_of([*tickets, *runs, *finished], spec)


def test_unit_is_confirmed_even_if_no_run_of_it_came_through(
    make_spec: Any, searched: list[TicketRow]
) -> None:
    spec = make_spec(candidates=1)
    broken = [dataclasses.replace(t, outcome="diverged", value=None) for t in searched[:3]]
    assert "unit" in {t.arm for t in confirm_tickets([*broken, *searched[3:]], spec)}


def test_without_a_complete_search_trial_there_is_nothing_to_confirm(
    make_spec: Any, searched: list[TicketRow]
) -> None:
    spec = make_spec()
    assert confirm_tickets(searched[:5], spec) == []
    assert confirm_tickets([], spec) == choose_tickets([], spec) == []


def test_a_trained_model_that_is_only_evaluated_is_not_confirmed(
    make_spec: Any, searched: list[TicketRow]
) -> None:
    spec = make_spec(evaluate_only="model.ckpt")
    assert choose_tickets(searched, spec) == confirm_tickets(searched, spec) == []


def test_runs_are_measured_where_they_are_judged(make_spec: Any) -> None:
    spec = make_spec()
    winner = {"temperature_init": 2.0, "lr": 0.1}
    for kind, on in (
        ("search", "validate"),
        ("choose", "validate"),
        ("confirm", "test"),
        ("init_only", "test"),
    ):
        measured = evaluations(kind, "search", spec, winner)
        assert [(e.name, e.on, e.at, e.temperature) for e in measured] == [
            (on, on, "final", None),
            (f"{on}_current", on, "current", None),
        ]
        assert counted(kind, spec) == on
    assert counted("confirm", make_spec(validate_at="current")) == "test_current"
    assert counted("confirm", make_spec(confirm_on="validate")) == "validate"


@pytest.mark.parametrize(
    ("confirm_on", "loaders"), [("test", ["validate", "test"]), ("validate", ["validate"])]
)
def test_models_trained_at_one_are_measured_under_the_winner_and_under_constants(
    make_spec: Any, confirm_on: str, loaders: list[str]
) -> None:
    winner = {"temperature_init": 2.0, "lr": 0.1}
    measured = evaluations("confirm", "unit", make_spec(confirm_on=confirm_on), winner)
    found = {e.name: e for e in measured}
    assert len(found) == len(measured)
    assert found[f"{confirm_on}:winner"].temperature == {"temperature_init": 2.0}
    for loader in loaders:
        assert found[loader].temperature is None
        for tau in POSTHOC_CONSTANTS:
            constant = found[f"{loader}:constant={tau:g}"]
            assert (constant.on, constant.at, constant.temperature) == (
                loader,
                "final",
                {"temperature_init": tau},
            )
    assert {e.on for e in measured} == set(loaders)

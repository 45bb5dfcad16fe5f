"""What the arms of a study name: by one model of the search, its design among what it learns from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tempopt.sampling.arms import SearchArms
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.temperature import active_groups, is_neutral, training_key
from tempopt.verdict.stages import initial_tickets
from tests.sampling.test_small_spaces import begin
from tests.simulated import row

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
SCHEDULED = {
    **TAU,
    "temperature_final": {"low": 0.25, "high": 4.0},
    "schedule": ["constant", "linear"],
}
TUNED = {**TAU, "lr": {"low": 1e-3, "high": 1e-1, "log": True}}


def carry_out(
    spec: StudySpec, worth: Callable[[TicketRow], float], *, num_search: int | None = None
) -> tuple[SearchArms, list[TicketRow]]:
    """Return a study whose search is over, its parameters by tempopt's own sampler, with what it knows."""
    waiting = [row(ticket, index) for index, ticket in enumerate(initial_tickets(spec))]
    arms, rows = SearchArms(spec, waiting, []), []
    for ticket in waiting:
        if ticket.kind == "search" and num_search is not None and ticket.number >= num_search:
            continue
        begun_ticket = begin(spec, arms, ticket)
        value = worth(begun_ticket)
        rows.append(dataclasses.replace(begun_ticket, state="done", outcome="complete", value=value))
        arms.tell(rows[-1], {10: value})
    return arms, rows


def noise_of(ticket: TicketRow) -> float:
    key = [ticket.seed % 2**32, len(str(ticket.parameters)), ticket.number]
    return float(np.random.default_rng(key).normal(0, 0.01))


def noisy(worth_of: Callable[[Any], float]) -> Callable[[TicketRow], float]:
    """Return a world in which runs are worth what their parameters are, with a little noise."""
    return lambda ticket: noise_of(ticket) + worth_of(ticket.parameters)


@pytest.mark.parametrize("best", [0.5, 1.0, 3.0])
def test_the_search_names_no_baseline_wherever_the_best_temperature_is(make_spec: Any, best: float) -> None:
    worth = noisy(lambda p: -(np.log2(p["temperature_init"] / best) ** 2))
    arms, _ = carry_out(make_spec({"search": TAU}, trials=8), worth)
    sets = arms.recommend("search", 4)
    assert len(sets) == 4 and not any(is_neutral(parameters) for parameters in sets)
    assert abs(np.log2(sets[0]["temperature_init"] / best)) < 0.5
    assert arms.recommend("baseline", 4) == [{"temperature_init": 1.0}]


def test_a_schedule_that_is_worth_nothing_gives_way_to_a_constant(make_spec: Any) -> None:
    arms, _ = carry_out(make_spec({"search": SCHEDULED}, trials=12), noise_of)
    first, *_ = arms.recommend("search", 2)
    assert active_groups(first) == ("level",)
    constant, *_ = arms.recommend("constant", 2)
    assert training_key(first) == training_key(constant)


def test_a_schedule_that_is_worth_much_is_named_before_the_best_constant(make_spec: Any) -> None:
    worth = noisy(lambda p: "schedule" in active_groups(p))
    arms, _ = carry_out(make_spec({"search": SCHEDULED}, trials=12), worth)
    assert "schedule" in active_groups(arms.recommend("search", 2)[0])
    assert all(active_groups(parameters) == ("level",) for parameters in arms.recommend("constant", 2))


def test_the_search_learns_from_the_runs_of_baseline_and_constants(make_spec: Any) -> None:
    # all trials of the search have one learning rate, so that only the design says which one is better
    spec = make_spec(
        {"search": TUNED}, trials=4, arms={"baseline": 8, "constant": 8}, enqueue=[{"lr": 0.01}] * 4
    )
    rates = {}
    for sign in (1.0, -1.0):
        arms, rows = carry_out(spec, noisy(lambda p, sign=sign: sign * np.log10(p["lr"])))
        assert {t.parameters["lr"] for t in rows if t.kind == "search" and t.parameters} == {0.01}
        rates[sign] = [arms.recommend(arm, 1)[0]["lr"] for arm in ("baseline", "constant", "search")]
    assert min(rates[1.0]) > 0.03 and max(rates[-1.0]) < 0.003


def test_baseline_and_constant_are_named_by_the_model_of_the_search_and_then_by_their_own_runs(
    make_spec: Any,
) -> None:
    worth = noisy(lambda p: -(np.log10(p["lr"] / 0.01) ** 2))
    arms, _ = carry_out(make_spec({"search": TUNED}, trials=12), worth)
    sets_by_arm = {arm: arms.recommend(arm, 3) for arm in ("baseline", "constant")}
    assert [len(sets) for sets in sets_by_arm.values()] == [2, 2]
    assert [arms.recommend(arm, 1) for arm in sets_by_arm] == [sets[:1] for sets in sets_by_arm.values()]
    baseline, constant = (sets[0] for sets in sets_by_arm.values())
    assert baseline["temperature_init"] == 1.0 and 0.25 <= constant["temperature_init"] <= 4.0
    assert abs(np.log10(baseline["lr"] / 0.01)) < 0.35 > abs(np.log10(constant["lr"] / 0.01))


@pytest.mark.parametrize("sampler", ["knowledge_gradient", "random"])
def test_without_a_model_nothing_is_named(make_spec: Any, sampler: str) -> None:
    spec = make_spec({"search": TUNED}, trials=6, sampler=sampler, pruner="none")
    count = 2 if sampler == "knowledge_gradient" else 6
    arms, _ = carry_out(spec, noise_of, num_search=count)
    assert [arms.recommend(arm, 2) for arm in ("search", "constant")] == [[], []]
    # the baseline is tuned by tempopt's model whatever samples the search
    assert bool(arms.recommend("baseline", 2)) == (sampler == "random")


def test_the_runs_of_the_design_share_the_seeds_of_the_search(make_spec: Any) -> None:
    spec = make_spec({"search": TUNED}, trials=6)
    seeds = [{t.seed for t in initial_tickets(spec) if t.kind == kind} for kind in ("baseline", "search")]
    assert seeds[0] == seeds[1] and len(seeds[0]) == spec.study.seeds.search

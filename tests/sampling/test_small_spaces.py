"""Small spaces in a search: every configuration is tried before any is repeated with another seed."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tempopt.sampling.arms import SearchArms
from tempopt.sampling.initial_design import initial_params
from tempopt.sampling.unit_cube import configurations, count_values, from_unit
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.temperature import is_neutral
from tempopt.verdict.stages import initial_tickets
from tests.simulated import row
from tests.specs import make

ONE_TEMPERATURE = {"temperature_init": [1.0]}
SPACES: dict[str, dict[str, Any]] = {
    "one int": {"heads": {"low": 1, "high": 3}},
    "a stepped float": {"dropout": {"low": 0.0, "high": 0.2, "step": 0.1}},
    "two ints": {"heads": {"low": 1, "high": 2}, "layers": {"low": 1, "high": 2}},
    "choices": {"norm": ["layer", "rms", "none"]},
    "int and choices": {"heads": {"low": 1, "high": 3}, "norm": ["layer", "rms", "none"]},
    "a constant whose end is not read": {
        "schedule": ["constant", "linear"],
        "temperature_init": [1.0, 2.0],
        "temperature_final": [1.0, 2.0],
    },
}
CONFIGURATIONS = {
    "one int": 3,
    "a stepped float": 3,
    "two ints": 4,
    "choices": 3,
    "int and choices": 9,
    # of the eight, constants with different ends and lines from a temperature to itself are the same
    "a constant whose end is not read": 4,
}


def spec(space: dict[str, Any], **study: Any) -> StudySpec:
    settings = {f"study__{name}": value for name, value in study.items()}
    return make(search={**ONE_TEMPERATURE, **space}, **settings)


def worth(parameters: dict[str, Any]) -> float:
    """Return the mean over seeds, which differs from one configuration to another."""
    return random.Random(repr(sorted(parameters.items()))).uniform(0.0, 1.0)


def waiting_rows(spec: StudySpec, kind: str) -> list[TicketRow]:
    return [row(ticket, index) for index, ticket in enumerate(initial_tickets(spec)) if ticket.kind == kind]


def begin(spec: StudySpec, arms: SearchArms, ticket: TicketRow) -> TicketRow:
    """Return a ticket with what the sampler of its arm asks for."""
    arm: Any = ticket.kind
    params = arms.ask(ticket)
    begun_ticket = dataclasses.replace(ticket, sampled=params, parameters=spec.parameters(arm, params))
    arms.register_asked(begun_ticket)
    return begun_ticket


def search(spec: StudySpec, *, in_flight: int = 4) -> tuple[SearchArms, list[TicketRow]]:
    """Return the search of a study, of which so many trials are always in progress, with its sampler."""
    rows = waiting_rows(spec, "search")
    arms = SearchArms(spec, list(rows), [])
    for number in range(len(rows) + in_flight - 1):
        if number < len(rows):
            rows[number] = begin(spec, arms, rows[number])
        if (last := number - in_flight + 1) >= 0:
            ended_row = rows[last]
            luck = random.Random(f"{ended_row.seed} {ended_row.parameters}").gauss(0.0, 0.01)
            value = worth(ended_row.parameters or {}) + luck
            rows[last] = dataclasses.replace(ended_row, state="done", outcome="complete", value=value)
            arms.tell(rows[last], {10: value})
    return arms, rows


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("seed", [0, 1])
def test_each_configuration_is_tried_before_any_is_repeated_with_the_other_seed(name: str, seed: int) -> None:
    _, rows = search(spec(SPACES[name], seed=seed, trials=2 * CONFIGURATIONS[name]))
    tried_params = [repr(t.parameters) for t in rows]
    first_params = set(tried_params[: CONFIGURATIONS[name]])
    assert len(first_params) == CONFIGURATIONS[name] and set(tried_params) == first_params
    assert len({(t.seed, repr(t.parameters)) for t in rows}) == len(rows)


@pytest.mark.parametrize("name", SPACES)
def test_the_best_configuration_of_a_small_space_is_named_first_and_none_twice(name: str) -> None:
    space = {"temperature_init": [2.0], **SPACES[name]}
    arms, rows = search(spec(space, trials=2 * CONFIGURATIONS[name]))
    sets = arms.recommend("search", 3)
    best = max((t.parameters or {} for t in rows if not is_neutral(t.parameters or {})), key=worth)
    # a constant has a range, in which a neighbour of the trained temperature may be named
    named_temperature = sets[0]["temperature_init"]
    assert named_temperature == pytest.approx(best["temperature_init"], rel=0.02)
    assert sets[0] == {**best, "temperature_init": named_temperature}
    assert len({repr(parameters) for parameters in sets}) == 3
    assert not any(is_neutral(parameters) for parameters in sets)


def test_two_configurations_are_both_tried_though_no_model_can_be_fitted_to_them_yet() -> None:
    _, rows = search(spec({"heads": {"low": 1, "high": 2}}, trials=4))
    seeds_and_heads = {(t.seed, (t.parameters or {})["heads"]) for t in rows}
    assert seeds_and_heads == set(itertools.product({t.seed for t in rows}, (1, 2)))


def test_the_baseline_arm_tries_all_of_few_values_as_well() -> None:
    few_spec = make(
        search={"temperature_init": {"low": 0.25, "high": 4.0}, "heads": {"low": 1, "high": 3}},
        study__arms={"baseline": 6},
    )
    tickets = waiting_rows(few_spec, "baseline")
    arms = SearchArms(few_spec, tickets, [])
    tried_heads = [(begin(few_spec, arms, ticket).sampled or {})["heads"] for ticket in tickets[:3]]
    assert sorted(tried_heads) == [1, 2, 3]


@pytest.mark.parametrize("high", [2, 3, 4])
def test_the_first_trials_have_all_of_few_values_and_the_middle_half_of_many(high: int) -> None:
    few_spec = spec({"layers": {"low": 1, "high": high}, "width": {"low": 0, "high": 100}})
    design = [initial_params(few_spec, "search", number, seed=1) for number in range(1, 64)]
    assert {params["layers"] for params in design} == set(range(1, high + 1))
    assert all(25 <= params["width"] <= 75 for params in design)


distributions = st.one_of(
    st.builds(lambda low, span: IntDistribution(low, low + span), st.integers(-3, 3), st.integers(0, 6)),
    st.builds(lambda span: IntDistribution(1, 1 + span, log=True), st.integers(0, 6)),
    st.builds(lambda steps: FloatDistribution(0.5, 0.5 + 0.25 * steps, step=0.25), st.integers(0, 5)),
    st.builds(CategoricalDistribution, st.sampled_from([("a",), (1, "1", None), (True, 2)])),
)


@given(st.lists(distributions, min_size=1, max_size=2))
def test_the_configurations_are_those_that_places_lead_to(distributions: list[Any]) -> None:
    space = {f"p{index}": distribution for index, distribution in enumerate(distributions)}
    places = [number / 400 for number in range(401)]
    reached_values = [
        {repr(from_unit(distribution, position)) for position in places} for distribution in distributions
    ]
    listed_sets = configurations(space, max_count=64)
    listed_values = {tuple(map(repr, params.values())) for params in listed_sets}
    assert listed_values == set(itertools.product(*reached_values))
    assert len(listed_sets) == len({repr(params) for params in listed_sets})
    assert list(map(count_values, distributions)) == list(map(len, reached_values))


def test_a_space_with_more_configurations_than_asked_or_a_range_lists_none() -> None:
    assert configurations({"x": IntDistribution(1, 10**9)}, max_count=256) == []
    assert configurations({"x": FloatDistribution(0.0, 1.0), "y": IntDistribution(1, 2)}, max_count=256) == []
    assert len(configurations({"x": IntDistribution(1, 3)}, max_count=3)) == 3
    assert configurations({"x": IntDistribution(1, 4)}, max_count=3) == []

"""Who goes on from whom in a population, beside a plain statement of it."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.sampling.population import PopulationSearch
from tempopt.spec.population import Population
from tempopt.spec.study_spec import StudySpec

MEMBERS = 8
values = st.one_of(st.none(), st.just(math.nan), st.integers(0, 5).map(float))
came_to = st.lists(st.lists(values, min_size=MEMBERS, max_size=MEMBERS), min_size=3, max_size=3)


def make(direction: str = "minimize", seed: int = 0, **search: Any) -> tuple[PopulationSearch, Population]:
    sampler = {"name": "population", "members": MEMBERS, "intervals": 4}
    data = {
        "study": {"name": "s", "metric": "m", "direction": direction, "sampler": sampler, "seed": seed},
        "model": {"class_path": "package.Model"},
        "trainer": {"max_steps": 10},
        "search": {"temperature_init": {"low": 0.25, "high": 4.0}, **search},
    }
    spec = StudySpec.parse(data, source="the test")
    assert spec.study.population is not None
    return PopulationSearch(spec, spec.study.population), spec.study.population


def carried_out(one: PopulationSearch, told: list[list[float | None]], luck: random.Random) -> list[Any]:
    """Return what each ticket tries, the members of a interval being asked and told in any order."""
    made: dict[int, Any] = {}
    for interval in range(len(told) + 1):
        numbers = [interval * MEMBERS + member for member in range(MEMBERS)]
        luck.shuffle(numbers)
        for number in numbers:
            made[number] = one.sample(number)
            one.asked(number, made[number])
        luck.shuffle(numbers)
        for number in numbers if interval < len(told) else ():
            one.told(number, told[interval][number % MEMBERS])
    return [made[number] for number in sorted(made)]


def knots(population: Population, sampled: dict[str, Any]) -> tuple[float, ...]:
    return tuple(sampled[name] for name in population.temperatures if name in sampled)


@given(came_to, st.sampled_from(["minimize", "maximize"]), st.integers(0, 3), st.integers(0, 9))
def test_the_worst_quarter_goes_on_from_the_best_one_and_the_others_from_themselves(
    told: list[list[float | None]], direction: str, seed: int, luck: int
) -> None:
    one, population = make(direction, seed)
    made = carried_out(one, told, random.Random(luck))
    assert made == carried_out(make(direction, seed)[0], told, random.Random(luck + 1))
    for interval, came_to in enumerate(told):
        before = [knots(population, each) for each in made[interval * MEMBERS : (interval + 1) * MEMBERS]]
        after = made[(interval + 1) * MEMBERS : (interval + 2) * MEMBERS]
        known = [m for m in range(MEMBERS) if came_to[m] is not None and not math.isnan(came_to[m] or 0.0)]
        best_first = sorted(known, key=lambda m: came_to[m] or 0.0, reverse=direction == "maximize")
        lost = MEMBERS - len(known)
        moved = set(range(MEMBERS)) - set(known) | set(best_first[max(1, len(known) - max(0, 2 - lost)) :])
        for member, sampled in enumerate(after):
            own = knots(population, sampled)
            assert len(own) == interval + 3
            if not known:
                assert len(set(own)) == 1
            elif member in moved:
                assert own[:-1] in {before[m] for m in best_first[:2]}
            else:
                assert own[:-1] == before[member]
            assert all(0.25 <= each <= 4.0 for each in own)


def test_other_parameters_are_drawn_once_and_stay_with_their_schedule() -> None:
    one, _ = make(lr={"low": 1e-4, "high": 1e-1, "log": True}, depth=[1, 2, 3])
    luck = random.Random(3)
    told: list[list[float | None]] = [[luck.random() for _ in range(MEMBERS)] for _ in range(3)]
    made = carried_out(one, told, luck)
    drawn = {(each["temperature_init"], each["lr"], each["depth"]) for each in made[:MEMBERS]}
    assert len({lr for _, lr, _ in drawn}) == MEMBERS
    assert {(each["temperature_init"], each["lr"], each["depth"]) for each in made} <= drawn


def test_the_first_member_begins_at_one_and_each_stays_where_it_begins_for_an_interval() -> None:
    one, population = make()
    drawn = [knots(population, one.sample(number)) for number in range(MEMBERS)]
    assert drawn[0] == (1.0, 1.0)
    assert all(first == second for first, second in drawn)
    levels = sorted(math.log2(first) for first, _ in drawn)
    assert max(after - before for before, after in itertools.pairwise((-2.0, *levels, 2.0))) < 1.5


def test_a_second_population_has_draws_of_its_own() -> None:
    one, population = make()
    first = [one.sample(number) for number in range(MEMBERS)]
    second = [one.sample(population.trials + number) for number in range(MEMBERS)]
    assert not {each["temperature_init"] for each in first} & {each["temperature_init"] for each in second}


@given(came_to, st.integers(0, 5))
def test_no_temperature_leaves_the_range_and_without_1_the_first_member_begins_in_its_middle(
    told: list[list[float | None]], seed: int
) -> None:
    low, high = 2.0, 8.0
    one, population = make(seed=seed, temperature_init={"low": low, "high": high})
    made = carried_out(one, told, random.Random(seed))
    assert made[0]["temperature_init"] == pytest.approx(math.sqrt(low * high), rel=1e-3)
    assert all(low <= tau <= high for each in made for tau in knots(population, each))

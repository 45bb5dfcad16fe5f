"""The sampler population in a spec: what follows from it, and what it cannot be used with."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.spec.population import Place, Population, population_of
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import Piecewise, progress, same_training, steps_alike, steps_until

POPULATION = {"name": "population", "members": 4, "intervals": 3}
LEVEL = {"low": 0.25, "high": 4.0}

counts = st.integers(4, 40)
level = st.floats(0.25, 4.0)
ends = st.lists(st.floats(0.001, 0.999), min_size=1, max_size=4, unique=True).map(lambda e: (*sorted(e), 1.0))


def test_what_a_person_does_not_write_follows_from_the_members_and_their_intervals(make_spec: Any) -> None:
    spec = make_spec(sampler=POPULATION)
    study = spec.study
    assert (study.trials, study.pruner.name, study.validate_at, study.seeds.search) == (
        12,
        "none",
        "current",
        1,
    )
    assert study.parallel == 4
    assert set(spec.search) == {
        *("temperature_init", "temperature_knot_1", "temperature_knot_2", "temperature_final", "schedule")
    }
    assert StudySpec.from_json(spec.to_json()) == spec
    assert make_spec(sampler="population").study.population == population_of({})
    # the arms beside it are those of a search with as many whole runs
    assert spec.num_constant == 2
    assert make_spec(sampler=POPULATION, trials=24).num_constant == 4


def test_later_intervals_are_longer() -> None:
    ends = (0.0, *population_of({}).ends)
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    assert lengths == sorted(lengths) and len(lengths) == 5
    assert population_of({"ends": [0.5, 1]}).ends == (0.5, 1.0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"members": 3}, "from 4 to 1000"),
        ({"members": True}, "from 4 to 1000"),
        ({"intervals": 6}, "from 2 to 5"),
        ({"ends": [0.5, 0.4, 1]}, "ascending"),
        ({"ends": [0.5, 0.9]}, "the last is 1"),
        ({"ends": [1]}, "2 to 5 shares"),
        ({"ends": [0.0, 1]}, "ascending"),
        ({"ends": [0.5, 1], "intervals": 3}, "3 intervals and 2 ends"),
        ({"member": 8}, "members"),
    ],
)
def test_an_option_that_is_wrong_is_refused(make_spec: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named) as raised:
        make_spec(sampler={"name": "population", **options})
    assert "study.sampler" in str(raised.value)


@pytest.mark.parametrize(
    ("study", "named"),
    [
        ({"trials": 13}, "study.trials: given 13 .* Give 12, a multiple"),
        ({"pruner": "median"}, "study.pruner: given median .* Give none"),
        ({"validate_at": "final"}, "study.validate_at: given final .* Give current"),
        ({"seeds": {"search": 2}}, "study.seeds.search: given 2 .* Give 1"),
        ({"limits": {"standard_errors": 0.5}}, "limits.standard_errors"),
        ({"limits": {"gpu_hours": 2.0}}, "study.limits.gpu_hours: .* complete in its last interval"),
        ({"limits": {"hours": 2.0}}, "study.limits.hours"),
        ({"warm_start": ["earlier"]}, "warm_start"),
        ({"enqueue": [{"temperature_init": 2.0}]}, "study.enqueue: .* Take it out"),
        ({"evaluate_only": "model.ckpt"}, "study.evaluate_only"),
    ],
)
def test_what_it_cannot_be_used_with_is_refused(make_spec: Any, study: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        make_spec(sampler=POPULATION, **study)


@pytest.mark.parametrize(
    ("search", "named"),
    [
        (
            {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            "none is a temperature|there is no temperature_init",
        ),
        ({"layer_pattern": ["linear"], "layer_ratio": LEVEL}, "search: there is no temperature_init"),
        ({"temperature_init": [0.5, 2.0]}, "search.temperature_init: .* logarithmic"),
        ({"temperature_init": {**LEVEL, "log": False}}, "search.temperature_init: .* logarithmic"),
        ({"temperature_init": LEVEL, "schedule": ["linear"]}, "search.schedule: .* piecewise"),
        ({"temperature_init": LEVEL, "schedule": ["piecewise", "linear"]}, "search.schedule: .* piecewise"),
        ({"temperature_init": LEVEL, "hold_fraction": {"low": 0.1, "high": 0.5}}, "search.hold_fraction"),
        ({"temperature_init": LEVEL, "temperature_knot_4": LEVEL}, "search.temperature_knot_4: .* ends of 3"),
    ],
)
def test_a_space_without_one_searched_piecewise_schedule_is_refused(
    make_spec: Any, search: dict[str, Any], named: str
) -> None:
    with pytest.raises(SpecError, match=named):
        make_spec(sampler=POPULATION, sections={"search": search})


def test_another_schedule_is_one_fault_and_names_nothing_that_was_not_written(make_spec: Any) -> None:
    search = {"temperature_init": LEVEL, "temperature_final": LEVEL, "schedule": ["linear", "cosine"]}
    with pytest.raises(SpecError) as raised:
        make_spec({"search": search}, sampler=POPULATION)
    assert "a fault" in str(raised.value) and "search.schedule: population searches" in str(raised.value)


def test_an_interval_has_a_step_at_least(make_spec: Any) -> None:
    with pytest.raises(SpecError, match=r"trainer.max_steps: given 4 .* after 1, 1, 4 steps: one has none"):
        make_spec({"trainer": {"max_steps": 4}}, sampler={"name": "population", "ends": [0.1, 0.2, 1]})


def test_callbacks_and_a_schedule_of_the_models_own_are_refused(make_spec: Any) -> None:
    callbacks = {"max_steps": 10, "callbacks": [{"class_path": "package.Callback"}]}
    with pytest.raises(SpecError, match=r"trainer.callbacks: .* go on from another"):
        make_spec(sampler=POPULATION, sections={"trainer": callbacks})
    model = {"class_path": "package.module.Model", "init_args": {"schedule": "cosine"}}
    with pytest.raises(SpecError, match=r"model.init_args.schedule: .* piecewise"):
        make_spec(sampler=POPULATION, sections={"model": model})


@given(counts, ends, st.data())
def test_numbers_and_places_are_the_same_thing(members: int, ends: tuple[float, ...], data: Any) -> None:
    population = Population(members=members, ends=ends)
    number = data.draw(st.integers(0, 3 * population.trials))
    place = population.place(number)
    assert population.number(place) == number
    assert 0 <= place.member < members and 0 <= place.interval < len(ends)
    last = population.last_beside(number)
    assert population.place(last) == Place(place.population, place.interval, members - 1)
    assert (population.until(number) is None) == (place.interval == len(ends) - 1)
    assert sum(population.share(each) for each in range(population.trials)) == pytest.approx(members)


@given(
    ends, st.lists(st.floats(0.25, 4.0), min_size=6, max_size=6), st.floats(0.25, 4.0), st.integers(2, 3000)
)
def test_a_member_that_goes_on_has_trained_alike_up_to_the_step_at_which_the_other_ended(
    ends: tuple[float, ...], levels: list[float], other: float, total: int
) -> None:
    population = Population(members=4, ends=ends)
    for interval in range(len(ends) - 1):
        names = population.names(interval)
        parent = dict(zip(names, levels, strict=False))
        child = {**parent, population.names(interval + 1)[-1]: other}
        one, two = population.as_trained(parent), population.as_trained(child)
        step = steps_until(ends[interval], total)
        assert all(progress(at, total) <= ends[interval] for at in range(step))
        assert step == total or progress(step, total) > ends[interval]
        assert steps_alike(one, two, at_most=step, total_steps=total) == step
        # behind its last knot a schedule stays where it is
        knots = Piecewise(temperature_knots=one["temperature_knots"])
        assert knots(1.0) == levels[interval + 1]
        assert same_training(one, one)

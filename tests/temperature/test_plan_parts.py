"""The parts of a plan, taken away one at a time, against the temperatures of every step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.temperature import (
    CREDITED,
    GENERATION,
    GROUPS,
    NEUTRAL,
    NORMALISATION,
    TEMPERATURE_PARAMETERS,
    TemperatureParameters,
    active_groups,
    drop_unused_params,
    make_constant,
    mean_level,
    remove_part,
    same_training,
    to_neutral,
)
from tests.temperature.schedule_strategies import LEVELS, OTHERS, levels, schedule_params

LAYERED = st.sampled_from([{}, {"layer_pattern": "linear", "layer_ratio": 2.0}])
HEADED = st.sampled_from([{}, {"head_pattern": "exp", "head_ratio": 2.0}])
SCALED = st.sampled_from([{}, {"length_scaling": "log_n", "n0": 32.0}])
ENTROPIC = st.sampled_from([{}, {"entropy_lambda": 0.1, "entropy_schedule": "constant"}])
NORMALISED = st.sampled_from([{}, {"normaliser": "top_k", "top_k": 4}])
LAST = st.sampled_from([{}, {"output_temperature": 2.0}])


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """A parameter set with any of the parts, as runs train with it."""
    parts = [
        draw(strategy)
        for strategy in (schedule_params(), LAYERED, HEADED, SCALED, ENTROPIC, NORMALISED, LAST)
    ]
    return drop_unused_params({name: value for part in parts for name, value in part.items()} | OTHERS)


def course(parameters: dict[str, Any], points: int = 101) -> np.ndarray:
    """Return the schedule's temperature at evenly spaced progress."""
    schedule = TemperatureParameters.from_mapping(parameters).plan(1).schedule
    return np.array([schedule(at) for at in np.linspace(0, 1, points)])


def outside_group(parameters: dict[str, Any], group: str) -> dict[str, Any]:
    """Return what is no part of a group; a schedule and its level share some parameters."""
    group_names = GROUPS["schedule"] | GROUPS["level"] if group in ("schedule", "level") else GROUPS[group]
    return {name: value for name, value in parameters.items() if name not in group_names}


def test_every_temperature_parameter_is_part_of_a_group_and_what_normalises_of_none() -> None:
    assert set().union(*GROUPS.values()) == set(CREDITED)
    assert set(CREDITED) | NORMALISATION | set(GENERATION) == set(TEMPERATURE_PARAMETERS)
    assert NORMALISATION == {"normaliser", "top_k", "min_weight", "window", "local_share"}
    assert "n0" in GROUPS["length_scaling"]
    shared = GROUPS["schedule"] & GROUPS["level"]
    assert shared == {*LEVELS, "temperature_knots"} - {"temperature_init"}
    assert sum(map(len, GROUPS.values())) == len(CREDITED) + len(shared)


@given(schedule_params())
def test_the_mean_level_is_the_geometric_mean_over_training(parameters: dict[str, Any]) -> None:
    fine = np.log(course(parameters, 4001))
    by_integration = math.exp(np.trapezoid(fine, dx=1 / 4000))
    widest = math.log(fine.max() - fine.min() + 1)
    # a hundred points against four thousand: a step of some width, or an end, may be off by one point
    assert abs(math.log(mean_level(parameters) / by_integration)) <= 0.02 + 0.05 * widest
    assert fine.min() - 1e-9 <= math.log(mean_level(parameters)) <= fine.max() + 1e-9


@given(plans(), levels)
def test_a_constant_in_place_of_a_schedule_leaves_everything_else(
    parameters: dict[str, Any], level: float
) -> None:
    constant_params = make_constant(parameters, level)
    assert set(course(constant_params)) == {level}
    assert outside_group(constant_params, "schedule") == outside_group(parameters, "schedule")
    assert same_training(make_constant(constant_params, level), constant_params)


@given(plans())
def test_without_its_schedule_a_plan_is_constant_at_its_mean(parameters: dict[str, Any]) -> None:
    reduced_params = remove_part(parameters, "schedule")
    assert set(course(reduced_params)) == {mean_level(parameters)}
    assert outside_group(reduced_params, "schedule") == outside_group(parameters, "schedule")


@given(plans())
def test_without_its_level_a_plan_has_the_same_shape_about_one(parameters: dict[str, Any]) -> None:
    reduced_params = remove_part(parameters, "level")
    assert course(reduced_params) == pytest.approx(course(parameters) / mean_level(parameters), rel=1e-6)
    assert mean_level(reduced_params) == pytest.approx(1)
    assert outside_group(reduced_params, "level") == outside_group(parameters, "level")


@given(plans(), st.sampled_from(["layers", "length_scaling", "entropy", "output_temperature"]))
def test_without_another_part_the_schedule_stays(parameters: dict[str, Any], group: str) -> None:
    reduced_params = remove_part(parameters, group)
    assert (course(reduced_params) == course(parameters)).all()
    assert outside_group(reduced_params, group) == outside_group(parameters, group)
    assert same_training(
        {**reduced_params, **{name: NEUTRAL[name] for name in GROUPS[group]}}, reduced_params
    )


@given(plans())
def test_a_part_is_active_if_and_only_if_it_was_made_so(parameters: dict[str, Any]) -> None:
    expected = set()
    temperature = course(parameters)
    if temperature.max() / temperature.min() > 1 + 1e-9:
        expected.add("schedule")
    if abs(np.log(temperature).mean()) > 1e-9:
        expected.add("level")
    softmax = parameters.get("normaliser", "softmax") == "softmax"
    for group, name, effect in (
        ("layers", "layer_pattern", True),
        ("heads", "head_pattern", True),
        ("length_scaling", "length_scaling", True),
        ("entropy", "entropy_lambda", softmax),
        ("output_temperature", "output_temperature", True),
    ):
        if effect and parameters.get(name, NEUTRAL[name]) != NEUTRAL[name]:
            expected.add(group)
    assert set(active_groups(parameters)) == expected
    assert list(active_groups(parameters)) == [group for group in GROUPS if group in expected]


@given(plans())
def test_without_what_is_not_active_nothing_changes(parameters: dict[str, Any]) -> None:
    for group in GROUPS.keys() - set(active_groups(parameters)):
        assert same_training(remove_part(parameters, group), parameters)


@given(plans())
def test_at_temperature_one_all_that_is_no_temperature_stays(parameters: dict[str, Any]) -> None:
    neutral_params = to_neutral(parameters)
    assert active_groups(neutral_params) == ()
    assert set(course(neutral_params)) == {1.0}
    base_params = {n: v for n, v in parameters.items() if n in OTHERS or n in NORMALISATION}
    assert same_training(neutral_params, base_params)
    assert to_neutral(neutral_params) == neutral_params


def test_the_normaliser_that_takes_no_temperature_leaves_nothing_to_take_away() -> None:
    assert (
        active_groups(drop_unused_params({"temperature_init": 3.0, "normaliser": "linear", "lr": 0.1})) == ()
    )

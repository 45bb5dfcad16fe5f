"""The piecewise schedule, against interpolation by numpy on ln τ, and what is refused as a list of knots."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.temperature import (
    NEUTRAL,
    Exponential,
    TemperatureParameters,
    drop_unused_params,
    is_scheduled,
    mean_level,
    progress,
    remove_part,
    same_training,
)
from tests.temperature.schedule_strategies import INNER

temperatures = st.floats(1e-6, 1e6)
holds = st.floats(0.0, 0.99)
GRID = [step / 60 for step in range(61)]


@st.composite
def lists(draw: st.DrawFn, levels: st.SearchStrategy[float] = temperatures) -> list[list[float]]:
    """A list of knots as a person draws it."""
    positions = draw(st.lists(st.integers(0, 1000), min_size=2, max_size=16, unique=True))
    return [[position / 1000, draw(levels)] for position in sorted(positions)]


def schedule(**parameters: Any) -> Any:
    return TemperatureParameters(schedule="piecewise", **parameters).plan(1).schedule


def interpolate(knots: list[Any], at: list[float]) -> np.ndarray:
    places, levels = np.array(knots, dtype=float).T
    return np.asarray(np.exp(np.interp(at, places, np.log(levels))))


def bits(values: list[float]) -> bytes:
    return struct.pack(f"{len(values)}d", *values)


# ---- the curve


@given(lists(), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_a_drawn_schedule_is_straight_in_the_logarithm_between_its_knots(
    knots: list[list[float]], at: list[float]
) -> None:
    knot_schedule = schedule(temperature_knots=knots)
    assert np.allclose([knot_schedule(point) for point in at], interpolate(knots, at), rtol=1e-9, atol=0.0)
    # and at a knot it is what was drawn there, to the bit
    assert [knot_schedule(position) for position, _ in knots] == [level for _, level in knots]


@given(
    holds,
    st.lists(st.none() | temperatures, min_size=4, max_size=4),
    st.none() | st.integers(1, 4),
    temperatures,
    temperatures,
)
def test_inner_knots_are_evenly_spaced_behind_the_hold(
    hold: float, inner: list[float | None], count: int | None, init: float, final: float
) -> None:
    last = count or max((k for k, level in enumerate(inner, 1) if level is not None), default=0)
    positions = np.linspace(hold, 1.0, last + 2)[1:-1]
    knots = [[0.0, init]] + ([[hold, init]] if hold else [])
    knots += [[p, level] for p, level in zip(positions, inner, strict=False) if level is not None]
    knots += [[1.0, final]]
    knot_schedule = schedule(
        temperature_init=init,
        temperature_final=final,
        hold_fraction=hold,
        num_knots=count,
        **dict(zip(INNER, inner, strict=True)),
    )
    at = [point for point in GRID if min(abs(point - position) for position, _ in knots) > 1e-9]
    # where knots are close together, the place of one in floating point decides
    steep = max(abs(math.log(b[1] / a[1])) / (b[0] - a[0]) for a, b in itertools.pairwise(knots))
    expected = interpolate(knots, at)
    assert np.allclose([knot_schedule(point) for point in at], expected, rtol=1e-9 + 1e-14 * steep, atol=0.0)
    assert knot_schedule(0.0) == init and knot_schedule(1.0) == final


@given(temperatures, temperatures)
def test_without_inner_knots_it_is_exponential_to_the_bit(init: float, final: float) -> None:
    line = Exponential(temperature_init=init, temperature_final=final)
    knot_schedule = schedule(temperature_init=init, temperature_final=final)
    assert bits([knot_schedule(point) for point in GRID]) == bits([line(point) for point in GRID])


@given(lists(), st.integers(2, 200), st.integers(0, 199))
def test_a_run_that_is_resumed_sees_the_bits_of_one_that_was_not(
    knots: list[list[float]], total: int, start_step: int
) -> None:
    full_schedule = schedule(temperature_knots=knots)
    course = [full_schedule(progress(step, total)) for step in range(total)]
    resumed_schedule = schedule(temperature_knots=[tuple(knot) for knot in knots])
    resumed_course = [
        resumed_schedule(progress(step, total)) for step in range(min(start_step, total), total)
    ]
    assert bits(course[min(start_step, total) :]) == bits(resumed_course)


# ---- parameters that count


def test_a_knot_without_a_number_to_reach_it_is_not_read() -> None:
    parameters = {"schedule": "piecewise", "temperature_init": 1.0, "temperature_final": 2.0}
    inner = {"temperature_knot_1": 3.0, "temperature_knot_2": 4.0, "temperature_knot_3": None}
    assert drop_unused_params({**parameters, **inner, "num_knots": 1}) == {
        **parameters,
        "temperature_knot_1": 3.0,
        "num_knots": 1,
    }
    # as many as have a temperature
    assert drop_unused_params({**parameters, **inner, "num_knots": None}) == {
        **parameters,
        "temperature_knot_1": 3.0,
        "temperature_knot_2": 4.0,
    }
    # where no knot is, their number places none
    assert drop_unused_params({**parameters, "num_knots": 3}) == parameters
    linear = {
        **parameters,
        **inner,
        "schedule": "linear",
        "num_knots": 1,
        "temperature_knots": [[0, 1], [1, 2]],
    }
    assert drop_unused_params(linear) == {**parameters, "schedule": "linear"}


def test_a_list_of_knots_is_the_whole_schedule() -> None:
    parameters = {**NEUTRAL, "schedule": "piecewise", "temperature_init": 3.0, "hold_fraction": 0.3}
    counted = drop_unused_params({**parameters, "num_knots": 2, "temperature_knots": [[0, 1], [1, 2]]})
    assert counted["temperature_knots"] == [[0.0, 1.0], [1.0, 2.0]]
    assert (
        not {"temperature_init", "temperature_final", "hold_fraction", "num_knots", *INNER} & counted.keys()
    )
    assert is_scheduled(counted) and mean_level(counted) == pytest.approx(math.sqrt(2.0), rel=1e-9)


@pytest.mark.parametrize(
    ("flat", "level"),
    [
        ({"temperature_init": 2.0}, 2.0),
        ({"temperature_init": 2.0, "temperature_final": 2.0, "temperature_knot_2": 2.0}, 2.0),
        ({"temperature_init": 2.0, "temperature_knot_2": 3.0, "num_knots": 1}, 2.0),
        ({"temperature_knots": [[0.0, 2], [0.5, 2.0]]}, 2.0),
        ({"temperature_knots": [[0.0, 1.0], [0.5, 1.0]]}, 1.0),
    ],
)
def test_one_that_does_not_move_is_a_constant(flat: dict[str, Any], level: float) -> None:
    parameters = {"schedule": "piecewise", **flat}
    assert not is_scheduled(parameters) and mean_level(parameters) == level
    assert same_training(parameters, {"temperature_init": level})
    assert is_scheduled({**parameters, "temperature_final": 5.0}) == ("temperature_knots" not in flat)


def test_lists_that_are_written_otherwise_train_the_same() -> None:
    list_params = {"schedule": "piecewise", "temperature_knots": [[0, 1], [0.5, 2], [1, 4]]}
    tuple_params = {"schedule": "piecewise", "temperature_knots": ((0.0, 1.0), (0.5, 2.0), (1.0, 4.0))}
    assert same_training(list_params, tuple_params)
    changed = {"schedule": "piecewise", "temperature_knots": [[0, 1], [0.5, 2], [1, 4.5]]}
    assert not same_training(list_params, changed)


@given(lists(levels=st.floats(0.01, 100.0)))
def test_a_list_loses_its_level_and_its_schedule_as_any_schedule_does(knots: list[list[float]]) -> None:
    parameters = {"schedule": "piecewise", "temperature_knots": knots, "lr": 0.1}
    level = mean_level(parameters)
    alone = remove_part(parameters, "level")
    assert mean_level(alone) == pytest.approx(1.0, rel=1e-6)
    if is_scheduled(parameters):
        scaled = [[position, temperature * mean_level(alone) / level] for position, temperature in knots]
        assert np.allclose(alone.get("temperature_knots", scaled), scaled, rtol=1e-6)
    assert remove_part(parameters, "schedule").get("temperature_init", 1.0) == pytest.approx(level, rel=1e-9)

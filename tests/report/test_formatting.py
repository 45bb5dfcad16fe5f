"""How numbers and schedules are worded."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.report.formatting import describe_schedule, limit, schedule_points, temperature_text
from tempopt.temperature import Piecewise

PIECEWISE_PARAMS = {
    "schedule": "piecewise",
    "temperature_init": 1.0,
    "hold_fraction": 0.7,
    "temperature_knot_1": 0.487,
    "temperature_final": 0.8849,
}


@pytest.mark.parametrize(
    ("knots", "words"),
    [
        ([[0, 2], [0.5, 1], [1, 2]], "2 at first, 1 at 50 %, 2 at the end"),
        ([[0.2, 2], [0.5, 1]], "2 until 20 % of training, 1 from 50 % on"),
        (
            [[0, 1], [0.4, 1], [0.6, 0.5], [0.8, 0.5], [1, 1]],
            "1 until 40 % of training, 0.5 from 60 % to 80 %, 1 at the end",
        ),
        # ln τ is straight: it bends nowhere
        ([[0, 1], [0.5, 2], [1, 4]], ""),
        ([[0, 1], [1, 1]], ""),
    ],
)
def test_a_schedule_is_told_by_its_bends(knots: list[list[float]], words: str) -> None:
    assert describe_schedule({"schedule": "piecewise", "temperature_knots": knots}) == words


def test_a_dip_late_in_training_is_told() -> None:
    words = "1 until 70 % of training, 0.487 at 85 %, 0.8849 at the end"
    assert describe_schedule(PIECEWISE_PARAMS) == words
    assert temperature_text({**PIECEWISE_PARAMS, "lr": 0.01}) == f"τ {words} (piecewise), lr=0.01"
    params = {f"contrast.{name}": value for name, value in PIECEWISE_PARAMS.items()}
    assert describe_schedule(params, "contrast") == words
    assert describe_schedule({**PIECEWISE_PARAMS, "schedule": "cosine"}) == ""


@given(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=2, max_size=6))
def test_between_the_points_of_a_shape_the_logarithm_is_straight(levels: list[float]) -> None:
    knots = [[index / (len(levels) - 1), level] for index, level in enumerate(levels)]
    parameters: dict[str, Any] = {"schedule": "piecewise", "temperature_knots": knots}
    points = schedule_points(parameters)
    schedule = Piecewise(temperature_knots=tuple((position, level) for position, level in knots))
    if not points:
        points = ((0.0, levels[0]), (1.0, levels[-1]))
    for (start, first), (end, last) in itertools.pairwise(points):
        assert schedule(start) == pytest.approx(first) and schedule(end) == pytest.approx(last)
        middle = schedule((start + end) / 2)
        assert math.log(middle) == pytest.approx((math.log(first) + math.log(last)) / 2, abs=1e-9)


@pytest.mark.parametrize(
    ("value", "upper"), [(0.00941, "0.00941"), (0.009411, "0.00942"), (0.07, "0.0700"), (0.0, "0.00000")]
)
def test_a_limit_is_rounded_away_from_what_it_allows(value: float, upper: str) -> None:
    assert limit(value) == upper

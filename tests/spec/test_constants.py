"""The constants of a study: the range that they cover, and where those go that an amendment adds."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution

from tempopt.spec.constants import constant_grid, holds, more_constants, new_part

LEVELS = ("temperature_init", "contrast.temperature_init")


def box(*spans: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return dict(zip(LEVELS, spans, strict=False))


@given(st.integers(0, 100), st.floats(1e-3, 10), st.floats(1.5, 1000))
def test_constants_are_distinct_in_range_and_begin_alike(count: int, low: float, ratio: float) -> None:
    space = {"temperature_init": FloatDistribution(low, low * ratio, log=True)}
    grid = [each["temperature_init"] for each in constant_grid(space, count)]
    assert len(set(grid)) == len(grid) == count
    assert all(low <= value <= low * ratio for value in grid)
    assert [each["temperature_init"] for each in constant_grid(space, count + 5)][:count] == grid


@pytest.mark.parametrize("count", [3, 5, 9, 17, 33])
def test_constants_cover_the_range_evenly_in_ratio(count: int) -> None:
    found = constant_grid({"temperature_init": FloatDistribution(0.25, 4.0, log=True)}, count)
    grid = sorted(each["temperature_init"] for each in found)
    positions = [math.log2(value / 0.25) / 4 for value in grid]
    assert positions == pytest.approx([i / (count - 1) for i in range(count)])


@pytest.mark.parametrize(
    ("space", "ends"),
    [
        ({}, (0.25, 4.0)),
        ({"temperature_final": FloatDistribution(1, 9, log=True)}, (0.25, 4.0)),
        ({"temperature_init": CategoricalDistribution((2.0, 0.5, 1.0))}, (0.5, 2.0)),
        ({"temperature_init": CategoricalDistribution((2.0,))}, (0.25, 4.0)),
    ],
)
def test_constants_have_a_range_where_none_is_searched(
    space: dict[str, Any], ends: tuple[float, float]
) -> None:
    grid = [each["temperature_init"] for each in constant_grid(space, 5)]
    assert (min(grid), max(grid)) == ends


def test_constants_fill_the_largest_gaps() -> None:
    tried = [0.25, 0.5, 1.0, 2.0, 4.0]
    found = fill(0.25, 64.0, tried, 7)
    assert found[0] == 64.0 and found[1] == pytest.approx(16.0)
    assert all(4.0 < each <= 64.0 for each in found[:3])
    # each is where a search on a fine grid finds the place that is farthest from all before
    grid = [0.25 * 256 ** (place / 4096) for place in range(4097)]
    for count, each in enumerate(found):
        there = [*tried, *found[:count]]
        farthest = max(min(abs(math.log(at / other)) for other in there) for at in grid)
        assert min(abs(math.log(each / other)) for other in there) == pytest.approx(farthest, abs=2e-3)
    assert all(one != other for one, other in itertools.pairwise(sorted([*tried, *found])))


def test_constants_of_a_range_in_which_none_was_tried_span_it() -> None:
    assert fill(4.0, 16.0, [0.5, 1.0], 3) == [pytest.approx(8.0), 4.0, 16.0]
    assert fill(4.0, 16.0, [], 0) == []


def fill(low: float, high: float, tried: list[float], count: int) -> list[float]:
    found = more_constants(box((low, high)), [{LEVELS[0]: each} for each in tried], count)
    return [each[LEVELS[0]] for each in found]


@pytest.mark.parametrize(
    ("now", "earlier", "share"),
    [
        (box((0.25, 16.0)), [box((0.25, 4.0))], 0.5),
        (box((0.5, 2.0)), [box((0.25, 4.0))], 0.0),
        (box((16.0, 64.0)), [box((0.25, 4.0))], 0.5),
        (box((0.25, 64.0)), [box((0.25, 4.0)), box((0.25, 16.0))], 2 / 6),
        # octaves: 6 times 4 are searched, where 4 times 2 were
        (box((0.25, 16.0), (0.125, 2.0)), [box((0.25, 4.0), (0.25, 1.0))], (24 - 8) / 8),
        (box((0.25, 16.0), (0.25, 1.0)), [box((0.25, 4.0), (0.25, 1.0))], 0.5),
        # there was no constant of the second temperature
        (box((0.25, 4.0), (0.25, 1.0)), [box((0.25, 4.0))], 1.0),
    ],
)
def test_how_large_the_new_part_is(now: Any, earlier: Any, share: float) -> None:
    assert new_part(now, earlier) == pytest.approx(share)


SPANS = st.tuples(st.floats(-3, 3), st.floats(0.1, 3)).map(lambda at: (2 ** at[0], 2 ** (at[0] + at[1])))
BOXES = st.builds(box, SPANS, SPANS)


@given(BOXES, st.lists(BOXES, min_size=1, max_size=3))
def test_the_new_part_is_that_of_random_points(now: Any, earlier: Any) -> None:
    draw, whole, number = random.Random(0), 9.0**2, 1000
    points = [{n: 2 ** draw.uniform(-3, 6) for n in LEVELS} for _ in range(number)]
    covered = [any(holds(each, point) for each in earlier) for point in points]
    new = [holds(now, point) and not there for point, there in zip(points, covered, strict=True)]
    old_area, new_area = (whole * sum(each) / number for each in (covered, new))
    share = new_part(now, earlier)
    # 4 standard errors of an area, whose own error is that of one point where none was in it
    old_error, new_error = (
        4 * math.sqrt(max(area, whole / number) * whole / number) for area in (old_area, new_area)
    )
    assert abs(share * old_area - new_area) <= new_error + share * old_error


@given(BOXES, st.lists(BOXES, min_size=1, max_size=3), st.integers(0, 20))
def test_constants_of_two_temperatures_go_into_the_new_part(now: Any, earlier: Any, count: int) -> None:
    tried = more_constants(earlier[0], [], 5)
    found = more_constants(now, tried, count, earlier=earlier)
    assert len(found) == count and all(holds(now, each) and each not in tried for each in found)
    assert len({tuple(each.values()) for each in found}) == count
    inside = [any(holds(each, levels) for each in earlier) for levels in found]
    assert inside == sorted(inside)
    if new_part(now, earlier) * math.prod(math.log(b / a) for a, b in earlier[0].values()) > 1.0:
        assert not any(inside)


def test_constants_of_a_new_corner_cover_it() -> None:
    before, now = box((0.25, 4.0), (0.25, 4.0)), box((0.25, 16.0), (0.25, 16.0))
    found = more_constants(now, [], 40, earlier=[before])
    octaves = [tuple(math.log2(each[n]) for n in LEVELS) for each in found]
    # squares of 2 octaves, of which the 5 new ones are not in [-2, 2] x [-2, 2]
    held = [
        sum(x <= a <= x + 2 and y <= b <= y + 2 for a, b in octaves)
        for x, y in itertools.product((-2, 0, 2), repeat=2)
        if 2 in (x, y)
    ]
    assert len(held) == 5 and min(held) >= 5

"""The constants of a study: the range that they cover."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution

from tempopt.spec.search_space import constant_grid


@given(st.integers(0, 100), st.floats(1e-3, 10), st.floats(1.5, 1000))
def test_constants_are_distinct_in_range_and_begin_alike(count: int, low: float, ratio: float) -> None:
    space = {"temperature_init": FloatDistribution(low, low * ratio, log=True)}
    grid = [constant["temperature_init"] for constant in constant_grid(space, count)]
    assert len(set(grid)) == len(grid) == count
    assert all(low <= value <= low * ratio for value in grid)
    assert [constant["temperature_init"] for constant in constant_grid(space, count + 5)][:count] == grid


@pytest.mark.parametrize("count", [2, 6, 14, 30])
def test_constants_cover_the_range_evenly_in_ratio_without_its_middle(count: int) -> None:
    grid = constant_grid({"temperature_init": FloatDistribution(0.25, 4.0, log=True)}, count)
    positions = sorted(math.log2(constant["temperature_init"] / 0.25) / 4 for constant in grid)
    parts = count + 2
    assert positions == pytest.approx([i / parts for i in range(1, parts) if 2 * i != parts])


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
    low, high = ends
    grid = [constant["temperature_init"] for constant in constant_grid(space, 2)]
    assert grid == pytest.approx([low * (high / low) ** position for position in (0.25, 0.75)])

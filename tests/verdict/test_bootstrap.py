"""Bootstrap intervals over items and batches: beside scipy's, the closed form and the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import bootstrap, t

from tempopt.verdict.statistics.bootstrap import MIN_UNITS, paired_bootstrap


def test_many_units_have_the_interval_of_scipys_bootstrap_of_a_weighted_mean() -> None:
    draw = np.random.default_rng(0)
    values, sizes = draw.exponential(size=400) - 0.9, draw.integers(1, 20, size=400)

    def mean(value: np.ndarray, size: np.ndarray, axis: int = -1) -> np.ndarray:
        return (value * size).sum(axis) / size.sum(axis)

    expected = bootstrap(
        (values, sizes), mean, paired=True, method="percentile", n_resamples=10_000, rng=draw
    ).confidence_interval
    (interval,) = paired_bootstrap([values], sizes, seed=1)
    assert interval.difference == pytest.approx((values * sizes).sum() / sizes.sum())
    # the ends of both are drawn, each with an error of about 1 % of the width
    width = expected.high - expected.low
    assert interval.low == pytest.approx(expected.low, abs=0.04 * width)
    assert interval.high == pytest.approx(expected.high, abs=0.04 * width)


@pytest.mark.parametrize("units", [MIN_UNITS, 30])
def test_few_normal_units_have_about_the_interval_of_students_t(units: int) -> None:
    draw = np.random.default_rng(units)
    rows = draw.normal(0.3, 1.0, size=(40, units))
    intervals = paired_bootstrap(rows, [1.0] * units, seed=2)
    half = t.ppf(0.975, units - 1) * rows.std(axis=1, ddof=1) / math.sqrt(units)
    widths = np.array([interval.high - interval.low for interval in intervals])
    assert (widths / (2 * half)).mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("units", "kind"), [(12, "normal"), (50, "normal"), (50, "skewed"), (400, "rarely changed")]
)
def test_the_interval_holds_the_truth_about_as_often_as_it_says(units: int, kind: str) -> None:
    draw = np.random.default_rng(units)
    if kind == "normal":
        rows, truth = draw.normal(0.1, 1.0, size=(600, units)), 0.1
    elif kind == "skewed":
        rows, truth = draw.exponential(size=(600, units)), 1.0
    else:
        # an accuracy of which 8 % of the items change
        rows, truth = draw.choice([-1.0, 0.0, 1.0], p=[0.03, 0.92, 0.05], size=(600, units)), 0.02
    intervals = paired_bootstrap(rows, [1.0] * units, seed=3, resamples=2000)
    coverage = sum(interval.low <= truth <= interval.high for interval in intervals) / len(intervals)
    # three standard errors of 600 data sets are 2.7 %; skewed data of 50 items cost some coverage
    assert coverage == pytest.approx(0.95, abs=0.04 if kind == "skewed" else 0.03)


def test_the_same_seed_draws_the_same_and_all_rows_are_averaged_on_the_same_draws() -> None:
    values = np.random.default_rng(5).normal(size=20)
    interval, doubled_interval = paired_bootstrap([values, 2 * values], [1.0] * 20, seed=7)
    assert (doubled_interval.low, doubled_interval.high) == pytest.approx(
        (2 * interval.low, 2 * interval.high)
    )
    assert paired_bootstrap([values, 2 * values], [1.0] * 20, seed=7) == [interval, doubled_interval]
    assert paired_bootstrap([values, 2 * values], [1.0] * 20, seed=8) != [interval, doubled_interval]


def test_a_difference_of_few_items_has_no_interval() -> None:
    few_values, enough_values = [1.0] * (MIN_UNITS - 1) + [0.0] * 91, [1.0] * MIN_UNITS + [0.0] * 90
    first, second, third = paired_bootstrap([few_values, enough_values, [0.0] * 100], [1.0] * 100, seed=0)
    assert first is None and third is None
    assert second is not None and second.low > 0


def test_a_large_batch_counts_as_its_items_do() -> None:
    values = [2.0] * 9 + [1.0]
    (small,) = paired_bootstrap([values], [1.0] * 10, seed=0)
    (large,) = paired_bootstrap([values], [1.0] * 9 + [81.0], seed=0)
    assert small is not None and large is not None
    assert (small.difference, large.difference) == (1.9, 1.1)
    assert large.high - large.low > small.high - small.low


def test_too_few_units_have_no_interval() -> None:
    with pytest.raises(ValueError, match=f"given {MIN_UNITS - 1} units"):
        paired_bootstrap([[0.0] * (MIN_UNITS - 1)], [1.0] * (MIN_UNITS - 1), seed=0)

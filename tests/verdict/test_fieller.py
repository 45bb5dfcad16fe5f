"""Fieller's interval against Student's test of every ratio, and where nothing bounds it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from tempopt.verdict.statistics.fieller import Ratio, fieller

values = st.floats(-10, 10).map(lambda x: round(x, 3))
pairs = st.lists(st.tuples(values, values), min_size=3, max_size=12)
levels = st.sampled_from([0.05, 0.2, 0.5])


def p_of(ratio: float, numerators: np.ndarray, denominators: np.ndarray) -> float:
    return float(stats.ttest_1samp(numerators - ratio * denominators, 0).pvalue)


@given(pairs, levels)
def test_the_interval_ends_where_students_test_begins_to_reject(
    table: list[tuple[float, float]], alpha: float
) -> None:
    numerators, denominators = np.array(table).T
    assume(np.ptp(numerators) > 0.1 and np.ptp(denominators) > 0.1)
    told_from_zero = stats.ttest_1samp(denominators, 0).pvalue
    assume(abs(told_from_zero - alpha) > 1e-3 and abs(denominators.mean()) > 1e-3)
    interval = fieller(numerators, denominators, alpha=alpha)
    assert interval.ratio == pytest.approx(numerators.mean() / denominators.mean())
    if told_from_zero > alpha:
        assert (interval.low, interval.high) == (-math.inf, math.inf)
        return
    assert interval.low <= interval.ratio <= interval.high
    for end in (interval.low, interval.high):
        if np.std(numerators - end * denominators) > 1e-6:
            assert p_of(end, numerators, denominators) == pytest.approx(alpha, rel=1e-5)


def test_intervals_hold_the_true_ratio_as_often_as_they_say() -> None:
    # a share of 0.8, as large a spread as half of the gain, and pairs that share much of it
    draw = np.random.default_rng(3)
    studies, num_covered = 3000, 0
    for _ in range(studies):
        of_both = draw.standard_normal(8)
        denominators = 2 + 0.8 * of_both + 0.6 * draw.standard_normal(8)
        numerators = 1.6 + 0.8 * of_both + 0.6 * draw.standard_normal(8)
        interval = fieller(numerators.tolist(), denominators.tolist(), alpha=0.1)
        num_covered += interval.low <= 0.8 <= interval.high
    assert num_covered / studies == pytest.approx(0.9, abs=4.5 * math.sqrt(0.09 / studies))


def test_what_is_exactly_proportional_is_certain() -> None:
    denominators = [0.1, 0.12, 0.09, 0.11, 0.13]
    for factor in (0.0, 1.0, -0.7):
        interval = fieller([factor * d for d in denominators], denominators, alpha=0.05)
        assert (interval.ratio, interval.low, interval.high) == pytest.approx((factor,) * 3, abs=1e-9)
    assert fieller([0.2, 0.2], [0.1, 0.1], alpha=0.05) == Ratio(ratio=2, low=2, high=2)


def test_equal_denominators_leave_the_interval_of_the_mean() -> None:
    numerators = [1.0, 1.5, 0.9, 1.2]
    ratio = fieller(numerators, [2.0] * 4, alpha=0.05)
    interval = stats.ttest_1samp(numerators, 0).confidence_interval(0.95)
    assert (ratio.low, ratio.high) == pytest.approx((interval.low / 2, interval.high / 2))


def test_a_denominator_of_zero_has_no_ratio_and_one_pair_no_interval() -> None:
    for denominators in ([0.0, 0.0, 0.0], [1.0, -1.0, 0.0], [0.1, 0.2, -0.3]):
        interval = fieller([1.0, 2.0, 3.0], denominators, alpha=0.05)
        assert math.isnan(interval.ratio) and (interval.low, interval.high) == (-math.inf, math.inf)
    assert fieller([1.0], [2.0], alpha=0.05) == Ratio(ratio=0.5, low=-math.inf, high=math.inf)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_the_unit_of_the_values_does_not_matter(scale: float) -> None:
    numerators, denominators = [1.0, 2.0, 1.5, 1.2], [2.0, 3.1, 2.4, 2.2]
    plain = fieller(numerators, denominators, alpha=0.04)
    scaled_interval = fieller([scale * n for n in numerators], [scale * d for d in denominators], alpha=0.04)
    assert (scaled_interval.ratio, scaled_interval.low, scaled_interval.high) == pytest.approx(
        (plain.ratio, plain.low, plain.high)
    )

"""Welch's test, beside SciPy's."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from tempopt.errors import UsageError
from tempopt.statistics.welch import welch

VALUES = st.lists(st.integers(-1000, 1000).map(lambda each: each / 100), min_size=2, max_size=8)


@given(one=VALUES, other=VALUES, alpha=st.sampled_from([0.05, 0.2]))
def test_it_says_what_scipy_says(one: list[float], other: list[float], alpha: float) -> None:
    assume(len({*one}) > 1 and len({*other}) > 1)
    found = welch(one, other, alpha=alpha)
    expected = ttest_ind(one, other, equal_var=False)
    interval = expected.confidence_interval(1 - alpha)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (found.ci_low, found.ci_high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)
    assert found.gain == pytest.approx(sum(one) / len(one) - sum(other) / len(other), abs=1e-9)


def test_values_without_spread_tell_no_noise() -> None:
    found = welch([1.0, 1.0], [0.0, 0.0])
    assert (found.gain, found.p_value, found.ci_low, found.ci_high) == (1.0, 1.0, -math.inf, math.inf)


def test_a_single_value_is_no_group() -> None:
    with pytest.raises(UsageError, match="1 and 2"):
        welch([1.0], [1.0, 2.0])

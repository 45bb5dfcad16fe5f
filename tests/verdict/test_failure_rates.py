"""Failure rates against SciPy's exact binomial test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from tempopt.verdict.statistics.failure_rates import failure_rates

tables = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20)


@given(tables, st.sampled_from([0.05, 0.1, 0.5]))
def test_rates_are_clopper_and_pearsons_and_p_is_mcnemars(
    table: list[tuple[bool, bool]], alpha: float
) -> None:
    arm, reference = [a for a, _ in table], [r for _, r in table]
    rates = failure_rates(arm, reference, alpha=alpha)
    for rate, num_failed in ((rates.arm, sum(arm)), (rates.reference, sum(reference))):
        interval = binomtest(num_failed, len(table)).proportion_ci(1 - alpha, method="exact")
        assert (rate.failed, rate.runs) == (num_failed, len(table))
        assert (rate.low, rate.high) == pytest.approx((interval.low, interval.high), rel=1e-7, abs=1e-12)
    num_arm_only, num_reference_only = sum(a and not r for a, r in table), sum(r and not a for a, r in table)
    expected = (
        binomtest(num_arm_only, num_arm_only + num_reference_only).pvalue
        if num_arm_only + num_reference_only
        else 1.0
    )
    assert rates.p_value == pytest.approx(expected)


def test_six_failures_of_one_arm_alone_differ_from_none() -> None:
    rates = failure_rates([True] * 6 + [False] * 2, [False] * 8, alpha=0.05)
    assert rates.p_value == pytest.approx(2 / 2**6)
    assert (rates.reference.low, rates.reference.high) == (0, pytest.approx(1 - 0.025 ** (1 / 8)))

"""Non-inferiority beside SciPy, and how often it is shown where the arm is just outside of the margin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.verdict.statistics.paired_tests import PairedTest, margin_left, paired_test

ARM = [1.02, 0.97, 1.05, 1.10, 0.99, 1.03, 1.00, 1.06]
REFERENCE = [1.00, 0.98, 1.01, 1.07, 1.00, 1.02, 0.97, 1.03]


def non_inferior(
    arm: list[float], reference: list[float], *, alpha: float = 0.05, **margin: Any
) -> PairedTest:
    slacks = margin_left(arm, reference, **margin)
    return paired_test(slacks, direction="maximize", alpha=alpha)


@pytest.mark.parametrize("margin", [0.0, 0.01, 0.05, 0.2])
def test_it_is_scipys_one_sided_t_test_against_the_margin(margin: float) -> None:
    test_result = non_inferior(ARM, REFERENCE, side="most", margin=margin, relative=True, alpha=0.04)
    excess = np.array(ARM) - (1 + margin) * np.array(REFERENCE)
    test = stats.ttest_1samp(excess, 0.0, alternative="less")
    assert test_result.significant == (test.pvalue < 0.02)
    assert test_result.gain == pytest.approx(-excess.mean())
    # the upper end of the two-sided interval of the excess
    error = stats.sem(excess) * stats.t.ppf(0.98, len(ARM) - 1)
    assert -test_result.ci_low == pytest.approx(excess.mean() + error)


def test_an_absolute_margin_is_one_in_the_unit_of_the_metric() -> None:
    test_result = non_inferior(ARM, REFERENCE, side="most", margin=0.1, relative=False)
    test = stats.ttest_rel(ARM, np.array(REFERENCE) + 0.1, alternative="less")
    assert test_result.p_value == pytest.approx(2 * test.pvalue)


def test_a_metric_of_which_more_is_better_may_be_below_by_the_margin() -> None:
    most_headroom = margin_left(ARM, REFERENCE, side="most", margin=0.05, relative=True)
    least_headroom = margin_left(
        [-v for v in ARM], [-v for v in REFERENCE], side="least", margin=0.05, relative=True
    )
    assert least_headroom == pytest.approx(most_headroom)
    assert np.mean(margin_left([0.9], [1.0], side="least", margin=0.2, relative=True)) == pytest.approx(0.1)


def test_a_negative_reference_has_a_margin_on_the_worse_side_all_the_same() -> None:
    # a loss of -10 that may be 5 % worse may be -9.5
    assert margin_left([-9.6], [-10.0], side="most", margin=0.05, relative=True) == pytest.approx([0.1])
    assert margin_left([-9.4], [-10.0], side="most", margin=0.05, relative=True) == pytest.approx([-0.1])


def test_equal_arms_without_a_margin_show_nothing() -> None:
    test_result = non_inferior(ARM, ARM, side="most", margin=0.0, relative=True)
    assert (test_result.gain, test_result.p_value, test_result.significant) == (0.0, 1.0, False)


def test_costs_without_noise_are_told_by_signs() -> None:
    test_result = non_inferior([105.0] * 6, [100.0] * 6, side="most", margin=0.1, relative=True)
    assert test_result.significant and test_result.p_value == pytest.approx(2.0**-5)
    few_result = non_inferior([105.0] * 4, [100.0] * 4, side="most", margin=0.1, relative=True)
    assert not few_result.significant

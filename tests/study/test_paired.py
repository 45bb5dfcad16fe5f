"""The paired tests against SciPy, against enumeration, and where there is little to go by."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import special, stats

from tempopt.errors import UsageError
from tempopt.study.paired import TESTS, paired

finite = st.floats(-1e3, 1e3).map(lambda x: round(x, 6))
samples = st.lists(finite, min_size=6, max_size=12)
both = pytest.mark.parametrize("test", TESTS)


def gains(differences: list[float], test: str, **options: Any) -> Any:
    return paired(differences, test=test, **{"direction": "maximize", **options})


@given(samples, st.sampled_from([0.8, 0.95, 0.99]))
def test_t_is_scipys_one_sample_t(differences: list[float], confidence: float) -> None:
    assume(np.ptp(differences) > 1e-3)
    expected = stats.ttest_1samp(differences, 0)
    interval = expected.confidence_interval(confidence)
    found = gains(differences, "t", confidence=confidence)
    assert found.gain == pytest.approx(np.mean(differences), abs=1e-9)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert (found.ci_low, found.ci_high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


@given(samples, st.integers(2, 5))
def test_several_looks_are_scipys_t_corrected_by_bonferroni(differences: list[float], looks: int) -> None:
    assume(np.ptp(differences) > 1e-3)
    expected = stats.ttest_1samp(differences, 0)
    interval = expected.confidence_interval(1 - 0.05 / looks)
    found = gains(differences, "t", looks=looks)
    assert found.p_value == pytest.approx(min(1.0, looks * expected.pvalue), rel=1e-6, abs=1e-12)
    assert (found.ci_low, found.ci_high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)
    assert found.confidence == pytest.approx(1 - 0.05 / looks)
    assert found.gain == gains(differences, "t").gain


@given(samples)
def test_one_look_is_the_plain_test_to_the_bit(differences: list[float]) -> None:
    # what every verdict before the second round was computed with
    assume(np.ptp(differences) > 1e-3)
    n, mean = len(differences), fmean(differences)
    error = stdev(differences) / math.sqrt(n)
    margin = float(special.stdtrit(n - 1, (1 + (1 - 0.05)) / 2)) * error
    found = gains(differences, "t", looks=1)
    assert (found.gain, found.ci_low, found.ci_high) == (mean, mean - margin, mean + margin)
    assert found.p_value == 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    assert found.confidence == 0.95


@given(st.permutations(range(1, 13)), st.lists(st.booleans(), min_size=6, max_size=12))
def test_wilcoxon_is_scipys_exact_one_without_ties(sizes: list[int], signs: list[bool]) -> None:
    differences = [size**1.5 * (1 if up else -1) for size, up in zip(sizes, signs, strict=False)]
    expected = stats.wilcoxon(differences, method="exact")
    assert gains(differences, "wilcoxon").p_value == pytest.approx(expected.pvalue)


@given(st.lists(st.integers(-3, 3), min_size=6, max_size=9), st.randoms(use_true_random=False))
def test_wilcoxon_is_never_bolder_under_ties_than_with_the_ties_broken(steps: list[int], random: Any) -> None:
    # Breaking ties symmetrically keeps the level, so never being bolder than that keeps it as well.
    broken = [step + random.uniform(-1e-3, 1e-3) for step in steps]
    tied = gains([float(step) for step in steps], "wilcoxon")
    assert tied.p_value >= stats.wilcoxon(broken, method="exact").pvalue - 1e-9


@given(st.lists(st.integers(-4, 4).map(float), min_size=2, max_size=12), st.integers(1, 3))
def test_wilcoxons_p_and_interval_never_disagree(differences: list[float], looks: int) -> None:
    found = gains(differences, "wilcoxon", looks=looks)
    assert (found.p_value < 0.05) == (not found.ci_low <= 0 <= found.ci_high)


def test_the_published_interval_of_the_signed_rank_test_is_found() -> None:
    # Hollander and Wolfe, Nonparametric Statistical Methods, Hamilton depression scale factor IV
    # (examples 3.1, 3.3 and 3.4): T+ = 5, p = .039 two-sided, estimate -0.46, 96.1 % interval (-.786, -.010).
    before = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    after = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
    found = gains([a - b for a, b in zip(after, before, strict=True)], "wilcoxon")
    assert found.p_value == pytest.approx(0.0390625)
    assert found.gain == pytest.approx(-0.46)
    assert (found.ci_low, found.ci_high) == pytest.approx((-0.786, -0.010))


@both
@given(differences=samples)
def test_a_gain_is_positive_when_a_metric_to_minimise_falls(test: str, differences: list[float]) -> None:
    up = gains(differences, test)
    down = gains([-d for d in differences], test, direction="minimize")
    assert (up.gain, up.ci_low, up.p_value) == (down.gain, down.ci_low, down.p_value)


@both
@given(differences=samples)
def test_the_interval_holds_the_estimate_and_p_is_a_probability(test: str, differences: list[float]) -> None:
    found = gains(differences, test)
    assert found.ci_low <= found.gain + 1e-9 and found.gain - 1e-9 <= found.ci_high
    assert 0 < found.p_value <= 1 or math.isclose(found.p_value, 0, abs_tol=1e-12)
    assert found.n_pairs == len(differences)


@both
def test_no_difference_at_all_is_no_gain(test: str) -> None:
    found = gains([0.0] * 8, test, direction="minimize")
    assert (found.gain, found.ci_low, found.ci_high, found.p_value) == (0, 0, 0, 1)
    assert math.copysign(1, found.gain) == 1
    assert not found.significant


@both
def test_equal_differences_are_judged_by_their_signs_alone(test: str) -> None:
    found = gains([0.9 - 0.8, 0.4 - 0.3, 0.2 - 0.1, 0.6 - 0.5, 1.0 - 0.9, 0.7 - 0.6], test)
    assert found.p_value == 2**-5
    assert found.significant
    assert not gains([0.1, 0.1], test).significant


@both
def test_a_loss_is_not_significant_however_small_its_p(test: str) -> None:
    found = gains([-1.0, -1.1, -0.9, -1.05, -0.95, -1.2, -0.8, -1.01], test)
    assert found.p_value < 0.01
    assert not found.significant


@both
def test_one_pair_shows_nothing(test: str) -> None:
    found = gains([0.5], test)
    assert (found.gain, found.p_value) == (0.5, 1)
    assert (found.ci_low, found.ci_high) == (-math.inf, math.inf)
    assert not found.significant


def test_five_pairs_do_not_bound_a_signed_rank_interval() -> None:
    found = gains([1.0, 2.0, 3.0, 4.0, 5.0], "wilcoxon")
    assert found.p_value == 2 / 2**5
    assert found.ci_low == -math.inf and found.ci_high == math.inf


def test_rounding_does_not_break_a_tie() -> None:
    # 0.9 - 0.8 and 0.4 - 0.5 are not each other's negative in floating point.
    exact = gains([1.0, -1.0, 2.0, 3.0, 4.0, 5.0], "wilcoxon")
    rounded = gains([0.9 - 0.8, 0.4 - 0.5, 0.2, 0.3, 0.4, 0.5], "wilcoxon")
    assert rounded.p_value == exact.p_value


@both
@pytest.mark.parametrize("differences", [[], [0.1, math.nan], [0.1, math.inf]])
def test_what_is_no_number_is_refused(test: str, differences: list[float]) -> None:
    with pytest.raises(UsageError, match=r"no pairs|not finite"):
        gains(differences, test)


def test_an_unknown_test_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=r'Unknown test "welch"\..*Known: t, wilcoxon\.'):
        gains([0.1, 0.2], "welch")

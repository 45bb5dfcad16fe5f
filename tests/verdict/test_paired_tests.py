"""The paired tests against SciPy, against enumeration, and where there is little to go by."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from tempopt.verdict.statistics.group_sequential import boundaries, repeated_p
from tempopt.verdict.statistics.paired_tests import (
    StageDifferences,
    paired_test,
    skewness,
)
from tests.verdict.verdicts import NOTHING, numbers_of, scipys_numbers

finite = st.floats(-1e3, 1e3).map(lambda x: round(x, 6))
coarse = finite.map(lambda x: round(x, 2))
samples = st.lists(finite, min_size=6, max_size=12)
six_or_eight = st.sampled_from([6, 8]).flatmap(lambda n: st.lists(finite, min_size=n, max_size=n))


def gains(differences: list[float], **options: Any) -> Any:
    return paired_test(differences, **{"direction": "maximize", **options})


@given(samples, st.sampled_from([0.8, 0.95, 0.99]))
def test_t_is_scipys_one_sample_t(differences: list[float], confidence: float) -> None:
    assume(np.ptp(differences) > 1e-3)
    paired_test = gains(differences, alpha=1 - confidence)
    assert numbers_of(paired_test) == scipys_numbers(differences, 1 - confidence)
    assert (paired_test.alpha, paired_test.confidence) == pytest.approx((1 - confidence, confidence))


@given(differences=samples)
def test_a_gain_is_positive_when_a_metric_to_minimise_falls(differences: list[float]) -> None:
    maximized = gains(differences)
    minimized = gains([-d for d in differences], direction="minimize")
    assert numbers_of(maximized) == numbers_of(minimized)


@pytest.mark.parametrize("difference", [0.0, 0.1 + 0.2 - 0.3])
def test_no_difference_but_of_rounding_shows_nothing_and_bounds_nothing(difference: float) -> None:
    paired_test = gains([difference] * 8, direction="minimize")
    assert numbers_of(paired_test) == NOTHING
    assert math.copysign(1, paired_test.gain) == 1
    assert paired_test.is_equal and not paired_test.significant and not paired_test.is_worse


def test_equal_differences_are_judged_by_their_signs_alone() -> None:
    paired_test = gains([0.9 - 0.8, 0.4 - 0.3, 0.2 - 0.1, 0.6 - 0.5, 1.0 - 0.9, 0.7 - 0.6])
    assert paired_test.p_value == 2**-5
    assert paired_test.significant
    assert (paired_test.ci_low, paired_test.ci_high) == pytest.approx((0.1, 0.1))
    assert not gains([0.1, 0.1]).significant
    # the least p of five signs is 2 ** -4, and that does not reach 5 %
    assert numbers_of(gains([0.1] * 5)) == (pytest.approx(0.1), -math.inf, math.inf, 2**-4)


def test_looks_at_equal_differences_spend_what_the_last_look_may() -> None:
    paired_test = gains([-0.1] * 8, looks=((4, 0.2), (8, 0.6)))
    assert paired_test.p_value == pytest.approx(2**-7 / 0.4)
    assert paired_test.is_worse


def test_equal_differences_of_an_earlier_round_count_with_their_signs() -> None:
    paired_test = gains(SECOND, earlier=[StageDifferences(differences=(0.2,) * 6)])
    scores = stats.norm.isf([2**-6, one_sided(SECOND, "greater")])
    expected = stats.norm.sf(np.dot(np.sqrt([1, 2]), scores) / math.sqrt(3))
    assert paired_test.p_value == pytest.approx(2 * expected)


def test_a_loss_is_not_significant_however_small_its_p() -> None:
    paired_test = gains([-1.0, -1.1, -0.9, -1.05, -0.95, -1.2, -0.8, -1.01])
    assert paired_test.p_value < 0.01
    assert paired_test.is_worse and not paired_test.significant


def test_one_pair_shows_nothing() -> None:
    paired_test = gains([0.5])
    assert numbers_of(paired_test) == (0.5, *NOTHING[1:])
    assert not paired_test.significant and not paired_test.is_equal


def shifted(differences: list[float], shift: float) -> list[float]:
    return [d + shift for d in differences]


@settings(max_examples=40)
@given(differences=six_or_eight, alpha=st.sampled_from([0.05, 0.02, 0.0625, 0.3]), is_looked_at=st.booleans())
def test_p_is_below_the_level_exactly_where_the_interval_excludes_zero(
    differences: list[float], alpha: float, is_looked_at: bool
) -> None:
    looks = ((4, 0.2), (len(differences), 0.7)) if is_looked_at else None
    paired_test = gains(differences, alpha=alpha, looks=looks)
    assume(abs(paired_test.p_value / alpha - 1) > 1e-6)
    assert (paired_test.p_value < alpha) == (not paired_test.ci_low <= 0 <= paired_test.ci_high)
    assert paired_test.significant == (paired_test.ci_low > 0)
    assert paired_test.is_worse == (paired_test.ci_high < 0)
    assert (paired_test.alpha, paired_test.confidence) == (alpha, 1 - alpha)


def test_looks_at_t_are_judged_by_exact_boundaries() -> None:
    differences = [0.3, 0.1, 0.5, 0.2, 0.25, 0.15, -0.05, 0.4]
    looks = ((4, 0.2), (8, 0.8))
    plain = stats.ttest_1samp(differences, 0)
    paired_test = gains(differences, looks=looks)
    assert paired_test.p_value == pytest.approx(repeated_p(looks, plain.pvalue))
    interval = plain.confidence_interval(1 - boundaries(looks, 0.05)[-1])
    assert (paired_test.ci_low, paired_test.ci_high) == pytest.approx((interval.low, interval.high), rel=1e-4)
    assert plain.pvalue / 0.8 < paired_test.p_value < plain.pvalue / 0.6
    assert gains(differences, looks=((8, 1.0),)) == gains(differences)


SECOND = [0.1, -0.2, 0.4, 0.3, 0.05]
FIRST = [0.3, 0.1, 0.5, 0.2, 0.25, -0.15, -0.05, 0.4]


def one_sided(differences: list[float], alternative: str) -> float:
    return float(stats.ttest_1samp(differences, 0, alternative=alternative).pvalue)


def combined_p(stages: list[list[float]], alternative: str = "greater") -> float:
    """Return the one-sided p of stages by the inverse normal method, with squared weights 1 : 2 : 4."""
    scores = [stats.norm.isf(one_sided(stage, alternative)) for stage in stages]
    weights = np.sqrt([1.0, 2.0, 4.0][: len(stages)])
    return float(stats.norm.sf(np.dot(weights, scores) / math.sqrt((weights**2).sum())))


def test_added_pairs_are_combined_by_the_inverse_normal_method_with_doubling_weights() -> None:
    first = [d + 0.001 * i for i, d in enumerate(FIRST)]
    second = [d + 0.0007 * i for i, d in enumerate(SECOND)]
    third = [d + 0.1 for d in second]
    earlier_stages = [StageDifferences(differences=tuple(first)), StageDifferences(differences=tuple(second))]
    paired_test = gains(third, earlier=earlier_stages, alpha=0.1)
    assert paired_test.p_value == pytest.approx(2 * combined_p([first, second, third]), rel=1e-6)
    weighted_p = stats.combine_pvalues(
        [one_sided(stage, "greater") for stage in (first, second, third)],
        method="stouffer",
        weights=np.sqrt([1, 2, 4]),
    )
    assert paired_test.p_value == pytest.approx(2 * weighted_p.pvalue, rel=1e-6)
    assert paired_test.n_pairs == 18
    pooled_test = gains([*first, *second, *third])
    assert paired_test.gain == pooled_test.gain
    for end, alternative, out in (
        (paired_test.ci_low, "greater", 1e-4),
        (paired_test.ci_high, "less", -1e-4),
    ):
        ins, outs = (
            [shifted(stage, shift - end) for stage in (first, second, third)] for shift in (-out, out)
        )
        assert combined_p(ins, alternative) > 0.05 > combined_p(outs, alternative)


@given(first=six_or_eight, second=samples, has_looks=st.booleans())
@settings(max_examples=30, deadline=None)
def test_combined_p_and_interval_never_disagree(
    first: list[float], second: list[float], has_looks: bool
) -> None:
    looks = ((4, 0.2), (len(first), 0.7)) if has_looks else None
    paired_test = gains(second, earlier=[StageDifferences(differences=tuple(first), looks=looks)])
    assert paired_test.significant == (paired_test.ci_low > 0)
    assert paired_test.is_worse == (paired_test.ci_high < 0)
    assert paired_test.ci_low <= paired_test.gain <= paired_test.ci_high
    mirrored_test = gains(
        [-d for d in second],
        direction="minimize",
        earlier=[StageDifferences(differences=tuple(-d for d in first), looks=looks)],
    )
    assert mirrored_test == paired_test


def test_a_stage_that_was_looked_at_on_the_way_counts_with_its_repeated_p() -> None:
    looks = ((4, 0.2), (8, 0.7))
    paired_test = gains(SECOND, earlier=[StageDifferences(differences=tuple(FIRST), looks=looks)])
    earlier_p = repeated_p(looks, stats.ttest_1samp(FIRST, 0).pvalue) / 2
    second_p = stats.ttest_1samp(SECOND, 0, alternative="greater").pvalue
    score = (stats.norm.isf(earlier_p) + math.sqrt(2) * stats.norm.isf(second_p)) / math.sqrt(3)
    assert paired_test.p_value == pytest.approx(2 * stats.norm.sf(score))
    plain = gains(SECOND, earlier=[StageDifferences(differences=tuple(FIRST))])
    assert plain.p_value < paired_test.p_value


@pytest.mark.parametrize("sign", [1, -1])
def test_stages_that_contradict_each_other_show_nothing(sign: int) -> None:
    # two pairs leave no doubt, and twenty say little, but so large that the mean is on their side
    strong = (sign * 100.0, sign * 100.0001)
    weak = [sign * (-30.0 + 200 * (-1) ** i) for i in range(20)]
    assert combined_p([list(strong), weak], "greater" if sign > 0 else "less") < 0.05
    paired_test = gains(weak, earlier=[StageDifferences(differences=strong)])
    assert sign * paired_test.gain < 0 and paired_test.p_value == 1
    assert paired_test.ci_low <= paired_test.gain <= paired_test.ci_high
    assert not paired_test.significant


def test_one_pair_that_was_added_changes_the_estimate_alone() -> None:
    paired_test = gains([0.2], earlier=[StageDifferences(differences=tuple(FIRST))])
    assert paired_test.n_pairs == 9
    assert numbers_of(paired_test) == (gains([*FIRST, 0.2]).gain, *numbers_of(gains(FIRST))[1:])


def test_a_stage_without_any_difference_speaks_for_neither_side() -> None:
    strong = [0.3, 0.31, 0.29, 0.33, 0.27, 0.32, 0.28, 0.3001, 0.34]
    paired_test = gains(strong, earlier=[StageDifferences(differences=(0.0,) * 8)])
    one_sided_p = one_sided(strong, "greater")
    assert paired_test.p_value == pytest.approx(
        2 * stats.norm.sf(math.sqrt(2 / 3) * stats.norm.isf(one_sided_p))
    )
    empty_test = gains([0.0] * 4, earlier=[StageDifferences(differences=(0.0,) * 8)])
    assert numbers_of(empty_test) == NOTHING
    assert empty_test.n_pairs == 12


def test_one_added_pair_that_turns_the_sign_shows_nothing() -> None:
    negative_stage = StageDifferences(
        differences=(-0.01, -0.0101, -0.0102, -0.0099, -0.01, -0.0101, -0.0102, -0.0099)
    )
    result = paired_test([0.2], direction="maximize", alpha=0.005, earlier=[negative_stage])
    assert result.gain > 0 and result.p_value == 1.0 and not result.significant


# ---- looks, and the shape of differences


@given(st.lists(coarse, min_size=6, max_size=16))
def test_skewness_is_scipys_in_its_standard_errors(differences: list[float]) -> None:
    assume(np.ptp(differences) > 1e-3)
    n = len(differences)
    error = math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    expected = stats.skew(differences, bias=False) / error
    assert skewness(differences) == pytest.approx(expected, rel=1e-6, abs=1e-6)

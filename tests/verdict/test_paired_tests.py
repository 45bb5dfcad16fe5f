"""The paired tests against SciPy, against enumeration, and where there is little to go by."""

from __future__ import annotations

import itertools
import math
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tempopt.verdict.statistics.group_sequential import boundaries, repeated_p
from tempopt.verdict.statistics.paired_tests import (
    TESTS,
    StageDifferences,
    min_significant_pairs,
    non_inferiority_test,
    paired_test,
    skewness,
)
from tests.verdict.verdicts import NOTHING, numbers_of, scipys_numbers

finite = st.floats(-1e3, 1e3).map(lambda x: round(x, 6))
coarse = finite.map(lambda x: round(x, 2))
samples = st.lists(finite, min_size=6, max_size=12)
six_or_eight = st.sampled_from([6, 8]).flatmap(lambda n: st.lists(finite, min_size=n, max_size=n))
both = pytest.mark.parametrize("test", TESTS)


def gains(differences: list[float], test: str, **options: Any) -> Any:
    return paired_test(differences, test=test, **{"direction": "maximize", **options})


@given(samples, st.sampled_from([0.8, 0.95, 0.99]))
def test_t_is_scipys_one_sample_t(differences: list[float], confidence: float) -> None:
    assume(np.ptp(differences) > 1e-3)
    paired_test = gains(differences, "t", alpha=1 - confidence)
    assert numbers_of(paired_test) == scipys_numbers(differences, 1 - confidence)
    assert (paired_test.alpha, paired_test.confidence) == pytest.approx((1 - confidence, confidence))


@given(samples)
def test_one_look_is_the_plain_test_to_the_bit(differences: list[float]) -> None:
    # what every verdict before there were looks was computed with
    assume(np.ptp(differences) > 1e-3)
    n, mean = len(differences), fmean(differences)
    error = stdev(differences) / math.sqrt(n)
    margin = float(special.stdtrit(n - 1, (1 + (1 - 0.05)) / 2)) * error
    paired_test = gains(differences, "t")
    assert (paired_test.gain, paired_test.ci_low, paired_test.ci_high) == (mean, mean - margin, mean + margin)
    assert paired_test.p_value == 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    assert paired_test.confidence == 0.95


@both
@given(differences=samples)
def test_a_gain_is_positive_when_a_metric_to_minimise_falls(test: str, differences: list[float]) -> None:
    maximized = gains(differences, test)
    minimized = gains([-d for d in differences], test, direction="minimize")
    assert numbers_of(maximized) == numbers_of(minimized)


@both
@pytest.mark.parametrize("difference", [0.0, 0.1 + 0.2 - 0.3])
def test_no_difference_but_of_rounding_shows_nothing_and_bounds_nothing(difference: float, test: str) -> None:
    paired_test = gains([difference] * 8, test, direction="minimize")
    assert numbers_of(paired_test) == NOTHING
    assert math.copysign(1, paired_test.gain) == 1
    assert paired_test.is_equal and not paired_test.significant and not paired_test.is_worse


@both
def test_equal_differences_are_judged_by_their_signs_alone(test: str) -> None:
    paired_test = gains([0.9 - 0.8, 0.4 - 0.3, 0.2 - 0.1, 0.6 - 0.5, 1.0 - 0.9, 0.7 - 0.6], test)
    assert paired_test.p_value == 2**-5
    assert paired_test.significant
    assert not gains([0.1, 0.1], test).significant


@both
def test_a_loss_is_not_significant_however_small_its_p(test: str) -> None:
    paired_test = gains([-1.0, -1.1, -0.9, -1.05, -0.95, -1.2, -0.8, -1.01], test)
    assert paired_test.p_value < 0.01
    assert paired_test.is_worse and not paired_test.significant


@both
def test_one_pair_shows_nothing(test: str) -> None:
    paired_test = gains([0.5], test)
    assert numbers_of(paired_test) == (0.5, *NOTHING[1:])
    assert not paired_test.significant and not paired_test.is_equal


def test_five_pairs_do_not_bound_an_interval_of_signs() -> None:
    paired_test = gains([1.0, 2.0, 3.0, 4.0, 5.0], "sign_flip")
    assert paired_test.p_value == 2 / 2**5
    assert paired_test.ci_low == -math.inf and paired_test.ci_high == math.inf


def test_rounding_does_not_break_a_tie() -> None:
    # 0.9 - 0.8 and 0.4 - 0.5 are not each other's negative in floating point.
    exact = gains([1.0, -1.0, 2.0, 3.0, 4.0, 5.0], "sign_flip")
    rounded_test = gains([0.9 - 0.8, 0.4 - 0.5, 0.2, 0.3, 0.4, 0.5], "sign_flip")
    assert rounded_test.p_value == exact.p_value


def shifted(differences: list[float], shift: float) -> list[float]:
    return [d + shift for d in differences]


@given(st.lists(coarse, min_size=2, max_size=8))
def test_sign_flip_is_scipys_permutation_test_of_the_mean(differences: list[float]) -> None:
    assume(np.ptp(differences) > 1e-3)
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    paired_test = gains(differences, "sign_flip")
    assert paired_test.p_value == pytest.approx(expected.pvalue)
    assert paired_test.gain == pytest.approx(np.mean(differences), abs=1e-9)


@given(st.lists(coarse, min_size=3, max_size=8), st.sampled_from([0.05, 0.25, 0.3]))
def test_sign_flips_interval_is_what_the_test_does_not_reject(differences: list[float], alpha: float) -> None:
    assume(np.ptp(differences) > 1e-3)
    paired_test = gains(differences, "sign_flip", alpha=alpha)
    signs = np.array(list(itertools.product([1, -1], repeat=len(differences))))

    def p_of(value: float) -> float:
        shifted_values = np.array(differences) - value
        sums, observed = signs @ shifted_values, shifted_values.sum()
        one_sided_p = min(np.mean(sums >= observed - 1e-9), np.mean(sums <= observed + 1e-9))
        return float(min(1, 2 * one_sided_p))

    if 2 ** (1 - len(differences)) >= alpha:
        assert (paired_test.ci_low, paired_test.ci_high) == (-math.inf, math.inf)
        return
    for end, out in ((paired_test.ci_low, -1e-4), (paired_test.ci_high, 1e-4)):
        assert p_of(end) >= alpha
        assert p_of(end + out) < alpha


def test_more_pairs_than_can_be_enumerated_are_sampled_and_always_the_same() -> None:
    draw = np.random.default_rng(4)
    for n in (19, 21):
        differences = (0.3 + draw.standard_normal(n)).tolist()
        sums = np.zeros(1)
        for d in differences:
            sums = np.concatenate([sums + d, sums - d])
        exact = 2 * min(np.mean(sums >= sum(differences)), np.mean(sums <= sum(differences)))
        paired_test = gains(differences, "sign_flip")
        assert paired_test.p_value == pytest.approx(exact, abs=5 * math.sqrt(exact / 2**17))
        assert paired_test == gains(differences, "sign_flip")
        mirrored_test = gains([-d for d in differences], "sign_flip")
        assert (mirrored_test.p_value, mirrored_test.ci_low) == (
            paired_test.p_value,
            pytest.approx(-paired_test.ci_high),
        )
        t = gains(differences, "t")
        assert (paired_test.ci_low, paired_test.ci_high) == pytest.approx((t.ci_low, t.ci_high), abs=0.15)


@both
@settings(max_examples=40)
@given(differences=six_or_eight, alpha=st.sampled_from([0.05, 0.02, 0.0625, 0.3]), is_looked_at=st.booleans())
def test_p_is_below_the_level_exactly_where_the_interval_excludes_zero(
    test: str, differences: list[float], alpha: float, is_looked_at: bool
) -> None:
    looks = ((4, 0.2), (len(differences), 0.7)) if is_looked_at else None
    paired_test = gains(differences, test, alpha=alpha, looks=looks)
    assume(abs(paired_test.p_value / alpha - 1) > 1e-6 or test != "t")
    assert (paired_test.p_value < alpha) == (not paired_test.ci_low <= 0 <= paired_test.ci_high)
    assert paired_test.significant == (paired_test.ci_low > 0)
    assert paired_test.is_worse == (paired_test.ci_high < 0)
    assert (paired_test.alpha, paired_test.confidence) == (alpha, 1 - alpha)


def test_looks_at_t_are_judged_by_exact_boundaries() -> None:
    differences = [0.3, 0.1, 0.5, 0.2, 0.25, 0.15, -0.05, 0.4]
    looks = ((4, 0.2), (8, 0.8))
    plain = stats.ttest_1samp(differences, 0)
    paired_test = gains(differences, "t", looks=looks)
    assert paired_test.p_value == pytest.approx(repeated_p(looks, plain.pvalue))
    interval = plain.confidence_interval(1 - boundaries(looks, 0.05)[-1])
    assert (paired_test.ci_low, paired_test.ci_high) == pytest.approx((interval.low, interval.high), rel=1e-4)
    assert plain.pvalue / 0.8 < paired_test.p_value < plain.pvalue / 0.6
    assert gains(differences, "t", looks=((8, 1.0),)) == gains(differences, "t")


def test_looks_at_signs_spend_what_each_look_may() -> None:
    differences = [0.3, 0.1, 0.5, 0.2, 0.25, 0.15, -0.05, 0.4]
    paired_test = gains(differences, "sign_flip", looks=((4, 0.2), (8, 0.6)))
    # the second look has four tenths of the level to itself
    single_test = gains(differences, "sign_flip", alpha=0.05 * 0.4)
    assert paired_test.p_value == pytest.approx(single_test.p_value / 0.4)
    assert (paired_test.ci_low, paired_test.ci_high) == (single_test.ci_low, single_test.ci_high)
    empty_test = gains(differences, "sign_flip", looks=((4, 0.6), (8, 0.6)))
    assert numbers_of(empty_test)[1:] == NOTHING[1:]


SECOND = [0.1, -0.2, 0.4, 0.3, 0.05]
FIRST = [0.3, 0.1, 0.5, 0.2, 0.25, -0.15, -0.05, 0.4]


def one_sided(differences: list[float], test: str, alternative: str) -> float:
    if test == "t":
        return float(stats.ttest_1samp(differences, 0, alternative=alternative).pvalue)
    flips = {"permutation_type": "samples", "n_resamples": np.inf, "vectorized": True}
    return float(stats.permutation_test((differences,), np.mean, alternative=alternative, **flips).pvalue)


def combined_p(stages: list[list[float]], test: str, alternative: str = "greater") -> float:
    """Return the one-sided p of stages by the inverse normal method, with squared weights 1 : 2 : 4."""
    scores = [stats.norm.isf(one_sided(stage, test, alternative)) for stage in stages]
    weights = np.sqrt([1.0, 2.0, 4.0][: len(stages)])
    return float(stats.norm.sf(np.dot(weights, scores) / math.sqrt((weights**2).sum())))


@both
def test_added_pairs_are_combined_by_the_inverse_normal_method_with_doubling_weights(test: str) -> None:
    first = [d + 0.001 * i for i, d in enumerate(FIRST)]
    second = [d + 0.0007 * i for i, d in enumerate(SECOND)]
    third = [d + 0.1 for d in second]
    earlier_stages = [StageDifferences(differences=tuple(first)), StageDifferences(differences=tuple(second))]
    paired_test = gains(third, test, earlier=earlier_stages, alpha=0.1)
    assert paired_test.p_value == pytest.approx(2 * combined_p([first, second, third], test), rel=1e-6)
    weighted_p = stats.combine_pvalues(
        [one_sided(stage, test, "greater") for stage in (first, second, third)],
        method="stouffer",
        weights=np.sqrt([1, 2, 4]),
    )
    assert paired_test.p_value == pytest.approx(2 * weighted_p.pvalue, rel=1e-6)
    assert paired_test.n_pairs == 18
    pooled_test = gains([*first, *second, *third], test)
    assert paired_test.gain == pooled_test.gain
    for end, alternative, out in (
        (paired_test.ci_low, "greater", 1e-4),
        (paired_test.ci_high, "less", -1e-4),
    ):
        ins, outs = (
            [shifted(stage, shift - end) for stage in (first, second, third)] for shift in (-out, out)
        )
        assert combined_p(ins, test, alternative) > 0.05 > combined_p(outs, test, alternative)


@both
@given(first=six_or_eight, second=samples, has_looks=st.booleans())
@settings(max_examples=30, deadline=None)
def test_combined_p_and_interval_never_disagree(
    test: str, first: list[float], second: list[float], has_looks: bool
) -> None:
    looks = ((4, 0.2), (len(first), 0.7)) if has_looks else None
    paired_test = gains(second, test, earlier=[StageDifferences(differences=tuple(first), looks=looks)])
    assert paired_test.significant == (paired_test.ci_low > 0)
    assert paired_test.is_worse == (paired_test.ci_high < 0)
    assert paired_test.ci_low <= paired_test.gain <= paired_test.ci_high
    mirrored_test = gains(
        [-d for d in second],
        test,
        direction="minimize",
        earlier=[StageDifferences(differences=tuple(-d for d in first), looks=looks)],
    )
    assert mirrored_test == paired_test


def test_a_stage_that_was_looked_at_on_the_way_counts_with_its_repeated_p() -> None:
    looks = ((4, 0.2), (8, 0.7))
    paired_test = gains(SECOND, "t", earlier=[StageDifferences(differences=tuple(FIRST), looks=looks)])
    earlier_p = repeated_p(looks, stats.ttest_1samp(FIRST, 0).pvalue) / 2
    second_p = stats.ttest_1samp(SECOND, 0, alternative="greater").pvalue
    score = (stats.norm.isf(earlier_p) + math.sqrt(2) * stats.norm.isf(second_p)) / math.sqrt(3)
    assert paired_test.p_value == pytest.approx(2 * stats.norm.sf(score))
    plain = gains(SECOND, "t", earlier=[StageDifferences(differences=tuple(FIRST))])
    assert plain.p_value < paired_test.p_value


@pytest.mark.parametrize("sign", [1, -1])
def test_stages_that_contradict_each_other_show_nothing(sign: int) -> None:
    # two pairs leave no doubt, and twenty say little, but so large that the mean is on their side
    strong = (sign * 100.0, sign * 100.0001)
    weak = [sign * (-30.0 + 200 * (-1) ** i) for i in range(20)]
    assert combined_p([list(strong), weak], "t", "greater" if sign > 0 else "less") < 0.05
    paired_test = gains(weak, "t", earlier=[StageDifferences(differences=strong)])
    assert sign * paired_test.gain < 0 and paired_test.p_value == 1
    assert paired_test.ci_low <= paired_test.gain <= paired_test.ci_high
    assert not paired_test.significant


@both
def test_one_pair_that_was_added_changes_the_estimate_alone(test: str) -> None:
    paired_test = gains([0.2], test, earlier=[StageDifferences(differences=tuple(FIRST))])
    assert paired_test.n_pairs == 9
    assert numbers_of(paired_test) == (gains([*FIRST, 0.2], test).gain, *numbers_of(gains(FIRST, test))[1:])


@both
def test_a_stage_without_any_difference_speaks_for_neither_side(test: str) -> None:
    strong = [0.3, 0.31, 0.29, 0.33, 0.27, 0.32, 0.28, 0.3001, 0.34]
    paired_test = gains(strong, test, earlier=[StageDifferences(differences=(0.0,) * 8)])
    one_sided_p = one_sided(strong, test, "greater")
    assert paired_test.p_value == pytest.approx(
        2 * stats.norm.sf(math.sqrt(2 / 3) * stats.norm.isf(one_sided_p))
    )
    empty_test = gains([0.0] * 4, test, earlier=[StageDifferences(differences=(0.0,) * 8)])
    assert numbers_of(empty_test) == NOTHING
    assert empty_test.n_pairs == 12


@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.0625, 0.004])
def test_the_fewest_pairs_are_those_that_can_show_something(alpha: float) -> None:
    min_pairs = min_significant_pairs("sign_flip", alpha)
    assert gains([1.0 + 0.1 * i for i in range(min_pairs)], "sign_flip", alpha=alpha).significant
    assert not gains([1.0 + 0.1 * i for i in range(min_pairs - 1)], "sign_flip", alpha=alpha).significant
    assert min_significant_pairs("t", alpha) == 2
    assert gains([1.0, 1.0001], "t", alpha=alpha).significant


def test_what_keeps_most_of_a_gain_is_told_by_students_test() -> None:
    draw = np.random.default_rng(8)
    baseline = draw.standard_normal(8)
    winner = baseline + 1 + 0.1 * draw.standard_normal(8)
    simple = baseline + 0.9 + 0.1 * draw.standard_normal(8)
    for keep in (0.0, 0.7, 1.0):
        expected = stats.ttest_1samp(simple - keep * winner - (1 - keep) * baseline, 0)
        paired_test = non_inferiority_test(
            simple.tolist(), winner.tolist(), baseline.tolist(), keep=keep, test="t", direction="maximize"
        )
        assert paired_test.p_value == pytest.approx(expected.pvalue)
        assert paired_test.significant == (keep < 1)
    minimized_test = non_inferiority_test(
        (-simple).tolist(), (-winner).tolist(), (-baseline).tolist(), keep=0.7, test="t", direction="minimize"
    )
    assert minimized_test.significant and minimized_test.gain == pytest.approx(
        (simple - 0.7 * winner - 0.3 * baseline).mean()
    )


def test_what_is_the_same_in_all_arms_keeps_nothing() -> None:
    equal_values = [100.1, 100.2, 100.7]
    paired_test = non_inferiority_test(
        equal_values, equal_values, equal_values, keep=0.7, test="t", direction="maximize"
    )
    assert (paired_test.gain, paired_test.p_value) == (0, 1)


def test_one_added_pair_that_turns_the_sign_shows_nothing() -> None:
    negative_stage = StageDifferences(
        differences=(-0.01, -0.0101, -0.0102, -0.0099, -0.01, -0.0101, -0.0102, -0.0099)
    )
    result = paired_test([0.2], test="t", direction="maximize", alpha=0.005, earlier=[negative_stage])
    assert result.gain > 0 and result.p_value == 1.0 and not result.significant


@pytest.mark.parametrize("exploded", [1e3, 1e8, 1e12])
def test_a_run_that_explodes_makes_no_ties_of_the_others(exploded: float) -> None:
    gains = [0.11, 0.09, 0.12, 0.1, 0.08, 0.13, 0.1, exploded]
    assert paired_test(gains, test="sign_flip", direction="maximize").p_value == pytest.approx(2 / 2**8)


# ---- looks, and the shape of differences


@given(st.lists(coarse, min_size=6, max_size=16))
def test_skewness_is_scipys_in_its_standard_errors(differences: list[float]) -> None:
    assume(np.ptp(differences) > 1e-3)
    n = len(differences)
    error = math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    expected = stats.skew(differences, bias=False) / error
    assert skewness(differences) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_few_differences_and_equal_ones_have_no_skewness() -> None:
    assert skewness([0.1, 0.2, 0.3, 0.4, 0.9]) is None
    assert skewness([0.3] * 8) is None
    assert skewness([-2.0, -1.0, -0.5, 0.5, 1.0, 2.0]) == pytest.approx(0.0, abs=1e-12)

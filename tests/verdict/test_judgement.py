"""What is said of values that exist, beside SciPy's tests on random data sets."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tempopt.verdict.judgement import ValuesBySeed, compare_values
from tempopt.verdict.set_comparison import Variant
from tempopt.verdict.statistics.failure_rates import unpaired_failure_rates
from tempopt.verdict.statistics.paired_tests import Direction
from tempopt.verdict.statistics.welch import welch_test

DIRECTIONS = st.sampled_from(["maximize", "minimize"])
VALUES = st.integers(-100_000, 100_000).map(lambda number: number / 1000)
RUNS = st.dictionaries(st.integers(0, 12).map(str), VALUES, min_size=2, max_size=12)
OTHER_RUNS = st.dictionaries(st.integers(12, 24).map(str), VALUES, min_size=2, max_size=12)


def variants_of(values: dict[str, ValuesBySeed], direction: Direction = "maximize") -> tuple[Variant, ...]:
    return compare_values(values, next(iter(values)), direction)[0].variants


def numbered(*values: float | None) -> ValuesBySeed:
    return dict(zip(map(str, count()), values, strict=False))


@settings(max_examples=150)
@given(st.lists(RUNS | OTHER_RUNS, min_size=2, max_size=4), DIRECTIONS)
def test_gain_interval_and_p_are_scipys(runs: list[ValuesBySeed], direction: Direction) -> None:
    values = {f"v{index}": by_seed for index, by_seed in enumerate(runs)}
    sign, reference = (1 if direction == "maximize" else -1), values["v0"]
    alpha = 0.05 / (len(runs) - 1)
    for variant in variants_of(values, direction):
        arm = values[variant.name]
        common = sorted(arm.keys() & reference.keys())
        assert variant.answer is not None
        test = variant.answer.paired
        if is_paired := len(common) > 1:
            samples = [[runs_of[seed] for seed in common] for runs_of in (arm, reference)]
            differences = np.subtract(*samples)
        else:
            samples = [list(arm.values()), list(reference.values())]
        assert test.gain == pytest.approx(sign * (np.mean(samples[0]) - np.mean(samples[1])), abs=1e-9)
        assert (test.n_pairs, test.sample_sizes) == (
            (len(common), None) if is_paired else (0, (len(arm), len(reference)))
        )
        is_unvaried = any(len(set(runs_of.values())) == 1 for runs_of in (arm, reference))
        if is_unvaried or (is_paired and np.ptp(differences) < 1e-9):
            continue  # without noise SciPy has no number
        expected = stats.ttest_rel(*samples) if is_paired else stats.ttest_ind(*samples, equal_var=False)
        ends = sorted(sign * end for end in expected.confidence_interval(1 - alpha))
        assert test.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
        assert (test.ci_low, test.ci_high) == pytest.approx(ends, rel=1e-6, abs=1e-9)
        assert variant.better == bool(expected.pvalue < alpha and test.gain > 0)
        assert variant.worse == bool(expected.pvalue < alpha and test.gain < 0)


@pytest.mark.parametrize("other_seeds", [False, True])
@pytest.mark.parametrize("new", [[0.9] * 12, [0.9 + seed / 1000 for seed in range(12)]])
def test_equal_values_of_all_runs_show_nothing(new: list[float], other_seeds: bool) -> None:
    seeds = [f"{'x' * other_seeds}{seed}" for seed in range(12)]
    values = {"old": numbered(*[0.1] * 12), "new": dict(zip(seeds, new, strict=True))}
    comparison, seeds_needed = compare_values(values, "old", "maximize")
    answer = comparison.variants[0].answer
    assert answer is not None and answer.paired.gain == pytest.approx(0.8, abs=0.01)
    assert (answer.paired.p_value, answer.paired.ci_high) == (1, math.inf)
    assert comparison.outcome == "not_shown" and seeds_needed == {"new": None}
    assert comparison.unvaried == (["old", "new"] if len(set(new)) == 1 else ["old"])


def test_one_value_of_a_sample_shows_nothing() -> None:
    test = welch_test([9.0], [1.0, 2.0, 3.0], direction="maximize", alpha=0.05)
    assert (test.gain, test.p_value, test.ci_low, test.ci_high) == (7, 1, -math.inf, math.inf)
    assert welch_test([9.0], [1.0] * 50, direction="maximize", alpha=0.05).p_value == 1


@given(st.lists(st.booleans(), min_size=1, max_size=15), st.lists(st.booleans(), min_size=1, max_size=15))
def test_failures_on_different_seeds_are_compared_by_fishers_test(
    failed: list[bool], reference: list[bool]
) -> None:
    rates = unpaired_failure_rates(failed, reference, alpha=0.05)
    table = [[sum(flags), len(flags) - sum(flags)] for flags in (failed, reference)]
    assert rates.p_value == pytest.approx(stats.fisher_exact(table).pvalue)
    assert (rates.arm.failed, rates.reference.runs) == (sum(failed), len(reference))


@pytest.mark.parametrize("is_paired", [True, False])
@settings(max_examples=50)
@given(st.integers(0, 10_000))
def test_the_seeds_needed_are_the_fewest_with_80_percent_power(is_paired: bool, random_seed: int) -> None:
    draws = np.random.default_rng(random_seed)
    arm, reference = (draws.normal(mean, sd, 6) for mean, sd in ((0.5, 1), (0, 2)))
    seeds = [f"{'' if is_paired else name}{index}" for name in ("a", "b") for index in range(6)]
    values = {
        "old": dict(zip(seeds[6:], reference.tolist(), strict=True)),
        "new": dict(zip(seeds[:6], arm.tolist(), strict=True)),
    }
    comparison, seeds_needed = compare_values(values, "old", "maximize")
    answer, size = comparison.variants[0].answer, seeds_needed["new"]
    assert answer is not None
    if answer.paired.gain <= 0 or answer.paired.significant:
        assert size is None
        return
    squares = [arm.var(ddof=1), reference.var(ddof=1)]
    if is_paired:
        squares = [(arm - reference).var(ddof=1)]

    def power(size: int) -> float:
        freedom = (size - 1) * sum(squares) ** 2 / sum(square**2 for square in squares)
        shift = answer.paired.gain / math.sqrt(sum(squares) / size)
        return float(stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, shift))

    if size is None:
        assert power(100_000) < 0.8
    elif size < 3000:  # beyond, SciPy's series loses digits
        assert power(size - 1) < 0.8 + 1e-6 and power(size) > 0.8 - 1e-6


def test_a_failed_run_counts_with_the_worst_value_of_the_two() -> None:
    (variant,) = variants_of({"old": numbered(3, 1, 2, 4), "new": numbered(5, None, 6, 7)})
    (filled_variant,) = variants_of({"old": numbered(3, 1, 2, 4), "new": numbered(5, 1, 6, 7)})
    assert variant.answer is not None and filled_variant.answer is not None
    assert variant.answer.paired == filled_variant.answer.paired
    assert (variant.failed, variant.reference_failed, variant.runs) == (1, 0, 4)


@pytest.mark.parametrize("prefix", ["", "b"])
def test_a_gain_of_what_fails_more_often_does_not_count(prefix: str) -> None:
    old: ValuesBySeed = {f"{index}": index / 100 for index in range(20)}
    new = {f"{prefix}{index}": 9 + index / 100 for index in range(19)}
    (variant,) = variants_of({"old": old, "new": new | {f"{prefix}19": None}})
    assert variant.answer is not None and variant.answer.paired.significant
    assert not variant.better and not variant.worse


def test_of_samples_the_share_that_fails_counts() -> None:
    old: ValuesBySeed = {f"{index}": index / 100 for index in range(3)} | {"3": None}
    new = {f"b{index}": 9 + index / 100 for index in range(30)} | {"b30": None, "b31": None}
    (variant,) = variants_of({"old": old, "new": new})
    assert variant.better


@pytest.mark.parametrize("prefix", ["", "b"])
def test_what_is_shown_to_fail_more_often_is_worse(prefix: str) -> None:
    old: ValuesBySeed = {f"{index}": 1.0 for index in range(10)}
    new = {f"{prefix}{index}": None for index in range(9)} | {f"{prefix}9": 1.0}
    (variant,) = variants_of({"old": old, "new": new})
    assert variant.fails_more and variant.worse
    (variant,) = variants_of({"new": new, "old": old})
    assert not variant.fails_more and not variant.worse


def test_equal_variants_are_seldom_told_apart() -> None:
    draws = np.random.default_rng(0)
    outcomes = [
        compare_values({name: numbered(*draws.normal(size=8)) for name in "abc"}, "a", "maximize")[0].outcome
        for _ in range(1000)
    ]
    # each side has half of the level; 25 expected, and 40 is three standard deviations above
    assert outcomes.count("better") < 40 and outcomes.count("worse") < 40

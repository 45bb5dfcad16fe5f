"""How much a comparison can show, beside simulated ones and scipy's own distributions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tempopt.verdict.statistics.power import detectable_effect, deviation_interval, paired_power, pairs_needed


@pytest.mark.parametrize(("effect", "pairs", "alpha"), [(0.0, 8, 0.05), (1.0, 8, 0.04), (0.6, 16, 0.04)])
def test_power_is_the_share_of_simulated_tests_that_show_the_gain(effect, pairs, alpha):
    draws = np.random.default_rng(0).normal(effect, 1.0, (40_000, pairs))
    t = draws.mean(axis=1) / draws.std(axis=1, ddof=1) * math.sqrt(pairs)
    simulated_power = (t > stats.t.ppf(1 - alpha / 2, pairs - 1)).mean()
    assert paired_power(effect, pairs, alpha=alpha) == pytest.approx(simulated_power, abs=0.01)


@given(pairs=st.integers(2, 60), alpha=st.floats(0.001, 0.2), power=st.floats(0.3, 0.99))
def test_the_detectable_effect_has_just_that_power(pairs, alpha, power):
    effect = detectable_effect(pairs, alpha=alpha, power=power)
    assert paired_power(effect, pairs, alpha=alpha) == pytest.approx(power, abs=1e-6)


@given(effect=st.floats(0.05, 8), alpha=st.floats(0.001, 0.1))
def test_one_pair_fewer_than_needed_is_too_few(effect, alpha):
    pairs = pairs_needed(effect, alpha=alpha)
    assert pairs is not None
    assert paired_power(effect, pairs, alpha=alpha) >= 0.8
    assert pairs == 2 or paired_power(effect, pairs - 1, alpha=alpha) < 0.8


def test_a_gain_too_small_for_any_number_of_pairs():
    assert pairs_needed(1e-4, alpha=0.04) is None


def test_no_number_where_the_series_of_the_distribution_gives_up():
    assert paired_power(1e6, 8, alpha=0.04) == pytest.approx(1.0)
    assert paired_power(500.0, 1000, alpha=1e-6) == pytest.approx(1.0)


@pytest.mark.parametrize(("freedom", "confidence"), [(2, 0.8), (7, 0.9)])
def test_the_interval_of_a_deviation_holds_the_truth_as_often_as_it_says(freedom, confidence):
    draws = np.random.default_rng(1).normal(0.0, 3.0, (5_000, freedom + 1)).std(axis=1, ddof=1)
    is_covered = [
        low <= 3.0 <= high
        for low, high in (deviation_interval(d, freedom, confidence=confidence) for d in draws)
    ]
    assert np.mean(is_covered) == pytest.approx(confidence, abs=0.02)

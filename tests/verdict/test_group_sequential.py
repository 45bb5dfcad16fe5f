"""Boundaries of sequential t tests against simulation, geometry on the sphere, and published constants."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tempopt.verdict.statistics.group_sequential import (
    Look,
    alpha_spending,
    boundaries,
    increment,
    nominal_p,
    repeated_p,
    repeated_score,
)

FOUR: tuple[Look, ...] = ((4, 0.125), (8, 0.35), (12, 0.65), (16, 1.0))
SEQUENCES: tuple[tuple[Look, ...], ...] = (
    ((4, 0.1), (8, 0.4), (12, 1.0)),
    ((2, 0.2), (3, 0.5), (4, 1.0)),
    ((3, 0.05), (4, 0.3), (9, 0.4), (11, 1.0)),
    ((2, 0.3), (4, 0.6), (7, 0.8)),
)
sequences = pytest.mark.parametrize("looks", SEQUENCES)


def t_statistics(differences: np.ndarray, n: int) -> np.ndarray:
    first = differences[:, :n]
    return np.asarray(first.mean(axis=1) / (first.std(axis=1, ddof=1) / math.sqrt(n)))


def upper(p_value: float, n: int) -> float:
    return float(stats.t.isf(p_value / 2, n - 1))


@sequences
@pytest.mark.parametrize("alpha", [0.05, 0.6])
def test_each_look_is_the_first_that_crosses_a_side_as_often_as_it_may(
    looks: tuple[Look, ...], alpha: float
) -> None:
    studies = 200_000
    differences = np.random.default_rng(5).standard_normal((studies, looks[-1][0]))
    going_on, previous_share = np.ones(studies, dtype=bool), 0.0
    for (n, share), p_value in zip(looks, boundaries(looks, alpha), strict=True):
        has_crossed = going_on & (t_statistics(differences, n) > upper(p_value, n))
        going_on &= ~has_crossed
        expected_rate = alpha / 2 * (share - previous_share)
        previous_share = share
        assert has_crossed.mean() == pytest.approx(
            expected_rate, abs=4.5 * math.sqrt(expected_rate / studies)
        )


def test_the_second_of_two_looks_is_that_of_the_area_on_a_sphere() -> None:
    # Directions of three differences are points on a sphere. Their cosine with (1, 1, 1) is uniform
    # (Archimedes), and so is the angle around it: two nested midpoint rules instead of the chain of cosines.
    first, total_share, rows = 0.3, 0.7, 1000
    width = 0.2 / rows
    cosine = 1 - (np.arange(rows)[:, None] + 0.5) * width
    angle = (np.arange(5000) + 0.5) / 5000 * 2 * math.pi
    cosine_part, sine_part = np.sqrt(1 - cosine**2) * np.cos(angle), np.sqrt(1 - cosine**2) * np.sin(angle)
    x_one = cosine / math.sqrt(3) + cosine_part / math.sqrt(2) + sine_part / math.sqrt(6)
    x_two = cosine / math.sqrt(3) - cosine_part / math.sqrt(2) + sine_part / math.sqrt(6)
    t_of_two = (x_one + x_two) / np.abs(x_one - x_two)
    for alpha in (0.05, 0.2):
        going_on = t_of_two <= upper(alpha * first, 2)
        area = np.concatenate([[0.0], np.cumsum(going_on.mean(axis=1)) * width / 2])
        x = 1 - width * float(np.interp(alpha / 2 * (total_share - first), area, np.arange(rows + 1)))
        p_value = 2 * float(stats.t.sf(x * math.sqrt(2 / (1 - x * x)), 2))
        assert boundaries(((2, first), (3, total_share)), alpha)[1] == pytest.approx(p_value, rel=2e-4)


@pytest.mark.parametrize(
    ("nominals", "name"), [((0.02939, 0.02939), "Pocock"), ((0.00517, 0.04799), "O'Brien and Fleming")]
)
def test_with_many_pairs_two_looks_have_the_published_constants(
    nominals: tuple[float, float], name: str
) -> None:
    # Jennison and Turnbull 2000, tables 2.1 and 2.3: C_P(2, 0.05) = 2.178, C_B(2, 0.05) = 1.977
    first, second = boundaries(((300, nominals[0] / 0.05), (600, 1.0)), 0.05)
    assert first == pytest.approx(nominals[0], rel=1e-6)
    assert second == pytest.approx(nominals[1], rel=5e-3), name


@pytest.mark.parametrize(
    "steps", [(2, 3), (2, 4), (3, 6), (4, 8), (5, 6), (5, 40), (8, 16), (30, 60), (60, 64), (2, 4, 5, 7, 11)]
)
def test_looks_that_spend_nothing_leave_the_plain_t_test(steps: tuple[int, ...]) -> None:
    # so a transition keeps the distribution that each look has for itself
    for alpha, allowed in ((1e-5, 3e-4), (0.001, 1e-4), (0.05, 1e-4), (0.5, 1e-4)):
        looks = (*((n, 1e-12) for n in steps[:-1]), (steps[-1], 1.0))
        assert boundaries(looks, alpha)[-1] == pytest.approx(alpha, rel=allowed)


@sequences
def test_an_earlier_look_knows_nothing_of_later_ones(looks: tuple[Look, ...]) -> None:
    for end in range(1, len(looks)):
        assert boundaries(looks[:end], 0.05) == pytest.approx(boundaries(looks, 0.05)[:end], rel=1e-12)


@pytest.mark.parametrize("alpha", [1e-8, 0.001, 0.05, 0.3, 0.9])
def test_one_look_is_the_plain_t_test(alpha: float) -> None:
    assert boundaries(((8, 1.0),), alpha) == pytest.approx((alpha,), rel=1e-9)
    assert nominal_p(((8, 1.0),), alpha) == alpha
    assert repeated_p(((8, 1.0),), alpha) == pytest.approx(alpha, rel=1e-12)
    assert boundaries(((8, 0.3),), alpha) == pytest.approx((0.3 * alpha,), rel=1e-6)


@given(st.sampled_from((*SEQUENCES, FOUR)), st.floats(1e-7, 0.7))
def test_repeated_p_and_the_level_at_the_last_look_undo_each_other(
    looks: tuple[Look, ...], alpha: float
) -> None:
    assert repeated_p(looks, nominal_p(looks, alpha)) == pytest.approx(alpha, rel=1e-9)
    assert nominal_p(looks, alpha) == pytest.approx(boundaries(looks, alpha)[-1], rel=1e-4)


@given(st.sampled_from((*SEQUENCES, FOUR)), st.floats(-6, 7), st.floats(1e-4, 3))
def test_more_evidence_is_never_less(looks: tuple[Look, ...], score: float, increment: float) -> None:
    low_score, high_score = repeated_score(looks, score), repeated_score(looks, score + increment)
    assert low_score < high_score or low_score == high_score == -math.inf or high_score == 7.5


def test_a_repeated_p_value_is_one_whenever_a_test_is_ended() -> None:
    # the least of all looks is below a level as often as that, however one chooses among them
    studies = 20_000
    differences = np.random.default_rng(6).standard_normal((studies, 16))
    min_p_values = np.ones(studies)
    for end in range(1, 5):
        n = FOUR[end - 1][0]
        scores = -stats.norm.ppf(stats.t.sf(t_statistics(differences, n), n - 1))
        repeated_scores = [repeated_score(FOUR[:end], score) for score in scores]
        min_p_values = np.minimum(min_p_values, stats.norm.sf(repeated_scores))
    for level in (0.02, 0.1, 0.5, 0.8):
        # the shares end at 1, so the whole level is used
        assert np.mean(min_p_values <= level) == pytest.approx(level, abs=4.5 * math.sqrt(level / studies))


@pytest.mark.parametrize("effect", [0.0, 1.0])
@pytest.mark.parametrize("futile", [False, True])
def test_repeated_intervals_hold_the_truth_wherever_a_test_ends(effect: float, futile: bool) -> None:
    studies = 100_000
    differences = np.random.default_rng(7).standard_normal((studies, 16)) + effect
    going_on, num_covered, num_crossed = np.ones(studies, dtype=bool), 0, 0
    for end, (n, _) in enumerate(FOUR, start=1):
        mean = differences[:, :n].mean(axis=1)
        error = differences[:, :n].std(axis=1, ddof=1) / math.sqrt(n)
        reach = upper(nominal_p(FOUR[:end], 0.05), n) * error
        ends = going_on & ((np.abs(mean) > reach) | (futile & (mean <= 0)) | (n == 16))
        num_covered += int((ends & (np.abs(mean - effect) <= reach)).sum())
        num_crossed += int((ends & (np.abs(mean) > reach)).sum())
        going_on &= ~ends
    allowed = 4.5 * math.sqrt(0.05 * 0.95 / studies)
    assert num_covered / studies >= 0.95 - allowed
    if effect == 0 and not futile:
        assert (num_covered / studies, num_crossed / studies) == pytest.approx((0.95, 0.05), abs=allowed)
    if effect == 1:
        assert num_crossed / studies > 0.9


def test_a_look_at_no_more_pairs_spends_what_the_one_before_left() -> None:
    looks_twice, looks_once = ((4, 0.2), (8, 0.4), (8, 0.7), (12, 1.0)), ((4, 0.2), (8, 0.7), (12, 1.0))
    assert boundaries(looks_twice, 0.05)[2:] == pytest.approx(boundaries(looks_once, 0.05)[1:], rel=1e-9)
    assert boundaries(looks_twice, 0.05)[:2] == pytest.approx(boundaries(looks_twice[:2], 0.05), rel=1e-9)
    assert increment(looks_twice[:3]) == pytest.approx(0.5)
    assert increment(looks_twice) == pytest.approx(0.3)
    assert increment(((4, 0.2),)) == 0.2


def test_a_look_at_one_pair_leaves_its_share_to_the_next() -> None:
    assert boundaries(((1, 0.1), (4, 0.3), (8, 1.0)), 0.05) == pytest.approx(
        (0.0, *boundaries(((4, 0.3), (8, 1.0)), 0.05)), rel=1e-9
    )


def test_a_look_that_may_spend_nothing_shows_nothing() -> None:
    looks = ((4, 0.4), (8, 0.4))
    assert boundaries(looks, 0.05)[1] == nominal_p(looks, 0.05) == 0
    assert repeated_p(looks, 1e-12) == 1
    assert repeated_p(((1, 0.5),), 1e-6) == 1 and nominal_p(((1, 0.5),), 0.05) == 0


def test_p_values_beyond_the_grid_stay_on_the_safe_side() -> None:
    assert 0 < repeated_p(FOUR, 0.0) < 1e-12
    assert repeated_p(FOUR, 1.0) == 1


@given(st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=50)
def test_the_level_is_spent_bit_by_bit_and_whole_in_the_end(pairs: int, max_pairs: int) -> None:
    assert 0 < alpha_spending(pairs, max_pairs) <= 1
    assert (alpha_spending(pairs, max_pairs) == 1) == (pairs >= max_pairs)
    assert alpha_spending(pairs, max_pairs) <= alpha_spending(pairs + 1, max_pairs)


def test_the_level_is_spent_by_the_power_that_was_chosen() -> None:
    assert [alpha_spending(n, 16) for n in (4, 8, 12, 16)] == pytest.approx([1 / 8, 0.5**1.5, 0.75**1.5, 1])

"""Races of finalists in made-up worlds: who is trained on which seeds, and what tests say of the pair."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pooled_order import TESTS, WORLDS, Array, World, fitted, race, shown
from tempopt.statistics.paired_tests import paired


def drawn(world: World = WORLDS["no gain"], *, finalists: int = 3, draw: int = 0) -> Array:
    return world.draw(finalists, 4, np.random.default_rng(draw))


def test_whoever_is_clearly_worse_has_two_seeds_and_the_winner_stays_beside_tau_one() -> None:
    assert race(np.array([[3.0, 3.1, 3.0, 3.2], [0.0, 0.1, 0.1, 0.0]])) == [2, 2]
    assert race(np.array([[0.0, 0.1, 0.1, 0.0], [-3.0, -3.1, -3.0, -3.1], [3.0, 3.1, 3.0, 3.2]])) == [4, 2, 4]


def test_of_two_configurations_all_tests_are_the_paired_one() -> None:
    for draw in range(50):
        values = drawn(World(gain=2.0), finalists=1, draw=draw)
        trained = race(values)
        common = min(trained)
        expected = paired([*(values[0] - values[1])[:common]], test="t", direction="maximize").significant
        assert {name: found == 1 for name, found in shown(values, trained).items()} == dict.fromkeys(
            TESTS, expected
        )


def test_on_complete_seeds_the_fit_is_the_two_way_table() -> None:
    values = drawn()
    estimate, factor, variance, freedom = fitted(values, [4] * 4)
    rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    assert freedom == 9 and factor == pytest.approx(2 / 4)
    assert variance == pytest.approx((rest**2).sum() / 9)
    assert estimate == pytest.approx(values[0].mean() - values[-1].mean())


def test_seeds_that_are_missing_leave_what_gauss_and_markov_say() -> None:
    # with two configurations the seeds of one alone say nothing of the difference
    values = drawn(finalists=1)
    estimate, factor, _, freedom = fitted(values, [4, 2])
    assert estimate == pytest.approx((values[0] - values[1])[:2].mean())
    assert (factor, freedom) == (pytest.approx(1.0), 1)

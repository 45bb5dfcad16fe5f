"""Worlds that nothing was chosen on: what is said of them is true, and comparisons are paired by draw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.simulated.clock import Job
from benchmarks.simulated.unseen import KINDS, WORLDS, UnseenWorld
from benchmarks.unseen_worlds import EndTuner, difference
from tempopt.sampling.unit_cube import count_values, from_unit

_SEEDS = 1500
_QUIET = [kind.name for kind in KINDS if not kind.heavy]


def draw_params(world: UnseenWorld, count: int) -> list[dict[str, object]]:
    rng, space = np.random.default_rng(5), world.spec.space()
    values = (
        {name: from_unit(distribution, rng.random()) for name, distribution in space.items()}
        for _ in range(count)
    )
    return [world.spec.parameters("search", values) for values in values]


@pytest.mark.parametrize("name", WORLDS)
def test_1_is_the_best_set_0_is_the_first_one_and_nothing_is_better(name: str) -> None:
    for draw in (0, 1):
        world = WORLDS[name](draw)
        assert world.worth(world.best_set) == pytest.approx(1.0)
        assert world.worth(world.first) == pytest.approx(0.0)
        assert world.truth(draw_params(world, 200)).max() <= 1.0 + 1e-9


@pytest.mark.parametrize("name", _QUIET)
def test_the_truth_is_the_mean_over_seeds(name: str) -> None:
    world = WORLDS[name](0)
    params = draw_params(world, 1)[0]
    ends = [world.train(params, seed).final[-1] for seed in range(_SEEDS)]
    error = np.std(ends, ddof=1) / math.sqrt(_SEEDS)
    assert abs(np.mean(ends) - world.worth(params)) < 4 * error


def test_noise_is_as_wide_as_it_is_said_to_be() -> None:
    world = WORLDS["noise 1"](0)
    params, other_params = draw_params(world, 2)
    ends = np.array(
        [[world.train(e, seed).final[-1] for e in (params, other_params)] for seed in range(_SEEDS)]
    )
    # a seed adds half as much to both
    assert np.std(ends[:, 0]) == pytest.approx(math.hypot(1.0, 0.5), rel=0.1)
    assert np.std(ends[:, 0] - ends[:, 1]) == pytest.approx(math.sqrt(2.0), rel=0.1)


def test_the_classes_have_what_they_are_named_after() -> None:
    space = WORLDS["12 parameters"](0).spec.space()
    assert len(space) == 12
    assert sum(hasattr(distribution, "choices") for distribution in space.values()) == 3
    assert (
        math.prod(
            count_values(distribution) for distribution in WORLDS["1 to 3 heads"](0).spec.space().values()
        )
        == 3
    )
    edge = WORLDS["best at the edge"](1).best_set
    assert edge["temperature_init"] in (0.25, 4.0) and edge["schedule"] == "constant"
    null_world = WORLDS["τ does nothing"](0)
    fixed_params = {"lr": 1e-3, "dropout": 0.1, "schedule": "constant"}
    cold, hot = ({**fixed_params, "temperature_init": tau} for tau in (0.3, 3.0))
    assert null_world.worth(cold) == null_world.worth(hot)


def test_beyond_the_cliff_and_beyond_the_best_temperature_it_is_worse_by_what_is_said() -> None:
    for name, min_drop in (("a cliff, little noise", 1.0), ("collapses", 0.3)):
        worlds = (WORLDS[name](draw) for draw in range(8))
        world, lower = next(
            (w, params) for w in worlds for params in draw_params(w, 200) if w._beyond(params) > 0.2
        )
        assert world.worth(lower) < 1.0 - min_drop
        if name == "collapses":
            assert world.collapse_rate(world.first) < 0.1 < world.collapse_rate(lower)


def test_a_difference_is_paired_by_draw_and_averaged_over_classes() -> None:
    scores = {("a", 0): 1.0, ("a", 1): 2.0, ("a", 2): 3.0, ("b", 0): 5.0, ("c", 0): 9.0}
    other_scores = {("a", 0): 0.5, ("a", 1): 1.5, ("a", 2): 2.5, ("b", 0): 3.5}
    # 0.5 in each draw of one class, 1.5 in the only one of the other; "c" has no pair
    assert difference(scores, other_scores) == "+1.00 (+1.00 to +1.00)"


def test_no_more_trainings_are_begun_than_allowed() -> None:
    class EndlessTuner:
        def ask(self) -> Job:
            return Job(0, {}, seed=0)

        report = end = None

    tuner = EndTuner(EndlessTuner(), 3)
    assert [tuner.ask() is None for _ in range(5)] == [False, False, False, True, True]

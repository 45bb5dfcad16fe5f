"""Worlds made of recorded trainings: their trainings are possible ones, and as noisy as those recorded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.recorded.make import recorded_rows, table_path
from benchmarks.recorded.tasks import SEEDS, TASKS
from benchmarks.recorded.world import RecordedWorld

_CONFIGURATIONS = 400


@pytest.fixture(scope="module", params=TASKS)
def world(request: pytest.FixtureRequest) -> RecordedWorld:
    if not table_path(request.param).exists():
        pytest.skip(f"NOT TESTED: nothing was recorded of {request.param} yet.")
    return RecordedWorld(request.param)


def test_no_training_comes_to_what_none_can(world: RecordedWorld) -> None:
    for seed, parameters in enumerate(world.draw_sets(4)[:_CONFIGURATIONS]):
        training = world.train(parameters, seed)
        for values in (training.final, training.current, training.test):
            assert np.all((np.asarray(values) > 0) & (np.asarray(values) < 1))


def test_a_training_is_reproducible(world: RecordedWorld) -> None:
    parameters = world.draw_sets(4)[0]
    training, other_training = world.train(parameters, 7), RecordedWorld(world.task).train(parameters, 7)
    np.testing.assert_array_equal(training.final, other_training.final)
    assert training.test == other_training.test


def test_the_truth_is_the_mean_over_seeds(world: RecordedWorld) -> None:
    sets = world.draw_sets(4)[:_CONFIGURATIONS]
    truth = world.truth(sets)
    # a seed of a world is a recorded one by chance, so each configuration is given others
    errors = [
        world.train(params, 10 * index + seed).test - true_value
        for index, (params, true_value) in enumerate(zip(sets, truth, strict=True))
        for seed in range(10)
    ]
    assert abs(np.mean(errors)) < 0.1 * np.std(errors)


def test_good_and_poor_configurations_are_as_noisy_as_those_recorded(world: RecordedWorld) -> None:
    sets = world.draw_sets(4)[:_CONFIGURATIONS]
    truth = world.truth(sets)
    simulated_values = np.array(
        [[world.train(params, seed).test for seed in range(k, k + SEEDS)] for k, params in enumerate(sets)]
    )
    rows = sorted(
        (row for row in recorded_rows(world.task) if row["outcome"] == "complete"), key=_configuration
    )
    runs = [[row["test"] for row in group] for _, group in itertools.groupby(rows, _configuration)]
    recorded_values = np.array([run_values for run_values in runs if len(run_values) == SEEDS])
    for low, high in ((0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1)):
        bounds = np.quantile(truth, [low, high])
        simulated_subset = simulated_values[(truth >= bounds[0]) & (truth <= bounds[1])]
        mean = recorded_values.mean(axis=1)
        recorded_subset = recorded_values[(mean >= bounds[0]) & (mean <= bounds[1])]
        assert len(recorded_subset) >= 10
        ratio = _deviation(simulated_subset) / _deviation(recorded_subset)
        # where hardly any seed learns, runs of configurations that are less alike add to the noise
        assert 0.5 < ratio < 4.0, (low, high, ratio)


def _configuration(row: dict[str, int]) -> int:
    return row["configuration"]


def _deviation(runs: np.ndarray) -> float:
    """Return the standard deviation of a run about its configuration's mean."""
    return float(np.sqrt(runs.var(axis=1, ddof=1).mean()))

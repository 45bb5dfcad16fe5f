"""The surrogate is a Gaussian process, and forecasts are as sure as complete runs allow."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime
from sklearn.gaussian_process.kernels import Matern

from tempopt.sampling.surrogate import CurveExtrapolator, Observations, Surrogate

FloatArray = NDArray[np.float64]


def observe(
    features: FloatArray, seeds: Any, values: FloatArray, excess: FloatArray | float = 0.0
) -> Observations:
    """Return runs as the surrogate knows them."""
    excess_N = np.broadcast_to(np.asarray(excess, dtype=np.float64), len(values))
    return Observations(features_ND=features, seeds_N=seeds, values_N=values, excess_N=excess_N)


def runs(*, seeds: int = 3) -> Observations:
    rng = np.random.default_rng(0)
    features = rng.random((20, 2))
    values = np.sin(4 * features[:, 0]) + 0.1 * rng.standard_normal(20)
    return observe(features, np.arange(20) % seeds, values)


def predict(surrogate: Surrogate, queries: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return means and standard deviations of the values of parameter sets."""
    posterior = surrogate.posterior(queries)
    return posterior.mean_M, np.sqrt(np.maximum(np.diag(posterior.covariance()), 0.0))


@pytest.mark.parametrize("trends", [0, 1, 2])
def test_predictions_are_those_of_a_gaussian_process_by_definition(trends: int) -> None:
    rng = np.random.default_rng(0)
    features, values, seeds = rng.random((25, 3 + trends)), rng.standard_normal(25), np.arange(25) % 5
    values = values + features[:, 3:].sum(axis=1)
    excess = rng.random(25)
    surrogate = Surrogate(observe(features, seeds, values, excess), trends=trends)
    *lengths, signal, own_scale, noise, shared_scale = np.exp(surrogate.log_hyperparameters)
    factor = lengths.pop() if trends else 0.0
    weights = 1 / (1 + excess / np.var(values))
    centre, scale = np.average(values, weights=weights), np.std(values)

    def matern(left_features: FloatArray, right_features: FloatArray) -> FloatArray:
        shape: FloatArray = Matern(lengths, nu=2.5)(left_features[:, :3], right_features[:, :3])
        return shape

    def prior(left_features: FloatArray, right_features: FloatArray) -> FloatArray:
        # Rasmussen and Williams, equation 2.40: a linear function of normal weights
        return (
            signal**2 * matern(left_features, right_features)
            + factor**2 * left_features[:, 3:] @ right_features[:, 3:].T
        )

    root = np.sqrt(excess) / scale
    # what a forecast may be wrong by is alike for parameter sets that are alike
    covariance = prior(features, features) + np.outer(root, root) * matern(features, features)
    same_seed = seeds[:, None] == seeds
    covariance += same_seed * (shared_scale**2 + own_scale**2 * matern(features, features)) + (
        noise**2 + 1e-8
    ) * np.eye(25)
    queries = rng.random((40, 3 + trends))
    cross = prior(queries, features)
    mean = cross @ np.linalg.solve(covariance, (values - centre) / scale)
    posterior_covariance = prior(queries, queries) - cross @ np.linalg.solve(covariance, cross.T)
    predictions = predict(surrogate, queries)
    np.testing.assert_allclose(predictions[0], centre + scale * mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(surrogate.mean(queries), predictions[0], rtol=1e-9)
    np.testing.assert_allclose(predictions[1], scale * np.sqrt(np.diag(posterior_covariance)), rtol=1e-5)
    posterior = surrogate.posterior(queries)
    np.testing.assert_allclose(posterior.covariance(), scale**2 * posterior_covariance, atol=1e-8)

    of_run = prior(queries[:9], features) + (seeds == 2) * (
        shared_scale**2 + own_scale**2 * matern(queries[:9], features)
    )
    variances_before = np.diag(prior(queries[:9], queries[:9])) + shared_scale**2 + own_scale**2 + noise**2
    posterior_variances = variances_before - np.diag(of_run @ np.linalg.solve(covariance, of_run.T))
    joint_covariance = prior(queries, queries[:9]) - cross @ np.linalg.solve(covariance, of_run.T)
    means, variances, covariances = posterior.predict_runs(queries[:9], 2)
    expected_means = centre + scale * of_run @ np.linalg.solve(covariance, (values - centre) / scale)
    np.testing.assert_allclose(means, expected_means, rtol=1e-6)
    np.testing.assert_allclose(variances, scale**2 * posterior_variances, rtol=1e-5)
    np.testing.assert_allclose(covariances, scale**2 * joint_covariance, atol=1e-8)


def test_many_forecasts_with_a_common_error_keep_the_prediction_uncertain() -> None:
    features = np.concatenate([np.linspace(0, 1, 8), np.full(30, 0.5)])[:, None]
    forecast = np.concatenate([np.zeros(8), np.ones(30)])

    def doubt(excess: NDArray[np.float64]) -> float:
        runs = observe(features, np.arange(38), forecast, excess)
        start = np.array([np.log(0.5), 0.0, np.log(0.3), np.log(0.3), np.log(0.2)])
        return float(predict(Surrogate(runs, start=start, fit=False), np.array([[0.5]]))[1][0])

    many_values = np.concatenate([np.zeros(8), np.full(30, 1.0)])
    # were each of them wrong by itself, thirty would leave next to nothing open
    assert doubt(many_values) > 2 * doubt(0 * many_values)


@pytest.mark.parametrize("trends", [0, 1])
def test_the_gradient_of_the_evidence_is_its_gradient(trends: int) -> None:
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, 3, 20)
    runs = observe(rng.random((20, 2)), seeds, rng.standard_normal(20) + seeds, rng.random(20))
    surrogate = Surrogate(runs, trends=trends)
    for hyperparams in (surrogate.log_hyperparameters, surrogate.log_hyperparameters + 0.3):
        numeric = approx_fprime(hyperparams, lambda point: surrogate._loss(point)[0], 1e-6)
        np.testing.assert_allclose(surrogate._loss(hyperparams)[1], numeric, atol=1e-4)


def test_a_forecast_is_as_sure_as_complete_runs_allow() -> None:
    rng = np.random.default_rng(2)
    ends = rng.standard_normal(200)
    informed_forecast = CurveExtrapolator(
        [({10: end + 0.1 * rng.standard_normal()}, float(end)) for end in ends]
    )
    value, variance = informed_forecast({10: 1.5}) or (0.0, 0.0)
    assert value == pytest.approx(1.5, abs=0.15) and variance < 0.05
    random_forecast = CurveExtrapolator([({10: float(rng.standard_normal())}, float(end)) for end in ends])
    vague_forecast = random_forecast({10: 1.5})
    assert vague_forecast is None or vague_forecast[1] > 10
    assert informed_forecast({}) is None and CurveExtrapolator([])({10: 1.0}) is None


def test_what_is_known_of_one_more_is_what_is_known_of_all_together() -> None:
    surrogate = Surrogate(runs())
    queries = np.random.default_rng(3).random((9, 2))
    full_posterior = surrogate.posterior(queries)
    joined_posterior = surrogate.posterior(queries[:-1]).with_candidate(queries[-1])
    np.testing.assert_allclose(joined_posterior.mean_M, full_posterior.mean_M)
    np.testing.assert_allclose(joined_posterior.covariance(), full_posterior.covariance(), atol=1e-12)


def test_runs_that_are_expected_move_no_mean_and_leave_less_doubt() -> None:
    surrogate = Surrogate(runs())
    queries = np.array([[0.3, 0.3], [0.9, 0.1]])
    expecting_surrogate = surrogate.with_pending(queries[:1], np.array([0]))
    np.testing.assert_allclose(
        predict(expecting_surrogate, queries)[0], predict(surrogate, queries)[0], atol=0.02
    )
    assert predict(expecting_surrogate, queries)[1][0] < predict(surrogate, queries)[1][0]
    assert surrogate.with_pending(np.empty((0, 2)), np.empty(0, dtype=np.int64)) is surrogate


@pytest.mark.parametrize("seed", [0, 1])
def test_runs_that_are_expected_of_a_lucky_seed_make_no_set_better_than_another(seed: int) -> None:
    runs_of_two = runs(seeds=2)
    lucky = Surrogate(
        dataclasses.replace(runs_of_two, values_N=runs_of_two.values_N + 2.0 * runs_of_two.seeds_N)
    )
    queries = np.array([[0.3, 0.3], [0.9, 0.1], [0.5, 0.5]])
    expecting_surrogate = lucky.with_pending(np.repeat(queries[:1], 4, axis=0), np.full(4, seed))
    means_before, means_after = lucky.posterior(queries).mean_M, expecting_surrogate.posterior(queries).mean_M
    np.testing.assert_allclose(means_after - means_after[0], means_before - means_before[0], atol=0.02)


def test_what_a_seed_does_to_all_its_runs_is_no_reason_to_prefer_one() -> None:
    rng = np.random.default_rng(4)
    features, seeds = rng.random((40, 1)), np.arange(40) % 2
    # seed 1 is lucky by far, and was given to the low half
    features[:, 0] = features[:, 0] / 2 + 0.5 * (seeds == 0)
    values = features[:, 0] + 3.0 * seeds + 0.01 * rng.standard_normal(40)
    (low, high), (fooled_low, fooled_high) = (
        predict(Surrogate(observe(features, known_seeds, values)), np.array([[0.1], [0.9]]))[0]
        for known_seeds in (seeds, np.arange(40))
    )
    assert fooled_low > fooled_high + 1.0
    assert low - high < (fooled_low - fooled_high) / 2


def test_what_a_seed_does_to_like_sets_is_no_reason_to_prefer_them() -> None:
    rng = np.random.default_rng(6)
    positions, seeds = rng.random(60), np.arange(60) % 2
    features = positions[:, None]
    # on the low half seed 0 is lucky, and most runs there are its
    seeds[positions < 0.5] = rng.random(int((positions < 0.5).sum())) > 0.85
    values = positions + 2.0 * (positions < 0.5) * (seeds == 0) + 0.01 * rng.standard_normal(60)
    surrogate, queries = Surrogate(observe(features, seeds, values)), np.array([[0.25], [0.75]])
    low, high = predict(surrogate, queries)[0]
    average = values[positions < 0.5].mean() - values[positions >= 0.5].mean()
    assert low - high < average - 0.2
    # one more run of the seed that is lucky there says less than one of the other
    first_seed, second_seed = (
        surrogate.posterior(queries).predict_runs(queries[:1], seed) for seed in (0, 1)
    )
    assert first_seed[0][0] > second_seed[0][0] + 1.5
    assert first_seed[2][0, 0] ** 2 / first_seed[1][0] < second_seed[2][0, 0] ** 2 / second_seed[1][0]


def test_a_trend_is_followed_where_nothing_is_known_as_far_as_it_holds() -> None:
    rng = np.random.default_rng(5)
    positions, trend = rng.random(12) / 2, rng.standard_normal(12)

    def predict_far(values: FloatArray) -> float:
        noisy_values = values + 0.05 * rng.standard_normal(12)
        runs = observe(np.column_stack([positions, trend]), np.arange(12), noisy_values)
        high, low = predict(Surrogate(runs, trends=1), np.array([[5.0, 2.0], [5.0, -2.0]]))[0]
        return float(high - low)

    assert predict_far(3.0 * trend) == pytest.approx(12.0, abs=1.0)
    assert predict_far(-3.0 * trend) == pytest.approx(-12.0, abs=1.0)
    assert abs(predict_far(np.sin(6 * positions))) < 1.0

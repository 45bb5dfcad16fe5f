"""What a run is worth is what a simulation of it says, and what Frazier's algorithm says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from tempopt.sampling.surrogate import Surrogate, continuation_value, knowledge_gradient, select_batch
from tests.sampling.test_gaussian_process import observe


def posterior(seed: int, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((count, count)) * rng.uniform(0.1, 2.0)
    return rng.standard_normal(count), root @ root.T / count


def exact(mean: np.ndarray, change: np.ndarray) -> float:
    """E[max(mean + change z)] - max(mean), by adaptive quadrature between the kinks."""
    kinks = sorted(
        (mean[i] - mean[j]) / (change[j] - change[i])
        for i in range(len(mean))
        for j in range(i)
        if change[i] != change[j]
    )
    edges = [-12.0, *(k for k in kinks if abs(k) < 12), 12.0]
    integral = sum(
        quad(lambda z: float((mean + change * z).max() * norm.pdf(z)), low, high)[0]
        for low, high in itertools.pairwise(edges)
    )
    return integral - float(mean.max())


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_the_knowledge_gradient_is_the_integral_that_defines_it(seed: int) -> None:
    mean, covariance = posterior(seed)
    gradients = knowledge_gradient(mean, np.diag(covariance) + 0.25, covariance)
    expected = [exact(mean, covariance[:, k] / np.sqrt(covariance[k, k] + 0.25)) for k in range(len(mean))]
    # nodes do not fall on the kinks
    np.testing.assert_allclose(gradients, expected, atol=0.05 * float(np.sqrt(np.diag(covariance).max())))
    assert (gradients >= 0).all()


def test_where_nothing_is_open_nothing_is_worth_a_run() -> None:
    assert (knowledge_gradient(np.array([1.0, 2.0]), np.full(2, 0.1), np.zeros((2, 2))) == 0).all()
    mean, covariance = posterior(1)
    sure_gradient = knowledge_gradient(mean, np.diag(covariance) + 0.01, covariance)
    noisy = knowledge_gradient(mean, np.diag(covariance) + 100.0, covariance)
    assert noisy.max() < sure_gradient.max()


def test_the_rest_of_a_run_is_worth_what_a_simulation_of_it_says() -> None:
    mean, covariance = posterior(2)
    noise, doubt, forecast, run_index = 0.4, 0.3, float(mean[2]) + 0.2, 2
    run_of = float(mean[run_index]), float(covariance[run_index, run_index]) + noise**2, covariance[run_index]
    continuation = continuation_value(mean, run=run_of, forecast=forecast, doubt=doubt)
    # the sets, the run and its forecast are normal together; condition on the forecast, draw the run
    count = len(mean)
    joint_covariance = np.zeros((count + 2, count + 2))
    joint_covariance[:count, :count] = covariance
    joint_covariance[count:, :count] = covariance[run_index]
    joint_covariance[:count, count:] = covariance[run_index][:, None]
    run = covariance[run_index, run_index] + noise**2
    joint_covariance[count:, count:] = [[run, run], [run, run + doubt]]
    gain = joint_covariance[:-1, -1] / joint_covariance[-1, -1]
    conditional_mean = np.append(mean, mean[run_index]) + gain * (forecast - mean[run_index])
    residual_covariance = joint_covariance[:-1, :-1] - np.outer(gain, joint_covariance[-1, :-1])
    samples = np.random.default_rng(0).standard_normal(400_000) * np.sqrt(residual_covariance[-1, -1])
    change = residual_covariance[:-1, -1:] / residual_covariance[-1, -1]
    means = conditional_mean[:-1, None] + change * samples
    expected = float(means.max(axis=0).mean() - conditional_mean[:-1].max())
    assert continuation == pytest.approx(expected, abs=0.01)


def test_a_run_whose_end_is_known_is_worth_nothing_more() -> None:
    mean, covariance = posterior(3)
    run = float(mean[0]), float(covariance[0, 0]) + 0.09, covariance[0]

    def worth(doubt: float) -> float:
        return continuation_value(mean, run=run, forecast=float(mean.max()), doubt=doubt)

    assert worth(1e-9) < 1e-3 < worth(10.0)


def test_those_named_together_are_the_best_one_and_those_that_may_be_better_yet() -> None:
    rng = np.random.default_rng(5)
    features = np.array([[0.0], [0.01], [0.02], [1.0]])
    values = 1.0 + 0.3 * rng.standard_normal(18)
    runs = observe(np.repeat(features[:3], 6, axis=0), np.arange(18), values)
    posterior = Surrogate(runs).posterior(features)
    first, second = select_batch(posterior, count=2, rng=rng)
    assert first == int(np.argmax(posterior.mean_M))
    # its neighbours are as good as it; what is far off may be better
    assert second == 3
    assert sorted(select_batch(posterior, count=4, rng=rng)) == [0, 1, 2, 3]
    # a first one that is given stays the first, and is not named again
    neighbour = next(index for index in range(3) if index != first)
    assert select_batch(posterior, count=1, rng=rng, first=neighbour) == [neighbour]
    assert select_batch(posterior, count=2, rng=rng, first=neighbour) == [neighbour, 3]
    assert select_batch(posterior, count=2, rng=rng, first=3)[0] == 3
    assert sorted(select_batch(posterior, count=4, rng=rng, first=3)) == [0, 1, 2, 3]

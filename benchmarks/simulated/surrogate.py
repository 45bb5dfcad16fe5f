"""A Gaussian process over parameter sets, of runs that are noisy and partly broken off.

Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning": prediction by algorithm 2.1, the
gradient of the evidence by equation 5.9. Shapes: N runs, D features, M parameter sets asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

Array = NDArray[np.float64]

_JITTER = 1e-8
_LENGTH = np.log(0.5), 0.75
_SIGNAL = 0.0, 1.0
_NOISE = np.log(0.3), 1.0
_SHARED = np.log(0.2), 1.0
_BOUND = 6.0
_ITERATIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What is known of runs.

    Args:
        features_ND: Parameter sets, each feature of a range of about 1.
        seeds_N: Which of the study's seeds each was trained with.
        values_N: What each came to, or is forecast to come to; more is better.
        excess_N: Variance of a value on top of the noise of a run, 0 for runs that are complete.
    """

    features_ND: Array
    seeds_N: NDArray[np.int64]
    values_N: Array
    excess_N: Array


class Surrogate:
    """What parameter sets come to in the mean over seeds, given runs.

    The covariance is a Matérn one (ν = 5/2) with a length for each feature, and a part that runs of one seed
    have in common. Lengths and variances are those of highest posterior density under wide priors.

    Args:
        runs: At least one.
        start: Lengths and variances to search from, as in ``found`` of an earlier one; None: the priors'.
        fit: Whether to search for better ones.

    Attributes:
        found: Logarithms of the lengths, then of the deviations of signal, noise and seeds.
    """

    def __init__(self, runs: Runs, *, start: Array | None = None, fit: bool = True) -> None:
        self._runs = runs
        self._mean = float(np.average(runs.values_N, weights=1.0 / (1.0 + _relative(runs))))
        deviation = float(np.std(runs.values_N))
        self._scale = deviation if deviation > 0 else 1.0
        self._values_N = (runs.values_N - self._mean) / self._scale
        self._excess_N = runs.excess_N / self._scale**2
        self._same_NN = (runs.seeds_N[:, None] == runs.seeds_N[None, :]).astype(float)
        self._squares_DNN = _squares(runs.features_ND, runs.features_ND)
        count = runs.features_ND.shape[1]
        self._prior = np.array([_LENGTH] * count + [_SIGNAL, _NOISE, _SHARED])
        begin = self._prior[:, 0] if start is None else start
        self.found: Array = self._fitted(begin) if fit else begin
        self._lower, self._weights_N = self._solved(self.found)

    @property
    def noise(self) -> float:
        """Standard deviation of a run about the mean of its parameter set and its seed."""
        return float(np.exp(self.found[-2])) * self._scale

    def predict(self, features_MD: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of what parameter sets come to, the noise of runs left out."""
        signal = np.exp(2 * self.found[-3])
        cross_MN = signal * _matern(_squares(features_MD, self._runs.features_ND), self._lengths)[0]
        mean_M = cross_MN @ self._weights_N
        half_NM = solve_triangular(self._lower, cross_MN.T, lower=True)
        variance_M = np.maximum(signal - (half_NM**2).sum(axis=0), _JITTER)
        return self._mean + self._scale * mean_M, self._scale * np.sqrt(variance_M)

    def covariance(self, features_MD: Array) -> Array:
        """Return the covariances of what parameter sets come to, shape (M, M)."""
        signal = np.exp(2 * self.found[-3])
        cross_MN = signal * _matern(_squares(features_MD, self._runs.features_ND), self._lengths)[0]
        half_NM = solve_triangular(self._lower, cross_MN.T, lower=True)
        own_MM = signal * _matern(_squares(features_MD, features_MD), self._lengths)[0]
        covariance: Array = self._scale**2 * (own_MM - half_NM.T @ half_NM)
        return covariance

    @property
    def _lengths(self) -> Array:
        return self.found[:-3]

    def _covariance(self, at: Array) -> tuple[Array, Array, Array]:
        """Return the covariance of the values, that of the signal, and its derivative by squared distance."""
        shape_NN, slope_NN = _matern(self._squares_DNN, at[:-3])
        signal, noise, shared = np.exp(2 * at[-3:])
        own_NN = signal * shape_NN + shared * self._same_NN
        own_NN[np.diag_indices_from(own_NN)] += noise + self._excess_N + _JITTER
        return own_NN, signal * shape_NN, signal * slope_NN

    def _solved(self, at: Array) -> tuple[Array, Array]:
        lower: Array = cholesky(self._covariance(at)[0], lower=True)
        return lower, cho_solve((lower, True), self._values_N)

    def _fitted(self, start: Array) -> Array:
        centre, width = self._prior.T
        bounds = list(zip(centre - _BOUND * width, centre + _BOUND * width, strict=True))
        done: Any = minimize(
            self._loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _ITERATIONS},
        )
        best: Array = done.x
        return best

    def _loss(self, at: Array) -> tuple[float, Array]:
        """Return the negative logarithm of the posterior density, and its gradient."""
        own_NN, signal_NN, slope_NN = self._covariance(at)
        lower = cholesky(own_NN, lower=True)
        weights_N = cho_solve((lower, True), self._values_N)
        inverse_NN = cho_solve((lower, True), np.eye(len(weights_N)))
        pull_NN = inverse_NN - np.outer(weights_N, weights_N)
        slopes = [
            # d(squared distance)/d(log length) is -2 (difference / length)^2
            float((pull_NN * slope_NN * (-2.0 * squares_NN * np.exp(-2 * length))).sum()) / 2
            for squares_NN, length in zip(self._squares_DNN, at[:-3], strict=True)
        ]
        _, noise, shared = np.exp(2 * at[-3:])
        slopes += [
            float((pull_NN * signal_NN).sum()),
            float(np.trace(pull_NN)) * noise,
            float((pull_NN * self._same_NN).sum()) * shared,
        ]
        centre, width = self._prior.T
        apart = (at - centre) / width
        evidence = self._values_N @ weights_N / 2 + np.log(np.diag(lower)).sum()
        return float(evidence + (apart**2).sum() / 2), np.array(slopes) + apart / width


def _relative(runs: Runs) -> Array:
    spread = float(np.var(runs.values_N))
    return runs.excess_N / spread if spread > 0 else np.zeros(len(runs.excess_N))


def _squares(one_MD: Array, other_ND: Array) -> Array:
    """Return squared differences by feature, shape (D, M, N)."""
    squares: Array = (one_MD.T[:, :, None] - other_ND.T[:, None, :]) ** 2
    return squares


def _matern(squares_DMN: Array, lengths_D: Array) -> tuple[Array, Array]:
    """Return the correlation at squared differences, and its derivative by the scaled squared distance."""
    square_MN = np.tensordot(np.exp(-2 * lengths_D), squares_DMN, axes=1)
    root_MN = np.sqrt(5.0 * square_MN)
    fall_MN = np.exp(-root_MN)
    return (1.0 + root_MN + root_MN**2 / 3.0) * fall_MN, -5.0 / 6.0 * (1.0 + root_MN) * fall_MN

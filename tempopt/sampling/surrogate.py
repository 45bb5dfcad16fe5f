"""Predictions of untried parameter sets from runs, and the value of one more run: numbers only.

A Gaussian process over parameter sets, for noisy runs of which some were pruned: Rasmussen and Williams 2006,
"Gaussian Processes for Machine Learning": prediction by algorithm 2.1, gradient of the evidence by equation
5.9. Shapes: N runs, D features, M queried parameter sets.

The worth of a run is the expected improvement of the parameter set that is recommended after it: the
knowledge gradient for correlated normal beliefs (Frazier, Powell and Dayanik 2009, "The Knowledge-Gradient
Policy for Correlated Normal Beliefs", INFORMS Journal on Computing 21(4), equations 7 and 8). Sets are
compared by their mean over seeds, so that a lucky run alone is worth nothing.

The final value of a pruned run is forecast from complete runs: at each step with reports, a line is fitted
from their values at that step to their final values, shrunk towards no information while they are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

FloatArray = NDArray[np.float64]
Reports = Mapping[int, float]

_JITTER = 1e-8  # variance added to the diagonal, without which Cholesky may fail
_LENGTH = np.log(0.5), 0.75  # prior of a hyperparameter's logarithm: mean, standard deviation
# As the square root of the number of features (Hvarfner, Hellsten and Nardi 2024, "Vanilla Bayesian
# Optimization Performs Great in High Dimensions", equation 6): otherwise a function of many features would be
# rough in all of them.
_USUAL_FEATURES = 4
_SIGNAL = 0.0, 1.0
_NOISE = np.log(0.3), 1.0
_SEED_SIGNAL = np.log(0.3), 1.0
_SHARED = np.log(0.2), 1.0
_TREND = np.log(0.5), 1.0
_BOUND_STDS = 6.0
_NOISE_BOUND_STDS = 8.0
_NOISES = slice(-3, -1)  # of the hyperparameters: seed signal and noise
_MAX_ITERATIONS = 60
_OUTLIER_FACTOR = 3.0  # distances from the median to the best; values farther below are pulled in


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Results of runs.

    Args:
        features_ND: Parameter sets, each feature with a range of about 1; trends last, as deviations.
        seeds_N: Index of the study seed of each run.
        values_N: Values, or forecasts of them; larger is better.
        excess_N: Variance of a value in addition to the noise of a run, 0 for complete runs. Runs of similar
            parameter sets share it: a wrong forecast is wrong for all of them.
    """

    features_ND: FloatArray
    seeds_N: NDArray[np.int64]
    values_N: FloatArray
    excess_N: FloatArray

    def concat(self, other_runs: Observations) -> Observations:
        """Return these runs and others; an empty set of runs may have any number of features."""
        if not len(other_runs.values_N):
            return self
        return Observations(
            features_ND=np.vstack([self.features_ND, other_runs.features_ND]),
            seeds_N=np.concatenate([self.seeds_N, other_runs.seeds_N]),
            values_N=np.concatenate([self.values_N, other_runs.values_N]),
            excess_N=np.concatenate([self.excess_N, other_runs.excess_N]),
        )


class Surrogate:
    """Means over seeds of parameter sets, given runs.

    The covariance is a Matérn kernel (ν = 5/2) with a length for each feature. A seed has an effect that is
    common to all of its runs, and one that is similar for similar parameter sets, with the same lengths
    (Pearce, Poloczek and Branke 2022, "Bayesian Optimization Allowing for Common Random Numbers", Operations
    Research 70(6)). Values may follow trends, each by a normally distributed factor. Lengths and variances
    maximise the posterior density under wide priors.

    Args:
        runs: The runs, at least one.
        trends: Number of trailing features that are trends.
        start: Start of the search for lengths and variances, as from ``found`` of an earlier one; None: the
            priors'.
        fit: Whether to search for better lengths and variances.

    Attributes:
        found: Logarithms of the lengths, then of the deviations of the trends' factors if there are any, of
            the signal, the seed's specific effect, the noise, and the seed's common effect.
    """

    def __init__(
        self, runs: Observations, *, trends: int = 0, start: FloatArray | None = None, fit: bool = True
    ) -> None:
        self._runs = runs
        self._trends = trends
        self._lengths_end = runs.features_ND.shape[1] - trends
        self._mean = float(np.average(runs.values_N, weights=1.0 / (1.0 + _relative(runs))))
        deviation = float(np.std(runs.values_N))
        self._scale = deviation if deviation > 0 else 1.0
        self._values_N = (runs.values_N - self._mean) / self._scale
        self._excess_N = runs.excess_N / self._scale**2
        self._alike_NN = np.sqrt(self._excess_N[:, None] * self._excess_N)
        self._same_NN = (runs.seeds_N[:, None] == runs.seeds_N[None, :]).astype(float)
        self._squares_DNN = self._squared_differences(runs.features_ND, runs.features_ND)
        self._trend_NN = self._trend_products(runs.features_ND, runs.features_ND)
        count = self._lengths_end
        length = _LENGTH[0] + 0.5 * np.log(count / _USUAL_FEATURES), _LENGTH[1]
        trend = [_TREND] if trends else []
        self._prior = np.array([length] * count + trend + [_SIGNAL, _SEED_SIGNAL, _NOISE, _SHARED])
        begin = self._prior[:, 0] if start is None else start
        self.log_hyperparameters: FloatArray = self._fit_hyperparameters(begin) if fit else begin
        self._lower, self._weights_N = self._solve(self.log_hyperparameters)

    @property
    def noise(self) -> float:
        """Standard deviation of a run around the mean of its parameter set and of its seed."""
        _, seed_signal, noise, _ = _variances(self.log_hyperparameters)
        return float(np.sqrt(seed_signal + noise)) * self._scale

    def _mean_and_half(self, features_MD: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return means, and the square root (N, M) of the reduction of the prior covariance by the runs."""
        cross_MN = self._prior_covariance(features_MD, self._runs.features_ND)
        half_NM: FloatArray = solve_triangular(self._lower, cross_MN.T, lower=True, check_finite=False)
        return self._mean_of(cross_MN), half_NM

    def _mean_of(self, cross_MN: FloatArray) -> FloatArray:
        mean_M: FloatArray = self._mean + self._scale * (cross_MN @ self._weights_N)
        return mean_M

    def _prior_covariance(
        self, one_MD: FloatArray, other_ND: FloatArray, same_MN: FloatArray | float = 0.0
    ) -> FloatArray:
        """Return the covariance of parameter sets, or, where ``same_MN`` is 1, of runs with one seed."""
        signal, seed_signal, _, shared = _variances(self.log_hyperparameters)
        shape_MN = _matern(self._squared_differences(one_MD, other_ND), self._lengths)[0]
        of_sets_MN = signal * shape_MN + self._trend(self.log_hyperparameters) * self._trend_products(
            one_MD, other_ND
        )
        covariance_MN: FloatArray = of_sets_MN + same_MN * (shared + seed_signal * shape_MN)
        return covariance_MN

    def _prior_variance(self, features_MD: FloatArray) -> FloatArray:
        trends_M = (features_MD[:, self._lengths_end :] ** 2).sum(axis=1)
        variance_M: FloatArray = (
            _variances(self.log_hyperparameters)[0] + self._trend(self.log_hyperparameters) * trends_M
        )
        return variance_M

    def _covariance_with_runs(self, features_MD: FloatArray, seeds_M: NDArray[np.int64]) -> FloatArray:
        """Return the covariance of future runs with the observed ones, shape (M, N)."""
        same_MN = seeds_M[:, None] == self._runs.seeds_N[None, :]
        return self._prior_covariance(features_MD, self._runs.features_ND, same_MN)

    def _squared_differences(self, one_MD: FloatArray, other_ND: FloatArray) -> FloatArray:
        """Return squared differences by feature, shape (D, M, N), without trends."""
        end = self._lengths_end
        squares: FloatArray = (one_MD.T[:end, :, None] - other_ND.T[:end, None, :]) ** 2
        return squares

    def _trend_products(self, one_MD: FloatArray, other_ND: FloatArray) -> FloatArray:
        together: FloatArray = one_MD[:, self._lengths_end :] @ other_ND[:, self._lengths_end :].T
        return together

    def _trend(self, point: FloatArray) -> float:
        """Return the variance of the trends' factors."""
        return float(np.exp(2 * point[-5])) if self._trends else 0.0

    def mean(self, features_MD: FloatArray) -> FloatArray:
        """Return the predicted means of parameter sets."""
        return self._mean_of(self._prior_covariance(features_MD, self._runs.features_ND))

    def posterior(
        self,
        features_MD: FloatArray,
        weigh: Callable[[FloatArray], FloatArray] | None = None,
        base: float = 0.0,
    ) -> Posterior:
        """Return the predicted means of parameter sets, with their covariance.

        Args:
            features_MD: The parameter sets.
            weigh: Returns the factor on the improvement of each set over the base; None: 1 for all.
            base: Value of a set with factor 0.
        """
        return Posterior(self, features_MD, weigh, base)

    def with_pending(self, features_PD: FloatArray, seeds_P: NDArray[np.int64]) -> Surrogate:
        """Return a surrogate in which runs in progress have their predicted values.

        Args:
            features_PD: Their parameter sets.
            seeds_P: Indices of their study seeds.
        """
        if not len(features_PD):
            return self
        mean_P = self._mean_of(self._covariance_with_runs(features_PD, seeds_P))
        pending = Observations(
            features_ND=features_PD, seeds_N=seeds_P, values_N=mean_P, excess_N=np.zeros(len(mean_P))
        )
        return Surrogate(
            self._runs.concat(pending), trends=self._trends, start=self.log_hyperparameters, fit=False
        )

    @property
    def _lengths(self) -> FloatArray:
        return self.log_hyperparameters[: self._lengths_end]

    def _covariance(self, point: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the covariance of values, the correlation, and its derivative by squared distance."""
        shape_NN, slope_NN = _matern(self._squares_DNN, point[: self._lengths_end])
        signal, seed_signal, noise, shared = _variances(point)
        factor_NN = signal + seed_signal * self._same_NN + self._alike_NN
        whole_NN = factor_NN * shape_NN + shared * self._same_NN
        whole_NN += self._trend(point) * self._trend_NN
        whole_NN[np.diag_indices_from(whole_NN)] += noise + _JITTER
        return whole_NN, shape_NN, factor_NN * slope_NN

    def _solve(self, point: FloatArray) -> tuple[FloatArray, FloatArray]:
        lower: FloatArray = cholesky(self._covariance(point)[0], lower=True)
        return lower, cho_solve((lower, True), self._values_N)

    def _fit_hyperparameters(self, start: FloatArray) -> FloatArray:
        centre, width = self._prior.T
        lowest = centre - _BOUND_STDS * width
        # an evaluation, unlike a training, may be without noise
        lowest[_NOISES] = (centre - _NOISE_BOUND_STDS * width)[_NOISES]
        bounds = list(zip(lowest, centre + _BOUND_STDS * width, strict=True))
        optimum: Any = minimize(
            self._loss,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": _MAX_ITERATIONS},
        )
        best: FloatArray = optimum.x
        return best

    def _loss(self, point: FloatArray) -> tuple[float, FloatArray]:
        """Return the negative logarithm of the posterior density, and its gradient."""
        whole_NN, shape_NN, slope_NN = self._covariance(point)
        lower = cholesky(whole_NN, lower=True)
        weights_N = cho_solve((lower, True), self._values_N)
        inverse_NN = cho_solve((lower, True), np.eye(len(weights_N)))
        pull_NN = inverse_NN - np.outer(weights_N, weights_N)
        slopes = [
            # d(squared distance)/d(log length) is -2 (difference / length)^2
            float((pull_NN * slope_NN * (-2.0 * squares_NN * np.exp(-2 * length))).sum()) / 2
            for squares_NN, length in zip(self._squares_DNN, point[: self._lengths_end], strict=True)
        ]
        if self._trends:
            slopes.append(float((pull_NN * self._trend_NN).sum()) * self._trend(point))
        signal, seed_signal, noise, shared = _variances(point)
        slopes += [
            float((pull_NN * shape_NN).sum()) * signal,
            float((pull_NN * shape_NN * self._same_NN).sum()) * seed_signal,
            float(np.trace(pull_NN)) * noise,
            float((pull_NN * self._same_NN).sum()) * shared,
        ]
        centre, width = self._prior.T
        deviations = (point - centre) / width
        evidence = self._values_N @ weights_N / 2 + np.log(np.diag(lower)).sum()
        return float(evidence + (deviations**2).sum() / 2), np.array(slopes) + deviations / width


def pull_in_low_outliers(values_N: FloatArray) -> FloatArray:
    """Return values in which those far below the others are moved closer, in the same order.

    How bad the worst values are does not matter, and must not set the scale at which the best are compared.
    """
    middle, best = float(np.median(values_N)), float(values_N.max())
    room = _OUTLIER_FACTOR * (best - middle)
    if room <= 0:
        return values_N
    below_N = np.maximum(middle - room - values_N, 0.0)
    return values_N + below_N - room * np.log1p(below_N / room)


class Posterior:
    """The means over seeds of parameter sets: a normal distribution.

    Args:
        surrogate: The surrogate that predicts them.
        features_MD: The parameter sets.
        weigh: As in :meth:`Surrogate.posterior`: differences of means to the base are multiplied.
        base: As in :meth:`Surrogate.posterior`; used with ``weigh`` only.

    Attributes:
        features_MD: The parameter sets.
        weights_M: Factors on the sets.
        mean_M: Their means.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        features_MD: FloatArray,
        weigh: Callable[[FloatArray], FloatArray] | None = None,
        base: float = 0.0,
    ) -> None:
        self._surrogate = surrogate
        self._weigh, self._base = weigh, base
        self.features_MD = features_MD
        mean_M, self._half_NM = surrogate._mean_and_half(features_MD)
        self.weights_M: FloatArray = np.ones(len(features_MD)) if weigh is None else weigh(features_MD)
        self.mean_M: FloatArray = mean_M if weigh is None else self.weights_M * (mean_M - base)

    def covariance(self) -> FloatArray:
        """Return the covariances, shape (M, M)."""
        prior_MM = self._surrogate._prior_covariance(self.features_MD, self.features_MD)
        covariance: FloatArray = self._surrogate._scale**2 * (prior_MM - self._half_NM.T @ self._half_NM)
        return covariance * np.outer(self.weights_M, self.weights_M)

    def variance(self) -> FloatArray:
        """Return the variances, shape (M,)."""
        left_M = self._surrogate._prior_variance(self.features_MD) - (self._half_NM**2).sum(axis=0)
        variance_M: FloatArray = self._surrogate._scale**2 * np.maximum(left_M, 0.0) * self.weights_M**2
        return variance_M

    def with_candidate(self, features_D: FloatArray) -> Posterior:
        """Return the posterior of these parameter sets and of one more, at the end."""
        single, joint = Posterior(self._surrogate, features_D[None], self._weigh, self._base), copy(self)
        joint.features_MD = np.vstack([self.features_MD, single.features_MD])
        joint.mean_M = np.append(self.mean_M, single.mean_M)
        joint.weights_M = np.append(self.weights_M, single.weights_M)
        joint._half_NM = np.hstack([self._half_NM, single._half_NM])
        return joint

    def predict_runs(self, features_KD: FloatArray, seed: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return predicted values of runs with a seed: means, variances, covariances with the sets, (M, K).

        Args:
            features_KD: The runs' parameter sets.
            seed: Index of the study seed of the runs.
        """
        surrogate = self._surrogate
        cross_KN = surrogate._covariance_with_runs(features_KD, np.full(len(features_KD), seed))
        half_NK = solve_triangular(surrogate._lower, cross_KN.T, lower=True, check_finite=False)
        _, seed_signal, noise, shared = _variances(surrogate.log_hyperparameters)
        before_K = surrogate._prior_variance(features_KD) + seed_signal + noise + shared
        left_K = np.maximum(before_K - (half_NK**2).sum(axis=0), noise + _JITTER)
        together_MK = surrogate._prior_covariance(self.features_MD, features_KD) - self._half_NM.T @ half_NK
        square = surrogate._scale**2
        together_MK = self.weights_M[:, None] * together_MK
        return surrogate._mean_of(cross_KN), square * left_K, square * together_MK


def _variances(point: FloatArray) -> tuple[float, float, float, float]:
    """Return the variances of signal, seed's specific effect, noise, and seed's common effect."""
    signal, seed_signal, noise, shared = np.exp(2 * point[-4:]).tolist()
    return signal, seed_signal, noise, shared


def _relative(runs: Observations) -> FloatArray:
    spread = float(np.var(runs.values_N))
    return runs.excess_N / spread if spread > 0 else np.zeros(len(runs.excess_N))


def _matern(squares_DMN: FloatArray, lengths_D: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the correlation at squared differences, and its derivative by the scaled squared distance."""
    square_MN = np.tensordot(np.exp(-2 * lengths_D), squares_DMN, axes=1)
    root_MN = np.sqrt(5.0 * square_MN)
    fall_MN = np.exp(-root_MN)
    return (1.0 + root_MN + root_MN**2 / 3.0) * fall_MN, -5.0 / 6.0 * (1.0 + root_MN) * fall_MN


# ---- what a run is worth

# A piecewise linear function of a normal variable, integrated by nodes: 15 suffice to rank (see its test)
_NODES, _MASS = np.polynomial.hermite_e.hermegauss(15)
_MASS = _MASS / _MASS.sum()
_NUM_WORLDS = 1024


def knowledge_gradient(mean_M: FloatArray, variance_K: FloatArray, together_MK: FloatArray) -> FloatArray:
    """Return the expected increase of the largest mean by one more complete run, for each of several runs.

    Args:
        mean_M: Expected values of the sets; larger is better.
        variance_K: Predictive variance of each run, > 0.
        together_MK: Covariances of the sets with the runs.
    """
    return _rise(mean_M[:, None], together_MK / np.sqrt(variance_K))


def continuation_value(
    mean_M: FloatArray, *, run: tuple[float, float, FloatArray], forecast: float, doubt: float
) -> float:
    """Return the expected increase of the largest mean by the rest of a run.

    A forecast run has already given information; its rest gives what the forecast left open.

    Args:
        mean_M: Expected values of the sets without the forecast.
        run: Mean and variance of the final value of the run, and its covariances with the sets, shape (M,).
        forecast: Forecast of the run's value.
        doubt: Variance of that forecast around the run's value, > 0.
    """
    mean, variance, together_M = run
    total_variance = variance + doubt
    means_M = mean_M + together_M * (forecast - mean) / total_variance
    # of the final value given the forecast: the covariance with the means is doubt / total_variance of the
    # former one, the variance is variance * doubt / total_variance
    return float(
        _rise(means_M[:, None], together_M[:, None] * math.sqrt(doubt / (total_variance * variance)))[0]
    )


def _rise(mean_M1: FloatArray, change_MK: FloatArray) -> FloatArray:
    """Return E[max(mean + change z)] - max(mean) over a standard normal z, for each column of changes."""
    expected_K = np.zeros(change_MK.shape[1])
    for node, mass in zip(_NODES, _MASS, strict=True):
        expected_K += mass * (mean_M1 + node * change_MK).max(axis=0)
    rise_K: FloatArray = np.maximum(expected_K - mean_M1.max(), 0.0)
    return rise_K


def select_batch(
    posterior: Posterior, *, count: int, rng: np.random.Generator, first: int | None = None
) -> list[int]:
    """Return the indices of the sets with the largest expected maximum.

    Each set after the first is the one that increases the expected maximum most.

    Args:
        posterior: Values of the sets; larger is better.
        count: Number of sets, 1 to M.
        rng: Generator of the samples of the posterior.
        first: Index of the first set; None: the best single one.
    """
    mean_M = posterior.mean_M
    indices = [int(np.argmax(mean_M)) if first is None else first]
    if count == 1:
        return indices
    values, vectors = np.linalg.eigh(posterior.covariance())
    root_MM = vectors * np.sqrt(np.maximum(values, 0.0))
    worlds_SM = mean_M + rng.standard_normal((_NUM_WORLDS, len(mean_M))) @ root_MM.T
    best_S = worlds_SM[:, indices].max(axis=1)
    while len(indices) < count:
        together_M = np.maximum(worlds_SM, best_S[:, None]).mean(axis=0)
        together_M[indices] = -np.inf
        indices.append(int(np.argmax(together_M)))
        best_S = np.maximum(best_S, worlds_SM[:, indices[-1]])
    return indices


# ---- forecasts of runs that were pruned

_SHRINKAGE_RUNS = 4.0
"""Number of runs that shrink the line through complete runs."""
_MIN_PAIRS = 3
_MIN_CORRELATION = 0.1
_NUM_AVERAGED_REPORTS = 2


class CurveExtrapolator:
    """Forecast of the final value of a run from its reports.

    Args:
        complete_runs: Reports (step to value) and final value of each complete run.
    """

    def __init__(self, complete_runs: Sequence[tuple[Reports, float]]) -> None:
        self._complete = [(dict(reports), value) for reports, value in complete_runs]
        values = np.array([value for _, value in self._complete])
        self._mean = float(values.mean()) if len(values) else 0.0
        self._variance = float(values.var(ddof=1)) if len(values) > 1 else 1.0
        self._lines: dict[int, tuple[float, float, float] | None] = {}

    def __call__(self, reports: Reports) -> tuple[float, float] | None:
        """Return the forecast final value and its variance; None if it cannot be forecast."""
        if not reports:
            return None
        step = max(reports)
        line = self._line(step)
        if line is None:
            return None
        centre, slope, variance = line
        return self._mean + slope * (mean_of_last_reports(reports, step) - centre), variance

    def _line(self, step: int) -> tuple[float, float, float] | None:
        """Return mean at a step, slope to the end, and the remaining variance; None if there are too few
        runs.
        """
        if step not in self._lines:
            self._lines[step] = self._fit_line(step)
        return self._lines[step]

    def _fit_line(self, step: int) -> tuple[float, float, float] | None:
        pairs = [
            (mean_of_last_reports(r, step), value) for r, value in self._complete if any(s <= step for s in r)
        ]
        if len(pairs) < _MIN_PAIRS:
            return None
        step_values, end_values = np.array(pairs).T
        spread = float(step_values.var(ddof=1))
        if spread <= 0 or self._variance <= 0:
            return None
        shrinkage = len(pairs) / (len(pairs) + _SHRINKAGE_RUNS)
        correlation = shrinkage * float(np.corrcoef(step_values, end_values)[0, 1])
        if correlation < _MIN_CORRELATION:
            return None
        # the final value given the value at this step alone, without regression to the mean of surviving runs
        slope = math.sqrt(self._variance / spread) / correlation
        return float(step_values.mean()), slope, self._variance * (1.0 / correlation**2 - 1.0) + 1e-12


def mean_of_last_reports(reports: Reports, step: int) -> float:
    """Return the mean of the last reports up to a step, since a single validation is noisy."""
    steps = sorted(s for s in reports if s <= step)[-_NUM_AVERAGED_REPORTS:]
    return sum(reports[s] for s in steps) / len(steps)

"""What a run is worth: how much better the parameter set that one would name after it is expected to be.

The knowledge gradient for correlated normal beliefs (Frazier, Powell and Dayanik 2009, "The
Knowledge-Gradient Policy for Correlated Normal Beliefs", INFORMS Journal on Computing 21(4), equations 7 and
8). Values are compared by what they are in the mean over seeds, so that a lucky run is worth nothing by
itself. Shapes: M parameter sets.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tempopt.sampling.surrogate.gaussian_process import Posterior

Array = NDArray[np.float64]

# A piecewise linear function of a normal variable, integrated by nodes: 15 suffice to rank, see its test
_NODES, _MASS = np.polynomial.hermite_e.hermegauss(15)
_MASS = _MASS / _MASS.sum()
_WORLDS = 1024


def knowledge_gradient(mean_M: Array, variance_K: Array, together_MK: Array) -> Array:
    """Return the expected rise of the greatest mean that one more complete run would bring, for each of some.

    Args:
        mean_M: Expected values of the sets; more is better.
        variance_K: How far each run may be from what is expected of it, > 0.
        together_MK: Covariances of the sets with the runs.
    """
    return _rise(mean_M[:, None], together_MK / np.sqrt(variance_K))


def continuation_value(
    mean_M: Array, *, run: tuple[float, float, Array], forecast: float, doubt: float
) -> float:
    """Return the expected rise of the greatest mean that the rest of a run would bring.

    A run that was forecast has told something already; its rest tells what the forecast left open.

    Args:
        mean_M: Expected values of the sets without the forecast.
        run: Mean and variance of the final value of the run, and its covariances with the sets, shape (M,).
        forecast: Forecast of the run's value.
        doubt: Variance of that forecast about the run's value, > 0.
    """
    mean, variance, together_M = run
    total_variance = variance + doubt
    means_M = mean_M + together_M * (forecast - mean) / total_variance
    # of the run's end, given its forecast: covariance with the means doubt / total_variance of what it
    # was, variance * doubt / total_variance
    return float(
        _rise(means_M[:, None], together_M[:, None] * math.sqrt(doubt / (total_variance * variance)))[0]
    )


def _rise(mean_M1: Array, change_MK: Array) -> Array:
    """Return E[max(mean + change z)] - max(mean) over a standard normal z, for each column of changes."""
    expected_K = np.zeros(change_MK.shape[1])
    for node, mass in zip(_NODES, _MASS, strict=True):
        expected_K += mass * (mean_M1 + node * change_MK).max(axis=0)
    rise_K: Array = np.maximum(expected_K - mean_M1.max(), 0.0)
    return rise_K


def select_batch(
    posterior: Posterior, *, count: int, rng: np.random.Generator, first: int | None = None
) -> list[int]:
    """Return the places of the sets of which the best is expected to be best.

    Each that follows the first is the one that adds most to the expected maximum of those before it and
    itself.

    Args:
        posterior: Values of the sets; more is better.
        count: How many, 1 to M.
        rng: Draws the possible worlds that are looked at.
        first: Place of the first set; None: the best single one.
    """
    mean_M = posterior.mean_M
    indices = [int(np.argmax(mean_M)) if first is None else first]
    if count == 1:
        return indices
    values, vectors = np.linalg.eigh(posterior.covariance())
    root_MM = vectors * np.sqrt(np.maximum(values, 0.0))
    worlds_SM = mean_M + rng.standard_normal((_WORLDS, len(mean_M))) @ root_MM.T
    best_S = worlds_SM[:, indices].max(axis=1)
    while len(indices) < count:
        together_M = np.maximum(worlds_SM, best_S[:, None]).mean(axis=0)
        together_M[indices] = -np.inf
        indices.append(int(np.argmax(together_M)))
        best_S = np.maximum(best_S, worlds_SM[:, indices[-1]])
    return indices

"""Bootstrap intervals of paired mean differences over data: items, or batches with their sizes.

The interval is for values measured once on each unit, such as one model evaluated twice on the same items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95  # of an interval of a mean
MIN_UNITS = 10
"""Smallest number of units, and of units that differ, with an interval: fewer do not show the variance."""

_AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean difference with its interval.

    Args:
        difference: Mean over all data, in the unit of the values.
        low: Lower end.
        high: Upper end.
    """

    difference: float
    low: float
    high: float


def paired_bootstrap(
    differences: Sequence[Sequence[float]],
    weights: Sequence[float],
    *,
    seed: int,
    resamples: int = NUM_RESAMPLES,
    confidence: float = CONFIDENCE,
) -> list[Interval | None]:
    """Return the intervals of several mean differences on the same units, by resampling the units.

    Units are drawn with replacement, each with its weight, and all differences are averaged on the same
    draws. The ends are percentiles at levels adjusted for the number of units (Hesterberg 2015, "What
    teachers should know about the bootstrap"), without which intervals are too short for few units: for
    normal differences they are close to those of Student's t.

    A row with fewer than ``MIN_UNITS`` differences other than 0 has no interval, as where a temperature
    changes the answers to a few items only: resampling these would give an interval that is far too short.

    Args:
        differences: Several rows of values, one for each unit.
        weights: Size of each unit, > 0, as the number of its items.
        seed: Seed of all draws, 0 <= seed < 2**64.
        resamples: Number of draws.
        confidence: Coverage of the interval, in (0, 1).

    Raises:
        ValueError: There are fewer than ``MIN_UNITS`` units, or not as many weights as units.
    """
    values_DU = np.asarray(differences, dtype=np.float64)
    weights_U = np.asarray(weights, dtype=np.float64)
    units = len(weights_U)
    if units < MIN_UNITS or values_DU.ndim != 2 or values_DU.shape[1] != units:
        raise ValueError(f"given {units} units and values of shape {values_DU.shape}; at least {MIN_UNITS}.")
    means_DR = _resample_means(values_DU, weights_U, np.random.default_rng(seed), resamples)
    tail = float(norm.cdf(math.sqrt(units / (units - 1)) * t.ppf((1 - confidence) / 2, units - 1)))
    low_D, high_D = np.quantile(means_DR, (tail, 1 - tail), axis=1)
    mean_D = values_DU @ weights_U / weights_U.sum()
    is_enough_D = np.count_nonzero(values_DU, axis=1) >= MIN_UNITS
    return [
        Interval(difference=float(difference), low=float(low), high=float(high)) if is_enough else None
        for difference, low, high, is_enough in zip(mean_D, low_D, high_D, is_enough_D, strict=True)
    ]


def _resample_means(
    values_DU: NDArray[np.float64], weights_U: NDArray[np.float64], draw: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """Return the weighted mean of each row on each resample of the units, shape (D, R)."""
    units = len(weights_U)
    weighted_values = np.vstack([values_DU * weights_U, weights_U]).T
    parts, remaining = [], resamples
    while remaining:
        num_draws = min(remaining, max(1, _AT_ONCE // units))
        indices = draw.integers(units, size=(num_draws, units)) + units * np.arange(num_draws)[:, None]
        counts = np.bincount(indices.ravel(), minlength=num_draws * units).reshape(num_draws, units)
        sums = counts @ weighted_values
        parts.append((sums[:, :-1] / sums[:, -1:]).T)
        remaining -= num_draws
    return np.concatenate(parts, axis=1)

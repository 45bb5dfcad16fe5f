"""Tests of paired differences by their signs: exact counts of what other signs would have shown."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

_ENUMERATED = 18
"""Up to so many pairs every way to change signs is gone through; of more, as many at random."""


class Signs:
    """One-sided tests of where differences are centred, and their inversion.

    They count typical values that are on the lesser side: the means of all non-empty subsets (Hartigan 1969,
    "Using subsample values as typical values"), which is the permutation test of the mean. A value that ties
    counts on *both* sides and the interval is closed, which keeps level and coverage under ties and zeros
    (Noether 1967, "Wilcoxon confidence intervals for location parameters in the discrete case").

    Args:
        gains: Differences, at least one.
        zero: Values this close are taken to tie.
    """

    def __init__(self, gains: Sequence[float], zero: float) -> None:
        self._zero = zero
        self._values = subset_means(gains)

    def above(self, value: float) -> float:
        """Return the one-sided p of being centred above a value."""
        return self._chance(bisect_right(self._values, value + self._zero))

    def below(self, value: float) -> float:
        """Return the one-sided p of being centred below a value."""
        return self._chance(len(self._values) - bisect_left(self._values, value - self._zero))

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the ends of the interval of all values that neither test rejects at half the level."""
        cut = bisect_left(range(len(self._values) + 1), alpha, key=lambda count: 2 * self._chance(count))
        if cut == 0:
            return -math.inf, math.inf
        # what ties with zero is zero, so that the interval and the test of zero never disagree
        low, high = (
            0.0 if abs(value) <= self._zero else value
            for value in (self._values[cut - 1], self._values[-cut])
        )
        return low, high

    def _chance(self, count: int) -> float:
        return (1 + count) / (1 + len(self._values))


def subset_means(gains: Sequence[float]) -> list[float]:
    """Return the means of all non-empty subsets, ascending; beyond 18 differences, of 2¹⁸ - 1 random ones.

    With a random sample the p-value (1 + count) / (1 + size) is still a valid one (Phipson & Smyth 2010). The
    sample is the same whenever it is drawn.
    """
    sums, counts = np.zeros(1), np.zeros(1)
    if len(gains) <= _ENUMERATED:
        for gain in gains:
            sums, counts = np.concatenate([sums, sums + gain]), np.concatenate([counts, counts + 1])
        sums, counts = sums[1:], counts[1:]
    else:
        draw = np.random.default_rng(len(gains))
        sums, counts = np.zeros(2**_ENUMERATED - 1), np.zeros(2**_ENUMERATED - 1)
        for gain in gains:
            mask = draw.integers(0, 2, size=len(sums))
            sums, counts = sums + gain * mask, counts + mask
        sums, counts = sums[counts > 0], counts[counts > 0]
    return [float(mean) for mean in np.sort(sums / counts)]

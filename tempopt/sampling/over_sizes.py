"""One surrogate of all sizes of a study that searches on a proxy: what runs of each say of full size.

The size is a feature, so that what holds at one size is believed of another the less the further they are
apart, and lengths say how much (Swersky, Snoek and Adams 2013, "Multi-Task Bayesian Optimization", NeurIPS,
has one coefficient for that). A loss that is lower everywhere says nothing of parameter sets: what a size
differs by from what the smallest one predicts is taken off, and what is unsure of that is a trend. (Kennedy
and O'Hagan 2000, "Predicting the Output from a Complex Computer Code When Fast Approximations Are Available",
Biometrika 87(1), have a factor between sizes instead. With the few runs of a transfer that was no better in
benchmarks/over_sizes.py.)

Shapes: N runs, D features, M parameter sets, S sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tempopt.sampling.surrogate import Posterior, Runs, Surrogate, near

Array = NDArray[np.float64]

APART = 0.4
"""How far full size is from the smallest proxy: with a length of 0.5, both have a correlation of 0.64."""


class OverSizes:
    """The mean over seeds of parameter sets at full size, on the level of the smallest, given runs of all.

    Args:
        sizes: The runs of each size, the smallest first, full size last; of the larger ones there may be
            none. Values are as measured, more being better, and seeds have numbers that no two sizes share.
        trends: How many of the features, the last ones, are trends.
    """

    def __init__(self, sizes: Sequence[Runs], *, trends: int = 0) -> None:
        self._full, self._trends = len(sizes) - 1, trends
        # how bad the worst are is no scale at any size
        told = [
            (size, replace(each, values_N=near(each.values_N)))
            for size, each in enumerate(sizes)
            if len(each.values_N)
        ]
        smallest = Surrogate(told[0][1], trends=trends)
        known = told[:1] + [(size, _levelled(each, smallest)) for size, each in told[1:]]
        runs = Runs(
            features_ND=np.vstack([self.at(runs.features_ND, size=size) for size, runs in known]),
            seeds_N=np.concatenate([runs.seeds_N for _, runs in known]),
            values_N=np.concatenate([runs.values_N for _, runs in known]),
            excess_N=np.concatenate([runs.excess_N for _, runs in known]),
        )
        self.surrogate = Surrogate(runs, trends=trends + self._full)

    def posterior(self, features_MD: Array) -> Posterior:
        """Return the predicted means of parameter sets at full size, with their covariance."""
        return self.surrogate.posterior(self.at(features_MD, size=self._full))

    def at(self, features_MD: Array, *, size: int) -> Array:
        """Return the features that described parameter sets have at a size."""
        own_end = features_MD.shape[1] - self._trends
        place_M1 = np.full((len(features_MD), 1), APART * size / self._full)
        level_MS = np.tile(np.arange(1, self._full + 1) == size, (len(features_MD), 1)).astype(float)
        return np.hstack([features_MD[:, :own_end], place_M1, features_MD[:, own_end:], level_MS])


def _levelled(runs: Runs, smallest: Surrogate) -> Runs:
    """Return runs of a size, less the mean of what they differ by from what the smallest size predicts."""
    apart_N = runs.values_N - smallest.mean(runs.features_ND)
    return replace(runs, values_N=runs.values_N - apart_N.mean())

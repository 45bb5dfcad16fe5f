"""What an earlier study says of the parameter sets of this one.

How good it would expect a set to be is a trend that values of this study may follow, by a factor that its
surrogate learns with all else: 1 where the two are alike, 0 where they have nothing in common. (As a prior
mean, as in Golovin et al. 2017, "Google Vizier", section 3.3, it would have to be unlearnt there.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tempopt.sampling.surrogate import Observations, Surrogate, pull_in_low_outliers, select_batch

Array = NDArray[np.float64]

_MIN_RELATIVE_SPREAD = 1e-6


class WarmStartStudy:
    """One earlier study.

    Args:
        runs: Parameters and values of its runs, more being better; at least one.
        describe: Turns whole parameter sets into the features of this study.
    """

    def __init__(
        self,
        runs: Sequence[tuple[Mapping[str, Any], float]],
        describe: Callable[[Mapping[str, Any]], Array],
    ) -> None:
        features_ND = np.array([describe(parameters) for parameters, _ in runs])
        values_N = pull_in_low_outliers(np.array([value for _, value in runs]))
        self.parameters: list[Mapping[str, Any]] = [parameters for parameters, _ in runs]
        self._surrogate = Surrogate(
            Observations(
                features_ND=features_ND,
                seeds_N=np.arange(len(runs)),
                values_N=values_N,
                excess_N=np.zeros(len(runs)),
            )
        )
        said_N = self._surrogate.mean(features_ND)
        self._middle, spread = float(said_N.mean()), float(said_N.std())
        # where its runs differ in nothing that this study knows, what is left of it is rounding
        self._factor = 1.0 / spread if spread > _MIN_RELATIVE_SPREAD * float(values_N.std()) else 0.0

    def __call__(self, features_D: Array) -> float:
        """Return how good a described set is expected to be, in standard deviations of its runs' sets."""
        return self._factor * (float(self._surrogate.mean(features_D[None])[0]) - self._middle)

    def best(self, features_MD: Array, *, count: int, rng: np.random.Generator) -> list[int]:
        """Return the places of the described sets that it would name, the best single one first."""
        return select_batch(self._surrogate.posterior(features_MD), count=count, rng=rng)

"""The parameter sets that an arm considers: from everywhere in its space, and from near the best ones.

Of a space that has few of them all are considered. Which of them is trained is decided elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution
from scipy.stats import qmc

from tempopt.sampling.surrogate import FloatArray, Observations, Surrogate, pull_in_low_outliers, select_batch
from tempopt.sampling.unit_cube import configurations, from_unit, from_unit_vector, nearest, to_unit
from tempopt.storage.rows import Parameters

Describe = Callable[[Mapping[str, Any]], FloatArray]
"""Turns sampled values, or whole parameter sets, into the features of the parameter set that they make."""

_FROM_EARLIER = 2
_EVERYWHERE = 256
"""Parameter sets that are considered; a space with no more of them is considered whole."""
_AFFORDABLE = 12
"""A space with no more parameter sets has each of them trained once before any is repeated."""
_CENTRES = 6
_NEAR = 10
_WIDTH = 0.1
_REDRAWN = 0.15
_MIN_RELATIVE_SPREAD = 1e-6


class WarmStartStudy:
    """What an earlier study says of the parameter sets of this one.

    How good it would expect a set to be is a trend that values of this study may follow, by a factor that
    its surrogate learns with all else: 1 where the two are alike, 0 where they have nothing in common. (As a
    prior mean, as in Golovin et al. 2017, "Google Vizier", section 3.3, it would have to be unlearnt there.)

    Args:
        runs: Parameters and values of its runs, more being better; at least one.
        describe: Turns whole parameter sets into the features of this study.
    """

    def __init__(
        self,
        runs: Sequence[tuple[Mapping[str, Any], float]],
        describe: Describe,
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

    def __call__(self, features_D: FloatArray) -> float:
        """Return how good a described set is expected to be, in standard deviations of its runs' sets."""
        return self._factor * (float(self._surrogate.mean(features_D[None])[0]) - self._middle)

    def best(self, features_MD: FloatArray, *, count: int, rng: np.random.Generator) -> list[int]:
        """Return the places of the described sets that it would name, the best single one first."""
        return select_batch(self._surrogate.posterior(features_MD), count=count, rng=rng)


class CandidatePool:
    """Parameter sets that an arm may train or recommend.

    Args:
        space: What the arm samples.
        describe: Turns sampled values into features.
        seed: What is drawn once for all trials follows from it.
        earlier: What earlier studies say; the last features are theirs.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        describe: Describe,
        *,
        seed: int,
        earlier: Sequence[WarmStartStudy] = (),
    ) -> None:
        self._space = dict(space)
        self._describe = describe
        self._seed = seed
        self._own_end = -len(earlier)
        self._earlier = list(earlier)

    def feature_matrix(self, sets: Iterable[Mapping[str, Any]]) -> FloatArray:
        """Return the features of parameter sets, shape (M, D)."""
        return np.array([self._describe(parameters) for parameters in sets])

    def pool(
        self, ranked: Sequence[Mapping[str, Any]], rng: np.random.Generator, fixed: Mapping[str, Any]
    ) -> tuple[list[Parameters], FloatArray]:
        """Return parameter sets from everywhere, more from near the best ones, and the features of all.

        Args:
            ranked: Sets that were tried, the best first.
            rng: Draws what is near.
            fixed: Values that are not to be chosen.
        """
        global_sets, described_MD = self._everywhere
        # where all sets are considered, those that are near are among them
        centres = [] if self._listed else ranked[:_CENTRES]
        near_sets = [self._perturb(centre, rng) for centre in centres for _ in range(_NEAR)]
        if fixed:
            pool = [{**parameters, **fixed} for parameters in (*global_sets, *near_sets)]
            return pool, self.feature_matrix(pool)
        if not near_sets:
            return global_sets, described_MD
        return [*global_sets, *near_sets], np.vstack([described_MD, self.feature_matrix(near_sets)])

    @cached_property
    def warm_start_configs(self) -> list[Parameters]:
        """What earlier studies would have the trials after the first one begin with."""
        if not self._earlier:
            return []
        pool, features_MD = self._everywhere
        rng, own_MD = np.random.default_rng(self._seed), features_MD[:, : self._own_end]
        best_indices = [
            prior_study.best(own_MD, count=_FROM_EARLIER, rng=rng) for prior_study in self._earlier
        ]
        # the best of each, then the second best of each
        return [pool[index] for index in dict.fromkeys(itertools.chain(*zip(*best_indices, strict=True)))]

    @cached_property
    def exhaustive_configs(self) -> list[Parameters]:
        """All sets of a small space, those first that earlier studies would begin with; else none."""
        if not 1 <= len(self._listed) <= _AFFORDABLE:
            return []
        return self._distinct([*self.warm_start_configs, *self._listed])

    @cached_property
    def _everywhere(self) -> tuple[list[Parameters], FloatArray]:
        if self._listed:
            return self._listed, self.feature_matrix(self._listed)
        sobol = qmc.Sobol(len(self._space), seed=self._seed).random(_EVERYWHERE)
        sets = [from_unit_vector(self._space, places) for places in sobol]
        for prior_study in self._earlier:
            sets += [nearest(self._space, parameters) for parameters in prior_study.parameters]
        return sets, self.feature_matrix(sets)

    @cached_property
    def _listed(self) -> list[Parameters]:
        """All sets of the space, in an order that is drawn once; none where they are too many."""
        sets = configurations(self._space, max_count=_EVERYWHERE)
        order = np.random.default_rng(self._seed).permutation(len(sets))
        return self._distinct([sets[index] for index in order])

    def _distinct(self, sets: Sequence[Parameters]) -> list[Parameters]:
        return distinct_sets(sets, self.feature_matrix(sets))[0]

    def _perturb(self, centre: Mapping[str, Any], rng: np.random.Generator) -> Parameters:
        values = {}
        for name, distribution in self._space.items():
            value = centre.get(name)
            if value is None:
                values[name] = from_unit(distribution, rng.random())
            elif isinstance(distribution, CategoricalDistribution):
                # a run at a constant temperature may have a choice that is not searched
                is_kept = rng.random() >= _REDRAWN and value in distribution.choices
                values[name] = value if is_kept else from_unit(distribution, rng.random())
            else:
                position = to_unit(distribution, value) + _WIDTH * rng.standard_normal()
                values[name] = from_unit(distribution, min(max(position, 0.0), 1.0))
        return values


def distinct_sets(sets: Sequence[Parameters], features_MD: FloatArray) -> tuple[list[Parameters], FloatArray]:
    """Return the sets, and their features, without those that make the same training as one before them.

    Such are constants with other ends.
    """
    first_index: dict[bytes, int] = {}
    for index, row_D in enumerate(features_MD):
        first_index.setdefault(row_D.tobytes(), index)
    indices = list(first_index.values())
    return [sets[index] for index in indices], features_MD[indices]

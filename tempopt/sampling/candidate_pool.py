"""Candidate parameter sets of an arm: from its whole space, and from near the best ones.

All sets of a small space are candidates. The caller decides which of them is trained.
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
"""Turns sampled values, or whole parameter sets, into features."""

_FROM_EARLIER = 2
_POOL_SIZE = 256
"""Number of candidates from the whole space; a space with at most as many sets is listed completely."""
_MAX_EXHAUSTIVE = 12
"""In a space with at most as many sets, each is trained once before any is repeated."""
_NUM_CENTRES = 6
_SETS_PER_CENTRE = 10
_PERTURBATION_STD = 0.1
_REDRAW_PROBABILITY = 0.15
_MIN_RELATIVE_SPREAD = 1e-6


class WarmStartStudy:
    """Predictions of an earlier study for the parameter sets of this one.

    The predicted value of a set is a trend that values of this study may follow, by a factor that its
    surrogate learns: 1 if the two are alike, 0 if they have nothing in common. (As a prior mean, as in
    Golovin et al. 2017, "Google Vizier", section 3.3, a wrong prediction would have to be unlearned.)

    Args:
        runs: Parameters and values of its runs, larger being better; at least one.
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
        # if its runs differ only in parameters unknown to this study, the remaining spread is rounding
        self._factor = 1.0 / spread if spread > _MIN_RELATIVE_SPREAD * float(values_N.std()) else 0.0

    def __call__(self, features_D: FloatArray) -> float:
        """Return the predicted value of a described set, in standard deviations over the sets of its runs."""
        return self._factor * (float(self._surrogate.mean(features_D[None])[0]) - self._middle)

    def best(self, features_MD: FloatArray, *, count: int, rng: np.random.Generator) -> list[int]:
        """Return the indices of the described sets that it would recommend, the best single one first."""
        return select_batch(self._surrogate.posterior(features_MD), count=count, rng=rng)


class CandidatePool:
    """Parameter sets that an arm may train or recommend.

    Args:
        space: The search space of the arm.
        describe: Turns sampled values into features.
        seed: Seed of the draws that all trials share.
        earlier: Earlier studies; the last features are their trends.
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
        """Return sets from the whole space, more from near the best ones, and the features of all.

        Args:
            ranked: Sets that were tried, best first.
            rng: Generator of the sets near the best.
            fixed: Values that are not chosen.
        """
        global_sets, described_MD = self._whole_space
        # a list of all sets contains those near the best
        centres = [] if self._all_sets else ranked[:_NUM_CENTRES]
        near_sets = [self._perturb(centre, rng) for centre in centres for _ in range(_SETS_PER_CENTRE)]
        if fixed:
            pool = [{**parameters, **fixed} for parameters in (*global_sets, *near_sets)]
            return pool, self.feature_matrix(pool)
        if not near_sets:
            return global_sets, described_MD
        return [*global_sets, *near_sets], np.vstack([described_MD, self.feature_matrix(near_sets)])

    @cached_property
    def warm_start_configs(self) -> list[Parameters]:
        """Parameter sets that earlier studies recommend for the trials after the first one."""
        if not self._earlier:
            return []
        pool, features_MD = self._whole_space
        rng, own_MD = np.random.default_rng(self._seed), features_MD[:, : self._own_end]
        best_indices = [
            prior_study.best(own_MD, count=_FROM_EARLIER, rng=rng) for prior_study in self._earlier
        ]
        # the best set of each study, then the second best of each
        return [pool[index] for index in dict.fromkeys(itertools.chain(*zip(*best_indices, strict=True)))]

    @cached_property
    def exhaustive_configs(self) -> list[Parameters]:
        """All sets of a small space, those recommended by earlier studies first; empty for a large space."""
        if not 1 <= len(self._all_sets) <= _MAX_EXHAUSTIVE:
            return []
        return self._drop_duplicates([*self.warm_start_configs, *self._all_sets])

    @cached_property
    def _whole_space(self) -> tuple[list[Parameters], FloatArray]:
        if self._all_sets:
            return self._all_sets, self.feature_matrix(self._all_sets)
        sobol = qmc.Sobol(len(self._space), seed=self._seed).random(_POOL_SIZE)
        sets = [from_unit_vector(self._space, places) for places in sobol]
        for prior_study in self._earlier:
            sets += [nearest(self._space, parameters) for parameters in prior_study.parameters]
        return sets, self.feature_matrix(sets)

    @cached_property
    def _all_sets(self) -> list[Parameters]:
        """All sets of the space, in an order that is drawn once; empty if they are too many."""
        sets = configurations(self._space, max_count=_POOL_SIZE)
        order = np.random.default_rng(self._seed).permutation(len(sets))
        return self._drop_duplicates([sets[index] for index in order])

    def _drop_duplicates(self, sets: Sequence[Parameters]) -> list[Parameters]:
        return distinct_sets(sets, self.feature_matrix(sets))[0]

    def _perturb(self, centre: Mapping[str, Any], rng: np.random.Generator) -> Parameters:
        values = {}
        for name, distribution in self._space.items():
            value = centre.get(name)
            if value is None:
                values[name] = from_unit(distribution, rng.random())
            elif isinstance(distribution, CategoricalDistribution):
                # a run at a constant temperature may have a choice outside of the space
                is_kept = rng.random() >= _REDRAW_PROBABILITY and value in distribution.choices
                values[name] = value if is_kept else from_unit(distribution, rng.random())
            else:
                position = to_unit(distribution, value) + _PERTURBATION_STD * rng.standard_normal()
                values[name] = from_unit(distribution, min(max(position, 0.0), 1.0))
        return values


def distinct_sets(sets: Sequence[Parameters], features_MD: FloatArray) -> tuple[list[Parameters], FloatArray]:
    """Return the sets and their features, without those that give the same training as an earlier one.

    These are, for example, constants with different ends.
    """
    first_index: dict[bytes, int] = {}
    for index, row_D in enumerate(features_MD):
        first_index.setdefault(row_D.tobytes(), index)
    indices = list(first_index.values())
    return [sets[index] for index in indices], features_MD[indices]

"""How probable it is that parameter sets keep the guards of a study, by what trials have measured so far.

Each guarded metric has a Gaussian process of its own, over the same features as the metric that is searched
for. A candidate's gain counts by the probability that the confirmation would show its guards to be kept
(Gardner et al. 2014, "Bayesian Optimization with Inequality Constraints", ICML; Gelbart, Snoek and Adams
2014, "Bayesian Optimization with Unknown Constraints", UAI): one that breaks one is worth no more than τ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial
from scipy.special import ndtr, stdtrit

from tempopt.sampling.surrogate import Observations, Surrogate, pull_in_low_outliers
from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.storage.ticket_queries import to_maximize

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

FloatArray = NDArray[np.float64]
Weigh = Callable[[FloatArray], FloatArray]
"""Returns for described parameter sets how probable it is that they are shown to keep all guards."""

LIKELY = 0.5
"""Probability from which a parameter set is taken to keep all guards."""

_TUNED = 0.25
"""Share of the runs at τ = 1, the best ones, that are what guards compare with where these tune something."""
_EXACT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimit:
    """What the mean of a guarded metric has to be above, the metric's sign being such that more is better.

    Args:
        name: The metric.
        sign: What the metric is multiplied by to be so.
        at: The limit: the mean of runs at τ = 1, less the margin.
        variance: How far that may be from the truth, squared.
    """

    name: str
    sign: float
    at: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConstraints:
    """What an arm's sampler has to know of the guards.

    Args:
        limits: One for each guarded metric.
        base: Value of τ = 1 in the metric that is searched for, more being better.
        pairs: Number of pairs of the confirmation.
        quantile: How many standard errors a mean has to be within a margin to be shown to be.
    """

    limits: tuple[GuardLimit, ...]
    base: float
    pairs: int
    quantile: float

    def constraints(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return by how much a run exceeds each limit, as Optuna's constraints: 0 or less keeps it.

        Args:
            metrics: What the run measured of guarded metrics, by name.
        """
        excess = {
            limit.name: limit.at - limit.sign * metrics.get(limit.name, math.nan) for limit in self.limits
        }
        return {name: value for name, value in excess.items() if math.isfinite(value)}

    def feasibility_probability(
        self,
        complete_trials: Sequence[FrozenTrial],
        describe: Callable[[Mapping[str, Any]], FloatArray],
        stream_of: Callable[[int], int],
        trends: int = 0,
    ) -> Weigh:
        """Return how probable it is that described parameter sets are shown to keep all guards.

        Args:
            complete_trials: Trials that came to their end, at least one.
            describe: Turns sampled values into features.
            stream_of: Which of the study's seeds the trial of a number is trained with.
            trends: How many of the features, the last ones, are about another metric.
        """
        features_ND = np.array([describe(trial.params) for trial in complete_trials])
        end = features_ND.shape[1] - trends
        seeds_N = np.array([stream_of(trial.number) for trial in complete_trials])
        metrics_by_trial = [trial.user_attrs for trial in complete_trials]
        weighers = [self._by(limit, features_ND[:, :end], seeds_N, metrics_by_trial) for limit in self.limits]
        return lambda features_MD: np.prod([weigh(features_MD[:, :end]) for weigh in weighers], axis=0)

    def _by(
        self,
        limit: GuardLimit,
        features_ND: FloatArray,
        seeds_N: NDArray[np.int64],
        metrics_by_trial: Sequence[Mapping[str, float]],
    ) -> Weigh:
        values_N = np.array([limit.sign * metrics.get(limit.name, math.nan) for metrics in metrics_by_trial])
        is_finite = np.isfinite(values_N)
        # a run whose metric is no number is as bad as the worst
        worst = min([limit.at, *values_N[is_finite].tolist()])
        *near_values, near_limit = pull_in_low_outliers(
            np.append(np.where(is_finite, values_N, worst), limit.at)
        )
        surrogate = Surrogate(
            Observations(
                features_ND=features_ND,
                seeds_N=seeds_N,
                values_N=np.array(near_values),
                excess_N=np.zeros(len(near_values)),
            )
        )
        # of the mean difference of two runs on one seed
        error = surrogate.noise * math.sqrt(2.0 / self.pairs)

        def probability(features_MD: FloatArray) -> FloatArray:
            posterior = surrogate.posterior(features_MD)
            spread_M = np.sqrt(posterior.variance() + limit.variance + error**2)
            room_M = posterior.mean_M - near_limit - self.quantile * error
            probabilities: FloatArray = ndtr(
                room_M / np.maximum(spread_M, _EXACT * max(1.0, abs(near_limit)))
            )
            return probabilities

        return probability


def build_guard_constraints(
    spec: StudySpec, at_one: Sequence[tuple[float, Mapping[str, float]]]
) -> GuardConstraints | None:
    """Return what the guards ask of parameter sets; None: they ask nothing, or nothing is known of τ = 1.

    Args:
        spec: The study's spec.
        at_one: Of each complete run of the baseline arm its value and what it measured of guarded metrics.
    """
    direction = spec.study.direction
    best_runs = sorted(at_one, key=lambda run: to_maximize(run[0], direction), reverse=True)
    if spec.ordinary_names:
        # runs that tune something are mostly worse than what the winner will be compared with
        best_runs = best_runs[: math.ceil(_TUNED * len(best_runs))]
    limits = []
    for guard in spec.study.guarded:
        values = [
            metrics[guard.name]
            for _, metrics in best_runs
            if math.isfinite(metrics.get(guard.name, math.nan))
        ]
        if not values:
            continue
        mean = fmean(values)
        margin = guard.margin * abs(mean) if guard.relative else guard.margin
        sign = -1.0 if guard.side == "most" else 1.0
        spread = variance(values) / len(values) if len(values) > 1 else 0.0
        limits.append(GuardLimit(name=guard.name, sign=sign, at=sign * mean - margin, variance=spread))
    if not limits:
        return None
    pairs = spec.study.seeds.confirm.max
    return GuardConstraints(
        limits=tuple(limits),
        base=fmean(to_maximize(value, direction) for value, _ in best_runs),
        pairs=pairs,
        quantile=float(stdtrit(pairs - 1, 1.0 - alpha_for_verdict(1) / 2.0)),
    )

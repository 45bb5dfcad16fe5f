"""Probability that parameter sets keep the guards of a study, by the measurements of trials so far.

Each guarded metric has its own Gaussian process, over the same features as the searched metric. A candidate's
gain is multiplied by the probability that the confirmation would show its guards to be kept (Gardner et al.
2014, "Bayesian Optimization with Inequality Constraints", ICML; Gelbart, Snoek and Adams 2014, "Bayesian
Optimization with Unknown Constraints", UAI): a set that breaks a guard is worth no more than τ = 1.
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
"""Returns the probability that described parameter sets are shown to keep all guards."""

MIN_PROBABILITY = 0.5
"""Probability from which a parameter set counts as keeping all guards."""

_BASELINE_SHARE = 0.25
"""Share of the best runs at τ = 1 that guards compare with, if these runs tune parameters."""
_MIN_RELATIVE_SPREAD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimit:
    """Lower limit of the mean of a guarded metric, with the sign chosen such that larger is better.

    Args:
        name: The metric.
        sign: Factor on the metric for that.
        at: The limit: the mean of runs at τ = 1, minus the margin.
        variance: Variance of the estimated limit.
    """

    name: str
    sign: float
    at: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConstraints:
    """Guards of a study for an arm's sampler.

    Args:
        limits: One for each guarded metric.
        base: Value of the searched metric at τ = 1, larger being better.
        pairs: Number of pairs of the confirmation.
        quantile: Standard errors by which a mean has to be within a margin to be shown to be.
    """

    limits: tuple[GuardLimit, ...]
    base: float
    pairs: int
    quantile: float

    def constraints(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return how far a run exceeds each limit, as Optuna's constraints: 0 or less keeps it.

        Args:
            metrics: Guarded metrics of the run, by name.
        """
        excess = {
            limit.name: limit.at - limit.sign * metrics.get(limit.name, math.nan) for limit in self.limits
        }
        return {name: value for name, value in excess.items() if math.isfinite(value)}

    def feasibility_probability(
        self,
        complete_trials: Sequence[FrozenTrial],
        describe: Callable[[Mapping[str, Any]], FloatArray],
        seed_index_of: Callable[[int], int],
        trends: int = 0,
    ) -> Weigh:
        """Return a function for the probability that described parameter sets are shown to keep all guards.

        Args:
            complete_trials: Complete trials, at least one.
            describe: Turns sampled values into features.
            seed_index_of: Returns the index of the study seed of a trial number.
            trends: Number of trailing features that are trends of another metric.
        """
        features_ND = np.array([describe(trial.params) for trial in complete_trials])
        end = features_ND.shape[1] - trends
        seeds_N = np.array([seed_index_of(trial.number) for trial in complete_trials])
        metrics_by_trial = [trial.user_attrs for trial in complete_trials]
        weighers = [
            self._weigh_by_limit(limit, features_ND[:, :end], seeds_N, metrics_by_trial)
            for limit in self.limits
        ]
        return lambda features_MD: np.prod([weigh(features_MD[:, :end]) for weigh in weighers], axis=0)

    def _weigh_by_limit(
        self,
        limit: GuardLimit,
        features_ND: FloatArray,
        seeds_N: NDArray[np.int64],
        metrics_by_trial: Sequence[Mapping[str, float]],
    ) -> Weigh:
        values_N = np.array([limit.sign * metrics.get(limit.name, math.nan) for metrics in metrics_by_trial])
        is_finite = np.isfinite(values_N)
        # a run without a finite metric counts as the worst
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
        # standard error of the mean difference of two runs on one seed
        error = surrogate.noise * math.sqrt(2.0 / self.pairs)

        def probability(features_MD: FloatArray) -> FloatArray:
            posterior = surrogate.posterior(features_MD)
            spread_M = np.sqrt(posterior.variance() + limit.variance + error**2)
            room_M = posterior.mean_M - near_limit - self.quantile * error
            probabilities: FloatArray = ndtr(
                room_M / np.maximum(spread_M, _MIN_RELATIVE_SPREAD * max(1.0, abs(near_limit)))
            )
            return probabilities

        return probability


def build_guard_constraints(
    spec: StudySpec, at_one: Sequence[tuple[float, Mapping[str, float]]]
) -> GuardConstraints | None:
    """Return the constraints of the guards; None if there are none, or if nothing is known at τ = 1.

    Args:
        spec: The study's spec.
        at_one: Value and guarded metrics of each complete run of the baseline arm.
    """
    direction = spec.study.direction
    best_runs = sorted(at_one, key=lambda run: to_maximize(run[0], direction), reverse=True)
    if spec.ordinary_names:
        # most runs that tune parameters are worse than the baseline of the comparison
        best_runs = best_runs[: math.ceil(_BASELINE_SHARE * len(best_runs))]
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

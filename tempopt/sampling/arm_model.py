"""What the runs of an arm say: the values of parameter sets, and forecasts of runs that are not over.

What is done with it is knowledge_gradient.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from tempopt.sampling.guard_constraints import GuardConstraints
from tempopt.sampling.surrogate import (
    CurveExtrapolator,
    Observations,
    Posterior,
    Surrogate,
    continuation_value,
    knowledge_gradient,
    pull_in_low_outliers,
)

Array = NDArray[np.float64]
Row = TypeVar("Row", bound=tuple[Any, ...])
Describe = Callable[[Mapping[str, Any]], Array]
"""Turns sampled values into the features of the parameter set that they make."""

_ENOUGH = 6
_COMPLETE = 1 / 3
"""Least share of ended trials that are complete: the prediction of final values is fitted to them."""
_TELLING = 240
"""Runs that are looked at, at most: a fit takes time by the third power of their number."""


class ArmModel:
    """What the runs of an arm that may be known say of any parameter set.

    Args:
        complete_trials: Trials that ran to their end, at least one.
        broken_trials: Pruned and diverged trials.
        describe: Turns sampled values into features.
        maximize: Whether more of the metric is better; here, more is always better.
        stream_of: Which of the study's seeds the trial of a number is trained with.
        trends: How many of the features, the last ones, are what earlier studies say.
        guarding: What guards ask of a parameter set; None: nothing.
    """

    def __init__(
        self,
        complete_trials: Sequence[FrozenTrial],
        broken_trials: Sequence[FrozenTrial],
        describe: Describe,
        *,
        maximize: bool,
        stream_of: Callable[[int], int],
        trends: int = 0,
        guarding: GuardConstraints | None = None,
    ) -> None:
        self._describe = describe
        self._stream_of = stream_of
        self._sign = 1.0 if maximize else -1.0
        self.total_steps = max(max(trial.intermediate_values, default=1) for trial in complete_trials)
        """Steps of the longest run."""
        self._forecast = CurveExtrapolator(
            [(self._reports(trial), self._value(trial)) for trial in complete_trials]
        )
        self.may_prune = len(complete_trials) >= max(
            _ENOUGH, _COMPLETE * (len(complete_trials) + len(broken_trials))
        )
        """Whether so many runs came to their end that forecasts go by more than a few lucky ones."""
        rows = [(trial, self._value(trial), 0.0) for trial in complete_trials]
        worst = min(value for _, value, _ in rows)
        self.has_only_diverged = {
            describe(trial.params).tobytes() for trial in broken_trials if not finite(trial)
        }
        """Features, as bytes, of the parameter sets that were trained and diverged every time."""
        self.has_only_diverged -= {describe(trial.params).tobytes() for trial in complete_trials}
        for trial in broken_trials:
            # a run that diverged has no value, and is as bad as the worst that has one
            diverged = not finite(trial)
            estimate = (worst, 0.0) if diverged else self._forecast(self._reports(trial))
            if estimate is not None:
                rows.append((trial, *estimate))
        rows = subsample_informative(rows)
        self.trials: list[FrozenTrial] = [trial for trial, _, _ in rows]
        self._features_ND = np.array([describe(trial.params) for trial in self.trials])
        self.runs = Observations(
            features_ND=self._features_ND,
            seeds_N=np.array([stream_of(trial.number) for trial in self.trials]),
            values_N=np.array([value for _, value, _ in rows]),
            excess_N=np.array([excess for _, _, excess in rows]),
        )
        """Their values, or forecasts of them."""
        self.surrogate = Surrogate(
            replace(self.runs, values_N=pull_in_low_outliers(self.runs.values_N)), trends=trends
        )
        self._base, self._weigh = 0.0, None
        if guarding is not None:
            informative_trials = [
                trial
                for trial, _ in subsample_informative(
                    [(trial, self._value(trial)) for trial in complete_trials]
                )
            ]
            self._base = guarding.base
            self._weigh = guarding.feasibility_probability(informative_trials, describe, stream_of, trends)

    def posterior(self, features_MD: Array, *, pending: Sequence[FrozenTrial] = ()) -> Posterior:
        """Return the predicted means of parameter sets; more is better.

        Args:
            features_MD: The parameter sets, described.
            pending: Trials in progress, taken to reach their predicted values.
        """
        pending_PD = np.array([self._describe(trial.params) for trial in pending])
        streams = np.array([self._stream_of(trial.number) for trial in pending], dtype=np.int64)
        expecting = self.surrogate.with_pending(pending_PD, streams)
        return expecting.posterior(features_MD, self._weigh, self._base)

    def worth_of_rest(self, trial: FrozenTrial, posterior: Posterior) -> float | None:
        """Return what a step of the rest of a run is worth; None: nothing can be said yet.

        Args:
            trial: The run, with what it has reported.
            posterior: Values of the parameter sets that might be recommended.
        """
        estimate = self._forecast(self._reports(trial))
        remaining_steps = self.total_steps - max(trial.intermediate_values, default=0)
        if estimate is None or remaining_steps <= 0:
            return None
        forecast, doubt = estimate
        described_D = self._describe(trial.params)
        joint_posterior = posterior.with_candidate(described_D)
        mean_1, variance_1, together_M1 = joint_posterior.of_runs(
            described_D[None], self._stream_of(trial.number)
        )
        run = float(mean_1[0]), float(variance_1[0]), together_M1[:, 0]
        return (
            continuation_value(joint_posterior.mean_M, run=run, forecast=forecast, doubt=doubt)
            / remaining_steps
        )

    def worth_of_new(self, posterior: Posterior, number: int) -> Array:
        """Return what a new run is worth, for each of the parameter sets.

        Args:
            posterior: Values of the parameter sets.
            number: Number of the trial that would train one of them.
        """
        _, variance_M, together_MM = posterior.of_runs(posterior.features_MD, self._stream_of(number))
        return knowledge_gradient(posterior.mean_M, variance_M, together_MM)

    @cached_property
    def ranked(self) -> list[FrozenTrial]:
        """The trials, in descending order of the predicted mean of their sets, as far as it counts."""
        mean_N = self.surrogate.mean(self._features_ND)
        if self._weigh is not None:
            mean_N = self._weigh(self._features_ND) * (mean_N - self._base)
        return [self.trials[index] for index in np.argsort(-mean_N, kind="stable")]

    def _value(self, trial: FrozenTrial) -> float:
        assert trial.value is not None
        return self._sign * float(trial.value)

    def _reports(self, trial: FrozenTrial) -> dict[int, float]:
        return {step: self._sign * value for step, value in finite(trial).items()}


def finite(trial: FrozenTrial) -> dict[int, float]:
    """Return what a trial has reported, without what is no number."""
    return {step: value for step, value in trial.intermediate_values.items() if math.isfinite(value)}


def subsample_informative(rows: list[Row]) -> list[Row]:
    """Return the rows that tell most where there are too many: half of them the best, half from all over.

    Args:
        rows: Each with its value in second place; more is better.
    """
    if len(rows) <= _TELLING:
        return rows
    order = sorted(rows, key=lambda row: row[1], reverse=True)
    best, other_rows = order[: _TELLING // 2], order[_TELLING // 2 :]
    indices = np.linspace(0, len(other_rows) - 1, _TELLING - len(best)).round().astype(int)
    return best + [other_rows[index] for index in indices]

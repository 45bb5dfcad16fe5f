"""A search that knows what a temperature plan is: what tempopt's default may become, and no part of it yet.

It has a picture of an arm: a Gaussian process (surrogate.py) over plans as curves (features.py), of runs that
are complete, or that were broken off and are forecast (forecast.py). It asks for the parameter set that is
most expected to improve on the best one, and ends a run that, by all this, is unlikely to be better than it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import norm

from benchmarks.recorded.tasks import at
from benchmarks.simulated.forecast import Forecast
from benchmarks.simulated.surrogate import Runs, Surrogate

Array = NDArray[np.float64]
Describe = Callable[[Mapping[str, Any]], Array]
"""Turns sampled values into the features of the parameter set that they make."""

FEWEST = 3
"""Complete trials that a picture takes."""
_POOL = 400
_NEAR = 8
_NEAR_EACH = 40
_WIDTHS = (0.05, 0.15)


class Picture:
    """What the runs of an arm that may be known say of any parameter set.

    Args:
        trials: What may be known; of those that run, what they have reported so far is not.
        describe: Turns sampled values into features.
        maximize: Whether more of the metric is better.
        seed_of: Which of the study's seeds a trial is trained with.

    Raises:
        ValueError: Fewer than three of the trials are complete.
    """

    def __init__(
        self,
        trials: Iterable[FrozenTrial],
        describe: Describe,
        *,
        maximize: bool,
        seed_of: Callable[[int], int],
    ) -> None:
        trials = list(trials)
        self._describe = describe
        self._sign = 1.0 if maximize else -1.0
        complete = [t for t in trials if t.state == TrialState.COMPLETE and t.value is not None]
        if len(complete) < FEWEST:
            raise ValueError(f"{len(complete)} trials are complete, and a picture needs {FEWEST}.")
        self.complete = complete
        self._forecast = Forecast([(t.intermediate_values, self._value(t)) for t in complete])
        rows = [(trial, self._value(trial), 0.0) for trial in complete]
        for trial in trials:
            said = self._forecast(trial.intermediate_values) if trial.state == TrialState.PRUNED else None
            if said is not None:
                rows.append((trial, *said))
        runs = Runs(
            features_ND=np.array([describe(trial.params) for trial, _, _ in rows]),
            seeds_N=np.array([seed_of(trial.number) for trial, _, _ in rows]),
            values_N=self._sign * np.array([value for _, value, _ in rows]),
            excess_N=np.array([excess for _, _, excess in rows]),
        )
        surrogate = Surrogate(runs)
        self._noise = surrogate.noise
        means_N, _ = surrogate.predict(runs.features_ND[: len(complete)])
        self.ranked: list[FrozenTrial] = [complete[place] for place in np.argsort(-means_N, kind="stable")]
        """Complete trials, the best first by what their parameter sets are expected to come to."""
        self.best = float(means_N.max())
        """What the best of them is expected to come to; more is better, whatever the direction."""
        waiting = [trial for trial in trials if trial.state == TrialState.RUNNING]
        self._surrogate = _believing(surrogate, runs, waiting, describe) if waiting else surrogate
        self._plain = surrogate

    def _value(self, trial: FrozenTrial) -> float:
        assert trial.value is not None
        return float(trial.value)

    def expected(self, many: Sequence[Mapping[str, Any]]) -> tuple[Array, Array]:
        """Return mean and deviation of what parameter sets come to, those in work taken as expected."""
        return self._surrogate.predict(np.array([self._describe(each) for each in many]))

    def of_run(self, params: Mapping[str, Any], reports: Mapping[int, float]) -> tuple[float, float] | None:
        """Return mean and deviation of what a parameter set comes to, given reports of a run of it.

        None: nothing can be said of reports at that step yet.
        """
        said = self._forecast(reports)
        if said is None:
            return None
        value, variance = self._sign * said[0], said[1] + self._noise**2
        means, deviations = self._plain.predict(np.array([self._describe(params)]))
        mean, own = float(means[0]), float(deviations[0]) ** 2
        share = own / (own + variance)
        return mean + share * (value - mean), math.sqrt(own * (1.0 - share))


class PlanSearch:
    """Asks for the parameter set that is most expected to improve on the best one known.

    Args:
        seed: What is drawn follows from it.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def propose(self, space: Mapping[str, BaseDistribution], picture: Picture | None) -> dict[str, Any]:
        """Return the parameter set to try next.

        Args:
            space: What is sampled.
            picture: What is known; None: nothing yet, so that it is drawn.
        """
        if picture is None:
            return self._draw(space)
        pool = self._pool(space, [trial.params for trial in picture.ranked[:_NEAR]])
        mean_M, deviation_M = picture.expected(pool)
        gap_M = mean_M - mean_M.max()
        z_M = gap_M / deviation_M
        gain_M = gap_M * norm.cdf(z_M) + deviation_M * norm.pdf(z_M)
        return pool[int(np.argmax(gain_M))]

    def recommend(self, space: Mapping[str, BaseDistribution], picture: Picture) -> dict[str, Any]:
        """Return the parameter set that is expected to be the best of all, whether it was tried or not."""
        pool = self._pool(space, [trial.params for trial in picture.ranked[:_NEAR]])
        return pool[int(np.argmax(picture.expected(pool)[0]))]

    def _draw(self, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
        return {name: at(each, self._rng.random()) for name, each in space.items()}

    def _pool(
        self, space: Mapping[str, BaseDistribution], best: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return parameter sets from everywhere, and more from near the best ones."""
        pool = [self._draw(space) for _ in range(_POOL)]
        for centre in best:
            for _ in range(_NEAR_EACH):
                width = self._rng.choice(_WIDTHS)
                pool.append(self._moved(space, centre, float(width)))
        return pool

    def _moved(
        self, space: Mapping[str, BaseDistribution], centre: Mapping[str, Any], width: float
    ) -> dict[str, Any]:
        moved = {}
        for name, each in space.items():
            held = centre.get(name)
            if isinstance(each, CategoricalDistribution) or held is None:
                kept = held is not None and self._rng.random() > width
                moved[name] = held if kept else at(each, self._rng.random())
            else:
                place = _place(each, held) + width * self._rng.standard_normal()
                moved[name] = at(each, min(max(place, 0.0), 1.0))
        return moved


def _believing(
    surrogate: Surrogate, runs: Runs, waiting: Sequence[FrozenTrial], describe: Describe
) -> Surrogate:
    """Return a surrogate that takes runs in work to come to what is expected of them."""
    features_PD = np.array([describe(trial.params) for trial in waiting])
    mean_P, _ = surrogate.predict(features_PD)
    more = Runs(
        features_ND=np.vstack([runs.features_ND, features_PD]),
        # of seeds of their own: nothing is known of what they share with others
        seeds_N=np.concatenate([runs.seeds_N, -1 - np.arange(len(mean_P))]),
        values_N=np.concatenate([runs.values_N, mean_P]),
        excess_N=np.concatenate([runs.excess_N, np.zeros(len(mean_P))]),
    )
    return Surrogate(more, start=surrogate.found, fit=False)


def _place(distribution: BaseDistribution, value: Any) -> float:
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if distribution.log:  # type: ignore[attr-defined]
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def hopeless(picture: Picture, trial: FrozenTrial, *, hope: float = 1.0) -> bool:
    """Return whether a run is unlikely to come to as much as the best known is expected to.

    Args:
        picture: What is known of others.
        trial: The run, with what it has reported.
        hope: Standard deviations that are added to what is expected of it before it is compared.
    """
    said = picture.of_run(trial.params, trial.intermediate_values)
    return said is not None and said[0] + hope * said[1] < picture.best

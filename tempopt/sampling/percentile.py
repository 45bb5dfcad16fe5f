"""The percentile and the median pruner as Optuna decides them, on a history that grows trial by trial.

Optuna asks every trial for its value at a step, at each report; here the values are kept by step.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
from optuna.pruners import PercentilePruner
from optuna.trial import FrozenTrial, TrialState


class Percentiles:
    """What the complete trials of one arm have reported, by step.

    Args:
        pruner: Optuna's pruner (the median pruner is one of the kind), of which only the options are read.
        maximize: Whether more of the metric is better.
    """

    def __init__(self, pruner: PercentilePruner, *, maximize: bool) -> None:
        self._maximize = maximize
        self._percentile = 100 - pruner._percentile if maximize else pruner._percentile
        self._startup = pruner._n_startup_trials
        self._warmup = pruner._n_warmup_steps
        self._interval = pruner._interval_steps
        self._fewest = pruner._n_min_trials
        self._count = 0
        self._complete = array("q")
        self._by_step: dict[int, tuple[array[int], array[float]]] = {}

    def __len__(self) -> int:
        return self._count

    def add(self, trial: FrozenTrial, known: int) -> None:
        """Take in the next trial, in the order of the numbers."""
        assert trial.number == self._count, "trials are taken in by number"
        self._count += 1
        if trial.state != TrialState.COMPLETE:
            return
        self._complete.append(trial.number)
        for step, value in trial.intermediate_values.items():
            numbers, values = self._by_step.setdefault(step, (array("q"), array("d")))
            numbers.append(trial.number)
            values.append(value)

    def prune(self, number: int, reports: Mapping[int, float], known: int) -> bool:
        """Return whether Optuna's pruner would end a trial after these reports (step to value).

        Args:
            number: Number of the trial; nothing follows from it.
            reports: All that it has reported.
            known: How many trials, from the first on, it may know.
        """
        complete = bisect_left(self._complete, known)
        if not complete or complete < self._startup or not reports:
            return False
        step = max(reports)
        if step < self._warmup or not self._first_in_interval(step, reports):
            return False
        reported = [value for value in reports.values() if not math.isnan(value)]
        if not reported:
            return True
        bound = self._bound(step, known)
        if bound is None:
            return False
        return max(reported) < bound if self._maximize else min(reported) > bound

    def bound(self, number: int, reports: Mapping[int, float], known: int) -> float | None:
        """Return what the best report so far must not be worse than, at the step of the last one.

        None: there is no such number yet. Between two decisions it is where the next one would fall.
        The arguments are those of :meth:`prune`.
        """
        complete = bisect_left(self._complete, known)
        if not complete or complete < self._startup or not reports or max(reports) < self._warmup:
            return None
        return self._bound(max(reports), known)

    def _bound(self, step: int, known: int) -> float | None:
        numbers, values = self._by_step.get(step, (array("q"), array("d")))
        others = np.frombuffer(values)[: bisect_left(numbers, known)] if values else np.zeros(0)
        if len(others) < self._fewest or np.isnan(others).all():
            return None
        return float(np.nanpercentile(others, self._percentile))

    def _first_in_interval(self, step: int, reports: Mapping[int, float]) -> bool:
        begun = (step - self._warmup) // self._interval * self._interval + self._warmup
        return max((before for before in reports if before != step), default=-1) < begun

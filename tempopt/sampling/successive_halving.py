"""Successive halving and Hyperband as Optuna decides them, on a history that grows by one trial at a time.

Optuna notes the rungs that a trial reaches on the trial, and reads all trials at each decision. Here the
notes follow from the reports and are kept by rung: an agent that starts does not decide everything again.
"""

from __future__ import annotations

import binascii
import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
from optuna.pruners import HyperbandPruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial, TrialState

Halving = SuccessiveHalvingPruner | HyperbandPruner
Ladder = tuple[int, int, int, int]
"""Lowest resource, early stopping rate, bracket, and the resource that brackets follow from."""


class Rungs:
    """The rungs that the trials of one arm have reached, by number.

    Args:
        pruner: Optuna's pruner, of which only the options are read.
        name: Study name; Hyperband's brackets follow from it.
        maximize: Whether more of the metric is better.
    """

    def __init__(self, pruner: Halving, *, name: str, maximize: bool) -> None:
        self._name = name
        self._sign = -1.0 if maximize else 1.0
        self._factor = pruner._reduction_factor
        self._bootstrap = pruner._bootstrap_count
        self._lowest = pruner._min_resource
        self._rate, self._most, self._banded = 0, 0, False
        if isinstance(pruner, HyperbandPruner):
            self._banded = True
            self._most = 0 if isinstance(pruner._max_resource, str) else pruner._max_resource
        else:
            self._rate = pruner._min_early_stopping_rate
        self._notes: list[list[float]] = []
        # by the number of trials that are known: the last step of the longest complete one, 0 for none
        self._longest = [0]
        self._budgets: dict[int, list[int]] = {}
        self._sorted_for = -1
        self._by_rung: dict[tuple[int, int], tuple[array[int], array[float]]] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, trial: FrozenTrial, known: int) -> None:
        """Take in the next trial, in the order of the numbers.

        Args:
            trial: How it ended.
            known: How many trials, from the first on, it could know.
        """
        assert trial.number == len(self._notes), "trials are taken in by number"
        notes = self._climb(trial.number, trial.intermediate_values, known)[1]
        self._notes.append(notes)
        complete = trial.state == TrialState.COMPLETE and trial.intermediate_values
        self._longest.append(max(self._longest[-1], max(trial.intermediate_values) if complete else 0))
        if self._sorted_for >= 0:
            self._sort_in(trial.number)

    def prune(self, number: int, reports: Mapping[int, float], known: int) -> bool:
        """Return whether Optuna's pruner would end a trial after these reports (step to value).

        Args:
            number: Number of the trial.
            reports: All that it has reported; it was not ended after any earlier of them.
            known: How many trials, from the first on, it may know.
        """
        return self._climb(number, reports, known)[0]

    def bound(self, number: int, reports: Mapping[int, float], known: int) -> float | None:
        """Return what the trial's value at the last rung that it reached must not be worse than.

        None: it has reached none, or too few others have. The arguments are those of :meth:`prune`.
        """
        notes = self._climb(number, reports, known)[1]
        ladder = self._ladder(number, known)
        if not notes or ladder is None:
            return None
        _, _, bracket, resource = ladder
        others = self._others(len(notes) - 1, bracket, resource, known)
        if len(others) + 1 <= self._bootstrap or not len(others):
            return None
        return self._sign * float(np.sort(others)[self._promotable(len(others))])

    def _climb(self, number: int, reports: Mapping[int, float], known: int) -> tuple[bool, list[float]]:
        """Return whether the trial ends at its last report, and its value at each rung that it reached."""
        notes: list[float] = []
        ladder = self._ladder(number, known)
        if ladder is None or not reports:
            return False, notes
        lowest, rate, bracket, resource = ladder
        last = max(reports)
        for step in sorted(reports):
            while step >= lowest * self._factor ** (rate + len(notes)):
                value = reports[step]
                if math.isnan(value):
                    return True, notes
                notes.append(value)
                if step == last and not self._promoted(value, len(notes) - 1, bracket, resource, known):
                    return True, notes
        return False, notes

    def _ladder(self, number: int, known: int) -> Ladder | None:
        """Return the rungs of a trial; None before a complete trial tells how long runs are."""
        longest = self._longest[known]
        if not self._banded:
            lowest = self._lowest or (max(longest // 100, 1) if longest else 0)
            return (lowest, self._rate, 0, 0) if lowest else None
        most = self._most or (longest + 1 if longest else 0)
        if not most:
            return None
        assert self._lowest is not None
        bracket = self._bracket(number, most)
        return self._lowest, bracket, bracket, most

    def _bracket(self, number: int, most: int) -> int:
        if most not in self._budgets:
            assert self._lowest is not None
            count = math.floor(math.log(most / self._lowest, self._factor)) + 1
            self._budgets[most] = [
                math.ceil(count * self._factor**rest / (rest + 1)) for rest in reversed(range(count))
            ]
        budgets = self._budgets[most]
        place = binascii.crc32(f"{self._name}_{number}".encode()) % sum(budgets)
        bracket = 0
        while place >= budgets[bracket]:
            place -= budgets[bracket]
            bracket += 1
        return bracket

    def _promoted(self, value: float, rung: int, bracket: int, resource: int, known: int) -> bool:
        """Return whether a value is among the best at a rung, with itself counted."""
        others = self._others(rung, bracket, resource, known)
        if len(others) + 1 <= self._bootstrap:
            return False
        return int(np.count_nonzero(others < self._sign * value)) <= self._promotable(len(others))

    def _promotable(self, others: int) -> int:
        """Return how many may be better than one that is promoted, itself not counted among the others."""
        return max((others + 1) // self._factor - 1, 0)

    def _others(
        self, rung: int, bracket: int, resource: int, known: int
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return the values at a rung that may be known, less being better."""
        if resource != self._sorted_for:
            self._sorted_for = resource
            self._by_rung = {}
            for number in range(len(self._notes)):
                self._sort_in(number)
        numbers, values = self._by_rung.get((bracket, rung), (array("q"), array("d")))
        return np.frombuffer(values)[: bisect_left(numbers, known)] if values else np.zeros(0)

    def _sort_in(self, number: int) -> None:
        bracket = self._bracket(number, self._sorted_for) if self._banded else 0
        for rung, value in enumerate(self._notes[number]):
            numbers, values = self._by_rung.setdefault((bracket, rung), (array("q"), array("d")))
            numbers.append(number)
            values.append(self._sign * value)

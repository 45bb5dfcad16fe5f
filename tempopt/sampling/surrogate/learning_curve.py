"""Predicts the final values of runs that were pruned, from how the complete ones continued from there.

At each step that runs report at, the values of complete runs there are set beside what they came to in the
end: a line through them, drawn towards "nothing is known" while they are few, forecasts the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Reports = Mapping[int, float]

_DOUBT = 4.0
"""As many runs as stand against a line that complete runs seem to make."""
_FEWEST = 3
_MIN_CORRELATION = 0.1
_SMOOTHED = 2


class CurveExtrapolator:
    """What to expect of a run by what it has reported.

    Args:
        complete_runs: Reports (step to value) and end value of each complete run.
    """

    def __init__(self, complete_runs: Sequence[tuple[Reports, float]]) -> None:
        self._complete = [(dict(reports), value) for reports, value in complete_runs]
        values = np.array([value for _, value in self._complete])
        self._mean = float(values.mean()) if len(values) else 0.0
        self._variance = float(values.var(ddof=1)) if len(values) > 1 else 1.0
        self._lines: dict[int, tuple[float, float, float] | None] = {}

    def __call__(self, reports: Reports) -> tuple[float, float] | None:
        """Return the forecast end value and its variance; None if nothing can be said."""
        if not reports:
            return None
        step = max(reports)
        line = self._line(step)
        if line is None:
            return None
        centre, slope, variance = line
        return self._mean + slope * (mean_of_last_reports(reports, step) - centre), variance

    def _line(self, step: int) -> tuple[float, float, float] | None:
        """Return mean at a step, slope to the end, and the variance that is left; None: too few runs."""
        if step not in self._lines:
            self._lines[step] = self._fit_line(step)
        return self._lines[step]

    def _fit_line(self, step: int) -> tuple[float, float, float] | None:
        pairs = [
            (mean_of_last_reports(r, step), value) for r, value in self._complete if any(s <= step for s in r)
        ]
        if len(pairs) < _FEWEST:
            return None
        step_values, end_values = np.array(pairs).T
        spread = float(step_values.var(ddof=1))
        if spread <= 0 or self._variance <= 0:
            return None
        shrinkage = len(pairs) / (len(pairs) + _DOUBT)
        correlation = shrinkage * float(np.corrcoef(step_values, end_values)[0, 1])
        if correlation < _MIN_CORRELATION:
            return None
        # what a value there says of the end by itself: not drawn towards the mean of those that came through
        slope = math.sqrt(self._variance / spread) / correlation
        return float(step_values.mean()), slope, self._variance * (1.0 / correlation**2 - 1.0) + 1e-12


def mean_of_last_reports(reports: Reports, step: int) -> float:
    """Return the mean of the last reports up to a step: a single validation is noisy."""
    steps = sorted(s for s in reports if s <= step)[-_SMOOTHED:]
    return sum(reports[s] for s in steps) / len(steps)

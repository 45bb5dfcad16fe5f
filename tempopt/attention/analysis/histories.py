"""Observations of a monitor over training, and their trends, without tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import theilslopes

from tempopt.errors import UsageError, unknown

QUERY_KEY_MAGNITUDE = "query_key_magnitude"

NAMES = (
    "entropy",
    "gini",
    "max_weight",
    "effective_tokens",
    "effective_share",
    "locality",
    "self_attention",
    "head_similarity",
    "jacobian_norm",
    "gradient_saturation",
    "diagonal",
    "previous_token",
    "next_token",
    "first_token",
    "local",
    QUERY_KEY_MAGNITUDE,
)
"""Everything that a monitor can observe: ``STATISTICS``, and ``query_key_magnitude``."""

MIN_TREND_POINTS = 5
"""Smallest number of points at which the interval of the Theil-Sen slope is narrower than the range of
slopes.
"""

_CONFIDENCE = 0.95  # of the interval of a trend's slope
# With a higher lag-one correlation, so few points cannot separate a trend from drift.
_MAX_CORRELATION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A slope in units of the statistic per step, the median of all pairwise slopes (Theil 1950, Sen 1968).

    Args:
        slope: The slope.
        low: Lower end of its interval, of 95 % by default.
        high: Upper end.
    """

    slope: float
    low: float
    high: float

    @property
    def falls(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high < 0.0


def trend(
    steps: Sequence[float], values: Sequence[float], *, confidence: float = _CONFIDENCE
) -> Trend | None:
    """Return the robust slope of values over steps; None for fewer points than ``MIN_TREND_POINTS``.

    Up to 29 % of the points may be arbitrary without moving it far, whereas least squares follows a single
    one. The interval accounts for autocorrelation, which the points of a training have.
    """
    if len(values) < MIN_TREND_POINTS:
        return None
    slope, level, low, high = theilslopes(values, steps, confidence)
    residuals = np.asarray(values) - level - slope * np.asarray(steps)
    wider = _interval_inflation(residuals - residuals.mean())
    ends = (slope + wider * (end - slope) for end in (low, high))
    return Trend(slope=float(slope), low=float(next(ends)), high=float(next(ends)))


def _interval_inflation(residuals: NDArray[np.float64]) -> float:
    """Return the factor by which an interval widens if its residuals are correlated as in an AR(1) process.

    It is sqrt((1 + r) / (1 - r)) with the lag-one correlation r (Hamed & Rao 1998), corrected for the bias at
    few points (Kendall 1954).
    """
    count, square = len(residuals), float(residuals @ residuals)
    if square == 0.0:
        return 1.0
    correlation = float(residuals[1:] @ residuals[:-1]) / square
    r = min(max((correlation * count + 1.0) / max(count - 3.0, 1.0), 0.0), _MAX_CORRELATION)
    return math.sqrt((1.0 + r) / (1.0 - r))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadHistory:
    """One statistic of one head over training.

    Args:
        statistic: Name in ``STATISTICS``, or ``query_key_magnitude``.
        layer: Depth of the layer.
        head: Number of the head.
        first: The first value that was observed.
        steps: Steps of the latest observations, ascending.
        values: Values at these steps, at least one.
    """

    statistic: str
    layer: int
    head: int
    first: float
    steps: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        """The latest value."""
        return self.values[-1]

    def trend(self, *, latest: int = 32, confidence: float = _CONFIDENCE) -> Trend | None:
        """Return the slope over the latest observations; None if there are too few."""
        return trend(self.steps[-latest:], self.values[-latest:], confidence=confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorReport:
    """Observations of a monitor.

    Args:
        histories: One for each statistic, layer and head that was observed.
    """

    histories: tuple[HeadHistory, ...]

    def of(self, statistic: str) -> tuple[HeadHistory, ...]:
        """Return the histories of a statistic, by layer and head; empty if it was not observed.

        Raises:
            UsageError: There is no statistic of that name.
        """
        if statistic not in NAMES:
            raise UsageError(unknown("statistic", statistic, NAMES))
        return tuple(history for history in self.histories if history.statistic == statistic)

    def mean(self, statistic: str) -> tuple[tuple[int, float], ...]:
        """Return (step, mean over all heads) of a statistic, at the steps with observations of all heads."""
        heads = [dict(zip(history.steps, history.values, strict=True)) for history in self.of(statistic)]
        steps = sorted(set.intersection(*(set(head) for head in heads))) if heads else []
        return tuple((step, math.fsum(head[step] for head in heads) / len(heads)) for step in steps)

"""What a monitor has seen of heads over training, and where it is heading; no tensors."""

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
"""What a monitor can observe: all of ``STATISTICS``, and ``query_key_magnitude``."""

FEWEST_FOR_TREND = 5
"""Points of which the interval of Theil and Sen's slope first is narrower than the range of all slopes."""

_CONFIDENCE = 0.95
# A correlation from one point to the next that is higher cannot be told from a trend by as few points.
_HANGS_TOGETHER = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A slope in units of the statistic per step, the median of all pairwise slopes (Theil 1950, Sen 1968).

    Args:
        slope: The slope.
        low: Lower end of its interval, of 95 % unless told otherwise.
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
    """Return the robust slope of values over steps; None of fewer points than ``FEWEST_FOR_TREND``.

    Up to 29 % of the points may be anything without moving it far, where a line of least squares follows
    a single one. The interval allows for points that hang together, as those of a training do.
    """
    if len(values) < FEWEST_FOR_TREND:
        return None
    slope, level, low, high = theilslopes(values, steps, confidence)
    residuals = np.asarray(values) - level - slope * np.asarray(steps)
    wider = _inflation(residuals - residuals.mean())
    ends = (slope + wider * (end - slope) for end in (low, high))
    return Trend(slope=float(slope), low=float(next(ends)), high=float(next(ends)))


def _inflation(residuals: NDArray[np.float64]) -> float:
    """Return how much wider an interval is whose residuals hang together as those of an AR(1) process.

    That is sqrt((1 + r) / (1 - r)) with their correlation r from one to the next (Hamed & Rao 1998), without
    the bias that few points give it (Kendall 1954).
    """
    count, square = len(residuals), float(residuals @ residuals)
    if square == 0.0:
        return 1.0
    correlation = float(residuals[1:] @ residuals[:-1]) / square
    r = min(max((correlation * count + 1.0) / max(count - 3.0, 1.0), 0.0), _HANGS_TOGETHER)
    return math.sqrt((1.0 + r) / (1.0 - r))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadHistory:
    """One statistic of one head over training.

    Args:
        statistic: Name in ``STATISTICS``, or ``query_key_magnitude``.
        layer: Depth of the layer.
        head: Number of the head.
        first: The value that was observed first of all.
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
        """Return the slope over the latest observations; None if there are too few for one."""
        return trend(self.steps[-latest:], self.values[-latest:], confidence=confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorReport:
    """What a monitor has seen.

    Args:
        histories: One for each statistic, layer and head that was observed.
    """

    histories: tuple[HeadHistory, ...]

    def of(self, statistic: str) -> tuple[HeadHistory, ...]:
        """Return the histories of a statistic, by layer and head; none if it was not observed.

        Raises:
            UsageError: if there is no statistic of that name.
        """
        if statistic not in NAMES:
            raise UsageError(unknown("statistic", statistic, NAMES))
        return tuple(history for history in self.histories if history.statistic == statistic)

    def mean(self, statistic: str) -> tuple[tuple[int, float], ...]:
        """Return (step, mean over all heads) of a statistic, at the steps where all of them were observed."""
        heads = [dict(zip(history.steps, history.values, strict=True)) for history in self.of(statistic)]
        steps = sorted(set.intersection(*(set(head) for head in heads))) if heads else []
        return tuple((step, math.fsum(head[step] for head in heads) / len(heads)) for step in steps)

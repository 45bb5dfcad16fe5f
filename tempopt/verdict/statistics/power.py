"""Power of paired comparisons: numbers in, numbers out.

For Student's paired test, two-sided, of normal differences. Independent of arms and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

POWER = 0.8
"""Default power."""

_MOST_PAIRS = 100_000
_NUM_HALVINGS = 60


def paired_power(effect: float, pairs: int, *, alpha: float) -> float:
    """Return the probability that a t test of pairs shows a true gain, on the side of the gain.

    The t statistic has a noncentral t distribution (Johnson, Kotz & Balakrishnan 1995, chapter 31).

    Args:
        effect: The gain in standard deviations of a pair's difference, >= 0.
        pairs: Number of pairs, >= 2.
        alpha: Two-sided level, in (0, 1).

    Returns:
        A probability in (0, 1]; ``alpha / 2`` if the effect is 0.
    """
    assert math.isfinite(effect) and effect >= 0 and pairs >= 2 and 0 < alpha < 1, (effect, pairs, alpha)
    return t_power(effect * math.sqrt(pairs), pairs - 1, alpha=alpha)


def t_power(shift: float, freedom: float, *, alpha: float) -> float:
    """Return the probability that a t test shows a true gain, on the side of the gain.

    Args:
        shift: The gain in standard errors of its estimate, >= 0.
        freedom: Degrees of freedom, > 0.
        alpha: Two-sided level, in (0, 1).
    """
    from scipy.special import nctdtr, ndtr, stdtrit

    limit = float(stdtrit(freedom, 1 - alpha / 2))
    chance = 1 - float(nctdtr(freedom, shift, limit))
    # far out the series fails, where the result is practically certain
    return chance if math.isfinite(chance) else float(ndtr(shift - limit))


def detectable_effect(pairs: int, *, alpha: float, power: float = POWER) -> float:
    """Return the smallest gain, in standard deviations of a pair's difference, that is shown with that power.

    Args:
        pairs: Number of pairs, >= 2.
        alpha: Two-sided level, in (0, 1).
        power: Probability to show the gain, in (alpha / 2, 1).
    """
    assert 0 < alpha < 1 and alpha / 2 < power < 1, (alpha, power)
    return min_effect(lambda effect: paired_power(effect, pairs, alpha=alpha), power)


def min_effect(power_fn: Callable[[float], float], power: float, *, halvings: int = _NUM_HALVINGS) -> float:
    """Return the smallest effect with a power, given an ascending function of the effect."""
    low, high = 0.0, 1.0
    while power_fn(high) < power:
        low, high = high, 2 * high
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (middle, high) if power_fn(middle) < power else (low, middle)
    return high


def pairs_needed(effect: float, *, alpha: float, power: float = POWER) -> int | None:
    """Return the fewest pairs that show a gain with that power; None if there are more than 100,000.

    Args:
        effect: The gain in standard deviations of a pair's difference, > 0.
        alpha: Two-sided level, in (0, 1).
        power: Probability to show the gain, in (alpha / 2, 1).
    """
    assert math.isfinite(effect) and effect > 0 and alpha / 2 < power < 1, (effect, alpha, power)
    return min_size(lambda pairs: paired_power(effect, pairs, alpha=alpha), power)


def min_size(power_fn: Callable[[int], float], power: float) -> int | None:
    """Return the smallest size from 2 with a power, given a function of the size; None above 100,000."""
    low, high = 1, 2
    while power_fn(high) < power:
        low, high = high, 2 * high
        if low > _MOST_PAIRS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if power_fn(middle) < power:
            low = middle
        else:
            high = middle
    return high


def deviation_interval(deviation: float, freedom: int, *, confidence: float) -> tuple[float, float]:
    """Return the interval of a standard deviation that was estimated from normal values.

    Args:
        deviation: The estimate, >= 0.
        freedom: Its degrees of freedom, >= 1: one less than the number of values.
        confidence: Probability that the interval contains the truth, in (0, 1); each side misses equally
            often.
    """
    assert math.isfinite(deviation) and deviation >= 0 and freedom >= 1 and 0 < confidence < 1
    from scipy.special import chdtri

    side = (1 - confidence) / 2
    low = deviation * math.sqrt(freedom / float(chdtri(freedom, side)))
    high = deviation * math.sqrt(freedom / float(chdtri(freedom, 1 - side)))
    return low, high

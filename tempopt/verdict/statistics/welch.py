"""Welch's test of two independent samples, and the number of values it needs (Welch 1947, Biometrika 34).

Independent of variants and seeds. SciPy is loaded only when a test is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from tempopt.verdict.statistics.paired_tests import Direction, PairedTest
from tempopt.verdict.statistics.power import POWER, min_size, t_power

_ROUNDING = 1e-12
"""Values of a sample this close, relative to their size, count as equal."""


def welch_test(
    arm: Sequence[float], reference: Sequence[float], *, direction: Direction, alpha: float
) -> PairedTest:
    """Test whether two independent samples have the same mean, two-sided.

    With a sample of a single value, or two samples without variance, which do not show the noise, p is 1 and
    the interval is infinite.

    Args:
        arm: Values of the arm, at least one.
        reference: Values of the reference, at least one.
        direction: ``maximize`` or ``minimize``: which sign of a difference is better.
        alpha: Two-sided level, in (0, 1).
    """
    assert arm and reference and 0 < alpha < 1, alpha
    sign = 1.0 if direction == "maximize" else -1.0
    gain = sign * (fmean(arm) - fmean(reference)) + 0.0
    sizes = (len(arm), len(reference))
    is_equal = min(sizes) > 1 and _is_constant(arm) and _is_constant(reference)
    margin, p = math.inf, 1.0
    if min(sizes) > 1 and not is_equal:
        from scipy.special import stdtr, stdtrit

        error, freedom = _error(stdev(arm), stdev(reference), *sizes)
        margin = float(stdtrit(freedom, 1 - alpha / 2)) * error
        p = 2 * float(stdtr(freedom, -abs(gain) / error))
    return PairedTest(
        gain=gain,
        ci_low=gain - margin,
        ci_high=gain + margin,
        p_value=p,
        n_pairs=0,
        alpha=alpha,
        is_equal=is_equal,
        sample_sizes=sizes,
    )


def welch_size_needed(
    arm: Sequence[float], reference: Sequence[float], effect: float, *, alpha: float
) -> int | None:
    """Return how many values of each sample show a true gain with 80 % chance.

    Args:
        arm: Values of the arm, two or more, from which their variance is estimated.
        reference: Those of the reference; one of the two samples varies.
        effect: The true gain, in the unit of the values, > 0.
        alpha: Two-sided level, in (0, 1).

    Returns:
        A number of 2 or more; None where it is above 100,000.
    """
    assert effect > 0, effect

    deviations = stdev(arm), stdev(reference)

    def power(size: int) -> float:
        error, freedom = _error(*deviations, size, size)
        return t_power(effect / error, freedom, alpha=alpha)

    return min_size(power, POWER)


def _error(
    deviation: float, reference_deviation: float, size: int, reference_size: int
) -> tuple[float, float]:
    """Return the standard error of the difference of two means, and its degrees of freedom."""
    mean_error, reference_error = deviation / math.sqrt(size), reference_deviation / math.sqrt(reference_size)
    error = math.hypot(mean_error, reference_error)
    share = (mean_error / error) ** 2
    return error, 1 / (share**2 / (size - 1) + (1 - share) ** 2 / (reference_size - 1))


def _is_constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _ROUNDING * max(map(abs, values))

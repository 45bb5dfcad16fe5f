"""One gain as a share of another: the ratio of two means over the same pairs, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

_ROUNDING = 1e-9
"""Means this small, relative to the values, count as zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of means and its interval.

    Args:
        ratio: Mean of the numerators over that of the denominators; nan if the latter is zero.
        low: Lower end of the interval; -inf if there is no bound.
        high: Upper end, or inf.
    """

    ratio: float
    low: float
    high: float


def fieller(numerators: Sequence[float], denominators: Sequence[float], *, alpha: float) -> Ratio:
    """Return the ratio of the means of paired values, with Fieller's interval (Fieller 1954).

    The interval contains every ratio ρ for which Student's test does not reject that the mean of numerator -
    ρ · denominator is zero, so that the correlation of both by pair is accounted for. If the denominators'
    mean is not significantly different from zero at this level, these ratios are all numbers, or all outside
    of an interval: nothing is known then, and the interval is (-inf, inf). The same holds for one pair. If
    numerators are exactly proportional to denominators, the interval is the ratio itself.

    Args:
        numerators: One for each pair, finite.
        denominators: One for each pair, finite.
        alpha: Probability that the interval misses the truth, in (0, 1).
    """
    assert 0 < len(numerators) == len(denominators), "a ratio needs as many numerators as denominators"
    assert all(map(math.isfinite, (*numerators, *denominators))) and 0 < alpha < 1, alpha
    # squares of very large or small numbers would leave the range of floats; powers of 2 are exact
    exponent = math.frexp(max(map(abs, (*numerators, *denominators))))[1]
    numerators = [math.ldexp(value, -exponent) for value in numerators]
    denominators = [math.ldexp(value, -exponent) for value in denominators]
    numerator_mean, denominator_mean = fmean(numerators), fmean(denominators)
    if abs(denominator_mean) <= _ROUNDING * max(map(abs, denominators)):
        return Ratio(ratio=math.nan, low=-math.inf, high=math.inf)
    ratio = numerator_mean / denominator_mean
    if len(numerators) == 1:
        return Ratio(ratio=ratio, low=-math.inf, high=math.inf)
    low, high = _deviations(
        [n - ratio * d for n, d in zip(numerators, denominators, strict=True)], denominators, alpha
    )
    return Ratio(ratio=ratio, low=ratio + low, high=ratio + high)


def _deviations(rests: Sequence[float], denominators: Sequence[float], alpha: float) -> tuple[float, float]:
    """Return the distances of the ends of the interval from the ratio.

    With e = numerator - ratio · denominator, of mean zero, and δ = ρ - ratio, the values that are not
    rejected fulfil (δ · d̄)² <= c (s_ee - 2 δ s_ed + δ² s_dd) where c = t² / n: a quadratic without
    cancellation.
    """
    from scipy.special import stdtrit

    n, mean = len(rests), fmean(denominators)
    deviations = [d - mean for d in denominators]
    factor = float(stdtrit(n - 1, 1 - alpha / 2)) ** 2 / n / (n - 1)
    of_rests = factor * math.fsum(e * e for e in rests)
    of_both = factor * math.fsum(e * d for e, d in zip(rests, deviations, strict=True))
    square = mean**2 - factor * math.fsum(d * d for d in deviations)
    if square <= _ROUNDING * mean**2:
        return -math.inf, math.inf
    root = math.sqrt(of_both**2 + square * of_rests)
    return (-of_both - root) / square, (-of_both + root) / square

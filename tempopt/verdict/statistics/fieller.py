"""What one gain is of another: the ratio of two means over the same pairs, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

_ROUNDING = 1e-9
"""Means this small, relative to the values, are zero but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of means and its interval.

    Args:
        ratio: Mean of the numerators over that of the denominators; nan if the latter is zero.
        low: Lower end of the interval; -inf where nothing bounds it.
        high: Upper end, or inf.
    """

    ratio: float
    low: float
    high: float


def fieller(numerators: Sequence[float], denominators: Sequence[float], *, alpha: float) -> Ratio:
    """Return the ratio of the means of paired values, with Fieller's interval (Fieller 1954).

    It holds every ratio ρ for which Student's test does not tell the mean of numerator - ρ · denominator from
    zero, so that what the two share by pair is allowed for. Where the denominators' mean cannot be told from
    zero at this level, those ratios are all numbers, or all but a stretch in the middle: nothing is known
    then, and the interval is (-inf, inf). One pair tells nothing either. Numerators that are exactly
    proportional to denominators leave nothing open, and the interval is the ratio itself.

    Args:
        numerators: One for each pair, finite.
        denominators: One for each pair, finite.
        alpha: What the interval misses, in (0, 1).
    """
    assert 0 < len(numerators) == len(denominators), "a ratio needs as many numerators as denominators"
    assert all(map(math.isfinite, (*numerators, *denominators))) and 0 < alpha < 1, alpha
    # squares of what is very large or very small leave the range of floats; powers of 2 are exact
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
    """Return by how much the ends of the interval differ from the ratio.

    With e = numerator - ratio · denominator, of mean zero, and δ = ρ - ratio, what is not rejected is
    (δ · d̄)² <= c (s_ee - 2 δ s_ed + δ² s_dd) where c = t² / n: a quadratic that has no cancellation left.
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

"""Welch's test of two means: two groups of runs on seeds of their own, whose noise may differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from tempopt.errors import UsageError
from tempopt.statistics.paired_tests import ALPHA, PairedTest

_FEWEST = 2


def welch(one: Sequence[float], other: Sequence[float], *, alpha: float = ALPHA) -> PairedTest:
    """Return the difference of two means, one less the other, with its interval and two-sided p.

    B. L. Welch 1947, "The generalization of Student's problem when several different population variances are
    involved", with the degrees of freedom of Satterthwaite. Values without any spread tell nothing of the
    noise: p is then 1 and the interval has no ends.

    Args:
        one: Values of the first group, at least 2.
        other: Values of the second group, at least 2.
        alpha: Two-sided level of the interval, in (0, 1).

    Raises:
        UsageError: A group has fewer than 2 values.
    """
    if min(len(one), len(other)) < _FEWEST:
        raise UsageError(f"Groups of {len(one)} and {len(other)} values were compared. Give at least 2 each.")
    # it loads scipy.stats, for which who only looks at a study should not wait
    from scipy.stats import t

    shares = [variance(group) / len(group) for group in (one, other)]
    gain, error = fmean(one) - fmean(other), math.sqrt(sum(shares))
    low, high, p = -math.inf, math.inf, 1.0
    if error > 0:
        groups = zip(shares, (one, other), strict=True)
        freedom = sum(shares) ** 2 / sum(share**2 / (len(group) - 1) for share, group in groups)
        margin = float(t.isf(alpha / 2, freedom)) * error
        low, high, p = gain - margin, gain + margin, 2 * float(t.sf(abs(gain) / error, freedom))
    return PairedTest(
        gain=gain,
        ci_low=low,
        ci_high=high,
        p_value=p,
        n_pairs=min(len(one), len(other)),
        confidence=1 - alpha,
    )

"""Failure rates of two arms with their intervals, and a test of whether they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Failure rate of runs.

    Args:
        failed: Number of failed runs.
        runs: Number of runs, >= 1.
        low: Lower end of the interval of the failure probability, in [0, 1].
        high: Upper end.
    """

    failed: int
    runs: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """Failure rates of an arm and of its reference.

    Args:
        arm: Rate of the arm.
        reference: Rate of the reference.
        p_value: Two-sided p of equal failure probabilities.
    """

    arm: Rate
    reference: Rate
    p_value: float


def failure_rates(
    failed_arm: Sequence[bool], failed_reference: Sequence[bool], *, alpha: float
) -> FailureRates:
    """Compare the failure rates of two arms on the same pairs.

    Intervals are those of Clopper and Pearson (1934), p is that of McNemar's exact test: of the pairs on
    which exactly one arm failed, either arm is equally likely. Both are exact, so with few failures intervals
    are wide and p is large.

    Args:
        failed_arm: Whether the arm failed, one for each pair.
        failed_reference: Whether the reference failed on the same pairs.
        alpha: Largest probability that an interval misses the truth, in (0, 1).
    """
    assert 0 < len(failed_arm) == len(failed_reference) and 0 < alpha < 1, alpha
    from scipy.special import bdtr

    pairs = list(zip(failed_arm, failed_reference, strict=True))
    only_arm = sum(arm and not reference for arm, reference in pairs)
    only_reference = sum(reference and not arm for arm, reference in pairs)
    p_value = 2 * float(bdtr(min(only_arm, only_reference), only_arm + only_reference, 0.5))
    return FailureRates(
        arm=_rate(failed_arm, alpha), reference=_rate(failed_reference, alpha), p_value=min(1.0, p_value)
    )


def unpaired_failure_rates(
    failed_arm: Sequence[bool], failed_reference: Sequence[bool], *, alpha: float
) -> FailureRates:
    """Compare the failure rates of two arms on different seeds, by Fisher's exact test (1922).

    Args:
        failed_arm: Whether the arm failed, one for each of its runs.
        failed_reference: Whether the reference failed, one for each of its runs.
        alpha: As in :func:`failure_rates`.
    """
    assert failed_arm and failed_reference and 0 < alpha < 1, alpha
    num_arm, num_reference = len(failed_arm), len(failed_reference)
    failed = sum(map(bool, failed_arm))
    failed_total = failed + sum(map(bool, failed_reference))
    possible_failures = range(max(0, failed_total - num_reference), min(failed_total, num_arm) + 1)
    ways = {k: math.comb(num_arm, k) * math.comb(num_reference, failed_total - k) for k in possible_failures}
    extreme = sum(count for count in ways.values() if count <= ways[failed])
    return FailureRates(
        arm=_rate(failed_arm, alpha),
        reference=_rate(failed_reference, alpha),
        p_value=extreme / math.comb(num_arm + num_reference, failed_total),
    )


def _rate(failures: Sequence[bool], alpha: float) -> Rate:
    from scipy.special import betaincinv

    failed, runs = sum(map(bool, failures)), len(failures)
    low = float(betaincinv(failed, runs - failed + 1, alpha / 2)) if failed else 0.0
    high = float(betaincinv(failed + 1, runs - failed, 1 - alpha / 2)) if failed < runs else 1.0
    return Rate(failed=failed, runs=runs, low=low, high=high)

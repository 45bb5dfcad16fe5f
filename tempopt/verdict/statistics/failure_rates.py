"""How often runs of two arms failed: each arm's rate with its interval, and whether they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How often runs failed.

    Args:
        failed: Runs that failed.
        runs: All runs, >= 1.
        low: Lower end of the interval of the chance to fail, in [0, 1].
        high: Upper end.
    """

    failed: int
    runs: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """How often the runs of an arm and of its reference failed.

    Args:
        arm: Of the arm.
        reference: Of the reference.
        p_value: Two-sided, of both failing equally often.
    """

    arm: Rate
    reference: Rate
    p_value: float


def failure_rates(
    failed_arm: Sequence[bool], failed_reference: Sequence[bool], *, alpha: float
) -> FailureRates:
    """Compare how often two arms failed on the same pairs.

    Intervals are those of Clopper and Pearson (1934), p is McNemar's exact one: of the pairs on which one arm
    failed, either is as likely to be the one. All is exact, so with few failures intervals are wide and p
    is large.

    Args:
        failed_arm: Whether the arm failed, one for each pair.
        failed_reference: Whether the reference failed on the same pairs.
        alpha: What an interval misses, at most, in (0, 1).
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
    """Compare how often two arms failed on different seeds, by Fisher's exact test (1922).

    Args:
        failed_arm: Whether the arm failed, one for each of its runs.
        failed_reference: The same of the reference.
        alpha: As in :func:`failure_rates`.
    """
    assert failed_arm and failed_reference and 0 < alpha < 1, alpha
    num_arm, num_reference = len(failed_arm), len(failed_reference)
    failed = sum(map(bool, failed_arm))
    failed_total = failed + sum(map(bool, failed_reference))
    counts = range(max(0, failed_total - num_reference), min(failed_total, num_arm) + 1)
    ways = {k: math.comb(num_arm, k) * math.comb(num_reference, failed_total - k) for k in counts}
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

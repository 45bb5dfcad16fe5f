"""The paired tests, how a level is spent over looks, and how few pairs can be significant.

Plain arithmetic without NumPy and SciPy, since validation of a spec uses it.
"""

from __future__ import annotations

from typing import Literal

from tempopt.errors import UsageError, unknown

Direction = Literal["maximize", "minimize"]
Test = Literal["t", "sign_flip"]

TESTS: tuple[Test, ...] = ("t", "sign_flip")

ALPHA = 0.05
"""Level of the two-sided test that p-values are scaled to: below it is significant, whatever share was spent.
"""

_POWER = 1.5


def alpha_spending(pairs: int, max_pairs: int) -> float:
    """Return the share of the level that a look at ``pairs`` pairs spends: (pairs / max_pairs)^1.5.

    Chosen among powers (Kim & DeMets 1987) and the shapes of Pocock and O'Brien and Fleming (Lan & DeMets
    1983) for expensive trainings: looks at 4, 8, 12 and 16 pairs, stopped where the gain is not above zero.
    The columns are gains in standard deviations of a pair's difference; a cell has the power and the mean
    number of trained pairs:

    ====================  ==========  ==========  ==========  ==========  =========
    spent                 0           0.5         1           1.5         2.5
    ====================  ==========  ==========  ==========  ==========  =========
    fixed 8               2.5 %, 8    23 %, 8     68 %, 8     95 %, 8     100 %, 8
    fixed 16              2.5 %, 16   46 %, 16    96 %, 16    100 %, 16   100 %, 16
    Pocock                2.5 %, 8.6  33 %, 12.3  90 %, 10.4  100 %, 7.6  100 %, 5.5
    power 1               2.4 %, 8.6  36 %, 12.4  91 %, 10.6  100 %, 8.0  100 %, 5.9
    power 1.5             2.4 %, 8.6  39 %, 12.5  93 %, 10.9  100 %, 8.5  100 %, 6.6
    power 2               2.4 %, 8.7  40 %, 12.6  93 %, 11.2  100 %, 8.8  100 %, 7.2
    O'Brien and Fleming   2.4 %, 8.7  43 %, 13.0  94 %, 12.1  100 %, 10   100 %, 8.1
    ====================  ==========  ==========  ==========  ==========  =========

    A large gain ends after fewer than eight pairs, and a gain of one standard deviation is found nearly as
    often as with sixteen. What flatter shapes save beyond that reduces the power for small gains.
    (benchmarks/sequential.py)

    Args:
        pairs: Number of complete pairs, >= 1.
        max_pairs: Largest number of pairs of the test, >= 1.

    Returns:
        A share in (0, 1]; 1 from ``max_pairs`` on.

    Raises:
        UsageError: Either number is below 1.
    """
    if pairs < 1 or max_pairs < 1:
        raise UsageError(
            f"A look at {pairs} of {max_pairs} pairs spends no level: both numbers have to be at least 1."
        )
    return float(min(1.0, pairs / max_pairs) ** _POWER)


def min_significant_pairs(test: Test, alpha: float) -> int:
    """Return the smallest number of pairs at which a test can be significant.

    Args:
        test: Name of the test.
        alpha: Two-sided level of a single look, in (0, 1).

    Raises:
        UsageError: The test is unknown or the level out of range.
    """
    if test not in TESTS:
        raise UsageError(unknown("test", test, TESTS))
    if not 0 < alpha < 1:
        raise UsageError(f"The level {alpha:g} was given; it has to lie between 0 and 1.")
    if test == "t":
        return 2
    pairs = 1
    while 2.0 ** (1 - pairs) >= alpha:
        pairs += 1
    return pairs

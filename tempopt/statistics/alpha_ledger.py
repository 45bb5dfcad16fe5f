"""The ledger of α: what part of a study's 5 % each of its verdicts may spend.

Whoever looks often enough finds something. All verdicts of a study together claim a gain where there is none
with a chance of 5 % at most (two-sided, by the union bound), however many there come to be: the first has
4 % of it and each later one half of what is left. More search trials and added pairs
each open a round, and each round has one verdict.
"""

from __future__ import annotations

from tempopt.statistics.levels import ALPHA

FIRST = 0.04
"""What the first verdict may spend."""


def level(verdict: int) -> float:
    """Return the two-sided level of a study's verdict.

    Args:
        verdict: Which one it is, from 1.
    """
    return FIRST if verdict == 1 else (ALPHA - FIRST) * 2.0 ** (1 - verdict)

"""The level of each verdict of a study.

The first verdict has the level of a single test, 5 % two-sided. Each later one has half the level of the one
before. So the chance that any verdict of a study shows a gain where there is none is at most 5 %, for any
number of verdicts; 2.5 % of it belong to the first verdict. More search trials and added pairs each open a
round, and each round has one verdict.
"""

from __future__ import annotations

from typing import Literal

Direction = Literal["maximize", "minimize"]

ALPHA = 0.05
"""Level of the two-sided test that p-values are scaled to: below it is significant, whatever share was
spent."""


def alpha_for_verdict(verdict: int) -> float:
    """Return the two-sided level of a study's verdict.

    Args:
        verdict: Number of the verdict, from 1.
    """
    return ALPHA * 2.0 ** (1 - verdict)

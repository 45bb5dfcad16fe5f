"""The level of each verdict of a study.

The first verdict has the level of a single test, 5 % two-sided. Each later one has half the level of the one
before, so all verdicts of a study together show a gain where there is none with a chance of 5 % at most,
however many follow: 2.5 % of it is the first verdict's. More search trials and added pairs each
open a round, and each round has one verdict.
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
        verdict: Which one it is, from 1.
    """
    return ALPHA * 2.0 ** (1 - verdict)

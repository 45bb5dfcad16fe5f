"""How far an arm stays within a margin of its reference, pair by pair: for a test of non-inferiority.

Knows nothing of tickets or seeds; the test itself is paired_tests.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from tempopt.errors import UsageError
from tempopt.verdict.statistics.paired_tests import ALPHA, PairedTest, Test, paired_test

Side = Literal["most", "least"]

_ROUNDING = 1e-12


def margin_left(
    arm: Sequence[float],
    reference: Sequence[float],
    *,
    side: Side,
    margin: float,
    relative: bool,
) -> list[float]:
    """Return by pair what is left of the margin; above 0 in the mean is within it.

    With a margin that is a share X of the size of the reference's mean, it is (1 + X) · reference_i - arm_i
    where the arm may be above, and arm_i - (1 - X) · reference_i where it may be below; of a reference whose
    mean is negative, X counts with the other sign. So the mean over pairs is X · |mean of the reference| less
    what the arm is worse by, and the noise of the reference's mean is accounted for.

    Args:
        arm: Values of the arm, one for each pair.
        reference: Those of its reference.
        side: ``most``: the arm may be above by the margin; ``least``: below.
        margin: >= 0.
        relative: Whether the margin is a share of the size of the reference's mean.

    Raises:
        UsageError: The margin is below 0, or the two have different numbers of pairs.
    """
    if not margin >= 0:
        raise UsageError(f"A margin of {margin:g} was given; give one of at least 0.")
    if len(arm) != len(reference):
        raise UsageError(
            f"Arms with {len(arm)} and {len(reference)} pairs were compared. Each pair needs a value of "
            "both: leave out the others."
        )
    sign = -1.0 if reference and fmean(reference) < 0 else 1.0
    slacks = []
    for of_arm, of_reference in zip(arm, reference, strict=True):
        worse = of_arm - of_reference if side == "most" else of_reference - of_arm
        slack = (margin * sign * of_reference if relative else margin) - worse
        rounding = _ROUNDING * max(abs(of_arm), abs(of_reference), margin)
        slacks.append(0.0 if abs(slack) <= rounding else slack)
    return slacks


def non_inferior(
    arm: Sequence[float],
    reference: Sequence[float],
    *,
    side: Side,
    margin: float,
    relative: bool,
    test: Test,
    alpha: float = ALPHA,
) -> PairedTest:
    """Test whether an arm stays within a margin of its reference.

    It is shown, one-sided at α/2, where the result is significant; that it does not is shown where p is below
    0.05 with a gain below 0.

    Args:
        arm: As in :func:`margin_left`, and so are the others up to ``relative``.
        test: As in :func:`~tempopt.verdict.statistics.paired_tests.paired_test`.
        alpha: As there.

    Raises:
        UsageError: As in :func:`margin_left` and :func:`~.paired_tests.paired_test`.
    """
    slacks = margin_left(arm, reference, side=side, margin=margin, relative=relative)
    return paired_test(slacks, test=test, direction="maximize", alpha=alpha)

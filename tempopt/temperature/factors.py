"""Positive factors over layers or heads whose geometric mean is 1, so that they leave the level alone."""

from __future__ import annotations

import math
from collections.abc import Sequence


def center_geometric(logs: Sequence[float]) -> tuple[float, ...]:
    """Return the exponentials of some logarithms, at least one, scaled to the geometric mean 1."""
    level = math.fsum(logs) / len(logs)
    return tuple(math.exp(log - level) for log in logs)


def interpolate_ratio(ratio: float, position: float) -> float:
    """Return the number at ``position``, from 0 to 1, on the straight way from 1 to ``ratio``."""
    # Not 1 + (ratio - 1) * position: that loses digits of a small ratio.
    return (1.0 - position) + ratio * position

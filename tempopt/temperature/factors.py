"""Positive factors over layers or heads with geometric mean 1, so that they do not change the level."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tempopt.temperature.ranges import ValidatedParameters


def center_geometric(logs: Sequence[float]) -> tuple[float, ...]:
    """Return the exponentials of at least one logarithm, scaled to geometric mean 1."""
    level = math.fsum(logs) / len(logs)
    return tuple(math.exp(log - level) for log in logs)


def interpolate_ratio(ratio: float, position: float) -> float:
    """Return the value at ``position``, in [0, 1], on the straight line from 1 to ``ratio``."""
    # Not 1 + (ratio - 1) * position, which loses digits of a small ratio.
    return (1.0 - position) + ratio * position


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern(ValidatedParameters, ABC):
    """A factor on the temperature over layers or heads; subclasses are final, frozen dataclasses."""

    name: ClassVar[str]

    def factors(self, count: int) -> tuple[float, ...]:
        """Return one factor for each layer or head, in order; their geometric mean is 1, a single one is 1.

        Args:
            count: Number of layers or of query heads, >= 1. Where groups of heads share keys and values
                (grouped-query attention), each query head still has its own factor.
        """
        last_index = max(count - 1, 1)
        return center_geometric([self._log_shape(index / last_index, index) for index in range(count)])

    @abstractmethod
    def _log_shape(self, depth: float, index: int) -> float:
        """Return the logarithm of the shape before normalisation.

        Args:
            depth: From 0 for the first layer or head to 1 for the last.
            index: Index of the layer or head, from 0.
        """

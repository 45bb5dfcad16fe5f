"""How the heads of a layer differ: temperatures as positive factors of geometric mean 1, and local heads.

How many heads a layer has is known where attention runs, so a pattern is asked for its factors there. Since
they have geometric mean 1, the spread over the heads and the level of the temperature are not confounded in a
search.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

from tempopt.temperature.factors import center_geometric, interpolate_ratio
from tempopt.temperature.ranges import ValidatedParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPattern(ValidatedParameters, ABC):
    """A factor on the temperature over the heads of a layer; subclasses are final, frozen dataclasses."""

    name: ClassVar[str]

    def factors(self, num_heads: int) -> tuple[float, ...]:
        """Return one factor per head, first head first; their geometric mean is 1, and one head has 1.

        Args:
            num_heads: Number of heads of the queries, >= 1. Where groups of them share keys and values
                (grouped-query attention), each query head still has a factor of its own.
        """
        return center_geometric([self._log_shape(head, num_heads) for head in range(num_heads)])

    @abstractmethod
    def _log_shape(self, head: int, num_heads: int) -> float:
        """Return the logarithm of the shape at a head, counted from 0, before it is normalised."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformHeads(HeadPattern):
    """The same temperature in every head."""

    name: ClassVar[str] = "uniform"

    def _log_shape(self, head: int, num_heads: int) -> float:
        return 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHeads(HeadPattern):
    """1 + (ratio - 1) r, r from 0 to 1: temperatures at equal distances, so that most heads are soft."""

    name: ClassVar[str] = "linear"

    head_ratio: float

    def _log_shape(self, head: int, num_heads: int) -> float:
        return math.log(interpolate_ratio(self.head_ratio, head / max(num_heads - 1, 1)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialHeads(HeadPattern):
    """ratio^r, r from 0 to 1: the same factor from head to head, as many sharp heads as soft ones."""

    name: ClassVar[str] = "exp"

    head_ratio: float

    def _log_shape(self, head: int, num_heads: int) -> float:
        return head / max(num_heads - 1, 1) * math.log(self.head_ratio)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AlternatingHeads(HeadPattern):
    """1, ratio, 1, ratio, ...: two kinds of heads; heads that share keys are of both kinds."""

    name: ClassVar[str] = "alternate"

    head_ratio: float

    def _log_shape(self, head: int, num_heads: int) -> float:
        return head % 2 * math.log(self.head_ratio)


HEAD_PATTERNS: dict[str, type[HeadPattern]] = {
    pattern.name: pattern for pattern in (UniformHeads, LinearHeads, ExponentialHeads, AlternatingHeads)
}
"""Name of a head pattern to its class."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHeads(ValidatedParameters):
    """A share of the heads of each layer sees only the keys near each query; no temperature.

    Args:
        window: A local head sees the keys at most ``window`` - 1 places away, itself included: under a causal
            mask the last ``window`` ones, else as many on either side.
        local_share: Share of the heads, the first ones, that are local; 0 for none.
    """

    window: int
    local_share: float

    def count(self, num_heads: int) -> int:
        """Return how many of so many heads of the queries are local, rounded, a half up."""
        return math.floor(self.local_share * num_heads + 0.5)

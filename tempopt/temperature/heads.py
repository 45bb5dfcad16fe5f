"""How the heads of a layer differ: temperatures as positive factors of geometric mean 1, and local heads.

How many heads a layer has is known where attention runs, so a pattern is asked for its factors there. Since
they have geometric mean 1, the spread over the heads and the level of the temperature are not confounded in a
search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from tempopt.temperature.factors import Pattern, interpolate_ratio
from tempopt.temperature.ranges import ValidatedParameters


class HeadPattern(Pattern):
    """A factor on the temperature over the heads of a layer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RatioHeads(HeadPattern):
    head_ratio: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformHeads(HeadPattern):
    """The same temperature in every head."""

    name: ClassVar[str] = "uniform"

    def _log_shape(self, depth: float, index: int) -> float:
        return 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearHeads(_RatioHeads):
    """1 + (ratio - 1) r, r from 0 to 1: temperatures at equal distances, so that most heads are soft."""

    name: ClassVar[str] = "linear"

    def _log_shape(self, depth: float, index: int) -> float:
        return math.log(interpolate_ratio(self.head_ratio, depth))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialHeads(_RatioHeads):
    """ratio^r, r from 0 to 1: the same factor from head to head, as many sharp heads as soft ones."""

    name: ClassVar[str] = "exp"

    def _log_shape(self, depth: float, index: int) -> float:
        return depth * math.log(self.head_ratio)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AlternatingHeads(_RatioHeads):
    """1, ratio, 1, ratio, ...: two kinds of heads; heads that share keys are of both kinds."""

    name: ClassVar[str] = "alternate"

    def _log_shape(self, depth: float, index: int) -> float:
        return index % 2 * math.log(self.head_ratio)


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

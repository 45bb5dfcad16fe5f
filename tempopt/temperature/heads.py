"""How the heads of a layer differ: temperatures as positive factors of geometric mean 1, and local heads.

The number of heads of a layer is known where attention runs, so the factors are computed there. Since they
have geometric mean 1, a search does not confound the spread over the heads with the level of the temperature.
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
    """1 + (ratio - 1) r, r from 0 to 1: equally spaced temperatures, so that most heads are soft."""

    name: ClassVar[str] = "linear"

    def _log_shape(self, depth: float, index: int) -> float:
        return math.log(interpolate_ratio(self.head_ratio, depth))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialHeads(_RatioHeads):
    """ratio^r, r from 0 to 1: the same factor between neighbouring heads, as many sharp as soft heads."""

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
    """A share of the heads of each layer that sees only the keys near each query; not a temperature.

    Args:
        window: A local head sees the keys at most ``window`` - 1 positions away, the query's own included:
            under a causal mask the last ``window`` keys, otherwise as many on either side.
        local_share: Share of the heads, the first ones, that are local; 0 for none.
    """

    window: int
    local_share: float

    def count(self, num_heads: int) -> int:
        """Return how many of ``num_heads`` query heads are local, rounded, a half upwards."""
        return math.floor(self.local_share * num_heads + 0.5)

"""Temperature over depth, as positive factors of geometric mean 1; the schedule sets the level.

Depth r runs from 0 (first layer) to 1 (last layer). Since the factors have geometric mean 1, a search does
not confound the shape over depth with the level of the temperature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from tempopt.temperature.factors import Pattern, interpolate_ratio


class LayerPattern(Pattern):
    """A factor on the temperature over depth."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RatioLayers(LayerPattern):
    layer_ratio: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLayers(LayerPattern):
    """The same temperature in every layer."""

    name: ClassVar[str] = "uniform"

    def _log_shape(self, depth: float, index: int) -> float:
        return 0.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLayers(_RatioLayers):
    """1 + (ratio - 1) r: the last layer is ``layer_ratio`` times as hot as the first."""

    name: ClassVar[str] = "linear"

    def _log_shape(self, depth: float, index: int) -> float:
        return math.log(interpolate_ratio(self.layer_ratio, depth))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ULayers(_RatioLayers):
    """1 + (ratio - 1)|2r - 1|: the ends are ``layer_ratio`` times as hot as the middle.

    Above 1 it has the shape of the attention scales that modded-nanogpt sets by hand; below 1 it is inverted.
    With an even number of layers no layer lies in the middle, so the two next to it deviate slightly; with
    two layers the pattern is flat.
    """

    name: ClassVar[str] = "u"

    def _log_shape(self, depth: float, index: int) -> float:
        return math.log(interpolate_ratio(self.layer_ratio, abs(2.0 * depth - 1.0)))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialLayers(_RatioLayers):
    """ratio^r: the same factor between neighbouring layers, ``layer_ratio`` from the first to the last."""

    name: ClassVar[str] = "exp"

    def _log_shape(self, depth: float, index: int) -> float:
        return depth * math.log(self.layer_ratio)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CosineLayers(_RatioLayers):
    """1 + alpha cos pi r, alpha = (1 - ratio) / (1 + ratio): as ``linear``, but flat at both ends."""

    name: ClassVar[str] = "cosine"

    def _log_shape(self, depth: float, index: int) -> float:
        return math.log(interpolate_ratio(self.layer_ratio, (1.0 - math.cos(math.pi * depth)) / 2.0))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InverseLayers(LayerPattern):
    """l + 1 for layer l: the logits of each layer are divided by its number, counted from 1.

    Equals GPT-2's ``scale_attn_by_inverse_layer_idx`` except for the level, which is normalised here.
    """

    name: ClassVar[str] = "inverse_layer"

    def _log_shape(self, depth: float, index: int) -> float:
        return math.log(index + 1)


LAYER_PATTERNS: dict[str, type[LayerPattern]] = {
    pattern.name: pattern
    for pattern in (UniformLayers, LinearLayers, ULayers, ExponentialLayers, CosineLayers, InverseLayers)
}
"""Name of a layer pattern to its class."""

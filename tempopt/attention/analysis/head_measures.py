"""Measures of the heads of a model, as plain values; ``specialisation`` computes them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import t

FALSE_ALARMS = 0.01
"""Share of models of random heads in which any head is named, for any number of heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMeasure:
    """One measure of one head, with its reference and its interval over inputs.

    Args:
        layer: Depth of the layer.
        head: Number of the head.
        measure: A pattern, ``uniform`` or ``positional``.
        score: For a pattern and ``uniform`` 1 at its purest and 0 at chance; for ``positional`` the share of
            the pattern that is common to all inputs.
        low: Lower end of its 95 % interval over inputs.
        high: Upper end.
        value: For a pattern the mean weight on its keys, for ``uniform`` H / ln n, else the score.
        chance: Value of uniform attention for the pattern; for ``uniform`` the H / ln n of the most selective
            head of the layer; for ``positional`` 0, that of a head that follows content.
        p: Bound on the probability that a random head with these weights reaches this score; None for
            measures with another reference.
        named: Whether the head is named by this measure.
    """

    layer: int
    head: int
    measure: str
    score: float
    low: float
    high: float
    value: float
    chance: float
    p: float | None
    named: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Specialisations:
    """Specialisations of the heads of a model.

    Args:
        measures: All measures, by layer, head and measure.
        inputs: Number of inputs.
        false_alarms: Share of models of random heads in which any head is named.
    """

    measures: tuple[HeadMeasure, ...]
    inputs: int
    false_alarms: float = FALSE_ALARMS

    def of(self, layer: int, head: int) -> dict[str, HeadMeasure]:
        """Return the measures of a head, by name; empty if the head was not observed."""
        return {
            measure.measure: measure
            for measure in self.measures
            if (measure.layer, measure.head) == (layer, head)
        }

    @property
    def names(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """Names of the named heads, by layer and head, the highest score first."""
        measures_by_head: dict[tuple[int, int], list[HeadMeasure]] = {}
        for measure in self.measures:
            if measure.named:
                measures_by_head.setdefault((measure.layer, measure.head), []).append(measure)
        return {
            head: tuple(measure.measure for measure in sorted(measures, key=lambda measure: -measure.score))
            for head, measures in measures_by_head.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each measure, of plain values, as for a table or JSON."""
        return [asdict(measure) for measure in self.measures]

    def __str__(self) -> str:
        """Return a table of layers and heads: names, scores, and the share of position."""
        heads = sorted({(measure.layer, measure.head) for measure in self.measures})
        lines = [f"what heads do, over {self.inputs} inputs", "layer  head  positional  is"]
        for layer, head in heads:
            measures = self.of(layer, head)
            share = measures["positional"].score if "positional" in measures else math.nan
            description = ", ".join(
                f"{name} {measures[name].score:.2f} ({measures[name].low:.2f} to {measures[name].high:.2f})"
                for name in self.names.get((layer, head), ())
            )
            lines.append(f"{layer:5}{head:6}{share:12.2f}  {description or '-'}")
        return "\n".join(lines)


def half_width(standard_error: float, samples: int) -> float:
    """Return half the width of the 95 % t interval.

    Args:
        standard_error: Standard error of the mean, >= 0.
        samples: Number of samples of the mean, >= 2.
    """
    return float(t.ppf(0.975, samples - 1)) * standard_error

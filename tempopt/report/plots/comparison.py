"""A comparison as a forest plot: variants against the reference, or each two sets, by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import plotly.graph_objects as go

from tempopt.confirmation.compare import set_gains
from tempopt.confirmation.comparisons import Answer
from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Table
from tempopt.report.plots.confirmation import Differences, differences_data, interval_bar, plot_differences
from tempopt.report.plots.style import BASELINE, INK, OTHER, WINNER, figure, number, plain
from tempopt.results.study_result import StudyResult

_ROW = 46


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantShown:
    """One comparison: a variant's gain over the reference by number of a fresh seed from 0, and in the mean.

    An end of the interval that nothing bounds is infinite; ``shown``: whether it is better or worse.
    """

    name: str
    pairs: tuple[tuple[int, float], ...]
    gain: float
    ci_low: float
    ci_high: float
    p_value: float
    confidence: float
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedShown:
    """The variants of a comparison, in the order in which they were given; or each two sets.

    Args:
        metric: Name of the metric.
        reference: Name of the set that they are compared with; None: each row names both that it compares.
        variants: Those of which a pair of runs could be compared.
    """

    metric: str
    reference: str | None
    variants: tuple[VariantShown, ...]

    def caption(self) -> str:
        """Return how to read it and what it says."""
        of = "variant" if self.reference is not None else "first set"
        other = self.reference or "the other"
        text = f"Each dot is a fresh seed: the {of}'s {self.metric} minus that of {other}, with the "
        text += "sign under which right of zero is better. "
        sure = f"{100 * self.variants[0].confidence:.4g} %"
        text += f"Bars are {sure} intervals of the mean: wholly right of zero is a gain, wholly left of it a "
        text += "loss."
        if len(self.variants) > 1:
            who = "variants" if self.reference is not None else "comparisons"
            text += f" They hold together: the {who} share the error rate."
        return text

    def table(self) -> Table:
        """Return a row for each seed of each variant, and for each variant."""
        seeds = tuple(
            (f"{each.name}, seed {seed + 1}", gain, None, None, None)
            for each in self.variants
            for seed, gain in each.pairs
        )
        means = tuple(
            (each.name, each.gain, _finite(each.ci_low), _finite(each.ci_high), each.p_value)
            for each in self.variants
        )
        return Table(columns=("comparison", "gain", "from", "to", "p"), rows=means + seeds)


def compared_data(result: StudyResult) -> ComparedShown:
    """Return the variants of a comparison that is over.

    Raises:
        NothingToPlot: It is not over, or nothing could be compared.
    """
    found = result.comparison
    if found is None:
        raise NothingToPlot("The comparison on fresh seeds is not over, so there is nothing to show yet.")
    shown = []
    rows = [
        (f"{pair.name} − {pair.reference}", pair.name, pair.reference, pair.answer, pair.winner is not None)
        for pair in found.pairs
    ] or [
        (variant.name, variant.name, found.reference, variant.answer, variant.better or variant.worse)
        for variant in found.variants
    ]
    for label, name, reference, answer, differs in rows:
        if answer is not None:
            gains = set_gains(result.runs, result.spec, found.round, name, reference)
            shown.append(_shown(label, gains, answer, differs=differs))
    if not shown:
        raise NothingToPlot("No pair of runs could be compared.")
    of_all = None if found.pairs else found.reference
    return ComparedShown(metric=result.metric, reference=of_all, variants=tuple(shown))


def _shown(name: str, gains: list[tuple[int, float]], answer: Answer, *, differs: bool) -> VariantShown:
    test = answer.paired
    return VariantShown(
        name=name,
        pairs=tuple(gains),
        gain=test.gain,
        ci_low=test.ci_low,
        ci_high=test.ci_high,
        p_value=test.p_value,
        confidence=test.confidence,
        shown=differs,
    )


def plot_compared(data: ComparedShown) -> go.Figure:
    """Return the forest plot: a row for each variant, its seeds as dots around its mean."""
    made = figure(
        x=f"gain in {data.metric}{'' if data.reference is None else f' over {data.reference}'}",
        height=140 + _ROW * len(data.variants),
        showlegend=False,
        margin={"t": 12},
    )
    made.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    for row, each in enumerate(data.variants):
        made.add_trace(_seeds(each, row))
        made.add_trace(_mean(each, row))
    made.update_yaxes(
        tickvals=list(range(len(data.variants))),
        ticktext=[plain(each.name) for each in data.variants],
        range=[len(data.variants) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    return made


def _seeds(each: VariantShown, row: int) -> go.Scatter:
    name = plain(each.name)
    return go.Scatter(
        x=[gain for _, gain in each.pairs],
        y=[row + 0.25] * len(each.pairs),
        text=[f"{name}, seed {seed + 1}: {number(gain)}" for seed, gain in each.pairs],
        mode="markers",
        marker={"color": OTHER, "size": 8},
        hovertemplate="%{text}<extra></extra>",
    )


def _mean(each: VariantShown, row: int) -> go.Scatter:
    ends = (each.ci_low, each.ci_high)
    colour = WINNER if each.shown else BASELINE
    return interval_bar(each.name, each.gain, ends, each.p_value, row=row, colour=colour)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def paired_data(result: StudyResult) -> Differences | ComparedShown:
    """Return the paired differences of a study: of its confirmation, or of its comparison.

    Raises:
        NothingToPlot: Nothing is confirmed, or compared.
    """
    return differences_data(result) if result.spec.compare is None else compared_data(result)


def plot_paired(data: Differences | ComparedShown) -> go.Figure:
    """Return the forest plot of what :func:`paired_data` returns."""
    return plot_differences(data) if isinstance(data, Differences) else plot_compared(data)

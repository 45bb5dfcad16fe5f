"""The proof as a forest plot: the winner against τ = 1 by fresh seed and in the mean, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Table
from tempopt.report.plots.style import CONSTANT, FAINT, INK, OTHER, UNIT, WINNER, figure, number
from tempopt.study.answers import Answer, Verdict, gains_by_pair
from tempopt.study.results import StudyResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One gain over a reference with its interval; an end that nothing bounds is infinite.

    Args:
        name: What is compared with what.
        share: Of the total gain, where there is one to have a share of.
    """

    name: str
    gain: float
    ci_low: float
    ci_high: float
    p_value: float
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Paired differences in the metric's unit, more being better whatever the direction.

    Args:
        metric: Name of the metric.
        pairs: Index of a fresh seed and the winner's gain over τ = 1 on it; a run that diverged counts with
            the worst value that any run reached.
        diverged: Pairs on which one of the two runs diverged.
        mean: The winner against τ = 1 over all pairs.
        others: The winner against the best constant; what inference alone and initialisation alone gain.
        confidence: Coverage of the intervals.
        forbidden: Names of the comparisons whose gain does not count, whatever its interval: what is compared
            diverged on more seeds than what it is compared with.
    """

    metric: str
    pairs: tuple[tuple[int, float], ...]
    diverged: frozenset[int]
    mean: Comparison
    others: tuple[Comparison, ...]
    confidence: float
    forbidden: tuple[str, ...]

    def caption(self) -> str:
        """Return how to read it and what it says."""
        better = sum(gain > 0 for _, gain in self.pairs)
        percent = f"{100 * self.confidence:.4g}"
        text = (
            "Each dot is a seed that neither searched nor chose: the winner minus τ = 1, so right of zero "
            f"the winner is better, as on {better} of {len(self.pairs)}. Bars are {percent} % intervals: "
            "wholly right of zero is a gain, wholly left of it a loss."
        )
        if self.forbidden:
            text += (
                f" Not so for {'; '.join(self.forbidden)}: more runs diverged than of what it is compared "
                "with, so the gain does not count."
            )
        shared = next((each for each in self.others if each.name == INFERENCE and each.share), None)
        if shared is not None and shared.share is not None:
            text += (
                f" A temperature set after training at τ = 1 reaches {100 * shared.share:.0f} % of the "
                "total gain."
            )
        return text

    def table(self) -> Table:
        """Return a row for each seed and each comparison."""
        seeds = tuple((f"seed {pair + 1}", gain, None, None, None) for pair, gain in self.pairs)
        rest = tuple(
            (each.name, each.gain, _finite(each.ci_low), _finite(each.ci_high), each.p_value)
            for each in (self.mean, *self.others)
        )
        return Table(columns=("comparison", "gain", "from", "to", "p"), rows=seeds + rest)


MEAN = "mean, against τ = 1"
AGAINST_CONSTANT = "against best constant"
INFERENCE = "inference only"
INITIALISATION = "initialisation only"


def differences_data(result: StudyResult) -> Differences:
    """Return the paired differences of the last confirmation.

    Raises:
        NothingToPlot: Nothing is confirmed.
    """
    verdict = result.verdict
    if verdict is None:
        raise NothingToPlot("No confirmation on fresh seeds is over, so there is nothing to compare yet.")
    runs = [run for run in result.runs if run.kind == "confirm" and run.round == verdict.round]
    pairs = gains_by_pair(runs, result.spec, verdict.round)
    return Differences(
        metric=result.metric,
        pairs=tuple(pairs.items()),
        diverged=frozenset(run.pair for run in runs if run.outcome == "diverged" and run.pair is not None),
        mean=_comparison(MEAN, verdict.total),
        others=_others(verdict),
        confidence=verdict.total.paired.confidence,
        forbidden=tuple(_forbidden(verdict)),
    )


def _forbidden(verdict: Verdict) -> Iterator[str]:
    inference, initialisation = verdict.inference_only, verdict.init_only
    for name, answer in (
        (MEAN, verdict.total),
        (AGAINST_CONSTANT, verdict.against_constant),
        (INFERENCE, inference.answer if inference is not None else None),
        (INITIALISATION, initialisation.answer if initialisation is not None else None),
    ):
        if answer is not None and answer.paired.significant and not answer.significant:
            yield name


def _others(verdict: Verdict) -> tuple[Comparison, ...]:
    found = []
    if verdict.against_constant is not None:
        found.append(_comparison(AGAINST_CONSTANT, verdict.against_constant))
    for name, share in ((INFERENCE, verdict.inference_only), (INITIALISATION, verdict.init_only)):
        if share is not None:
            found.append(_comparison(name, share.answer, share.share))
    return tuple(found)


def _comparison(name: str, answer: Answer, share: float | None = None) -> Comparison:
    test = answer.paired
    return Comparison(
        name=name,
        gain=test.gain,
        ci_low=test.ci_low,
        ci_high=test.ci_high,
        p_value=test.p_value,
        share=share,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def plot_differences(data: Differences) -> go.Figure:
    """Return the forest plot: seeds above, the mean and what explains it below."""
    colours = (WINNER, CONSTANT, UNIT, OTHER)
    means = (data.mean, *data.others)
    made = figure(
        x=f"gain in {data.metric}",
        height=120 + 27 * (len(data.pairs) + len(means)),
        showlegend=False,
        margin={"t": 12},
    )
    made.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    made.add_trace(_seeds(data))
    for each, colour in zip(means, colours, strict=False):
        made.add_trace(_bar(each, colour))
    rows = [f"seed {pair + 1}" for pair, _ in data.pairs] + [each.name for each in means]
    made.add_hline(y=len(data.pairs) - 0.5, line={"color": FAINT, "width": 1})
    made.update_yaxes(
        categoryorder="array", categoryarray=rows, autorange="reversed", showgrid=False, type="category"
    )
    return made


def _seeds(data: Differences) -> go.Scatter:
    symbols = ["circle-open" if pair in data.diverged else "circle" for pair, _ in data.pairs]
    ends = ["<br>a run diverged" if pair in data.diverged else "" for pair, _ in data.pairs]
    return go.Scatter(
        x=[gain for _, gain in data.pairs],
        y=[f"seed {pair + 1}" for pair, _ in data.pairs],
        text=ends,
        mode="markers",
        marker={"color": OTHER, "size": 9, "symbol": symbols},
        hovertemplate="%{y}: %{x:+.4g}%{text}<extra></extra>",
        name="one seed",
    )


def _bar(each: Comparison, colour: str) -> go.Scatter:
    """Return one comparison; what nothing bounds gets no bar, and says so when it is pointed at."""
    bounded = math.isfinite(each.ci_low) and math.isfinite(each.ci_high)
    said = f"{number(each.ci_low)} to {number(each.ci_high)}" if bounded else "not bounded by so few pairs"
    return go.Scatter(
        x=[each.gain],
        y=[each.name],
        error_x={
            "array": [each.ci_high - each.gain if bounded else 0.0],
            "arrayminus": [each.gain - each.ci_low if bounded else 0.0],
            "color": colour,
            "thickness": 2.5,
            "width": 6,
        },
        mode="markers",
        marker={"color": colour, "size": 13, "symbol": "diamond"},
        hovertemplate=f"{each.name}: %{{x:+.4g}}<br>interval {said}<br>p = {each.p_value:.2g}<extra></extra>",
        name=each.name,
    )

"""The confirmation as a forest plot: gains by fresh seed and in the mean, of the winner or of variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.findings import part_text
from tempopt.report.formatting import baseline_label, baseline_name
from tempopt.report.plots.style import (
    BASELINE,
    CONSTANT,
    FAINT,
    INK,
    SECONDARY,
    WINNER,
    Table,
    figure,
    number,
    plain,
)
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import of_kind, pairs_of, rounds_of_verdict
from tempopt.verdict.paired_evidence import PairedResult, gains_by_pair
from tempopt.verdict.set_comparison import set_gains
from tempopt.verdict.statistics.fieller import Ratio
from tempopt.verdict.verdict import Verdict

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


def confirming(result: StudyResult, arm: str | None = None) -> list[TicketRow]:
    """Return the confirming runs (of an arm) that the verdict rests on, or else the newest, by number."""
    return [
        run for of_round in before(result) for run in of_kind(result.runs, "confirm", arm, of_round=of_round)
    ]


def before(result: StudyResult) -> dict[int, int]:
    """Return by round that the verdict rests on how many pairs the rounds before it have, oldest first."""
    of_round = result.round if result.verdict is None else result.verdict.round
    pairs_before: dict[int, int] = {}
    pairs = 0
    for round_number in rounds_of_verdict(result.runs, of_round):
        pairs_before[round_number] = pairs
        pairs += pairs_of(of_kind(result.runs, "confirm", of_round=round_number))
    return pairs_before


def seeds(result: StudyResult) -> dict[int, int]:
    """Return by id of a confirming run which fresh seed it has, counted from 0 over the rounds."""
    places = before(result)
    return {run.id: places[run.round] + (run.pair or 0) for run in confirming(result)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonData:
    """One gain over a reference with its interval; an end that nothing bounds is infinite.

    Args:
        name: What is compared with what.
        confidence: Coverage of the interval.
        share: Of the total gain, where there is one to have a share of.
    """

    name: str
    gain: float
    ci_low: float
    ci_high: float
    p_value: float
    confidence: float
    share: Ratio | None = None

    @property
    def is_shown(self) -> bool:
        """Whether there is a difference beyond chance: the interval does not hold 0."""
        return self.ci_low > 0 or self.ci_high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Paired differences in the metric's unit, more being better whatever the direction.

    Args:
        metric: Name of the metric.
        baseline: What the winner is compared with, as a sentence says it.
        label: The same in a word.
        pairs: Number of a fresh seed, from 0, and the winner's gain over the baseline on it; a run that
            diverged counts with the worst value that any run reached.
        twin: The same over the winner's twin; empty where that is the baseline itself.
        diverged: Seeds on which one of these runs diverged.
        mean: The winner against the baseline over all pairs.
        others: The comparisons beside it: each reference at the baseline, constants, what inference alone,
            initialisation alone and learned temperatures gain, and what the winner loses without each of its
            parts.
        forbidden: Names of the comparisons whose gain does not count, whatever its interval: what is compared
            diverged on more seeds than what it is compared with.
        at_one: Whether the search has chosen the baseline itself.
    """

    metric: str
    baseline: str
    label: str
    pairs: tuple[tuple[int, float], ...]
    twin: tuple[tuple[int, float], ...]
    diverged: frozenset[int]
    mean: ComparisonData
    others: tuple[ComparisonData, ...]
    forbidden: tuple[str, ...]
    at_one: bool

    @property
    def seeds(self) -> tuple[int, ...]:
        """The fresh seeds that are drawn."""
        return tuple(sorted({seed for seed, _ in (*self.pairs, *self.twin)}))

    def caption(self) -> str:
        """Return how to read it and what it says."""
        if self.at_one:
            return f"The search has chosen {self.baseline} itself, so winner and baseline are the same runs."
        sentences = [
            self._of_seeds(),
            self._of_bars(),
            self._of_others(),
            self._of_parts(),
            self._of_forbidden(),
        ]
        sentences.append(self._of_share())
        return " ".join(sentence for sentence in sentences if sentence)

    def _of_seeds(self) -> str:
        better = sum(gain > 0 for _, gain in self.pairs)
        many = f"on {better} of {len(self.pairs)}"
        text = f"Each dot is a seed that neither searched nor chose: the winner minus {self.baseline}, "
        if not self.twin:
            return f"{text}so right of zero the winner is better, as {many}."
        better = sum(gain > 0 for _, gain in self.twin)
        return (
            f"{text}tuned again; each stroke the winner minus its twin, its own other parameters at "
            f"{self.baseline}. Right of zero the winner is better, as {many} and on {better} of "
            f"{len(self.twin)}. A gain has to hold against both; the row of both has the "
            "smaller gain, and an interval that covers the two."
        )

    def _of_bars(self) -> str:
        text = f"Bars are {_percent(self.mean.confidence)} intervals"
        other_confidences = {comparison.confidence for comparison in self.others} - {self.mean.confidence}
        if other_confidences:
            parts_confidence = _percent(max(other_confidences))
            text += f", those of the winner's parts {parts_confidence}, from before seeds were added"
        return f"{text}: wholly right of zero is a gain, wholly left of it a loss."

    def _of_others(self) -> str:
        """Return which comparisons are not the winner's."""
        names = (INFERENCE, learned_against(self.label))
        shown_names = [name for name in names if any(comparison.name == name for comparison in self.others)]
        if not shown_names:
            return ""
        *first_names, last_name = [f'"{name}"' for name in shown_names]
        return (
            f"{' and '.join([', '.join(first_names), last_name] if first_names else [last_name])} "
            f"{'are' if first_names else 'is'} without the winner: that minus {self.baseline}."
        )

    def _of_parts(self) -> str:
        if not any(comparison.name.startswith(WITHOUT) for comparison in self.others):
            return ""
        return f'"{WITHOUT}..." is by how much the winner is better than itself without that part.'

    def _of_forbidden(self) -> str:
        if not self.forbidden:
            return ""
        return (
            f"Not so for {'; '.join(self.forbidden)}: more runs diverged than of what it is compared "
            "with, so the gain does not count."
        )

    def _of_share(self) -> str:
        inference = next((comparison for comparison in self.others if comparison.name == INFERENCE), None)
        if inference is None or inference.share is None or not inference.is_shown:
            return ""
        share_text = _share(inference.share)
        return f"A temperature set after training at {self.baseline} reaches {share_text} of the total gain."

    def table(self) -> Table:
        """Return a row for each seed and each comparison."""
        dots = tuple((f"seed {seed + 1}", gain, *[None] * 4) for seed, gain in self.pairs)
        strokes = tuple((f"seed {seed + 1}, {_TWIN}", gain, *[None] * 4) for seed, gain in self.twin)
        means = tuple(
            (
                comparison.name,
                comparison.gain,
                _finite(comparison.ci_low),
                _finite(comparison.ci_high),
                comparison.p_value,
                None if comparison.share is None else _share(comparison.share),
            )
            for comparison in (self.mean, *self.others)
        )
        columns = ("comparison", "gain", "from", "to", "p", "share of the gain")
        return Table(columns=columns, rows=dots + strokes + means)


_SEED_ROWS, _SEED_NAMES = 12, 18
"""Rows of the plot for seeds, of which more lie closer together, and how many at most have their name."""
_TWIN = "against its twin"
AGAINST_CONSTANT, AGAINST_OWN_CONSTANT = "against the best constant", "against a constant of its own"
DIFFERENCE = "winner over inference only"
INFERENCE = "inference only"
WITHOUT = "without "
SIMPLEST = "over the simplest plan"
_COLOURS = {
    AGAINST_CONSTANT: CONSTANT,
    AGAINST_OWN_CONSTANT: CONSTANT,
    INFERENCE: BASELINE,
    DIFFERENCE: WINNER,
}


def against(verdict: Verdict, label: str) -> str:
    """Return what the winner's gain over the baseline is called: where there are two of them, over both."""
    return f"against {label}, both" if verdict.total.component_results else f"mean, against {label}"


def against_tuned(label: str) -> str:
    """Return what the winner's gain over the baseline that was tuned again is called."""
    return f"against {label}, tuned again"


def against_twin(label: str) -> str:
    """Return what the winner's gain over its twin is called."""
    return f"{_TWIN} at {label}"


def learned_against(label: str) -> str:
    """Return what the gain of learned temperatures over the baseline is called."""
    return f"learned, against {label}"


def differences_data(result: StudyResult) -> Differences:
    """Return the paired differences of the last confirmation.

    Raises:
        NothingToPlot: Nothing is confirmed.
    """
    verdict = result.verdict
    if verdict is None:
        raise NothingToPlot("No confirmation on fresh seeds is over, so there is nothing to compare yet.")
    numbered = seeds(result)
    runs = [*confirming(result, "search"), *confirming(result, "baseline"), *confirming(result, "twin")]
    label = baseline_label(result.spec)
    return Differences(
        metric=result.metric,
        baseline=baseline_name(result.spec),
        label=label,
        pairs=_gains(result, "baseline"),
        twin=_gains(result, "twin") if verdict.total.component_results else (),
        diverged=frozenset(numbered[run.id] for run in runs if run.outcome == "diverged"),
        mean=_comparison(against(verdict, label), verdict.total),
        others=_others(verdict, result.spec),
        forbidden=tuple(_forbidden(verdict, result.spec)),
        at_one=verdict.at_one,
    )


def _gains(result: StudyResult, reference: str) -> tuple[tuple[int, float], ...]:
    return tuple(
        (first_seed + pair, gain)
        for of_round, first_seed in before(result).items()
        for pair, gain in gains_by_pair(result.runs, result.spec, of_round, reference).items()
    )


def _forbidden(verdict: Verdict, spec: StudySpec) -> Iterator[str]:
    for name, answer in ((against(verdict, baseline_label(spec)), verdict.total), *_answers(verdict, spec)):
        if answer.paired.significant and not answer.significant:
            yield name


def _answers(verdict: Verdict, spec: StudySpec) -> Iterator[tuple[str, PairedResult]]:
    label = baseline_label(spec)
    if verdict.total.component_results and verdict.over_twin is not None:
        if verdict.over_baseline is not None:
            yield against_tuned(label), verdict.over_baseline
        yield against_twin(label), verdict.over_twin
    if not verdict.at_one:
        # each by itself: of both together the gain is that of one, and the interval that of the other
        constants = {
            AGAINST_CONSTANT: verdict.over_constant,
            AGAINST_OWN_CONSTANT: verdict.over_constant_twin,
        }
        yield from ((name, answer) for name, answer in constants.items() if answer is not None)
    inference = verdict.inference_only
    if inference is not None:
        yield INFERENCE, inference.answer
        if inference.difference is not None and not verdict.at_one:
            yield DIFFERENCE, inference.difference
    if verdict.learned is not None:
        yield learned_against(label), verdict.learned.answer
    for part in verdict.parts:
        yield f"{WITHOUT}{part_text(part.name, spec).removeprefix('the ')}", part.answer
    if verdict.simplest is not None:
        yield SIMPLEST, verdict.simplest.lost


def _others(verdict: Verdict, spec: StudySpec) -> tuple[ComparisonData, ...]:
    shares: dict[str, Ratio | None] = {}
    if verdict.inference_only is not None:
        shares[INFERENCE] = verdict.inference_only.share
    if verdict.learned is not None:
        shares[learned_against(baseline_label(spec))] = verdict.learned.share
    return tuple(_comparison(name, answer, shares.get(name)) for name, answer in _answers(verdict, spec))


def _comparison(name: str, answer: PairedResult, share: Ratio | None = None) -> ComparisonData:
    test = answer.paired
    return ComparisonData(
        name=name,
        gain=test.gain,
        ci_low=test.ci_low,
        ci_high=test.ci_high,
        p_value=test.p_value,
        confidence=test.confidence,
        share=None if share is None or math.isnan(share.ratio) else share,
    )


def _share(share: Ratio) -> str:
    if not math.isfinite(share.low) or not math.isfinite(share.high):
        return f"{100 * share.ratio:.0f} % (not bounded)"
    return f"{100 * share.ratio:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f} %)".replace("-", "−")


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.4g} %"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def plot_differences(data: Differences) -> go.Figure:
    """Return the forest plot: seeds above, the mean and what explains it below."""
    means = (data.mean, *data.others)
    legend = bool(data.twin)
    gap = min(1.0, _SEED_ROWS / len(data.seeds))
    places = {seed: index * gap for index, seed in enumerate(data.seeds)}
    first_row = places[data.seeds[-1]] + 1
    fig = figure(
        x=f"gain in {data.metric}",
        height=round(120 + 30 * legend + 27 * (first_row + len(means))),
        showlegend=legend,
        margin={"t": 40 if legend else 12},
    )
    fig.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    fig.add_trace(_seeds(data, places))
    if data.twin:
        fig.add_trace(_strokes(data, places))
    colours = dict.fromkeys((data.mean.name, against_tuned(data.label), against_twin(data.label)), WINNER)
    colours |= _COLOURS
    for row, mean in enumerate(means):
        ends, colour = (mean.ci_low, mean.ci_high), colours.get(mean.name, SECONDARY)
        fig.add_trace(
            _interval_bar(mean.name, mean.gain, ends, mean.p_value, row=first_row + row, colour=colour)
        )
    fig.add_hline(y=first_row - 0.5, line={"color": FAINT, "width": 1})
    named_seeds = data.seeds[:: math.ceil(len(data.seeds) / _SEED_NAMES)]
    fig.update_yaxes(
        # named one by one: plotly would leave out every second name where there is little room
        tickvals=[*(places[seed] for seed in named_seeds), *(first_row + row for row in range(len(means)))],
        ticktext=[*(f"seed {seed + 1}" for seed in named_seeds), *(plain(mean.name) for mean in means)],
        range=[first_row + len(means) - 0.25, -0.75],
        showgrid=False,
        zeroline=False,
    )
    return fig


def _seeds(data: Differences, places: Mapping[int, float]) -> go.Scatter:
    symbols = ["circle-open" if seed in data.diverged else "circle" for seed, _ in data.pairs]
    return go.Scatter(
        x=[gain for _, gain in data.pairs],
        y=[places[seed] for seed, _ in data.pairs],
        text=_ends(data, data.pairs),
        mode="markers",
        marker={"color": SECONDARY, "size": 9, "symbol": symbols},
        hovertemplate="%{text}<extra></extra>",
        name=f"minus {data.label}, tuned again" if data.twin else "one seed",
    )


def _strokes(data: Differences, places: Mapping[int, float]) -> go.Scatter:
    return go.Scatter(
        x=[gain for _, gain in data.twin],
        y=[places[seed] for seed, _ in data.twin],
        text=_ends(data, data.twin, ", its twin"),
        mode="markers",
        marker={
            "color": WINNER,
            "size": 11,
            "symbol": "line-ns-open",
            "line": {"width": 2.5, "color": WINNER},
        },
        hovertemplate="%{text}<extra></extra>",
        name="minus its twin",
    )


def _ends(data: Differences, gains: tuple[tuple[int, float], ...], suffix: str = "") -> list[str]:
    return [
        f"seed {seed + 1}{suffix}: {number(gain)}{'<br>a run diverged' if seed in data.diverged else ''}"
        for seed, gain in gains
    ]


def _interval_bar(
    name: str, gain: float, ends: tuple[float, float], p_value: float, *, row: float, colour: str
) -> go.Scatter:
    """Return one comparison; what nothing bounds gets no bar, and says so when it is pointed at."""
    low, high = ends
    bounded = math.isfinite(low) and math.isfinite(high)
    interval_text = f"{number(low)} to {number(high)}" if bounded else "not bounded by so few seeds"
    return go.Scatter(
        x=[gain],
        y=[row],
        error_x={
            "array": [high - gain if bounded else 0.0],
            "arrayminus": [gain - low if bounded else 0.0],
            "color": colour,
            "thickness": 2.5,
            "width": 6,
        },
        mode="markers",
        marker={"color": colour, "size": 13, "symbol": "diamond"},
        hovertemplate=(
            f"{plain(name)}: %{{x:+.4g}}<br>interval {interval_text}<br>p = {p_value:.2g}<extra></extra>"
        ),
        name=plain(name),
        showlegend=False,
    )


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
    is_different: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedShown:
    """The variants of a comparison, in the order of the command; or every pair of sets.

    Args:
        metric: Name of the metric.
        reference: Name of the set that they are compared with; None: each row names both.
        variants: Those of which a pair of runs could be compared.
    """

    metric: str
    reference: str | None
    variants: tuple[VariantShown, ...]

    def caption(self) -> str:
        """Return how to read it and what it says."""
        noun = "variant" if self.reference is not None else "first set"
        text = f"Each dot is a fresh seed: the {noun}'s {self.metric} minus that of "
        text += f"{self.reference or 'the other'}, with the sign under which right of zero is better. "
        sure = f"{100 * self.variants[0].confidence:.4g} %"
        text += f"Bars are {sure} intervals of the mean: wholly right of zero is a gain, wholly left of it a "
        text += "loss."
        if len(self.variants) > 1:
            rows = "variants" if self.reference is not None else "comparisons"
            text += f" They hold together: the {rows} share the error rate."
        return text

    def table(self) -> Table:
        """Return a row for each seed of each variant, and for each variant."""
        seeds = tuple(
            (f"{variant.name}, seed {seed + 1}", gain, None, None, None)
            for variant in self.variants
            for seed, gain in variant.pairs
        )
        means = tuple(
            (variant.name, variant.gain, _finite(variant.ci_low), _finite(variant.ci_high), variant.p_value)
            for variant in self.variants
        )
        return Table(columns=("comparison", "gain", "from", "to", "p"), rows=means + seeds)


def compared_data(result: StudyResult) -> ComparedShown:
    """Return the variants of a comparison that is over.

    Raises:
        NothingToPlot: It is not over, or nothing could be compared.
    """
    comparison = result.comparison
    if comparison is None:
        raise NothingToPlot("The comparison on fresh seeds is not over, so there is nothing to show yet.")
    rows = [
        (f"{pair.name} − {pair.reference}", pair.name, pair.reference, pair.answer, pair.winner is not None)
        for pair in comparison.pairs
    ] or [
        (variant.name, variant.name, comparison.reference, variant.answer, variant.better or variant.worse)
        for variant in comparison.variants
    ]
    variants = []
    for label, name, reference, answer, differs in rows:
        if answer is not None:
            gains = set_gains(result.runs, result.spec, comparison.round, name, reference)
            variants.append(_build_variant(label, gains, answer, differs=differs))
    if not variants:
        raise NothingToPlot("No pair of runs could be compared.")
    of_all = None if comparison.pairs else comparison.reference
    return ComparedShown(metric=result.metric, reference=of_all, variants=tuple(variants))


def _build_variant(
    name: str, gains: list[tuple[int, float]], answer: PairedResult, *, differs: bool
) -> VariantShown:
    test = answer.paired
    return VariantShown(
        name=name,
        pairs=tuple(gains),
        gain=test.gain,
        ci_low=test.ci_low,
        ci_high=test.ci_high,
        p_value=test.p_value,
        confidence=test.confidence,
        is_different=differs,
    )


def plot_compared(data: ComparedShown) -> go.Figure:
    """Return the forest plot: a row for each variant, its seeds as dots around its mean."""
    fig = figure(
        x=f"gain in {data.metric}{'' if data.reference is None else f' over {data.reference}'}",
        height=140 + _ROW * len(data.variants),
        showlegend=False,
        margin={"t": 12},
    )
    fig.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    for row, variant in enumerate(data.variants):
        fig.add_trace(_variant_seeds(variant, row))
        fig.add_trace(_variant_mean(variant, row))
    fig.update_yaxes(
        tickvals=list(range(len(data.variants))),
        ticktext=[plain(variant.name) for variant in data.variants],
        range=[len(data.variants) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    return fig


def _variant_seeds(variant: VariantShown, row: int) -> go.Scatter:
    name = plain(variant.name)
    return go.Scatter(
        x=[gain for _, gain in variant.pairs],
        y=[row + 0.25] * len(variant.pairs),
        text=[f"{name}, seed {seed + 1}: {number(gain)}" for seed, gain in variant.pairs],
        mode="markers",
        marker={"color": SECONDARY, "size": 8},
        hovertemplate="%{text}<extra></extra>",
    )


def _variant_mean(variant: VariantShown, row: int) -> go.Scatter:
    ends = (variant.ci_low, variant.ci_high)
    colour = WINNER if variant.is_different else BASELINE
    return _interval_bar(variant.name, variant.gain, ends, variant.p_value, row=row, colour=colour)


def paired_data(result: StudyResult) -> Differences | ComparedShown:
    """Return the paired differences of a study: of its confirmation, or of its comparison.

    Raises:
        NothingToPlot: Nothing is confirmed, or compared.
    """
    return differences_data(result) if result.spec.compare is None else compared_data(result)


def plot_paired(data: Differences | ComparedShown) -> go.Figure:
    """Return the forest plot of what :func:`paired_data` returns."""
    return plot_differences(data) if isinstance(data, Differences) else plot_compared(data)

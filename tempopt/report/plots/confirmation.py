"""The confirmation as a forest plot: gains by fresh seed and on average, of the winner or of variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.findings import part_text
from tempopt.report.formatting import baseline_label, baseline_name, finite
from tempopt.report.plots import style
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import of_kind, pairs_of, rounds_of_verdict
from tempopt.verdict.paired_evidence import PairedResult, gains_by_pair
from tempopt.verdict.set_comparison import gains_of_set
from tempopt.verdict.statistics.fieller import Ratio
from tempopt.verdict.statistics.paired_tests import PairedTest
from tempopt.verdict.verdict import Verdict

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


def confirming_runs(result: StudyResult, arm: str | None = None) -> list[TicketRow]:
    """Return the confirming runs (of an arm) of the verdict, or else the newest ones, by number."""
    rounds = pairs_before_round(result)
    return [run for number in rounds for run in of_kind(result.runs, "confirm", arm, of_round=number)]


def pairs_before_round(result: StudyResult) -> dict[int, int]:
    """Return by round of the verdict the number of pairs in earlier rounds, oldest first."""
    of_round = result.round if result.verdict is None else result.verdict.round
    pairs_before: dict[int, int] = {}
    pairs = 0
    for round_number in rounds_of_verdict(result.runs, of_round):
        pairs_before[round_number] = pairs
        pairs += pairs_of(of_kind(result.runs, "confirm", of_round=round_number))
    return pairs_before


def seed_indices(result: StudyResult) -> dict[int, int]:
    """Return the index of the fresh seed of each confirming run, by id, counted from 0 over the rounds."""
    pairs_before = pairs_before_round(result)
    return {run.id: pairs_before[run.round] + (run.pair or 0) for run in confirming_runs(result)}


Gains = tuple[tuple[int, float], ...]
"""Number of a fresh seed, from 0, and the gain on it."""

_SEED_ROWS, _SEED_NAMES = 12, 18
"""Number of rows for seeds, beyond which they are closer, and largest number of named seeds."""
_ROW_HEIGHT = 46
_TWIN = "against its twin"
AGAINST_CONSTANT, AGAINST_OWN_CONSTANT = "against the best constant", "against a constant of its own"
DIFFERENCE = "winner over inference only"
INFERENCE = "inference only"
WITHOUT = "without "
SIMPLEST = "over the simplest plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One gain over a reference with its interval.

    Args:
        name: Names of the compared arms.
        test: Test of the mean gain; an unbounded end of its interval is infinite.
        pairs: Gains by seed, if they are drawn around the mean.
        share: Share of the total gain, if it is defined.
        is_different: Whether it is shown to be better or worse.
    """

    name: str
    test: PairedTest
    pairs: Gains = ()
    share: Ratio | None = None
    is_different: bool = False

    def numbers(self) -> tuple[str, float, float | None, float | None, float]:
        """Return its cells of a table: name, gain, ends of the interval, p."""
        test = self.test
        return self.name, test.gain, finite(test.ci_low), finite(test.ci_high), test.p_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Paired differences in the metric's unit, larger being better for any direction.

    Args:
        metric: Name of the metric.
        baseline: Name of the reference, for a sentence.
        label: The same in one word.
        pairs: The winner's gain over the baseline by seed; a diverged run counts with the worst value that
            any run reached.
        twin: The gain over the winner's twin; empty if that is the baseline itself.
        diverged: Seeds on which one of these runs diverged.
        mean: The winner against the baseline over all pairs.
        others: The further comparisons: each reference at the baseline, constants, the gains of inference
            only, initialisation only and learned temperatures, and the loss of the winner without each of its
            parts.
        forbidden: Names of the comparisons whose gain does not count, since the arm diverged on more seeds
            than its reference.
        at_one: Whether the search has chosen the baseline itself.
    """

    metric: str
    baseline: str
    label: str
    pairs: Gains
    twin: Gains
    diverged: frozenset[int]
    mean: ComparisonRow
    others: tuple[ComparisonRow, ...]
    forbidden: tuple[str, ...]
    at_one: bool

    @property
    def seeds(self) -> tuple[int, ...]:
        """The fresh seeds in the plot."""
        return tuple(sorted({seed for seed, _ in (*self.pairs, *self.twin)}))

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        if self.at_one:
            return f"The search has chosen {self.baseline} itself, so winner and baseline are the same runs."
        return " ".join([self._describe_seeds(), self._describe_bars(), *self._describe_other_comparisons()])

    def _describe_seeds(self) -> str:
        num_better = sum(gain > 0 for _, gain in self.pairs)
        count_text = f"on {num_better} of {len(self.pairs)}"
        text = f"Each dot is a seed that neither searched nor chose: the winner minus {self.baseline}, "
        if not self.twin:
            return f"{text}so right of zero the winner is better, as {count_text}."
        num_better = sum(gain > 0 for _, gain in self.twin)
        return (
            f"{text}tuned again; each stroke the winner minus its twin, its own other parameters at "
            f"{self.baseline}. Right of zero the winner is better, as {count_text} and on {num_better} of "
            f"{len(self.twin)}. A gain has to hold against both; the row of both has the "
            "smaller gain, and an interval that covers the two."
        )

    def _describe_bars(self) -> str:
        text = f"Bars are {_percent(self.mean.test)} intervals"
        others = [row.test for row in self.others if row.test.confidence != self.mean.test.confidence]
        if others:
            parts_test = max(others, key=lambda test: test.confidence)
            text += f", those of the winner's parts {_percent(parts_test)}, from before seeds were added"
        return f"{text}: wholly right of zero is a gain, wholly left of it a loss."

    def _describe_other_comparisons(self) -> Iterator[str]:
        rows = {row.name: row for row in self.others}
        names = [f'"{name}"' for name in (INFERENCE, learned_label(self.label)) if name in rows]
        if names:
            verb = "are" if len(names) > 1 else "is"
            yield f"{' and '.join(names)} {verb} without the winner: that minus {self.baseline}."
        if any(name.startswith(WITHOUT) for name in rows):
            yield f'"{WITHOUT}..." is by how much the winner is better than itself without that part.'
        if self.forbidden:
            yield (
                f"Not so for {'; '.join(self.forbidden)}: more runs diverged than of what it is compared "
                "with, so the gain does not count."
            )
        inference = rows.get(INFERENCE)
        if inference is not None and inference.share is not None:
            if inference.test.ci_low > 0 or inference.test.ci_high < 0:
                share = f"{_share(inference.share)} of the total gain."
                yield f"A temperature set after training at {self.baseline} reaches {share}"

    def table(self) -> style.Table:
        """Return a row for each seed and each comparison."""
        dots = tuple((f"seed {seed + 1}", gain, *[None] * 4) for seed, gain in self.pairs)
        strokes = tuple((f"seed {seed + 1}, {_TWIN}", gain, *[None] * 4) for seed, gain in self.twin)
        means = tuple(
            (*row.numbers(), None if row.share is None else _share(row.share))
            for row in (self.mean, *self.others)
        )
        columns = ("comparison", "gain", "from", "to", "p", "share of the gain")
        return style.Table(columns=columns, rows=dots + strokes + means)


def against_tuned(label: str) -> str:
    """Return the label of the winner's gain over the tuned baseline."""
    return f"against {label}, tuned again"


def against_twin(label: str) -> str:
    """Return the label of the winner's gain over its twin."""
    return f"{_TWIN} at {label}"


def learned_label(label: str) -> str:
    """Return the label of the gain of learned temperatures over the baseline."""
    return f"learned, against {label}"


def differences_data(result: StudyResult) -> Differences:
    """Return the paired differences of the last confirmation.

    Raises:
        NothingToPlot: Nothing is confirmed.
    """
    verdict = result.verdict
    if verdict is None:
        raise NothingToPlot("No confirmation on fresh seeds is over, so there is nothing to compare yet.")
    seed_index_by_run = seed_indices(result)
    runs = [run for arm in ("search", "baseline", "twin") for run in confirming_runs(result, arm)]
    answers = list(_answers(verdict, result.spec))
    mean, *others = [
        ComparisonRow(
            name=name, test=answer.paired, share=None if share is None or math.isnan(share.ratio) else share
        )
        for name, answer, share in answers
    ]
    return Differences(
        metric=result.metric,
        baseline=baseline_name(result.spec),
        label=baseline_label(result.spec),
        pairs=_gains(result, "baseline"),
        twin=_gains(result, "twin") if verdict.primary.component_results else (),
        diverged=frozenset(seed_index_by_run[run.id] for run in runs if run.outcome == "diverged"),
        mean=mean,
        others=tuple(others),
        forbidden=tuple(
            name for name, answer, _ in answers if answer.paired.significant and not answer.significant
        ),
        at_one=verdict.at_one,
    )


def _gains(result: StudyResult, reference: str) -> Gains:
    return tuple(
        (first_seed + pair, gain)
        for of_round, first_seed in pairs_before_round(result).items()
        for pair, gain in gains_by_pair(result.runs, result.spec, of_round, reference).items()
    )


def _answers(verdict: Verdict, spec: StudySpec) -> Iterator[tuple[str, PairedResult, Ratio | None]]:
    """Yield the comparisons of a verdict by name, the total gain first, with their share of it."""
    label = baseline_label(spec)
    has_twin = bool(verdict.primary.component_results)
    yield (f"against {label}, both" if has_twin else f"mean, against {label}"), verdict.primary, None
    if has_twin and verdict.over_twin is not None:
        if verdict.over_baseline is not None:
            yield against_tuned(label), verdict.over_baseline, None
        yield against_twin(label), verdict.over_twin, None
    if not verdict.at_one:
        # separately: the combined one has the gain of one and the interval of the other
        constants = {
            AGAINST_CONSTANT: verdict.over_constant,
            AGAINST_OWN_CONSTANT: verdict.over_constant_twin,
        }
        yield from ((name, answer, None) for name, answer in constants.items() if answer is not None)
    inference = verdict.inference_only
    if inference is not None:
        yield INFERENCE, inference.answer, inference.share
        if inference.difference is not None and not verdict.at_one:
            yield DIFFERENCE, inference.difference, None
    if verdict.learned is not None:
        yield learned_label(label), verdict.learned.answer, verdict.learned.share
    for part in verdict.parts:
        yield f"{WITHOUT}{part_text(part.name, spec).removeprefix('the ')}", part.answer, None
    if verdict.simplest is not None:
        yield SIMPLEST, verdict.simplest.lost, None


def _share(share: Ratio) -> str:
    if not math.isfinite(share.low) or not math.isfinite(share.high):
        return f"{100 * share.ratio:.0f} % (not bounded)"
    return f"{100 * share.ratio:.0f} % ({100 * share.low:.0f} to {100 * share.high:.0f} %)".replace("-", "−")


def _percent(test: PairedTest) -> str:
    return f"{100 * test.confidence:.4g} %"


def plot_differences(data: Differences) -> go.Figure:
    """Return the forest plot: seeds above, the mean and what explains it below."""
    rows = (data.mean, *data.others)
    legend = bool(data.twin)
    gap = min(1.0, _SEED_ROWS / len(data.seeds))
    places = {seed: index * gap for index, seed in enumerate(data.seeds)}
    first_row = places[data.seeds[-1]] + 1
    named_seeds = data.seeds[:: math.ceil(len(data.seeds) / _SEED_NAMES)]
    ticks = {places[seed]: f"seed {seed + 1}" for seed in named_seeds}
    ticks |= {first_row + index: style.plain(row.name) for index, row in enumerate(rows)}
    fig = _forest(
        ticks,
        (first_row + len(rows) - 0.25, -0.75),
        x=f"gain in {data.metric}",
        height=round(120 + 30 * legend + 27 * (first_row + len(rows))),
        showlegend=legend,
        margin={"t": 40 if legend else 12},
    )
    symbols = ["circle-open" if seed in data.diverged else "circle" for seed, _ in data.pairs]
    name = f"minus {data.label}, tuned again" if data.twin else "one seed"
    fig.add_trace(
        _seed_dots(data, places, data.pairs, "", name=name, colour=style.SECONDARY, size=9, symbol=symbols)
    )
    if data.twin:
        twins = _seed_dots(
            data,
            places,
            data.twin,
            ", its twin",
            name="minus its twin",
            colour=style.WINNER,
            size=11,
            symbol="line-ns-open",
            marker={"line": {"width": 2.5, "color": style.WINNER}},
        )
        fig.add_trace(twins)
    colours = dict.fromkeys(
        (data.mean.name, against_tuned(data.label), against_twin(data.label)), style.WINNER
    )
    colours |= {
        AGAINST_CONSTANT: style.CONSTANT,
        AGAINST_OWN_CONSTANT: style.CONSTANT,
        INFERENCE: style.BASELINE,
        DIFFERENCE: style.WINNER,
    }
    for index, row in enumerate(rows):
        fig.add_trace(_interval_bar(row, first_row + index, colours.get(row.name, style.SECONDARY)))
    fig.add_hline(y=first_row - 0.5, line={"color": style.FAINT, "width": 1})
    return fig


def _forest(ticks: Mapping[float, str], ends: tuple[float, float], **layout: Any) -> go.Figure:
    """Return an empty forest plot with named rows from top to bottom, and a line at zero gain."""
    fig = style.figure(**layout)
    fig.add_vline(x=0, line={"color": style.INK, "width": 1, "dash": "dot"})
    # one by one: plotly would leave out every second name if there is little space
    names = {"tickvals": list(ticks), "ticktext": list(ticks.values())}
    fig.update_yaxes(**names, range=ends, showgrid=False, zeroline=False)
    return fig


def _seed_dots(
    data: Differences, places: Mapping[int, float], gains: Gains, suffix: str, **options: Any
) -> go.Scatter:
    ends = {seed: "<br>a run diverged" if seed in data.diverged else "" for seed, _ in gains}
    return style.marks(
        [gain for _, gain in gains],
        [places[seed] for seed, _ in gains],
        text=[f"seed {seed + 1}{suffix}: {style.number(gain)}{ends[seed]}" for seed, gain in gains],
        hovertemplate="%{text}<extra></extra>",
        **options,
    )


def _interval_bar(row: ComparisonRow, y: float, colour: str) -> go.Scatter:
    """Return one comparison; an unbounded interval has no bar, and a note on hover."""
    name, gain, low, high, p_value = row.numbers()
    name, interval = style.plain(name), "not bounded by so few seeds"
    above = below = 0.0
    if low is not None and high is not None:
        above, below, interval = high - gain, gain - low, f"{style.number(low)} to {style.number(high)}"
    return style.marks(
        [gain],
        [y],
        name,
        colour,
        "diamond",
        13,
        error_x={"array": [above], "arrayminus": [below], "color": colour, "thickness": 2.5, "width": 6},
        hovertemplate=f"{name}: %{{x:+.4g}}<br>interval {interval}<br>p = {p_value:.2g}<extra></extra>",
        showlegend=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonData:
    """The variants of a comparison, in the order of the command; or every two sets.

    Args:
        metric: Name of the metric.
        reference: Name of the reference; None: each row names both sets.
        variants: Variants with usable pairs, with their seeds.
    """

    metric: str
    reference: str | None
    variants: tuple[ComparisonRow, ...]

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        noun, rows = ("first set", "comparisons") if self.reference is None else ("variant", "variants")
        text = (
            f"Each dot is a fresh seed: the {noun}'s {self.metric} minus that of "
            f"{self.reference or 'the other'}, with the sign under which right of zero is better. Bars "
            f"are {_percent(self.variants[0].test)} intervals of the mean: wholly right of zero is a gain, "
            "wholly left of it a loss."
        )
        if len(self.variants) > 1:
            text += f" They hold together: the {rows} share the error rate."
        return text

    def table(self) -> style.Table:
        """Return a row for each seed of each variant, and for each variant."""
        seed_rows = tuple(
            (f"{variant.name}, seed {seed + 1}", gain, None, None, None)
            for variant in self.variants
            for seed, gain in variant.pairs
        )
        means = tuple(variant.numbers() for variant in self.variants)
        return style.Table(columns=("comparison", "gain", "from", "to", "p"), rows=means + seed_rows)


def compared_data(result: StudyResult) -> ComparisonData:
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
    variants = [
        ComparisonRow(
            name=label,
            test=answer.paired,
            pairs=tuple(gains_of_set(result.runs, result.spec, comparison.round, name, reference)),
            is_different=differs,
        )
        for label, name, reference, answer, differs in rows
        if answer is not None
    ]
    if not variants:
        raise NothingToPlot("No pair of runs could be compared.")
    of_all = None if comparison.pairs else comparison.reference
    return ComparisonData(metric=result.metric, reference=of_all, variants=tuple(variants))


def plot_compared(data: ComparisonData) -> go.Figure:
    """Return the forest plot: a row for each variant, its seeds as dots around its mean."""
    fig = _forest(
        {index: style.plain(variant.name) for index, variant in enumerate(data.variants)},
        (len(data.variants) - 0.5, -0.5),
        x=f"gain in {data.metric}{'' if data.reference is None else f' over {data.reference}'}",
        height=140 + _ROW_HEIGHT * len(data.variants),
        showlegend=False,
        margin={"t": 12},
    )
    for index, variant in enumerate(data.variants):
        name = style.plain(variant.name)
        dots = style.marks(
            [gain for _, gain in variant.pairs],
            [index + 0.25] * len(variant.pairs),
            None,
            style.SECONDARY,
            text=[f"{name}, seed {seed + 1}: {style.number(gain)}" for seed, gain in variant.pairs],
            hovertemplate="%{text}<extra></extra>",
        )
        fig.add_trace(dots)
        fig.add_trace(_interval_bar(variant, index, style.WINNER if variant.is_different else style.BASELINE))
    return fig


def paired_data(result: StudyResult) -> Differences | ComparisonData:
    """Return the paired differences of a study: of its confirmation, or of its comparison.

    Raises:
        NothingToPlot: Nothing is confirmed, or compared.
    """
    return differences_data(result) if result.spec.compare is None else compared_data(result)


def plot_paired(data: Differences | ComparisonData) -> go.Figure:
    """Return the forest plot of what :func:`paired_data` returns."""
    return plot_differences(data) if isinstance(data, Differences) else plot_compared(data)

"""The search trials: their values in order against the baseline, and their validations over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.records.rows import TicketRow
from tempopt.records.tickets import oriented, usable
from tempopt.report.plots.style import (
    BASELINE,
    BASELINE_BAND,
    CONSTANT,
    INK,
    MOST_LABELS,
    MOST_MARKS,
    OTHER,
    WINNER,
    Table,
    evenly,
    figure,
    label,
    mark_size,
    number,
)
from tempopt.results.study_result import Baseline, Curve, StudyResult
from tempopt.results.wording import baseline_label, baseline_name, temperature_text

_FEWEST = 8
_LISTED = 30
_SYMBOLS = {
    "complete": "circle",
    "pruned": "triangle-down-open",
    "diverged": "x-thin-open",
}
_MOST_OF_AN_OUTCOME = 120
_MOST_POINTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A search trial that is over.

    Args:
        outcome: How it ended.
        value: Its value; None if it has none.
        parameters: Its parameters.
    """

    number: int
    outcome: str
    value: float | None
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryShown:
    """The search trials in their order.

    Args:
        metric: Name of the metric.
        direction: Which values are better.
        trials: Those shown, by number.
        best: Number and value of each trial that was better than all before it.
        baseline: The runs of the baseline during the search, if any is complete.
        baseline_name: What it is called, as a sentence says it.
        label: The same in a word.
        constants: What the arm of constants is called.
        constant: Best value of a constant temperature, if any is complete.
        out_of: Number of trials that are over; more than are shown where that is many.
    """

    metric: str
    direction: str
    trials: tuple[Trial, ...]
    best: tuple[tuple[int, float], ...]
    baseline: Baseline | None
    baseline_name: str
    label: str
    constants: str
    constant: float | None
    out_of: int

    def caption(self) -> str:
        """Return how to read it and what it says."""
        text = "One mark a trial, the line follows the best so far"
        if self.baseline is not None:
            spread = "" if self.baseline.sd is None else " with the band one standard deviation of its seeds"
            text += f"; the dashed line is {self.baseline_name} on the search's seeds "
            text += f"({number(self.baseline.mean)}){spread}"
        text += ". "
        if self.best:
            text += f"The best, {number(self.best[-1][1])}, came with trial {self.best[-1][0]}; being picked "
            text += "for its luck too, it is not the gain to expect."
        low, high = _window(self) or (-math.inf, math.inf)
        count = sum(each.value is not None and not low <= each.value <= high for each in self.trials)
        if count:
            text += f" {count} far outside of the plot {'is' if count == 1 else 'are'} drawn at its edge."
        if len(self.trials) < self.out_of:
            text += f" {len(self.trials)} of {self.out_of} trials are drawn."
        return text

    def table(self) -> Table:
        """Return the trials, the best first."""
        rows = tuple(
            (each.number, each.outcome, each.value, temperature_text(each.parameters))
            for each in self.ranked()[:_LISTED]
        )
        return Table(columns=("trial", "end", self.metric, "parameters"), rows=rows)

    def ranked(self) -> list[Trial]:
        """Return the trials shown, the best first: complete before pruned, those without a value last."""
        sign = 1 if self.direction == "maximize" else -1
        return sorted(
            self.trials,
            key=lambda each: (
                each.value is None,
                each.outcome != "complete",
                0.0 if each.value is None else -sign * each.value,
            ),
        )


def history_data(result: StudyResult) -> HistoryShown:
    """Return the search trials that are over, at most some thousands of them.

    Raises:
        NothingToPlot: None is over.
    """
    over = [run for run in result.runs if run.kind == "search" and run.outcome is not None]
    if not over:
        raise NothingToPlot("No search trial is over yet.")
    best: list[tuple[int, float]] = []
    for run in over:
        if usable(run) and run.value is not None:
            if not best or oriented(run.value, result.direction) > oriented(best[-1][1], result.direction):
                best.append((run.number, run.value))
    steps = {trial for trial, _ in best}
    places = {*evenly(len(over), MOST_MARKS), *(i for i, run in enumerate(over) if run.number in steps)}
    constants = [r.value for r in result.runs if r.kind == "constant" and usable(r) and r.value is not None]
    pick = max if result.direction == "maximize" else min
    return HistoryShown(
        metric=result.metric,
        direction=result.direction,
        trials=tuple(_trial(over[place]) for place in sorted(places)),
        best=tuple(best),
        baseline=result.baseline,
        baseline_name=baseline_name(result.spec),
        label=baseline_label(result.spec),
        constants="best constants" if result.spec.temperatures else "best constant τ",
        constant=pick(constants, default=None),
        out_of=len(over),
    )


def _trial(run: TicketRow) -> Trial:
    finite = run.value is not None and math.isfinite(run.value)
    return Trial(
        number=run.number,
        outcome=run.outcome or "failed",
        value=run.value if finite else None,
        parameters=run.parameters or {},
    )


def plot_history(data: HistoryShown) -> go.Figure:
    """Return the trials' values by number, the best so far, and the baseline."""
    made = figure(x="trial", y=data.metric, height=400)
    ends = [trial.number for trial in (data.trials[0], data.trials[-1])]
    labels = {each.number: label(each.parameters) for each in data.ranked()[:MOST_LABELS]}
    window = _window(data)
    for outcome, colour in (("pruned", OTHER), ("complete", WINNER)):
        shown = [each for each in data.trials if each.outcome == outcome and each.value is not None]
        if shown:
            made.add_trace(_marks(shown, outcome, colour, labels, window))
    lost = [each for each in data.trials if each.value is None]
    values = [each.value for each in data.trials if each.value is not None]
    if lost:
        worst = (min if data.direction == "maximize" else max)(values, default=0.0)
        if window is not None:
            worst = min(max(worst, window[0]), window[1])
        made.add_trace(_lost(lost, worst))
    # over the marks, which may be many
    if data.baseline is not None:
        _draw_baseline(made, data.baseline, data.label, ends)
    if data.constant is not None:
        made.add_trace(_level(ends, data.constant, data.constants, CONSTANT, "dot"))
    if data.best:
        last = max(ends[1], data.best[-1][0])
        made.add_trace(
            go.Scatter(
                x=[*(trial for trial, _ in data.best), last],
                y=[*(value for _, value in data.best), data.best[-1][1]],
                mode="lines",
                line={"color": WINNER, "width": 2, "shape": "hv"},
                name="best so far",
                hoverinfo="skip",
            )
        )
    if window is not None:
        room = 0.03 * (window[1] - window[0])
        made.update_yaxes(range=[window[0] - room, window[1] + room])
    return made


def _window(data: HistoryShown) -> tuple[float, float] | None:
    """Return the ends of the axis, so that one runaway loss squeezes no others into a line; None: any."""
    complete = [each.value for each in data.trials if each.value is not None and each.outcome == "complete"]
    if len(complete) < _FEWEST:
        return None
    middle = sorted(complete)[len(complete) // 2]
    # half of the complete trials decide what is far
    spread = float(np.percentile(np.abs(np.array(complete) - middle), 75)) or max(complete) - min(complete)
    values = [each.value for each in data.trials if each.value is not None]
    near = [value for value in values if abs(value - middle) <= 8 * spread]
    if len(near) == len(values):
        return None
    kept = [*near, *_levels(data)]
    margin = 0.06 * (max(kept) - min(kept))
    return min(kept) - margin, max(kept) + margin


def _levels(data: HistoryShown) -> list[float]:
    """Return what the trials are held against, which is to be seen whatever they do."""
    found = [] if data.constant is None else [data.constant]
    if data.baseline is not None:
        spread = data.baseline.sd or 0.0
        found += [data.baseline.mean - spread, data.baseline.mean + spread]
    return found


def _draw_baseline(made: go.Figure, baseline: Baseline, label: str, ends: Sequence[int]) -> None:
    if baseline.sd is not None:
        low, high = baseline.mean - baseline.sd, baseline.mean + baseline.sd
        made.add_hrect(y0=low, y1=high, fillcolor=BASELINE_BAND, line={"width": 0}, layer="below")
    made.add_trace(_level(ends, baseline.mean, label, BASELINE, "dash"))


def _level(ends: Sequence[int], value: float, name: str, colour: str, dash: str) -> go.Scatter:
    return go.Scatter(
        x=list(ends),
        y=[value, value],
        mode="lines",
        line={"color": colour, "width": 2, "dash": dash},
        name=name,
        hovertemplate=f"{name}: %{{y:.4g}}<extra></extra>",
    )


def _marks(
    trials: Sequence[Trial],
    name: str,
    colour: str,
    labels: Mapping[int, str],
    window: tuple[float, float] | None,
) -> go.Scatter:
    """Return a mark a trial; one whose value is outside of the window is at its edge."""
    values = np.array([each.value for each in trials], dtype=np.float32)
    # as 32-bit numbers what lies at the edge is not beyond it
    at_edge = values if window is None else values.clip(*np.array(window, dtype=np.float32))
    moved = bool((at_edge != values).any())
    said = "customdata" if moved else "y"
    return go.Scatter(
        x=np.array([each.number for each in trials], dtype=np.int32),
        y=at_edge,
        customdata=values if moved else None,
        text=[labels.get(each.number, "") for each in trials],
        mode="markers",
        marker={
            "color": colour,
            "size": mark_size(len(trials)),
            "symbol": _SYMBOLS[name],
            "line": {"color": colour, "width": 1},
        },
        name=name,
        hovertemplate=f"trial %{{x}}: %{{{said}:.4g}}<br>%{{text}}<extra>{name}</extra>",
    )


def _lost(trials: Sequence[Trial], worst: float) -> go.Scatter:
    """Return the trials without a value, at the worst that there is: they have to be somewhere."""
    return go.Scatter(
        x=np.array([each.number for each in trials], dtype=np.int32),
        y=np.full(len(trials), worst, dtype=np.float32),
        text=[each.outcome for each in trials],
        mode="markers",
        marker={"color": INK, "size": 7, "symbol": _SYMBOLS["diverged"], "line": {"color": INK, "width": 1}},
        name="diverged or lost",
        hovertemplate="trial %{x}: %{text}<extra></extra>",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """The search trials' validations over their steps.

    Args:
        metric: Name of the metric.
        pruned: Trial number and curve of pruned trials, thinned where they are many.
        complete: The same of trials that ran to their end.
        counts: Number of trials that were pruned, and of all that are over.
        out_of: Number of trials with a curve; more than are shown where that is many.
        median_share: Share of its steps that a pruned trial took, in the median.
    """

    metric: str
    pruned: tuple[tuple[int, Curve], ...]
    complete: tuple[tuple[int, Curve], ...]
    counts: tuple[int, int]
    out_of: int
    median_share: float

    def caption(self) -> str:
        """Return how to read it and what it says."""
        cut, over = self.counts
        text = "A line a trial."
        if cut:
            text += (
                f" One that ends in a cross was pruned: {cut} of {over}, in the median after "
                f"{100 * self.median_share:.0f} % of their steps."
            )
        shown = len(self.pruned) + len(self.complete)
        return f"{text} {shown} of {self.out_of} are drawn." if shown < self.out_of else text

    def table(self) -> Table:
        """Return the last validation of the trials, those that were pruned first."""
        rows = tuple(
            (trial, end, curve[-1][0], curve[-1][1] if math.isfinite(curve[-1][1]) else None)
            for end, curves in (("pruned", self.pruned), ("complete", self.complete))
            for trial, curve in curves[:_LISTED]
        )
        return Table(columns=("trial", "end", "last step", self.metric), rows=rows)


def curves_data(result: StudyResult) -> Curves:
    """Return the search trials' curves and what pruning saved.

    Raises:
        NothingToPlot: No trial has reported anything.
    """
    search = [run for run in result.runs if run.kind == "search"]
    over = [run for run in search if run.outcome is not None]
    cut, complete = ([run for run in over if run.outcome == end] for end in ("pruned", "complete"))
    pruned_curves, complete_curves = _curves(cut, result), _curves(complete, result)
    if not pruned_curves and not complete_curves:
        raise NothingToPlot("No search trial that is over has reported anything.")
    shares = [run.steps / run.total_steps for run in cut if run.steps and run.total_steps]
    return Curves(
        metric=result.metric,
        pruned=pruned_curves,
        complete=complete_curves,
        counts=(len(cut), len(over)),
        out_of=sum(bool(result.curves.get(run.id)) for run in (*cut, *complete)),
        median_share=median(shares) if shares else 0.0,
    )


def _curves(runs: Sequence[TicketRow], result: StudyResult) -> tuple[tuple[int, Curve], ...]:
    known = [(run.number, result.curves[run.id]) for run in runs if result.curves.get(run.id)]
    return tuple((known[i][0], _thinned(known[i][1])) for i in evenly(len(known), _MOST_OF_AN_OUTCOME))


def _thinned(curve: Curve) -> Curve:
    return tuple(curve[place] for place in evenly(len(curve), _MOST_POINTS))


def plot_curves(data: Curves) -> go.Figure:
    """Return the trials' curves, those that were pruned ending in a cross."""
    made = figure(x="training step", y=data.metric, height=400)
    if data.complete:
        made.add_trace(_lines(data.complete, "complete", {"color": WINNER, "width": 1}))
    if not data.pruned:
        return made
    # told apart by more than their colour
    made.add_trace(_lines(data.pruned, "pruned", {"color": INK, "width": 1.4, "dash": "dot"}))
    ends = [(trial, *curve[-1]) for trial, curve in data.pruned]
    made.add_trace(
        go.Scatter(
            x=[step for _, step, _ in ends],
            y=[value for _, _, value in ends],
            customdata=[trial for trial, _, _ in ends],
            mode="markers",
            marker={"symbol": "x-thin", "size": 7, "line": {"color": INK, "width": 1.4}},
            name="where it was pruned",
            hovertemplate="trial %{customdata} pruned at step %{x}: %{y:.4g}<extra></extra>",
        )
    )
    return made


def _lines(curves: Sequence[tuple[int, Curve]], name: str, line: dict[str, Any]) -> go.Scatter:
    points = [
        (trial, step, value) for trial, curve in curves for step, value in (*curve, (math.nan, math.nan))
    ]
    return go.Scatter(
        x=np.array([step for _, step, _ in points], dtype=np.float32),
        y=np.array([value for _, _, value in points], dtype=np.float32),
        customdata=np.array([trial for trial, _, _ in points], dtype=np.int32),
        mode="lines",
        line=line,
        opacity=0.7,
        name=name,
        hovertemplate=f"trial %{{customdata}} ({name}), step %{{x}}: %{{y:.4g}}<extra></extra>",
    )

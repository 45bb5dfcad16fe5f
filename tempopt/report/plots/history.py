"""The search trials: values in order with the baseline, and validations over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.formatting import baseline_label, baseline_name, finite, temperature_text
from tempopt.report.plots import style
from tempopt.report.study_data import BaselineStats, Curve
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import is_usable

_MIN_COMPLETE_TRIALS = 8
_MAX_LISTED_TRIALS = 30
_SYMBOLS = {"complete": "circle", "pruned": "triangle-down-open"}
_MOST_OF_AN_OUTCOME = 120
_MOST_POINTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryData:
    """The search trials in their order.

    Args:
        metric: Name of the metric.
        direction: Whether larger or smaller values are better.
        trials: The runs in the plot, by number; a value that is not finite is None.
        best: Number and value of each trial that was better than all earlier ones.
        baseline: The complete runs of the baseline during the search, if any; the best one, if they are
            tuned.
        baseline_name: Name of the baseline, for a sentence.
        label: The same in one word.
        constants: Name of the constant arm.
        constant: Best value of a constant temperature, if any is complete.
        out_of: Number of ended trials, which may exceed the number in the plot.
    """

    metric: str
    direction: str
    trials: tuple[TicketRow, ...]
    best: tuple[tuple[int, float], ...]
    baseline: BaselineStats | None
    baseline_name: str
    label: str
    constants: str
    constant: float | None
    out_of: int

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        text = "One mark a trial, the line follows the best so far"
        if self.baseline is not None:
            mean = style.number(self.baseline.mean)
            spread = "" if self.baseline.sd is None else " with the band one standard deviation of its seeds"
            text += f"; the dashed line is {self.baseline_name} on the search's seeds ({mean}){spread}"
        text += ". "
        if self.best:
            trial, value = self.best[-1]
            text += f"The best, {style.number(value)}, came with trial {trial}; "
            text += "being picked for its luck too, it is not the gain to expect."
        low, high = _window(self) or (-math.inf, math.inf)
        count = sum(trial.value is not None and not low <= trial.value <= high for trial in self.trials)
        if count:
            text += f" {count} far outside of the plot {'is' if count == 1 else 'are'} drawn at its edge."
        if len(self.trials) < self.out_of:
            text += f" {len(self.trials)} of {self.out_of} trials are drawn."
        return text

    def table(self) -> style.Table:
        """Return the trials, the best first."""
        rows = tuple(
            (trial.number, trial.outcome, trial.value, temperature_text(trial.parameters or {}))
            for trial in self.ranked_trials()[:_MAX_LISTED_TRIALS]
        )
        return style.Table(columns=("trial", "end", self.metric, "parameters"), rows=rows)

    def ranked_trials(self) -> list[TicketRow]:
        """Return the trials in the plot, best first: complete before pruned, those without a value last."""
        sign = 1 if self.direction == "maximize" else -1

        def sort_key(trial: TicketRow) -> tuple[bool, bool, float]:
            return trial.value is None, trial.outcome != "complete", -sign * (trial.value or 0.0)

        return sorted(self.trials, key=sort_key)


def history_data(result: StudyResult) -> HistoryData:
    """Return the ended search trials, at most some thousands of them.

    Raises:
        NothingToPlot: None is over.
    """
    over_runs = [
        replace(run, value=None if run.value is None else finite(run.value))
        for run in result.runs
        if run.kind == "search" and run.outcome is not None
    ]
    if not over_runs:
        raise NothingToPlot("No search trial is over yet.")
    best: list[tuple[int, float]] = []
    pick = max if result.direction == "maximize" else min
    for run in over_runs:
        if is_usable(run) and run.value is not None:
            if not best or pick(run.value, best[-1][1]) != best[-1][1]:
                best.append((run.number, run.value))
    best_numbers, places = dict(best), set(style.evenly(len(over_runs), style.MOST_MARKS))
    places |= {index for index, run in enumerate(over_runs) if run.number in best_numbers}
    usable_runs = (run for run in result.runs if run.kind == "constant" and is_usable(run))
    constants = [run.value for run in usable_runs if run.value is not None]
    of_best = "" if result.best_baseline is None else "best "
    name = baseline_name(result.spec)
    return HistoryData(
        metric=result.metric,
        direction=result.direction,
        trials=tuple(over_runs[index] for index in sorted(places)),
        best=tuple(best),
        baseline=result.best_baseline or result.baseline,
        baseline_name=f"the best of the runs at {name}, tuned as the trials are," if of_best else name,
        label=f"{of_best}{baseline_label(result.spec)}",
        constants="best constants" if result.spec.temperatures else "best constant τ",
        constant=pick(constants, default=None),
        out_of=len(over_runs),
    )


def plot_history(data: HistoryData) -> go.Figure:
    """Return the trials' values by number, the best so far, and the baseline."""
    fig = style.figure(x="trial", y=data.metric, height=400)
    ends = [trial.number for trial in (data.trials[0], data.trials[-1])]
    best_trials = data.ranked_trials()[: style.MAX_LABELS]
    labels = {trial.number: style.label(trial.parameters or {}) for trial in best_trials}
    window = _window(data)
    for outcome, colour in (("pruned", style.SECONDARY), ("complete", style.WINNER)):
        trials = [trial for trial in data.trials if trial.outcome == outcome and trial.value is not None]
        if trials:
            fig.add_trace(_trial_marks(trials, outcome, colour, labels, window))
    lost_trials = [trial for trial in data.trials if trial.value is None]
    values = [trial.value for trial in data.trials if trial.value is not None]
    if lost_trials:
        worst = (min if data.direction == "maximize" else max)(values, default=0.0)
        if window is not None:
            worst = min(max(worst, window[0]), window[1])
        # at the worst value, since they have none
        fig.add_trace(
            style.marks(
                np.array([trial.number for trial in lost_trials], dtype=np.int32),
                np.full(len(lost_trials), worst, dtype=np.float32),
                "diverged or lost",
                style.INK,
                "x-thin-open",
                7,
                marker={"line": {"color": style.INK, "width": 1}},
                text=[trial.outcome for trial in lost_trials],
                hovertemplate="trial %{x}: %{text}<extra></extra>",
            )
        )
    # above the marks, which may be many
    _draw_levels(fig, data, ends)
    if data.best:
        last = max(ends[1], data.best[-1][0])
        fig.add_trace(
            style.lines(
                [*(trial for trial, _ in data.best), last],
                [*(value for _, value in data.best), data.best[-1][1]],
                "best so far",
                style.WINNER,
                line={"shape": "hv"},
                hoverinfo="skip",
            )
        )
    if window is not None:
        room = 0.03 * (window[1] - window[0])
        fig.update_yaxes(range=[window[0] - room, window[1] + room])
    return fig


def _window(data: HistoryData) -> tuple[float, float] | None:
    """Return the limits of the axis, so that a single extreme loss does not compress the others; None:
    automatic.
    """
    trial_values = [(trial.outcome, trial.value) for trial in data.trials if trial.value is not None]
    complete_values = [value for outcome, value in trial_values if outcome == "complete"]
    if len(complete_values) < _MIN_COMPLETE_TRIALS:
        return None
    middle = sorted(complete_values)[len(complete_values) // 2]
    # the spread of the better half of complete trials decides what is far
    spread = float(np.percentile(np.abs(np.array(complete_values) - middle), 75))
    spread = spread or max(complete_values) - min(complete_values)
    near_values = [value for _, value in trial_values if abs(value - middle) <= 8 * spread]
    if len(near_values) == len(trial_values):
        return None
    # the references stay visible in any case
    axis_values = [*near_values, *([] if data.constant is None else [data.constant])]
    if data.baseline is not None:
        spread = data.baseline.sd or 0.0
        axis_values += [data.baseline.mean - spread, data.baseline.mean + spread]
    margin = 0.06 * (max(axis_values) - min(axis_values))
    return min(axis_values) - margin, max(axis_values) + margin


def _draw_levels(fig: go.Figure, data: HistoryData, ends: list[int]) -> None:
    """Draw the references of the trials: the baseline with its band, and the best constant."""
    levels = []
    if (baseline := data.baseline) is not None:
        if baseline.sd is not None:
            low, high = baseline.mean - baseline.sd, baseline.mean + baseline.sd
            fig.add_hrect(y0=low, y1=high, fillcolor=style.BASELINE_BAND, line={"width": 0}, layer="below")
        levels.append((baseline.mean, data.label, style.BASELINE, "dash"))
    if data.constant is not None:
        levels.append((data.constant, data.constants, style.CONSTANT, "dot"))
    for value, name, colour, dash in levels:
        hover = f"{name}: %{{y:.4g}}<extra></extra>"
        trace = style.lines(ends, [value] * 2, name, colour, line={"dash": dash}, hovertemplate=hover)
        fig.add_trace(trace)


def _trial_marks(
    trials: Sequence[TicketRow],
    name: str,
    colour: str,
    labels: Mapping[int, str],
    window: tuple[float, float] | None,
) -> go.Scatter:
    """Return a mark per trial; one with a value outside of the window is at its edge."""
    values = np.array([trial.value for trial in trials], dtype=np.float32)
    # as 32-bit numbers, so that values at the edge are not beyond it
    at_edge = values if window is None else values.clip(*np.array(window, dtype=np.float32))
    is_clipped = bool((at_edge != values).any())
    value_field = "customdata" if is_clipped else "y"
    return style.marks(
        np.array([trial.number for trial in trials], dtype=np.int32),
        at_edge,
        name,
        colour,
        _SYMBOLS[name],
        style.mark_size(len(trials)),
        marker={"line": {"color": colour, "width": 1}},
        customdata=values if is_clipped else None,
        text=[labels.get(trial.number, "") for trial in trials],
        hovertemplate=f"trial %{{x}}: %{{{value_field}:.4g}}<br>%{{text}}<extra>{name}</extra>",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesData:
    """The search trials' validations over their steps.

    Args:
        metric: Name of the metric.
        pruned: Trial number and curve of pruned trials, thinned if there are many.
        complete: The same for complete trials.
        counts: Number of pruned trials, and of all ended ones.
        out_of: Number of trials with a curve, which may exceed the number in the plot.
        median_share: Median share of its steps that a pruned trial took.
    """

    metric: str
    pruned: tuple[tuple[int, Curve], ...]
    complete: tuple[tuple[int, Curve], ...]
    counts: tuple[int, int]
    out_of: int
    median_share: float

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        num_pruned, num_over = self.counts
        text = "A line a trial, a dot a validation; the last of a complete trial is its final value."
        if num_pruned:
            text += (
                f" One that ends in a cross was pruned: {num_pruned} of {num_over}, in the median after "
                f"{100 * self.median_share:.0f} % of their steps."
            )
        num_shown = len(self.pruned) + len(self.complete)
        return f"{text} {num_shown} of {self.out_of} are drawn." if num_shown < self.out_of else text

    def table(self) -> style.Table:
        """Return the last validation of the trials, pruned ones first."""
        rows = tuple(
            (trial, end, curve[-1][0], finite(curve[-1][1]))
            for end, curves in (("pruned", self.pruned), ("complete", self.complete))
            for trial, curve in curves[:_MAX_LISTED_TRIALS]
        )
        return style.Table(columns=("trial", "end", "last step", self.metric), rows=rows)


def curves_data(result: StudyResult) -> CurvesData:
    """Return the search trials' curves and the saving by pruning.

    Raises:
        NothingToPlot: No trial has reported anything.
    """
    over_runs = [run for run in result.runs if run.kind == "search" and run.outcome is not None]
    pruned_runs, complete_runs = (
        [run for run in over_runs if run.outcome == end] for end in ("pruned", "complete")
    )
    pruned_curves, complete_curves = _curves(pruned_runs, result), _curves(complete_runs, result)
    if not pruned_curves and not complete_curves:
        raise NothingToPlot("No search trial that is over has reported anything.")
    shares = [run.steps / run.total_steps for run in pruned_runs if run.steps and run.total_steps]
    return CurvesData(
        metric=result.metric,
        pruned=pruned_curves,
        complete=complete_curves,
        counts=(len(pruned_runs), len(over_runs)),
        out_of=sum(bool(result.curves.get(run.id)) for run in (*pruned_runs, *complete_runs)),
        median_share=median(shares) if shares else 0.0,
    )


def _curves(runs: Sequence[TicketRow], result: StudyResult) -> tuple[tuple[int, Curve], ...]:
    curves = []
    for run in runs:
        if curve := result.curves.get(run.id):
            if is_usable(run) and run.value is not None and (run.steps or 0) > curve[-1][0]:
                # the final validation may be at a step without a report
                curve = (*curve, (run.steps or 0, run.value))
            thinned_curve = tuple(curve[index] for index in style.evenly(len(curve), _MOST_POINTS))
            curves.append((run.number, thinned_curve))
    return tuple(curves[index] for index in style.evenly(len(curves), _MOST_OF_AN_OUTCOME))


def plot_curves(data: CurvesData) -> go.Figure:
    """Return the trials' curves; those of pruned trials end in a cross."""
    fig = style.figure(x="training step", y=data.metric, height=400)
    fig.update_xaxes(rangemode="tozero")
    if data.complete:
        fig.add_trace(_curve_lines(data.complete, "complete", style.WINNER, {"width": 1}))
    if not data.pruned:
        return fig
    # distinguished by more than their colour
    fig.add_trace(_curve_lines(data.pruned, "pruned", style.INK, {"width": 1.4, "dash": "dot"}))
    ends = [(trial, *curve[-1]) for trial, curve in data.pruned]
    fig.add_trace(
        style.marks(
            [step for _, step, _ in ends],
            [value for _, _, value in ends],
            "where it was pruned",
            style.INK,
            "x-thin",
            7,
            marker={"line": {"color": style.INK, "width": 1.4}},
            customdata=[trial for trial, _, _ in ends],
            hovertemplate="trial %{customdata} pruned at step %{x}: %{y:.4g}<extra></extra>",
        )
    )
    return fig


def _curve_lines(
    curves: Sequence[tuple[int, Curve]], name: str, colour: str, line: dict[str, Any]
) -> go.Scatter:
    points = [
        (trial, step, value) for trial, curve in curves for step, value in (*curve, (math.nan, math.nan))
    ]
    return style.lines(
        np.array([step for _, step, _ in points], dtype=np.float32),
        np.array([value for _, _, value in points], dtype=np.float32),
        name,
        colour,
        mode="lines+markers",
        line=line,
        marker={"color": colour, "size": style.mark_size(2 * len(points)) - 2},
        customdata=np.array([trial for trial, _, _ in points], dtype=np.int32),
        opacity=0.7,
        hovertemplate=f"trial %{{customdata}} ({name}), step %{{x}}: %{{y:.4g}}<extra></extra>",
    )

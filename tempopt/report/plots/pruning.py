"""What was pruned; and whether pruning would have ended what was found to be best."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.records.rows import OVER, Measurement, TicketRow
from tempopt.report.plots.base import Table
from tempopt.report.plots.confirming import confirming, seeds
from tempopt.report.plots.style import INK, WINNER, evenly, figure
from tempopt.results.study_result import Curve, StudyResult
from tempopt.sampling.arms import Arms

_MOST_OF_EACH = 120
_MOST_POINTS = 40
_LISTED = 30
_MOST_RUNS = 120
_MOST_RUN_POINTS = 1200
_MODEL = "knowledge_gradient"
_NO_REASON = "the pruner has had no reason to end one, or none has come that far"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
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
        text = (
            f"A line a trial; one that ends in a cross was pruned. {cut} of {over} were, in the median after "
            f"{100 * self.median_share:.0f} % of their steps."
        )
        shown = len(self.pruned) + len(self.complete)
        return f"{text} {shown} of {self.out_of} are drawn." if shown < self.out_of else text

    def table(self) -> Table:
        """Return where the pruned trials were cut."""
        rows = tuple(
            (trial, curve[-1][0], curve[-1][1] if math.isfinite(curve[-1][1]) else None)
            for trial, curve in self.pruned[:_LISTED]
        )
        return Table(columns=("trial", "pruned at step", self.metric), rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedRun:
    """A run of the winner on a fresh seed, and where the pruner would have cut it, if anywhere."""

    pair: int
    curve: Curve
    cut: tuple[int, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningCheck:
    """The winner's runs on fresh seeds against what would have pruned them at the end of the search.

    Args:
        metric: Name of the metric.
        pruner: Name of the pruner.
        can_win: Whether a trial that is pruned can become the winner, by the final value that is predicted.
        runs: The winner's runs in the confirmation, none of which was really pruned.
    """

    metric: str
    pruner: str
    can_win: bool
    runs: tuple[ConfirmedRun, ...]

    def drawn(self) -> tuple[ConfirmedRun, ...]:
        """Return the runs whose curves are drawn."""
        return tuple(self.runs[place] for place in evenly(len(self.runs), _MOST_RUNS))

    def caption(self) -> str:
        """Return how to read it and what it says."""
        cut = [run for run in self.runs if run.cut is not None]
        text = "The winner's runs on fresh seeds, which nobody prunes, judged as if they were the search's "
        text += "next trials. "
        if cut:
            text += f"{len(cut)} of {len(self.runs)} would have been pruned (marked by a cross)"
            text += self._of_cut()
        else:
            text += (
                f"None of the {len(self.runs)} would have been pruned. That is said of this winner alone: "
                "what was pruned has not been trained to its end."
            )
        shown = len(self.drawn())
        return f"{text} {shown} of {len(self.runs)} are drawn." if shown < len(self.runs) else text

    def _of_cut(self) -> str:
        """Return what it means that a run would have been pruned."""
        if not self.can_win:
            return (
                ": on such a seed the search could have missed this winner. What a gentler pruner would find "
                "is not known."
            )
        text = ". A trial that is pruned can still become the winner, by its predicted final value"
        if self.pruner == _MODEL:
            text += "; good ones are pruned, too, once that value is predictable"
        return f"{text}."

    def table(self) -> Table:
        """Return each run's last value and where it would have been cut."""
        rows = tuple(
            (f"seed {run.pair + 1}", run.curve[-1][1], "not pruned" if run.cut is None else run.cut[0])
            for run in self.runs
        )
        return Table(columns=("run", self.metric, "would have been pruned at step"), rows=rows)


def pruned_data(result: StudyResult) -> Pruned:
    """Return the search trials' curves.

    Raises:
        NothingToPlot: No trial was pruned.
    """
    search = [run for run in result.runs if run.kind == "search"]
    cut = [run for run in search if run.outcome == "pruned"]
    if not cut:
        how = "its spec asks for no pruning" if result.spec.study.pruner.name == "none" else _NO_REASON
        raise NothingToPlot(f"No trial was pruned: {how}.")
    shares = [run.steps / run.total_steps for run in cut if run.steps and run.total_steps]
    over = [run for run in search if run.outcome is not None]
    return Pruned(
        metric=result.metric,
        pruned=_curves(cut, result),
        complete=_curves([run for run in over if run.outcome == "complete"], result),
        counts=(len(cut), len(over)),
        out_of=sum(run.outcome in ("pruned", "complete") and bool(result.curves.get(run.id)) for run in over),
        median_share=median(shares) if shares else 0.0,
    )


def _curves(runs: Sequence[TicketRow], result: StudyResult) -> tuple[tuple[int, Curve], ...]:
    known = [(run.number, result.curves[run.id]) for run in runs if result.curves.get(run.id)]
    return tuple((known[i][0], thinned(known[i][1])) for i in evenly(len(known), _MOST_OF_EACH))


def thinned(curve: Curve, most: int = _MOST_POINTS) -> Curve:
    """Return at most so many points of a curve, its ends among them."""
    return tuple(curve[place] for place in evenly(len(curve), most))


def pruning_check_data(result: StudyResult) -> PruningCheck:
    """Return the winner's runs against the pruner, as it stood at the end of the search.

    Raises:
        NothingToPlot: There is no pruner, or the winner has not been confirmed.
    """
    strategy = result.spec.study.pruner
    if strategy.name == "none":
        raise NothingToPlot("This study prunes nothing, so pruning cannot have been wrong.")
    confirmed = [run for run in confirming(result, "search") if result.curves.get(run.id)]
    search = [run for run in result.runs if run.kind == "search"]
    if not confirmed or any(run.state not in OVER for run in search):
        raise NothingToPlot(
            "The winner's runs on fresh seeds are not known yet, so nothing can be said of it."
        )
    arms = _as_known(result, search)
    # as if each were the first trial after the search that may know all of it
    place = len(search) + result.spec.study.parallel - 1
    trials = [
        dataclasses.replace(run, kind="search", arm="search", number=place, sampled=run.parameters)
        for run in confirmed
    ]
    numbered = seeds(result)
    arms.asked(trials[0])
    # the page of a study has room for so many in all
    points = min(_MOST_POINTS, max(2, _MOST_RUN_POINTS // min(len(trials), _MOST_RUNS)))
    return PruningCheck(
        metric=result.metric,
        pruner=strategy.name,
        can_win=result.spec.study.sampler.name == _MODEL,
        runs=tuple(
            ConfirmedRun(
                pair=numbered[run.id],
                curve=thinned(result.curves[run.id], points),
                cut=_cut(run, result, arms),
            )
            for run in trials
        ),
    )


def _as_known(result: StudyResult, search: Sequence[TicketRow]) -> Arms:
    """Return what the pruner knew at the end of the search."""
    reports = [
        Measurement(ticket_id=run.id, step=step, name="report", value=value)
        for run in search
        for step, value in result.curves.get(run.id, ())
    ]
    known = [run for run in result.runs if run.kind in ("baseline", "search") and run.state in OVER]
    guards = [
        Measurement(ticket_id=run.id, step=step, name=name, value=value)
        for run in known
        for name in result.spec.study.measured_guards
        for step, value in result.measured.get(run.id, {}).get(name, ())
    ]
    return Arms(result.spec, known, [*reports, *guards], earlier=result.earlier)


def _cut(run: TicketRow, result: StudyResult, arms: Arms) -> tuple[int, float] | None:
    """Return the report at which the pruner would have ended the run."""
    reports: dict[int, float] = {}
    for step, value in result.curves[run.id]:
        reports[step] = value
        # a run that has come to its end is not asked about
        if step != run.total_steps and arms.prune(run, reports):
            return step, value
    return None


def plot_pruned(data: Pruned) -> go.Figure:
    """Return the trials' curves, those that were pruned ending in a cross."""
    made = figure(x="training step", y=data.metric, height=400)
    if data.complete:
        made.add_trace(_lines(data.complete, "complete", {"color": WINNER, "width": 1}))
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


def plot_pruning_check(data: PruningCheck) -> go.Figure:
    """Return the winner's runs, and crosses where a run would have been pruned."""
    made = figure(x="training step", y=data.metric, height=360)
    points = [
        (run.pair + 1, step, value)
        for run in data.drawn()
        for step, value in (*run.curve, (run.curve[-1][0], math.nan))
    ]
    made.add_trace(
        go.Scatter(
            # all runs as one line with gaps: a trace each would be slow to draw, and too much for a page
            x=np.array([step for _, step, _ in points], dtype=np.int32),
            y=np.array([value for _, _, value in points], dtype=np.float32),
            customdata=np.array([seed for seed, _, _ in points], dtype=np.int32),
            mode="lines+markers",
            line={"color": WINNER, "width": 1.6},
            marker={"size": 4, "color": WINNER},
            name="winner, fresh seeds",
            hovertemplate="seed %{customdata}, step %{x}: %{y:.4g}<extra></extra>",
        )
    )
    cut = [run.cut for run in data.runs if run.cut is not None]
    if cut:
        made.add_trace(
            go.Scatter(
                x=[step for step, _ in cut],
                y=[value for _, value in cut],
                mode="markers",
                marker={"symbol": "x", "size": 11, "color": INK},
                name="would have been pruned",
                hovertemplate="would have been pruned at step %{x}<extra></extra>",
            )
        )
    return made

"""One run: what it measured while its temperature changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.records.rows import TicketRow
from tempopt.report.plots.base import Table
from tempopt.report.plots.pruning import thinned
from tempopt.report.plots.style import BASELINE, TEMPLATE, WINNER, evenly, number, plain
from tempopt.report.plots.temperatures import all_shown
from tempopt.results.study_result import Curve, StudyResult

_POINTS = 101


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCurve:
    """One run over its optimizer steps.

    Args:
        name: What people call the run, as in ``search-12``.
        metric: Name of the metric.
        values: Its validations.
        temperatures: Level of its temperature, from step 0 to the last step that was planned.
        outcome: How it ended; None while it has not.
    """

    name: str
    metric: str
    values: Curve
    temperatures: Curve
    outcome: str | None

    def caption(self) -> str:
        """Return how to read it and what it says."""
        first, last = self.temperatures[0][1], self.temperatures[-1][1]
        end = "" if self.outcome is None else f"; it ended {self.outcome}"
        return f"{self.metric} above, temperature below ({number(first)} to {number(last)}){end}."

    def table(self) -> Table:
        """Return its validations."""
        places = evenly(len(self.values), 30)
        return Table(columns=("step", self.metric), rows=tuple(self.values[place] for place in places))


def trial_curve_data(result: StudyResult, run: TicketRow) -> TrialCurve:
    """Return what a run of this study measured, and its temperature, over its steps.

    Raises:
        NothingToPlot: It has measured nothing.
    """
    curve = result.curves.get(run.id)
    if not curve or run.parameters is None:
        raise NothingToPlot(f"{run.name} has reported nothing.")
    last = max(run.total_steps or 0, curve[-1][0]) or 1
    progress = tuple(place / (_POINTS - 1) for place in range(_POINTS))
    shown = all_shown(result)[0]
    return TrialCurve(
        name=run.name,
        metric=result.metric,
        values=thinned(curve),
        temperatures=tuple(
            (round(each * last), level)
            for each, level in zip(progress, shown.levels(run.parameters, progress), strict=True)
        ),
        outcome=run.outcome,
    )


def plot_trial_curve(data: TrialCurve) -> go.Figure:
    """Return the metric above and the temperature below, over the same steps."""
    made = go.Figure(layout={"template": TEMPLATE, "height": 360, "showlegend": False, "margin": {"t": 12}})
    for curve, axis, colour, name in (
        (data.values, "y", WINNER, data.metric),
        (data.temperatures, "y2", BASELINE, "τ"),
    ):
        made.add_trace(
            go.Scatter(
                x=np.array([step for step, _ in curve], dtype=np.int32),
                y=np.array([value for _, value in curve], dtype=np.float32),
                mode="lines+markers" if axis == "y" else "lines",
                line={"color": colour, "width": 2},
                yaxis=axis,
                name=plain(name),
                hovertemplate="step %{x}: %{y:.4g}<extra></extra>",
            )
        )
    made.update_layout(
        xaxis={"title": {"text": "training step"}, "anchor": "y2"},
        yaxis={"title": {"text": plain(data.metric)}, "domain": [0.42, 1.0]},
        yaxis2={"title": {"text": "τ"}, "domain": [0.0, 0.34], "rangemode": "tozero"},
    )
    return made

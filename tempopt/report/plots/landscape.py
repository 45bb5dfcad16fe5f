"""First against last temperature of the trials, coloured by value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.plots import style
from tempopt.report.plots.temperatures import (
    ATTENTION,
    DisplayedTemperature,
    displayed_temperatures,
    measured_levels,
)
from tempopt.report.study_result import StudyResult
from tempopt.storage.ticket_queries import is_usable, to_maximize
from tempopt.temperature import LinearNormaliser, parameters_of_temperature

_MAX_LISTED_POINTS = 30
_ENDS = (0.0, 1.0)
"""Progress of training at its start and its end."""
_FEWEST_BEST = 5

Point = tuple[int, float, float, float, Mapping[str, Any]]
"""Number, first and last temperature, value and parameters of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """Positions of the trials by temperature.

    Args:
        metric: Name of the metric.
        direction: Whether larger or smaller values are better.
        points: Number, first and last temperature, value and parameters of each trial in the plot, worst
            first.
        constants: The same for the constant arm, which lies on the diagonal.
        plan: Role of the plan (recommended or winner) with its first and last temperature, if any.
        best: Number of trials that cool down in the best tenth of all complete ones, and size of that tenth;
            None if it is below five.
        out_of: Number of complete search trials, which may exceed the number in the plot.
        temperature: The temperature of the plot.
        others: The same for the other temperatures of the study that change over training.
    """

    metric: str
    direction: str
    points: tuple[Point, ...]
    constants: tuple[Point, ...]
    plan: tuple[str, float, float] | None
    best: tuple[int, int] | None
    out_of: int
    temperature: DisplayedTemperature = ATTENTION
    others: tuple[Landscape, ...] = ()

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        text = "Each circle is a trial; on the diagonal the temperature does not change, below it it falls. "
        text += "Squares are constant temperatures."
        if self.others:
            text = f"Each temperature has a panel of its own. {text}"
        elif self.temperature.name:
            text = f"The temperature {self.temperature.name}. {text}"
        for landscape in (self, *self.others):
            if landscape.best is not None:
                suffix = f" in {landscape.temperature.name or 'τ'}" if self.others else ""
                count, out_of = landscape.best
                text += f" Of the best tenth of the trials {count} of {out_of} cool down{suffix}."
        if len(self.points) < self.out_of:
            text += f" {len(self.points)} of {self.out_of} trials are drawn."
        return text

    def table(self) -> style.Table:
        """Return the best trials."""
        landscapes = (self, *self.others)
        trial_ends = [
            {trial: (first, last) for trial, first, last, _, _ in landscape.points}
            for landscape in landscapes
        ]
        rows = tuple(
            (trial, *(end for ends_by_trial in trial_ends for end in ends_by_trial[trial]), value)
            for trial, _, _, value, _ in reversed(self.points[-_MAX_LISTED_POINTS:])
        )
        names = (landscape.temperature.name or "τ" for landscape in landscapes)
        columns = (f"{name} {moment}" for name in names for moment in ("at first", "at last"))
        return style.Table(columns=("trial", *columns, self.metric), rows=rows)


def landscape_data(result: StudyResult) -> Landscape:
    """Return first and last temperature of the complete trials, with their values.

    Raises:
        NothingToPlot: No trial is complete, or all have the same temperatures.
    """
    entries = [
        (temperature, _points(result, "search", temperature))
        for temperature in displayed_temperatures(result)
    ]
    if not entries[0][1]:
        raise NothingToPlot("No search trial is complete, so there is nothing to map.")
    varied_entries = [
        entry for entry in entries if len(entry[1]) == 1 or len({point[1:3] for point in entry[1]}) > 1
    ]
    if not varied_entries:
        raise NothingToPlot("All trials have the same first and last temperature: they are not searched.")
    # a temperature that never changes lies on the diagonal only
    moving_entries = [entry for entry in varied_entries if any(point[1] != point[2] for point in entry[1])]
    shown_entries = moving_entries or varied_entries
    other_landscapes = tuple(_landscape(result, *entry) for entry in shown_entries[1:])
    return _landscape(result, *shown_entries[0], other_landscapes)


def _landscape(
    result: StudyResult,
    temperature: DisplayedTemperature,
    points: list[Point],
    others: tuple[Landscape, ...] = (),
) -> Landscape:
    best_points, other_points = points[-style.MOST_MARKS // 2 :], points[: -style.MOST_MARKS // 2]
    # the best tenth, if it is large enough
    top = points[len(points) - len(points) // 10 :]
    num_cooling = sum(first > last for _, first, last, _, _ in top)
    role, parameters = result.plan
    ends = () if result.winner is None else measured_levels(result, parameters, temperature, _ENDS)
    return Landscape(
        metric=result.metric,
        direction=result.direction,
        points=tuple(
            [
                *(other_points[index] for index in style.evenly(len(other_points), style.MOST_MARKS // 2)),
                *best_points,
            ]
        ),
        constants=tuple(_points(result, "constant", temperature)[-style.MOST_MARKS // 4 :]),
        plan=(role, ends[0], ends[1]) if ends else None,
        best=(num_cooling, len(top)) if len(top) >= _FEWEST_BEST else None,
        out_of=len(points),
        temperature=temperature,
        others=others,
    )


def _points(result: StudyResult, kind: str, temperature: DisplayedTemperature) -> list[Point]:
    points: list[Point] = []
    for run in result.runs:
        if run.kind == kind and is_usable(run) and run.value is not None and run.parameters is not None:
            parameters = parameters_of_temperature(run.parameters, temperature.name)
            if parameters.get("normaliser") != LinearNormaliser.name:
                ends = measured_levels(result, run.parameters, temperature, _ENDS, [run])
                first, last = ends or temperature.levels(run.parameters, _ENDS)
                points.append((run.number, first, last, run.value, run.parameters))
    return sorted(points, key=lambda point: to_maximize(point[3], result.direction))


def plot_landscape(data: Landscape) -> go.Figure:
    """Return first against last temperature, coloured by value, a panel for each temperature."""
    landscapes = (data, *data.others)
    names = [landscape.temperature.name or "τ" for landscape in landscapes]
    has_several = len(landscapes) > 1
    fig, cells = style.panels(
        [landscape.temperature.title for landscape in landscapes],
        x="at first" if has_several else f"{names[0]} at first",
        y=["at last"] * len(landscapes) if has_several else [f"{names[0]} at last"],
        height=460,
        panel_height=300,
        gap=0.45,
    )
    # each panel has its own axis below it
    fig.update_xaxes(matches=None, showticklabels=True)
    worst, best = style.bounds([point[3] for point in data.points], data.direction)
    low, high = min(worst, best), max(worst, best)
    colours = {
        "cmin": low,
        "cmax": high if high > low else low + 1,
        "colorscale": style.scale(style.SEQUENTIAL if best >= worst else style.SEQUENTIAL[::-1]),
    }
    for landscape, cell in zip(landscapes, cells, strict=True):
        is_first = landscape is data
        bar = {"colorbar": style.colorbar(data.metric)} if is_first else {}
        baseline = "baseline" if has_several else landscape.temperature.baseline
        for trace in _traces(landscape, colours, bar, baseline):
            trace.showlegend = is_first and trace.showlegend is not False
            fig.add_trace(trace, **cell)
        ends = _temperature_range(landscape)
        fig.update_xaxes(style.temperature_axis(ends, few=True), **cell)
        fig.update_yaxes(style.temperature_axis(ends, few=has_several), **cell)
    return fig


def _temperature_range(data: Landscape) -> list[float]:
    """Return the lowest and the highest temperature that is shown."""
    temperatures = [temperature for point in (*data.points, *data.constants) for temperature in point[1:3]]
    return [min(*temperatures, data.temperature.neutral), max(*temperatures, data.temperature.neutral)]


def _traces(
    data: Landscape, colours: dict[str, Any], bar: dict[str, Any], baseline: str
) -> Iterator[go.Scatter]:
    """Yield the diagonal, the runs, the baseline and the winner."""
    ends = _temperature_range(data)
    yield style.lines(ends, ends, "constant", style.FAINT, width=1, hoverinfo="skip", showlegend=False)
    if data.constants:
        yield _points_trace(data.constants, "square", "constant temperatures", colours, labels=bool(bar))
    yield _points_trace(data.points, "circle", "trials", colours | bar, labels=bool(bar))
    yield _mark((data.temperature.neutral, data.temperature.neutral), "x-thin", baseline, style.BASELINE)
    if data.plan is not None:
        role, *position = data.plan
        yield _mark((position[0], position[1]), "star-open", role, style.INK)


def _points_trace(
    points: Sequence[Point], symbol: str, name: str, colours: dict[str, object], *, labels: bool
) -> go.Scatter:
    # in the first panel only, since labels in each would be too large for the dashboard
    count = min(style.MAX_LABELS, len(points)) if labels else 0
    unlabelled_points, labelled_points = points[: len(points) - count], points[len(points) - count :]
    labelled_texts = [f"{_hover_text(point, name)}<br>{style.label(point[4])}" for point in labelled_points]
    first, last, values = (
        np.array([point[index] for point in points], dtype=np.float32) for index in (1, 2, 3)
    )
    return style.marks(
        first,
        last,
        name,
        values,
        symbol,
        style.mark_size(len(points)) + 1,
        marker={"line": {"color": style.SECONDARY, "width": 0.6}, **colours},
        text=[*(_hover_text(point, name) for point in unlabelled_points), *labelled_texts],
        hovertemplate="%{text}<extra></extra>",
    )


def _hover_text(point: Point, name: str) -> str:
    return f"{name.removesuffix('s')} {point[0]}: {style.number(point[3])}"


def _mark(position: tuple[float, float], symbol: str, name: str, colour: str) -> go.Scatter:
    first, last = position
    line = {"color": colour, "width": 2.5}
    hover = f"{name}: %{{x:.4g}} to %{{y:.4g}}<extra></extra>"
    return style.marks([first], [last], name, colour, symbol, 16, marker={"line": line}, hovertemplate=hover)

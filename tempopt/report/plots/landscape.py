"""Where in temperature the good trials lie: the first against the last temperature of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.records.tickets import oriented, usable
from tempopt.report.plots.base import Table
from tempopt.report.plots.schedules import colorbar
from tempopt.report.plots.style import (
    BASELINE,
    FAINT,
    INK,
    MOST_LABELS,
    MOST_MARKS,
    OTHER,
    SEQUENTIAL,
    bounds,
    evenly,
    figure,
    label,
    mark_size,
    number,
    scale,
    temperature_axis,
)
from tempopt.report.plots.temperatures import ATTENTION, Shown, all_shown
from tempopt.results.study_result import StudyResult
from tempopt.temperature import LinearNormaliser, TemperatureParameters

_LISTED = 30
_FEWEST_BEST = 5

Point = tuple[int, float, float, float, Mapping[str, Any]]
"""Number, first and last temperature, value and parameters of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """Where in temperature the trials lie.

    Args:
        metric: Name of the metric.
        direction: Which values are better.
        points: Number, first and last temperature, value and parameters of each that is drawn, the worst
            first.
        constants: The same for the arm of constant temperatures, which lie on the diagonal.
        winner: First and last temperature of the winner, if there is one.
        best: Of the best tenth of all complete search trials, how many cool down and how many they are; None
            if they are fewer than five.
        out_of: Number of complete search trials; more than are drawn where that is many.
        shown: Which temperature this is.
    """

    metric: str
    direction: str
    points: tuple[Point, ...]
    constants: tuple[Point, ...]
    winner: tuple[float, float] | None
    best: tuple[int, int] | None
    out_of: int
    shown: Shown = ATTENTION

    def caption(self) -> str:
        """Return how to read it and what it says."""
        text = "Each circle is a trial; on the diagonal the temperature does not change, below it it falls. "
        text += "Squares are constant temperatures."
        if self.shown.name:
            text = f"The temperature {self.shown.name}. {text}"
        if self.best is not None:
            text += f" Of the best tenth of the trials {self.best[0]} of {self.best[1]} cool down."
        if len(self.points) < self.out_of:
            text += f" {len(self.points)} of {self.out_of} trials are drawn."
        return text

    def table(self) -> Table:
        """Return the best trials."""
        rows = tuple(
            (trial, first, last, value) for trial, first, last, value, _ in reversed(self.points[-_LISTED:])
        )
        return Table(columns=("trial", "τ at first", "τ at last", self.metric), rows=rows)


def landscape_data(result: StudyResult) -> Landscape:
    """Return first and last temperature of the complete trials, with their values.

    Raises:
        NothingToPlot: No trial is complete, or all have the same temperatures.
    """
    shown = all_shown(result)[0]
    points = _points(result, "search", shown)
    if not points:
        raise NothingToPlot("No search trial is complete, so there is nothing to map.")
    if len({(first, last) for _, first, last, _, _ in points}) == 1 and len(points) > 1:
        raise NothingToPlot("All trials have the same first and last temperature: they are not searched.")
    best, rest = points[-MOST_MARKS // 2 :], points[: -MOST_MARKS // 2]
    winner = None if result.winner is None else _ends(shown.parameters(result.winner))
    return Landscape(
        metric=result.metric,
        direction=result.direction,
        points=tuple([*(rest[place] for place in evenly(len(rest), MOST_MARKS // 2)), *best]),
        constants=tuple(_points(result, "constant", shown)[-MOST_MARKS // 4 :]),
        winner=winner,
        best=_best(points),
        out_of=len(points),
        shown=shown,
    )


def _best(points: Sequence[Point]) -> tuple[int, int] | None:
    """Return how many of the best tenth cool down, and how many they are; None for too few to say so of."""
    top = points[len(points) - len(points) // 10 :]
    if len(top) < _FEWEST_BEST:
        return None
    return sum(first > last for _, first, last, _, _ in top), len(top)


def _points(result: StudyResult, kind: str, shown: Shown) -> list[Point]:
    found = []
    for run in result.runs:
        if run.kind == kind and usable(run) and run.value is not None and run.parameters is not None:
            values = shown.parameters(run.parameters)
            if values.normaliser != LinearNormaliser.name:
                found.append((run.number, *_ends(values), run.value, run.parameters))
    return sorted(found, key=lambda each: oriented(each[3], result.direction))


def _ends(values: TemperatureParameters) -> tuple[float, float]:
    schedule = values.plan(1).schedule
    return schedule(0.0), schedule(1.0)


def plot_landscape(data: Landscape) -> go.Figure:
    """Return first against last temperature, coloured by value."""
    name, neutral = data.shown.name or "τ", data.shown.neutral
    made = figure(x=f"{name} at first", y=f"{name} at last", height=460)
    worst, best = bounds([each[3] for each in data.points], data.direction)
    low, high = min(worst, best), max(worst, best)
    colours = {
        "cmin": low,
        "cmax": high if high > low else low + 1,
        "colorscale": scale(SEQUENTIAL if best >= worst else SEQUENTIAL[::-1]),
    }
    shown = [each for point in (*data.points, *data.constants) for each in point[1:3]]
    ends = [min(*shown, neutral), max(*shown, neutral)]
    made.add_trace(
        go.Scatter(
            x=ends, y=ends, mode="lines", line={"color": FAINT, "width": 1}, hoverinfo="skip", name="constant"
        )
    )
    made.data[0].showlegend = False
    for points, symbol, name in (
        (data.constants, "square", "constant temperatures"),
        (data.points, "circle", "trials"),
    ):
        if points:
            bar = {"colorbar": colorbar(data.metric)} if name == "trials" else {}
            made.add_trace(_placed(points, symbol, name, colours | bar))
    for place, symbol, name, colour in (
        ((neutral, neutral), "x-thin", data.shown.baseline, BASELINE),
        (data.winner, "star-open", "winner", INK),
    ):
        if place is not None:
            made.add_trace(_mark(place, symbol, name, colour))
    made.update_xaxes(temperature_axis(ends, few=True))
    made.update_yaxes(temperature_axis(ends))
    return made


def _placed(points: Sequence[Point], symbol: str, name: str, colours: dict[str, object]) -> go.Scatter:
    labels = [f"{_said(each, name)}<br>{label(each[4])}" for each in points[-MOST_LABELS:]]
    return go.Scatter(
        x=np.array([each[1] for each in points], dtype=np.float32),
        y=np.array([each[2] for each in points], dtype=np.float32),
        text=[*(_said(each, name) for each in points[:-MOST_LABELS]), *labels],
        mode="markers",
        marker={
            "color": np.array([each[3] for each in points], dtype=np.float32),
            "size": mark_size(len(points)) + 1,
            "symbol": symbol,
            "line": {"color": OTHER, "width": 0.6},
            **colours,
        },
        name=name,
        hovertemplate="%{text}<extra></extra>",
    )


def _said(point: Point, name: str) -> str:
    return f"{name.removesuffix('s')} {point[0]}: {number(point[3])}"


def _mark(place: tuple[float, float], symbol: str, name: str, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[place[0]],
        y=[place[1]],
        mode="markers",
        marker={"color": colour, "size": 16, "symbol": symbol, "line": {"color": colour, "width": 2.5}},
        name=name,
        hovertemplate=f"{name}: %{{x:.4g}} to %{{y:.4g}}<extra></extra>",
    )

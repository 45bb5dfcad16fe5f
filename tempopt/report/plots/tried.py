"""The schedule of every trial that a search has trained to its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.records.tickets import oriented, usable
from tempopt.report.plots.base import Cell, Table
from tempopt.report.plots.controlled import measured_levels
from tempopt.report.plots.schedules import course_of
from tempopt.report.plots.style import (
    BASELINE,
    MOST_CURVES,
    SEQUENTIAL,
    bounds,
    colorbar,
    evenly,
    number,
    panels,
    scale,
    temperature_axis,
)
from tempopt.report.plots.temperatures import ATTENTION, Shown, all_shown
from tempopt.results.study_result import StudyResult
from tempopt.temperature import (
    LinearNormaliser,
    is_controlled,
)

_COARSE, _COARSER = 33, 17
"""Points of a schedule among others, and where there are several temperatures: a page holds few numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """The schedules of the search trials that came to their end.

    Args:
        metric: Name of the metric.
        direction: Which values are better.
        progress: Training progress, from 0 to 1.
        curves: Trial number, value and temperature at each progress, the worst trial first.
        out_of: Number of trials that have a schedule and a value; more than are shown where that is many.
        shown: Which temperature this is.
        others: The same of the other temperatures of the study.
        straight: Whether there are trials of which only the ends were measured.
        shapes: Progress and temperature where a trial's schedule begins, bends and ends, by its number.
        courses: The same in words.
    """

    metric: str
    direction: str
    progress: tuple[float, ...]
    curves: tuple[tuple[int, float, tuple[float, ...]], ...]
    out_of: int
    shown: Shown = ATTENTION
    others: tuple[Schedules, ...] = ()
    straight: bool = False
    shapes: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    courses: Mapping[int, str] = field(default_factory=dict)

    def points(self, trial: int, levels: tuple[float, ...]) -> list[tuple[float, float]]:
        """Return progress and temperature of a trial's curve, where it bends among them."""
        return sorted({*zip(self.progress, levels, strict=True), *self.shapes.get(trial, ())})

    def caption(self) -> str:
        """Return how to read it and what it says."""
        number_, value, best = self.curves[-1]
        courses = [course_of(best, self.courses.get(number_))]
        if self.others:
            every = (self, *self.others)
            courses = [
                f"{each.shown.name or 'τ'} {course_of(each.curves[-1][2], each.courses.get(number_))}"
                for each in every
            ]
        text = f"One line a complete trial, the darker the better its {self.metric} (on dark ground: the "
        text += "lighter). "
        if self.others:
            text += "Each temperature has a panel of its own; dashed is the baseline. "
            text += f"In the best, trial {number_} with {number(value)}, {', '.join(courses)}."
        else:
            text += f"The best, trial {number_} with {number(value)}, {courses[0]}."
        if self.straight:
            text += " Where the temperature follows a target of the entropy, the line joins its two ends."
        if len(self.curves) < self.out_of:
            text += f" {len(self.curves)} of {self.out_of} are drawn: the best, and others evenly by rank."
        return text

    def table(self) -> Table:
        """Return the ends of the best 30."""
        every = (self, *self.others)
        rows = tuple(
            (trial, value, *(cell for each in every for cell in each.moments(trial, each.curves[-place][2])))
            for place, (trial, value, _) in enumerate(reversed(self.curves[-30:]), start=1)
        )
        moments = (
            f"{each.shown.name or 'τ'} {moment}"
            for each in every
            for moment in ("at first", "between" if each.courses else "halfway", "at last")
        )
        return Table(columns=("trial", self.metric, *moments), rows=rows)

    def moments(self, trial: int, levels: tuple[float, ...]) -> tuple[Cell, Cell, Cell]:
        """Return a temperature at first, halfway and at last; between them the course of one that bends."""
        halfway: Cell = levels[len(levels) // 2]
        if self.courses:
            # halfway says nothing of one that bends late
            halfway = self.courses.get(trial) or f"{number(levels[len(levels) // 2])} halfway"
        return levels[0], halfway, levels[-1]


def schedules_data(result: StudyResult) -> Schedules:
    """Return the schedules of the complete search trials.

    Raises:
        NothingToPlot: No trial that has a temperature is complete.
    """
    direction, (first, *others) = result.direction, all_shown(result)
    found = [
        (run.number, run.value, run.parameters)
        for run in result.runs
        if run.kind == "search" and usable(run) and run.value is not None and run.parameters is not None
    ]
    ranked = sorted(
        (each for each in found if each[2].get("normaliser") != LinearNormaliser.name),
        key=lambda each: oriented(each[1], direction),
    )
    if not ranked:
        raise NothingToPlot("No search trial is complete, so there is no schedule to show.")
    best, rest = ranked[-MOST_CURVES // 2 :], ranked[: -MOST_CURVES // 2]
    shown = [rest[place] for place in evenly(len(rest), MOST_CURVES // 2)] + best
    points = _COARSER if others else _COARSE
    progress = tuple(place / (points - 1) for place in range(points))

    runs = {run.number: run for run in result.runs if run.kind == "search"}

    def levels(number: int, parameters: dict[str, Any], temperature: Shown) -> tuple[float, ...]:
        found = measured_levels(result, [runs[number]], parameters, temperature, progress)
        return found or temperature.levels(parameters, progress)

    def of(temperature: Shown, others: tuple[Schedules, ...] = ()) -> Schedules:
        return Schedules(
            metric=result.metric,
            direction=direction,
            progress=progress,
            curves=tuple((trial, value, levels(trial, each, temperature)) for trial, value, each in shown),
            out_of=len(ranked),
            shown=temperature,
            others=others,
            straight=not temperature.name and any(is_controlled(each) for *_, each in shown),
            shapes={trial: found for trial, _, each in shown if (found := temperature.shape(each))},
            courses={trial: words for trial, _, each in shown if (words := temperature.course(each))},
        )

    return of(first, tuple(map(of, others)))


def plot_schedules(data: Schedules) -> go.Figure:
    """Return every schedule as a line coloured by its trial's value, a panel for each temperature."""
    every = (data, *data.others)
    made, places = panels(
        [each.shown.title for each in every],
        x="training progress",
        y=[data.shown.axis] if len(every) == 1 else [""] * len(every),
        height=400,
        each=170,
        showlegend=False,
        margin={"t": 12 if len(every) == 1 else 36},
    )
    worst, best = bounds([value for _, value, _ in data.curves], data.direction)
    for each, place in zip(every, places, strict=True):
        groups: list[list[tuple[int, float, tuple[float, ...]]]] = [[] for _ in SEQUENTIAL]
        for curve in each.curves:
            share = 0.0 if worst == best else (curve[1] - worst) / (best - worst)
            groups[round(min(max(share, 0.0), 1.0) * (len(groups) - 1))].append(curve)
        for colour, group in zip(SEQUENTIAL, groups, strict=True):
            if group:
                made.add_trace(_lines(group, each, colour), **place)
        seen = [level for _, _, levels in each.curves for level in levels]
        made.update_yaxes(temperature_axis([each.shown.neutral, *seen], few=len(every) > 1), **place)
        made.add_hline(y=each.shown.neutral, line={"color": BASELINE, "width": 1.5, "dash": "dash"}, **place)
    made.add_trace(_key(worst, best, data.metric), **places[0])
    made.update_xaxes(range=[0, 1], tickformat=".0%")
    return made


def _lines(group: list[tuple[int, float, tuple[float, ...]]], data: Schedules, colour: str) -> go.Scatter:
    """Return many curves as one trace, a gap between each two: a trace each would be slow to draw."""
    points = [
        (trial, value, *point)
        for trial, value, levels in group
        for point in (*data.points(trial, levels), (math.nan, math.nan))
    ]
    told = f"<br>{data.shown.name or 'τ'} = %{{y:.4g}}<extra></extra>"
    return go.Scatter(
        x=np.array([x for *_, x, _ in points], dtype=np.float32),
        y=np.array([y for *_, y in points], dtype=np.float32),
        customdata=np.array([(trial, value) for trial, value, *_ in points], dtype=np.float32),
        mode="lines",
        line={"color": colour, "width": 1.4},
        hovertemplate=f"trial %{{customdata[0]}}: %{{customdata[1]:.4g}}{told}",
    )


def _key(worst: float, best: float, metric: str) -> go.Scatter:
    """Return no marks, but the scale of colours beside the lines."""
    low, high = min(worst, best), max(worst, best)
    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        hoverinfo="skip",
        marker={
            "color": [low],
            "cmin": low,
            "cmax": high if high > low else low + 1,
            "colorscale": scale(SEQUENTIAL if best >= worst else SEQUENTIAL[::-1]),
            "colorbar": colorbar(metric),
        },
    )

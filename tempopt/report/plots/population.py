"""The lineage of a population: what members came to at the ends of intervals, and who went on from whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Table
from tempopt.report.plots.style import (
    BASELINE,
    DIVERGING,
    FAINT,
    INK,
    WINNER,
    figure,
    mark_size,
    number,
    plain,
    scale,
)
from tempopt.results.population import Member, ancestry
from tempopt.results.population_text import (
    COLUMNS,
    ancestry_line,
    heading,
    origin_text,
    run_text,
    shown_population,
    table_rows,
    taus_text,
)
from tempopt.results.study_result import StudyResult

_WIDEST = 0.25
"""Colours tell so far from τ = 1 at least, in log10, so that small differences look small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationShown:
    """One population.

    Args:
        metric: Name of the metric.
        head: Which population it is, and how it is made up.
        ends: Training progress at which its intervals end.
        members: Its trials that came to the end of their interval with a value.
        winner: Run numbers of the winner and of whom it came from; empty before there is one.
        line: The same in words.
        rows: The table.
    """

    metric: str
    head: str
    ends: tuple[float, ...]
    members: tuple[Member, ...]
    winner: tuple[int, ...]
    line: str | None
    rows: tuple[tuple[str, ...], ...]

    def caption(self) -> str:
        """Return how to read it and what it says."""
        over = sum(each.took_over for each in self.members)
        text = f"{self.head[0].upper()}{self.head[1:]}. A mark is a member at the end of an interval, in the "
        text += (
            "colour of its temperature there: blue is sharper than τ = 1, orange softer. A line leads from "
        )
        text += "the trial that it went on from; where that was another member's it is dashed. "
        text += f"Another one was taken over {over} time{'' if over == 1 else 's'}. Values at the ends of "
        text += "different intervals are not comparable: only those below each other are."
        return text if self.line is None else f"{text} {self.line[0].upper()}{self.line[1:]}"

    def table(self) -> Table:
        """Return the members by interval."""
        columns = tuple(self.metric if each == "value" else each for each in COLUMNS)
        return Table(columns=columns, rows=self.rows)


def population_data(result: StudyResult) -> PopulationShown:
    """Return the winner's population, or before there is a winner the one that was begun last.

    Raises:
        NothingToPlot: The sampler is another one, or no member has come to the end of an interval.
    """
    population = result.spec.study.population
    if population is None:
        raise NothingToPlot("The sampler of this study is not population.")
    _, every = shown_population(result)
    members = tuple(each for each in every if each.value is not None)
    if not members:
        raise NothingToPlot("No member has come to the end of an interval yet.")
    line = [] if result.winner is None else ancestry(every, result.winner, result.spec)
    return PopulationShown(
        metric=result.metric,
        head=heading(result),
        ends=population.ends,
        members=members,
        winner=tuple(each.run.number for each in line),
        line=ancestry_line(result),
        rows=tuple(table_rows(result)),
    )


def plot_population(data: PopulationShown) -> go.Figure:
    """Return the members' values over training progress, with a line to each from whom it went on from."""
    made = figure(x="training progress", y=data.metric, height=420)
    places = {each.run.number: (data.ends[each.place.interval], each.value or 0.0) for each in data.members}
    kept = [each for each in data.members if each.parent is not None and each.parent.number in places]
    of_winner = [each for each in kept if each.run.number in data.winner]
    others = [each for each in kept if each.run.number not in data.winner]
    for name, some, colour, width, dash in (
        ("continued", [each for each in others if not each.took_over], FAINT, 1.5, "solid"),
        ("taken over", [each for each in others if each.took_over], BASELINE, 1.5, "dash"),
        ("to the winner", [each for each in of_winner if not each.took_over], WINNER, 3.5, "solid"),
        ("to the winner, taken over", [each for each in of_winner if each.took_over], WINNER, 3.5, "dash"),
    ):
        if some:
            ends = [
                point
                for each in some
                if each.parent is not None
                for point in (places[each.parent.number], places[each.run.number], (math.nan, math.nan))
            ]
            made.add_trace(
                go.Scatter(
                    x=[x for x, _ in ends],
                    y=[y for _, y in ends],
                    mode="lines",
                    line={"color": colour, "width": width, "dash": dash},
                    name=name,
                    hoverinfo="skip",
                )
            )
    made.add_trace(_marks(data.members, data))
    made.update_xaxes(
        range=[0, 1.03], tickvals=[0, *data.ends], ticktext=["0 %", *(f"{100 * e:.3g} %" for e in data.ends)]
    )
    return made


def _marks(members: Sequence[Member], data: PopulationShown) -> go.Scatter:
    logs = [math.log10(each.taus[1]) for each in members]
    widest = max(_WIDEST, *map(abs, logs))
    ticks = [10 ** (widest * part) for part in (-1, -0.5, 0, 0.5, 1)]
    return go.Scatter(
        x=[data.ends[each.place.interval] for each in members],
        y=[each.value for each in members],
        text=[_label(each, data.metric) for each in members],
        mode="markers",
        marker={
            "color": logs,
            "cmin": -widest,
            "cmax": widest,
            "colorscale": scale(DIVERGING),
            "size": 3 + mark_size(len(members)),
            "line": {"color": INK, "width": 1},
            "colorbar": {
                "title": {"text": "τ"},
                "tickvals": [math.log10(tick) for tick in ticks],
                "ticktext": [f"{tick:.3g}" for tick in ticks],
                "thickness": 12,
                "outlinewidth": 0,
            },
        },
        showlegend=False,
        hovertemplate="%{text}<extra></extra>",
    )


def _label(member: Member, metric: str) -> str:
    lines = (
        f"{run_text(member.run)}, member {member.place.member + 1}, interval {member.place.interval + 1}",
        f"{plain(metric)}: {number(member.value or 0.0)}",
        f"τ {taus_text(member)}",
        origin_text(member),
    )
    return "<br>".join(lines)

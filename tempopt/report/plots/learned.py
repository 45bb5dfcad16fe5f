"""How the learned temperatures moved over training, beside the winner's schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.records.tickets import arms_of, usable
from tempopt.report.plots.base import Table
from tempopt.report.plots.confirming import confirming
from tempopt.report.plots.controlled import winners_levels
from tempopt.report.plots.style import (
    BASELINE,
    BASELINE_BAND,
    CONSTANT,
    INK,
    OTHER,
    WINNER,
    WINNER_BAND,
    evenly,
    number,
    panels,
    plain,
    temperature_axis,
)
from tempopt.report.plots.temperatures import Shown, all_shown
from tempopt.results.learned_text import place_of
from tempopt.results.study_result import StudyResult
from tempopt.workers.messages import LEARNED_CURVE

_COLOURS = (WINNER, BASELINE, CONSTANT, OTHER)
_BANDS = {WINNER: WINNER_BAND, BASELINE: BASELINE_BAND}
_MOST_LAYERS = 6
_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One learned temperature over training.

    Args:
        of: The temperature that it is of; the empty text for attention's.
        name: What it is called: its name, or the layer of attention and the head.
        mean: Geometric mean over the runs at each step.
        low: Lowest of the runs at each step.
        high: Highest of them.
        winner: The winner's temperature at each step; empty where there is none.
    """

    of: str
    name: str
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    winner: tuple[float, ...]

    @property
    def first(self) -> float:
        """Where it began; heads of a layer that attends late begin later than others."""
        return next(value for value in self.mean if value == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedShown:
    """The learned temperatures of the confirming runs.

    Args:
        steps: Optimizer steps at which they were noted.
        paths: The temperatures.
        runs: Number of runs that the means are over.
    """

    steps: tuple[int, ...]
    paths: tuple[Path, ...]
    runs: int

    @property
    def temperatures(self) -> tuple[str, ...]:
        """The temperatures that were learned, by name, attention's first."""
        return tuple(sorted(dict.fromkeys(path.of for path in self.paths), key=bool))

    def caption(self) -> str:
        """Return how to read it and what it says."""
        ends = [
            f"{path.name} from {number(path.first)} to {number(path.mean[-1])}"
            for path in self.paths[:_MOST_LAYERS]
        ]
        more = len(self.paths) - len(ends)
        return (
            f"Solid lines are the temperatures that {self.runs} confirming runs have learned, in "
            "the geometric mean; bands go from the lowest run to the highest. Dashed lines are the winner's. "
            f"Learned: {', '.join(ends)}{f' and {more} more' if more else ''}."
        )

    def table(self) -> Table:
        """Return each temperature at the steps."""
        rows = tuple(
            (path.name, step, path.mean[place], path.low[place], path.high[place])
            for path in self.paths
            for place, step in enumerate(self.steps)
            if path.mean[place] == path.mean[place]
        )
        columns = ("temperature", "step", "geometric mean", "lowest run", "highest run")
        return Table(columns=columns, rows=tuple(rows[place] for place in evenly(len(rows), _ROWS)))


def learned_data(result: StudyResult) -> LearnedShown:
    """Return the learned temperatures of the runs that the verdict rests on.

    Raises:
        NothingToPlot: There are none.
    """
    runs = [run for run in confirming(result) if "learned" in arms_of(run) and usable(run)]
    found: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for name, curve in result.measured.get(run.id, {}).items():
            if name.startswith(LEARNED_CURVE):
                own = found.setdefault(name.removeprefix(LEARNED_CURVE), {})
                for step, value in curve:
                    own.setdefault(step, []).append(value)
    if not found:
        raise NothingToPlot(_why_none(result))
    steps = sorted({step for own in found.values() for step in own})
    shown = {each.name: each for each in all_shown(result)}
    return LearnedShown(
        steps=tuple(steps),
        paths=tuple(
            _path(name, own, steps, shown.get("" if place_of(name) else name), result)
            for name, own in found.items()
        ),
        runs=len(runs),
    )


def _why_none(result: StudyResult) -> str:
    study = result.spec.study
    if study.not_learned is not None:
        return f"The temperatures cannot be learned here: {study.not_learned.rstrip('.')}."
    if not study.learned:
        return "The study spec asks for no learned temperatures (study.learned)."
    return "No run with learned temperatures is confirmed."


def _path(
    name: str, own: dict[int, list[float]], steps: list[int], shown: Shown | None, result: StudyResult
) -> Path:
    values = [own.get(step, [math.nan]) for step in steps]
    last = max(steps[-1], 1)
    levels: tuple[float, ...] = ()
    if shown is not None:
        levels = winners_levels(result, shown, tuple(step / last for step in steps))
    return Path(
        of="" if place_of(name) else name,
        name=f"τ of {place_of(name)}" if place_of(name) else name,
        mean=tuple(math.exp(fmean(map(math.log, each))) for each in values),
        low=tuple(map(min, values)),
        high=tuple(map(max, values)),
        winner=levels,
    )


def plot_learned(data: LearnedShown) -> go.Figure:
    """Return a line with its band for each learned temperature, and the winner's dashed.

    Temperatures have a panel each; the layers and heads of attention share one.
    """
    groups = [[path for path in data.paths if path.of == of] for of in data.temperatures]
    several = len(groups) > 1
    made, places = panels(
        [of or "attention, τ" for of in data.temperatures],
        x="training step",
        y=[""] * len(groups) if several else ["temperature"],
        height=380,
        each=150,
    )
    for of, group, place in zip(data.temperatures, groups, places, strict=True):
        paths = [group[index] for index in evenly(len(group), _MOST_LAYERS)]
        for index, path in enumerate(paths):
            colour = _COLOURS[index % len(_COLOURS)]
            if colour in _BANDS:
                made.add_trace(_band(data.steps, path, _BANDS[colour]), **place)
            # a panel of one line is named by its title
            line = _line(data.steps, path.mean, colour, plain(path.name), "solid")
            line.showlegend = not (several and of)
            made.add_trace(line, **place)
        # all layers and heads share the schedule of attention
        if paths[0].winner:
            line = _line(data.steps, paths[0].winner, INK, "the winner", "dash")
            line.showlegend = place is places[0]
            made.add_trace(line, **place)
        shown = [value for path in paths for value in (*path.low, *path.high, *path.winner)]
        axis = temperature_axis([value for value in shown if value == value], few=several)
        made.update_yaxes(axis, **place)
    return made


def _line(steps: tuple[int, ...], values: tuple[float, ...], colour: str, name: str, dash: str) -> go.Scatter:
    return go.Scatter(
        x=list(steps),
        y=list(values),
        mode="lines",
        line={"color": colour, "width": 2, "dash": dash},
        name=name,
        hovertemplate=f"{name}, step %{{x}}: %{{y:.4g}}<extra></extra>",
    )


def _band(steps: tuple[int, ...], path: Path, colour: str) -> go.Scatter:
    return go.Scatter(
        x=[*steps, *reversed(steps)],
        y=[*path.high, *reversed(path.low)],
        fill="toself",
        fillcolor=colour,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
    )

"""The parts that all plots share: data with a caption and a table, colours, one template, escaped text.

Figures are drawn on light ground. ``DARK`` says what each of their colours becomes on dark ground, so that a
page can follow its reader's choice; every colour of a figure is therefore one of these.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tempopt.report.study_result import StudyResult

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers of a plot for those who cannot see it; cells are plain data, nothing is escaped."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Data(Protocol):
    """What a plot shows."""

    def caption(self) -> str:
        """Return in a sentence or two how the plot is read and what it shows, as plain text."""
        ...

    def table(self) -> Table:
        """Return its numbers, thinned where they are many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot of a study.

    Args:
        title: Its heading.
        data: Returns what it shows of a study; raises NothingToPlot, with the reason, if there is nothing.
        figure: Returns the drawing of that.
    """

    title: str
    data: Callable[[StudyResult], Any]
    figure: Callable[[Any], go.Figure]

    def __call__(self, result: StudyResult) -> go.Figure:
        """Return the figure of a study; NothingToPlot if there is nothing to show."""
        return self.figure(self.data(result))


WINNER = "#0b62a4"
BASELINE = "#c2500a"
CONSTANT = "#0f7b5f"
SECONDARY = "#69727d"
FAINT = "#c3c9d0"
INK = "#1d2329"
QUIET = "#565e68"
GRID = "#e4e7eb"
GROUND = "#ffffff"
WINNER_BAND = "rgba(11,98,164,0.14)"
BASELINE_BAND = "rgba(194,80,10,0.14)"
SEQUENTIAL = ("#d5e8c4", "#95d0ba", "#4fb3c4", "#2b87b8", "#265a9b", "#15306f")
"""From the worst value to the best; and from little to much."""

DARK: Mapping[str, str] = {
    WINNER: "#6cb6f5",
    BASELINE: "#ff9a5c",
    CONSTANT: "#46c9a2",
    SECONDARY: "#9aa5b1",
    FAINT: "#4d5661",
    INK: "#e7eaee",
    QUIET: "#a9b3be",
    GRID: "#2d343c",
    GROUND: "#15191e",
    WINNER_BAND: "rgba(108,182,245,0.18)",
    BASELINE_BAND: "rgba(255,154,92,0.18)",
    **dict(zip(SEQUENTIAL, ("#2b3f5c", "#2c5f88", "#2f86ac", "#55adbd", "#9dd2b5", "#f0f3b8"), strict=True)),
}
"""Colour on light ground to the same on dark ground."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MOST_MARKS = 2000
MOST_LABELS = 300
"""So many of the best marks say their parameters when they are pointed at; all would fill a page."""
_LONGEST = 40
_MOST_LINES = 12


def scale(colours: Sequence[str]) -> list[list[Any]]:
    """Return colours at even distances, as plotly takes a scale."""
    return [[index / (len(colours) - 1), colour] for index, colour in enumerate(colours)]


def _axis() -> dict[str, Any]:
    return {
        "gridcolor": GRID,
        "linecolor": FAINT,
        "zerolinecolor": FAINT,
        "zerolinewidth": 1,
        "ticks": "outside",
        "tickcolor": FAINT,
        "ticklen": 4,
        "automargin": True,
        "title": {"standoff": 10},
    }


TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "colorway": [WINNER, BASELINE, CONSTANT, SECONDARY],
        "margin": {"l": 12, "r": 26, "t": 40, "b": 12},
        "xaxis": _axis(),
        "yaxis": _axis(),
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
        },
        "hoverlabel": {
            "bgcolor": GROUND,
            "bordercolor": FAINT,
            "align": "left",
            "font": {"color": INK, "family": FONT, "size": 12},
        },
        "hovermode": "closest",
    }
)


def figure(*, x: str | None = None, y: str | None = None, height: int = 380, **layout: Any) -> go.Figure:
    """Return an empty figure in the house's style with titles on its axes; the titles are plain text."""
    axes = {
        "xaxis": {"title": {"text": plain(x)}} if x else {},
        "yaxis": {"title": {"text": plain(y)}} if y else {},
    }
    fig = go.Figure(layout={"template": TEMPLATE, "height": height, **axes})
    fig.update_layout(**layout)
    return fig


def lines(x: Any, y: Any, name: str, colour: str, *, width: float = 2, **options: Any) -> go.Scatter:
    """Return a trace of lines.

    Args:
        x: Where its points are.
        y: Likewise.
        name: What the legend calls it; plotly shows it as markup.
        colour: Of the line, and of its marks.
        width: Of the line, in pixels.
        options: What else a scatter plot takes; ``line`` and ``marker`` add to what is set here.
    """
    line = {"color": colour, "width": width, **options.pop("line", {})}
    return go.Scatter(x=x, y=y, **{"mode": "lines", "name": name, **options}, line=line)


def marks(
    x: Any, y: Any, name: str | None, colour: Any, symbol: Any = "circle", size: float = 8, **options: Any
) -> go.Scatter:
    """Return a trace of marks; ``options`` as of :func:`lines`."""
    marker = {"color": colour, "size": size, "symbol": symbol, **options.pop("marker", {})}
    return go.Scatter(x=x, y=y, mode="markers", name=name, marker=marker, **options)


def panels(
    titles: Sequence[str],
    *,
    x: str,
    y: Sequence[str],
    height: int,
    panel_height: int,
    gap: float = 0.24,
    **layout: Any,
) -> tuple[go.Figure, list[dict[str, int]]]:
    """Return an empty figure with a panel for each title, one above the other, and where each of them is.

    A single panel is a plain :func:`figure` without a title.

    Args:
        titles: Titles of the panels, plain text.
        x: Title of the axis below all of them.
        y: Titles of the axes beside them.
        height: Height of a single panel, in pixels.
        panel_height: Height of each of several.
        gap: Space between two of them, as a share of the height of one.
        layout: What else is set of the layout.
    """
    if len(titles) == 1:
        return figure(x=x, y=y[0], height=height, **layout), [{}]
    fig = make_subplots(
        rows=len(titles),
        cols=1,
        shared_xaxes="all",
        subplot_titles=[plain(title) for title in titles],
        vertical_spacing=gap / len(titles),
    )
    fig.update_layout(template=TEMPLATE, height=110 + panel_height * len(titles), **layout)
    # above the title of the first panel
    fig.update_layout(legend={"y": 1 + 24 / (panel_height * len(titles))})
    fig.update_annotations(font={"size": 13, "color": QUIET})
    cells = [{"row": row, "col": 1} for row in range(1, len(titles) + 1)]
    for cell, title in zip(cells, y, strict=True):
        fig.update_yaxes(title={"text": plain(title)}, **cell)
    fig.update_xaxes(title={"text": plain(x)}, **cells[-1])
    return fig, cells


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return a text so that plotly shows it as it is written, shortened in the middle if it is long."""
    if len(text) > longest:
        text = f"{text[: longest - 10]}…{text[-9:]}"
    return html.escape(text, quote=False)


def number(value: float) -> str:
    """Return a number with four digits, and what is no number in words."""
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else "not finite"


def label(parameters: Mapping[str, Any]) -> str:
    """Return parameters as the lines of a label, made harmless, at most twelve."""
    lines = [
        f"{plain(name)} = {number(value) if isinstance(value, float) else plain(str(value))}"
        for name, value in parameters.items()
    ]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"and {len(lines) - _MOST_LINES + 1} more"]
    return "<br>".join(lines)


def evenly(count: int, max_count: int) -> list[int]:
    """Return at most ``max_count`` places out of ``count``, evenly spread, first and last among them."""
    if count <= max_count:
        return list(range(count))
    return sorted({round(index * (count - 1) / (max_count - 1)) for index in range(max_count)})


def bounds(values: Sequence[float], direction: str) -> tuple[float, float]:
    """Return the worst and the best value that colours tell apart: the worst tenth is one colour."""
    ordered = sorted(values, reverse=direction == "minimize")
    worst = ordered[len(ordered) // 10]
    best = ordered[-1]
    return (worst, best) if worst != best else (ordered[0], best)


def temperature_axis(temperatures: Sequence[float], *, few: bool = False) -> dict[str, Any]:
    """Return an axis on which twice as hot is as far as half as hot, with ticks that say τ itself.

    Args:
        temperatures: Those that have to be on it.
        few: Whether there is room for a few ticks only, as below a plot on a phone.
    """
    low, high = math.log10(min(temperatures)), math.log10(max(temperatures))
    margin = max(0.05, 0.06 * (high - low))
    ticks = temperature_ticks(10 ** (low - margin), 10 ** (high + margin), fewest=3 if few else 4)
    return {
        "type": "log",
        "range": [low - margin, high + margin],
        "tickvals": ticks,
        "ticktext": [f"{tick:g}" for tick in ticks],
    }


def temperature_ticks(low: float, high: float, *, fewest: int = 4) -> list[float]:
    """Return round temperatures between two, by ratio if they are far apart and by difference if not."""
    for steps in ((1, 2, 5), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7)):
        candidates = [float(f"{step * 10.0**power:g}") for power in range(-6, 7) for step in steps]
        ticks = [tick for tick in candidates if low <= tick <= high]
        if len(ticks) >= fewest:
            return ticks
    size = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(size * times for times in (1, 2, 5, 10) if (high - low) / (size * times) <= 6)
    indices = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [float(f"{index * step:.6g}") for index in indices]


def mark_size(count: int) -> int:
    """Return how large marks are in pixels: many have to be small."""
    return 8 if count <= 200 else 6 if count <= 800 else 4


def label_bars(fig: go.Figure, names: Sequence[str]) -> None:
    """Name the bars of a figure whose bars lie side by side, from the top, at the places 0, 1, ..."""
    fig.update_yaxes(
        autorange="reversed",
        showgrid=False,
        tickvals=list(range(len(names))),
        ticktext=list(names),
        ticklabelstandoff=8,
        ticks="",
    )


def colorbar(metric: str) -> dict[str, Any]:
    """Return a scale of colours for a metric, beside the plot."""
    return {
        "title": {"text": plain(metric, 24), "side": "right"},
        "thickness": 12,
        "outlinewidth": 0,
        "tickformat": ".3~g",
    }

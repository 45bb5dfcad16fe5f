"""Shared parts of all plots: data with caption and table, colours, one template, escaped text.

Figures are drawn on a light background. ``DARK`` maps each of their colours to the one on a dark background,
so that a page can follow its reader's choice; therefore figures use only these colours.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tempopt.errors import escape_control_chars
from tempopt.report.study_result import StudyResult

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The numbers of a plot, for people who cannot see it; cells are plain data, not escaped."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class Data(Protocol):
    """The content of a plot."""

    def caption(self) -> str:
        """Return one or two sentences on how to read the plot and what it shows, as plain text."""
        ...

    def table(self) -> Table:
        """Return the numbers, thinned if there are many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot of a study.

    Args:
        title: Heading of the plot.
        data: Returns its content for a study; raises NothingToPlot with the reason if there is none.
        figure: Returns the figure of that content.
    """

    title: str
    data: Callable[[StudyResult], Any]
    figure: Callable[[Any], go.Figure]

    def __call__(self, result: StudyResult) -> go.Figure:
        """Return the figure of a study; raises NothingToPlot if there is no content."""
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
"""From the worst value to the best, and from little to much."""

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
"""Colour on a light background to the one on a dark background."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MOST_MARKS = 2000
MAX_LABELS = 300
"""Largest number of marks that show their parameters on hover; more would make the page too large."""
_MAX_LABEL_CHARS = 40
_MOST_LINES = 12


def scale(colours: Sequence[str]) -> list[list[Any]]:
    """Return equally spaced colours in the form of plotly's colour scales."""
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
    """Return an empty figure in the common style with titles on its axes; titles are plain text."""
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
        x: Positions of the points.
        y: Values of the points.
        name: Name in the legend; plotly shows it as markup.
        colour: Colour of the line and of its marks.
        width: Width of the line in pixels.
        options: Further options of a scatter plot; ``line`` and ``marker`` extend those set here.
    """
    line = {"color": colour, "width": width, **options.pop("line", {})}
    return go.Scatter(x=x, y=y, **{"mode": "lines", "name": name, **options}, line=line)


def marks(
    x: Any, y: Any, name: str | None, colour: Any, symbol: Any = "circle", size: float = 8, **options: Any
) -> go.Scatter:
    """Return a trace of marks; ``options`` as for :func:`lines`."""
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
    """Return an empty figure with a panel for each title, one above the other, and the position of each.

    A single panel is a plain :func:`figure` without a title.

    Args:
        titles: Titles of the panels, plain text.
        x: Title of the axis below all of them.
        y: Titles of the axes beside them.
        height: Height of a single panel, in pixels.
        panel_height: Height of each of several panels.
        gap: Space between two of them, as a share of the height of one.
        layout: Further options of the layout.
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


def plain(text: str, longest: int = _MAX_LABEL_CHARS) -> str:
    """Return a text for plotly without markup, shortened in the middle if it is long."""
    if len(text) > longest:
        text = f"{text[: longest - 10]}…{text[-9:]}"
    return html.escape(escape_control_chars(text), quote=False)


def number(value: float) -> str:
    """Return a number with four digits, and other values in words."""
    return f"{value:.4g}".replace("-", "−") if math.isfinite(value) else "not finite"


def label(parameters: Mapping[str, Any]) -> str:
    """Return parameters as the lines of a label, escaped, at most twelve."""
    lines = [
        f"{plain(name)} = {number(value) if isinstance(value, float) else plain(str(value))}"
        for name, value in parameters.items()
    ]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [f"and {len(lines) - _MOST_LINES + 1} more"]
    return "<br>".join(lines)


def evenly(count: int, max_count: int) -> list[int]:
    """Return at most ``max_count`` indices below ``count``, evenly spread, including first and last."""
    if count <= max_count:
        return list(range(count))
    return sorted({round(index * (count - 1) / (max_count - 1)) for index in range(max_count)})


def bounds(values: Sequence[float], direction: str) -> tuple[float, float]:
    """Return the worst and the best value of the colour scale: the worst tenth has one colour."""
    ordered_values = sorted(values, reverse=direction == "minimize")
    worst = ordered_values[len(ordered_values) // 10]
    best = ordered_values[-1]
    return (worst, best) if worst != best else (ordered_values[0], best)


def temperature_axis(temperatures: Sequence[float], *, few: bool = False) -> dict[str, Any]:
    """Return a logarithmic axis of temperatures with ticks that show τ.

    Args:
        temperatures: Temperatures that the axis includes.
        few: Whether there is space for a few ticks only, as on a phone.
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
    """Return round temperatures between two, by ratio if they are far apart and by difference otherwise."""
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
    """Return the size of marks in pixels, smaller if there are many."""
    return 8 if count <= 200 else 6 if count <= 800 else 4


def label_bars(fig: go.Figure, names: Sequence[str]) -> None:
    """Name horizontal bars from top to bottom, at the positions 0, 1, ..."""
    fig.update_yaxes(
        autorange="reversed",
        showgrid=False,
        tickvals=list(range(len(names))),
        ticktext=list(names),
        ticklabelstandoff=8,
        ticks="",
    )


def colorbar(metric: str) -> dict[str, Any]:
    """Return a colour scale for a metric, beside the plot."""
    return {
        "title": {"text": plain(metric, 24), "side": "right"},
        "thickness": 12,
        "outlinewidth": 0,
        "tickformat": ".3~g",
    }

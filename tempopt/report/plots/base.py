"""What every plot is made of: data that also stand as words and as a table, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tempopt.results.study_result import StudyResult

if TYPE_CHECKING:
    import plotly.graph_objects as go

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

"""What every plot is made of: data that also stand as words and as a table, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tempopt.results.study_result import StudyResult

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from tempopt.spec.study_spec import StudySpec

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
        return self.drawn(self.data(result), result.spec)

    def drawn(self, data: Any, spec: StudySpec) -> go.Figure:
        """Return the figure of data, with the baseline in the words of the study."""
        made = self.figure(data)
        if not spec.temperatures:
            return made
        import plotly.graph_objects as go

        baseline = "τ = 1, all as found" if spec.attends else "as found"
        return go.Figure(_reworded(made.to_plotly_json(), "τ = 1", baseline))


def _reworded(value: Any, old: str, new: str) -> Any:
    """Return plain data with a word replaced in all of its texts."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {key: _reworded(each, old, new) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_reworded(each, old, new) for each in value]
    return value

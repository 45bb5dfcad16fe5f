"""Training time by machine and by kind of run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.formatting import duration
from tempopt.report.plots import style
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import Kind, TicketRow

_COLOURS: Mapping[Kind, str] = {
    "baseline": style.BASELINE,
    "constant": style.CONSTANT,
    "search": style.WINNER,
    "choose": style.SECONDARY,
    "confirm": style.SEQUENTIAL[2],
    "ablation": style.SEQUENTIAL[1],
}
_MOST_BARS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CostData:
    """Cost of a study.

    Args:
        machines: The runs of each machine by its name, the busiest first.
        gpu_seconds: GPU seconds; None if no run used a GPU.
    """

    machines: Mapping[str, Sequence[TicketRow]]
    gpu_seconds: float | None

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        total = sum(map(_seconds, self.machines.values()))
        count = "one machine" if len(self.machines) == 1 else f"{len(self.machines)} machines"
        text = f"{duration(total)} of training on {count}"
        if self.gpu_seconds is not None:
            text += f", {duration(self.gpu_seconds)} of GPUs, a share of a GPU counting as that share"
        return f"{text}. A run that was tried on several machines counts for the last."

    def table(self) -> style.Table:
        """Return a row for each machine."""
        rows = tuple(
            (
                name,
                ", ".join(sorted({run.device for run in runs if run.device is not None})) or None,
                len(runs),
                _seconds(runs) / 3600,
                sum(run.gpu_seconds for run in runs) / 3600,
            )
            for name, runs in self.machines.items()
        )
        return style.Table(
            columns=("machine", "devices", "runs", "hours of training", "GPU-hours"), rows=rows
        )


def _seconds(runs: Sequence[TicketRow]) -> float:
    return sum(run.seconds for run in runs)


def cost_data(result: StudyResult) -> CostData:
    """Return the time of each machine.

    Raises:
        NothingToPlot: Nothing was trained.
    """
    spent: dict[str, list[TicketRow]] = {}
    for run in result.runs:
        if run.seconds > 0:
            spent.setdefault(run.machine or "not known", []).append(run)
    if not spent:
        raise NothingToPlot("Nothing has been trained yet.")
    names = sorted(spent, key=lambda name: _seconds(spent[name]), reverse=True)
    return CostData(machines={name: spent[name] for name in names}, gpu_seconds=result.cost.gpu_seconds)


def plot_cost(data: CostData) -> go.Figure:
    """Return a bar for each machine, divided by kind of run."""
    machines = list(data.machines.values())[:_MOST_BARS]
    names = [style.plain(name, 24) for name in list(data.machines)[:_MOST_BARS]]
    in_hours = max(map(_seconds, machines)) >= 5400
    unit, size = ("hours", 3600.0) if in_hours else ("minutes", 60.0)
    fig = style.figure(x=f"{unit} of training", height=140 + 36 * len(machines), barmode="stack")
    for kind, colour in _COLOURS.items():
        values = [_seconds([run for run in runs if run.kind == kind]) / size for runs in machines]
        if any(values):
            fig.add_trace(
                go.Bar(
                    y=list(range(len(machines))),
                    x=values,
                    orientation="h",
                    name=kind.replace("_", " "),
                    marker={"color": colour, "line": {"width": 0}},
                    customdata=names,
                    hovertemplate=f"%{{customdata}}, {kind}: %{{x:.3g}} {unit}<extra></extra>",
                )
            )
    style.label_bars(fig, names)
    return fig

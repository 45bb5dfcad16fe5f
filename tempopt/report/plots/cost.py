"""Where the time went: training hours by machine and by kind of run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.formatting import duration
from tempopt.report.plots.style import (
    BASELINE,
    CONSTANT,
    SECONDARY,
    SEQUENTIAL,
    WINNER,
    Table,
    figure,
    label_bars,
    plain,
)
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import KINDS, Kind, TicketRow

_COLOURS: Mapping[Kind, str] = {
    "baseline": BASELINE,
    "constant": CONSTANT,
    "search": WINNER,
    "choose": SECONDARY,
    "confirm": SEQUENTIAL[2],
    "ablation": SEQUENTIAL[1],
}
_MOST_BARS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCost:
    """What the runs of one machine took: training seconds by kind, and seconds of cards."""

    name: str
    devices: tuple[str, ...]
    runs: int
    seconds: Mapping[str, float]
    gpu_seconds: float

    @property
    def total(self) -> float:
        """Training seconds of all its runs."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CostShown:
    """What a study took, by machine, the busiest first."""

    machines: tuple[MachineCost, ...]
    gpu_seconds: float | None

    def caption(self) -> str:
        """Return how to read it and what it says."""
        total = sum(machine.total for machine in self.machines)
        count = "one machine" if len(self.machines) == 1 else f"{len(self.machines)} machines"
        text = f"{duration(total)} of training on {count}"
        if self.gpu_seconds is not None:
            text += f", {duration(self.gpu_seconds)} of GPUs, a share of a GPU counting as that share"
        text += ". A run that was tried on several machines counts for the last."
        return text

    def table(self) -> Table:
        """Return a row for each machine."""
        rows = tuple(
            (
                machine.name,
                ", ".join(machine.devices) or None,
                machine.runs,
                machine.total / 3600,
                machine.gpu_seconds / 3600,
            )
            for machine in self.machines
        )
        return Table(columns=("machine", "devices", "runs", "hours of training", "GPU-hours"), rows=rows)


def cost_data(result: StudyResult) -> CostShown:
    """Return what each machine spent.

    Raises:
        NothingToPlot: Nothing was trained.
    """
    spent: dict[str, list[TicketRow]] = {}
    for run in result.runs:
        if run.seconds > 0:
            spent.setdefault(machine_of(run), []).append(run)
    if not spent:
        raise NothingToPlot("Nothing has been trained yet.")
    machines = [_machine(name, runs) for name, runs in spent.items()]
    return CostShown(
        machines=tuple(sorted(machines, key=lambda machine: machine.total, reverse=True)),
        gpu_seconds=result.cost.gpu_seconds,
    )


def machine_of(run: TicketRow) -> str:
    """Return the machine of a run's latest attempt, as far as it is known."""
    if run.machine is not None:
        return run.machine
    # what an older tempopt trained: agents are named after their machine
    return run.agent.partition(":")[0] if run.agent else "not known"


def _machine(name: str, runs: list[TicketRow]) -> MachineCost:
    return MachineCost(
        name=name,
        devices=tuple(sorted({run.device for run in runs if run.device is not None})),
        runs=len(runs),
        seconds={kind: sum(r.seconds for r in runs if r.kind == kind) for kind in KINDS},
        gpu_seconds=sum(run.gpu_seconds for run in runs),
    )


def plot_cost(data: CostShown) -> go.Figure:
    """Return a bar for each machine, parted by kind of run."""
    machines = data.machines[:_MOST_BARS]
    names = [plain(machine.name, 24) for machine in machines]
    unit, size = (
        ("hours", 3600.0) if max(machine.total for machine in machines) >= 5400 else ("minutes", 60.0)
    )
    fig = figure(x=f"{unit} of training", height=140 + 36 * len(machines), barmode="stack")
    for kind, colour in _COLOURS.items():
        values = [machine.seconds[kind] / size for machine in machines]
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
    label_bars(fig, names)
    return fig

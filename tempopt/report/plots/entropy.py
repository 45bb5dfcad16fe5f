"""The entropy of attention during training, by layer and head: winner beside baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tempopt.attention.analysis.diagnose import Anomaly, anomalies
from tempopt.attention.analysis.histories import HeadHistory, MonitorReport
from tempopt.attention.analysis.outliers import FALSE_ALARMS, MIN_PEERS
from tempopt.errors import NothingToPlot
from tempopt.report.formatting import baseline_label
from tempopt.report.plots import style
from tempopt.report.plots.confirmation import confirming_runs
from tempopt.report.plots.temperatures import values_by_name_and_step
from tempopt.report.study_result import StudyResult

Head = tuple[int, int]
_ARMS = ("search", "baseline")
_MAX_LAYERS = 8
_MAX_HEADS = 64
_MAX_FINDINGS = 4
_MAX_ROWS = 60
_LINES_HEIGHT = 260
_CHANCE = f"Of models in which no head is unusual, about {100 * FALSE_ALARMS:.0f} % are said to have one."


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyData:
    """Mean attention entropy over the confirmation's runs, as a share of ln n in [0, 1].

    Args:
        steps: Optimizer steps.
        label: Name of the baseline in one word.
        shares_by_arm: Arm (``search``, ``baseline``) to (layer, head) to the share at each step, NaN if it
            was not measured. Heads without measurements are left out.
    """

    steps: tuple[int, ...]
    label: str
    shares_by_arm: Mapping[str, Mapping[Head, tuple[float, ...]]]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that were measured."""
        return tuple(sorted({layer for heads in self.shares_by_arm.values() for layer, _ in heads}))

    def name(self, arm: str) -> str:
        """Return the name of an arm."""
        return "winner" if arm == "search" else self.label

    def layer(self, arm: str, layer: int) -> tuple[float, ...]:
        """Return the mean over the heads of a layer at each step."""
        rows = [row for (row_layer, _), row in self.shares_by_arm[arm].items() if row_layer == layer]
        return tuple(_mean(column) for column in zip(*rows, strict=True)) if rows else ()

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        text = (
            "100 % is attention spread evenly over all keys, 0 % attention on one. Above, the mean over the "
            f"heads of a layer: solid is the winner, dashed {self.label}; the thicker a line, the deeper its "
            "layer."
        )
        ends = [
            f"{100 * _mean([next(v for v in reversed(row) if v == v) for row in rows.values()]):.0f} %"
            for rows in self.shares_by_arm.values()
        ]
        if len(ends) == 2:
            text += f" At the end the winner is at {ends[0]} and {self.label} at {ends[1]}."
        text += " Below, each row is a head: the darker (on dark ground: the lighter), the more even."
        num_heads = len({head for arm in self.shares_by_arm.values() for head in arm})
        if num_heads > _MAX_HEADS:
            text += f" {_MAX_HEADS} of {num_heads} heads are drawn."
        return f"{text} {self._anomalies_text()}"

    def findings(self) -> dict[str, list[Anomaly]]:
        """Return unusual layers and heads, by arm."""
        return {arm: anomalies(self._monitor_report(arm)) for arm in self.shares_by_arm}

    def _monitor_report(self, arm: str) -> MonitorReport:
        histories = []
        for (layer, head), row in self.shares_by_arm[arm].items():
            points = [(s, v) for s, v in zip(self.steps, row, strict=True) if math.isfinite(v)]
            steps, values = zip(*points, strict=True)
            head_fields: dict[str, Any] = {"statistic": "entropy", "layer": layer, "head": head}
            histories.append(HeadHistory(**head_fields, first=values[0], steps=steps, values=values))
        return MonitorReport(histories=tuple(histories))

    def _anomalies_text(self) -> str:
        findings = [(arm, finding) for arm, of_arm in self.findings().items() for finding in of_arm]
        if not findings:
            num_heads = min(map(len, self.shares_by_arm.values()))
            hint = "There are too few heads to compare them." if num_heads <= MIN_PEERS else _CHANCE
            return f"No layer and no head is unusual. {hint}"
        evidence: dict[tuple[str, str], list[str]] = {}
        for arm, finding in findings[:_MAX_FINDINGS]:
            evidence.setdefault((self.name(arm), finding.advice), []).append(finding.evidence)
        sentences = [f"{name}: {' '.join(texts)} {advice}" for (name, advice), texts in evidence.items()]
        num_more = len(findings) - _MAX_FINDINGS
        remainder = f" And {num_more} more." if num_more > 0 else ""
        return f"Worth a look: {' '.join(sentences)}{remainder} {_CHANCE}"

    def table(self) -> style.Table:
        """Return the entropy of each head at the start and at the end."""
        rows = tuple(
            (self.name(arm), f"{layer}.{head}", *(v if v == v else None for v in (row[0], row[-1])))
            for arm, shares_by_head in self.shares_by_arm.items()
            for (layer, head), row in sorted(shares_by_head.items())
        )
        return style.Table(columns=("arm", "head", "at first", "at last"), rows=rows[:_MAX_ROWS])


def _mean(values: Sequence[float]) -> float:
    finite_values = [value for value in values if math.isfinite(value)]
    return fmean(finite_values) if finite_values else math.nan


def entropy_data(result: StudyResult) -> EntropyData:
    """Return the entropies measured in the confirmation's runs.

    Raises:
        NothingToPlot: None did.
    """
    points: dict[str, dict[Head, dict[int, list[float]]]] = {}
    for arm in _ARMS:
        runs = confirming_runs(result, arm)
        for name, of_head in values_by_name_and_step(result, runs, "entropy/").items():
            layer, head = name.split("/")
            points.setdefault(arm, {})[int(layer), int(head)] = of_head
    if not points:
        raise NothingToPlot(
            "No entropy was measured: the confirmation has not begun, its attention was no number, or the "
            "way in which this model is tempered cannot see its attention weights."
        )
    steps = sorted({step for heads in points.values() for of_head in heads.values() for step in of_head})
    shares_by_arm = {
        arm: {
            head: tuple(_mean(of_head.get(step, [])) for step in steps)
            for head, of_head in sorted(heads.items())
        }
        for arm, heads in points.items()
    }
    return EntropyData(steps=tuple(steps), label=baseline_label(result.spec), shares_by_arm=shares_by_arm)


def plot_entropy(data: EntropyData) -> go.Figure:
    """Return a line for each layer and arm; below, a map of heads over steps for each arm."""
    arms = list(data.shares_by_arm)
    heads = sorted({head for arm in arms for head in data.shares_by_arm[arm]})
    shown_heads = [heads[index] for index in style.evenly(len(heads), _MAX_HEADS)]
    map_height = 50 + 16 * min(len(shown_heads), 24)
    fig = make_subplots(
        rows=1 + len(arms),
        cols=1,
        shared_xaxes="all",
        row_heights=[_LINES_HEIGHT, *([map_height] * len(arms))],
        subplot_titles=["", *(data.name(arm) for arm in arms)],
        vertical_spacing=0.4 / (4 + len(arms)),
    )
    for line in _layer_lines(data):
        fig.add_trace(line, row=1, col=1)
    for row, arm in enumerate(arms, start=2):
        fig.add_trace(_head_map(data, arm, shown_heads), row=row, col=1)
    fig.update_layout(
        template=style.TEMPLATE,
        height=120 + _LINES_HEIGHT + len(arms) * (30 + map_height),
        coloraxis={
            "cmin": 0,
            "cmax": 1,
            "colorscale": style.scale(style.SEQUENTIAL),
            "colorbar": {"thickness": 12, "outlinewidth": 0, "tickformat": ".0%", "y": 0.3, "len": 0.6},
        },
    )
    fig.update_annotations(font={"size": 13, "color": style.QUIET})
    fig.update_yaxes(type="category", autorange="reversed", showgrid=False, title={"text": "head"})
    fig.update_yaxes(
        type="linear",
        autorange=True,
        showgrid=True,
        title={"text": "share of ln n"},
        tickformat=".0%",
        rangemode="tozero",
        row=1,
        col=1,
    )
    fig.update_xaxes(title={"text": "training step"}, row=1 + len(arms), col=1)
    return fig


def _head_map(data: EntropyData, arm: str, shown_heads: Sequence[Head]) -> go.Heatmap:
    missing_values = (math.nan,) * len(data.steps)
    return go.Heatmap(
        x=np.array(data.steps, dtype=np.int32),
        y=[f"{layer}.{head}" for layer, head in shown_heads],
        z=np.array(
            [data.shares_by_arm[arm].get(head, missing_values) for head in shown_heads], dtype=np.float32
        ).round(4),
        coloraxis="coloraxis",
        hovertemplate=f"{data.name(arm)}, head %{{y}}, step %{{x}}: %{{z:.1%}}<extra></extra>",
    )


def _layer_lines(data: EntropyData) -> list[go.Scatter]:
    layers = [data.layers[index] for index in style.evenly(len(data.layers), _MAX_LAYERS)]
    traces = []
    for arm, colour, dash in (("search", style.WINNER, "solid"), ("baseline", style.BASELINE, "dash")):
        for index, layer in enumerate(layers if arm in data.shares_by_arm else ()):
            if not (values := data.layer(arm, layer)):
                continue
            trace = style.lines(
                np.array(data.steps, dtype=np.int32),
                np.array(values, dtype=np.float32),
                data.name(arm),
                colour,
                # the first layer is thin, the last thick; colour and dash show the arm
                width=1.2 + 2.3 * index / max(1, len(layers) - 1),
                mode="lines+markers",
                line={"dash": dash},
                marker={"color": colour, "size": 3},
                showlegend=layer == layers[-1],
                hovertemplate=f"{data.name(arm)}, layer {layer}, step %{{x}}: %{{y:.1%}}<extra></extra>",
                connectgaps=True,
            )
            traces.append(trace)
    return traces

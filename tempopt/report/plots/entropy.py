"""How spread out attention was while it was trained: entropy by layer and head, winner beside baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tempopt.attention.analysis.diagnose import Finding, anomalies
from tempopt.attention.analysis.histories import HeadHistory, MonitorReport
from tempopt.attention.analysis.outliers import FALSE_ALARMS, FEWEST_PEERS
from tempopt.errors import NothingToPlot
from tempopt.records.tickets import arms_of
from tempopt.report.plots.base import Table
from tempopt.report.plots.confirming import confirming
from tempopt.report.plots.style import (
    BASELINE,
    QUIET,
    SEQUENTIAL,
    TEMPLATE,
    WINNER,
    evenly,
    figure,
    scale,
)
from tempopt.results.study_result import StudyResult
from tempopt.results.wording import baseline_label

Head = tuple[int, int]
_ARMS = ("search", "baseline")
_MOST_LAYERS = 8
_MOST_HEADS = 64
_MOST_FINDINGS = 4
_ROWS = 60
_CHANCE = f"Of models in which no head is unusual, about {100 * FALSE_ALARMS:.0f} % are said to have one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Entropies:
    """Mean attention entropy over the confirmation's runs, as a share of ln n in [0, 1].

    Args:
        steps: Optimizer steps.
        label: What the baseline is called in a word.
        heads: Arm (``search``, ``baseline``) to layer and head to the share at each step, NaN where it
            was not measured; what was never measured is not in it.
        runs: Arm to number of runs that were measured.
    """

    steps: tuple[int, ...]
    label: str
    heads: Mapping[str, Mapping[Head, tuple[float, ...]]]
    runs: Mapping[str, int]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that were measured."""
        return tuple(sorted({layer for heads in self.heads.values() for layer, _ in heads}))

    def name(self, arm: str) -> str:
        """Return what an arm is called."""
        return "winner" if arm == "search" else self.label

    def layer(self, arm: str, layer: int) -> tuple[float, ...]:
        """Return the mean over the heads of a layer at each step."""
        rows = [row for (of, _), row in self.heads[arm].items() if of == layer]
        return tuple(_mean(column) for column in zip(*rows, strict=True)) if rows else ()

    def caption(self) -> str:
        """Return how to read it and what it says."""
        text = "Mean over the heads of a layer and over the confirmation's runs; 100 % is attention spread "
        text += f"evenly over all keys, 0 % attention on one. Solid is the winner, dashed {self.label};"
        text += " the thicker a line, the deeper its layer."
        ends = {arm: self._end(arm) for arm in self.heads}
        if len(ends) == 2:
            text += f" At the end the winner is at {100 * ends['search']:.0f} % and {self.label} at "
            text += f"{100 * ends['baseline']:.0f} %."
        return text

    def _end(self, arm: str) -> float:
        return _mean([next(v for v in reversed(row) if v == v) for row in self.heads[arm].values()])

    def table(self) -> Table:
        """Return each layer at a few steps."""
        rows = tuple(
            (
                self.name(arm),
                layer,
                self.steps[place],
                values[place] if values[place] == values[place] else None,
            )
            for arm in self.heads
            for layer in self.layers
            if (values := self.layer(arm, layer))
            for place in evenly(len(self.steps), 5)
        )
        return Table(columns=("arm", "layer", "step", "entropy / ln n"), rows=rows[:_ROWS])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadEntropies:
    """The same, head by head."""

    entropies: Entropies

    def caption(self) -> str:
        """Return how to read it and what it says."""
        heads = len({head for arm in self.entropies.heads.values() for head in arm})
        text = "A row is a head (layer.head), training runs from left to right; the darker (on dark ground: "
        text += "the lighter), the more evenly it attends. "
        ends = {arm: self._most_even(arm) for arm in self.entropies.heads}
        told = [
            f"{layer}.{head} of {self.entropies.name(arm)} at {100 * v:.0f} %"
            for arm, ((layer, head), v) in ends.items()
        ]
        text += f"Most even at the end: {', '.join(told)}."
        if heads > _MOST_HEADS:
            text += f" {_MOST_HEADS} of {heads} heads are drawn."
        return f"{text} {self._unusual()}"

    def findings(self) -> dict[str, list[Finding]]:
        """Return what is unusual about layers and heads, by arm."""
        return {arm: anomalies(self._history(arm)) for arm in self.entropies.heads}

    def _history(self, arm: str) -> MonitorReport:
        histories = []
        for (layer, head), row in self.entropies.heads[arm].items():
            known = [(s, v) for s, v in zip(self.entropies.steps, row, strict=True) if math.isfinite(v)]
            steps, values = zip(*known, strict=True)
            histories.append(
                HeadHistory(
                    statistic="entropy", layer=layer, head=head, first=values[0], steps=steps, values=values
                )
            )
        return MonitorReport(histories=tuple(histories))

    def _unusual(self) -> str:
        findings = [(arm, each) for arm, of in self.findings().items() for each in of]
        if not findings:
            heads = min(map(len, self.entropies.heads.values()))
            few = "There are too few heads to compare them." if heads <= FEWEST_PEERS else _CHANCE
            return f"No layer and no head is unusual. {few}"
        seen: dict[tuple[str, str], list[str]] = {}
        for arm, each in findings[:_MOST_FINDINGS]:
            seen.setdefault((self.entropies.name(arm), each.advice), []).append(each.evidence)
        told = [f"{name}: {' '.join(evidence)} {advice}" for (name, advice), evidence in seen.items()]
        left = len(findings) - _MOST_FINDINGS
        more = f" And {left} more." if left > 0 else ""
        return f"Worth a look: {' '.join(told)}{more} {_CHANCE}"

    def _most_even(self, arm: str) -> tuple[Head, float]:
        ends = {
            head: next(value for value in reversed(row) if value == value)
            for head, row in self.entropies.heads[arm].items()
        }
        head = max(ends, key=lambda each: ends[each])
        return head, ends[head]

    def table(self) -> Table:
        """Return each head's entropy at first and at last."""
        rows = tuple(
            (
                self.entropies.name(arm),
                f"{layer}.{head}",
                *(value if value == value else None for value in (row[0], row[-1])),
            )
            for arm, heads in self.entropies.heads.items()
            for (layer, head), row in sorted(heads.items())
        )
        return Table(columns=("arm", "head", "at first", "at last"), rows=rows[:_ROWS])


def _mean(values: tuple[float, ...] | list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else math.nan


def entropy_data(result: StudyResult) -> Entropies:
    """Return the entropies that the confirmation's runs measured.

    Raises:
        NothingToPlot: None did.
    """
    found: dict[str, dict[Head, dict[int, list[float]]]] = {}
    measured_runs = dict.fromkeys(_ARMS, 0)
    for run in confirming(result):
        arms = [arm for arm in _ARMS if arm in arms_of(run)]
        if not arms:
            continue
        measured = {n: c for n, c in result.measured.get(run.id, {}).items() if n.startswith("entropy/")}
        # a head of which every number is lost has nothing to show, and no end to tell of
        curves = {n: c for n, c in measured.items() if any(math.isfinite(value) for _, value in c)}
        for arm in arms:
            measured_runs[arm] += bool(curves)
            for name, curve in curves.items():
                _, layer, head = name.split("/")
                own = found.setdefault(arm, {}).setdefault((int(layer), int(head)), {})
                for step, value in curve:
                    own.setdefault(step, []).append(value)
    if not found:
        raise NothingToPlot(
            "No entropy was measured: the confirmation has not begun, its attention was no number, or the "
            "way in which this model is tempered cannot see its attention weights."
        )
    steps = sorted({step for arm in found.values() for head in arm.values() for step in head})
    return Entropies(
        steps=tuple(steps),
        label=baseline_label(result.spec),
        heads={
            arm: {
                head: tuple(_mean(points.get(step, [])) for step in steps)
                for head, points in sorted(found[arm].items())
            }
            for arm in _ARMS
            if arm in found
        },
        runs={arm: count for arm, count in measured_runs.items() if count},
    )


def heads_data(result: StudyResult) -> HeadEntropies:
    """Return the entropies head by head; raises as :func:`entropy_data`."""
    return HeadEntropies(entropies=entropy_data(result))


def plot_entropy(data: Entropies) -> go.Figure:
    """Return a line for each layer and arm."""
    made = figure(x="training step", y="entropy, share of ln n", height=380)
    layers = [data.layers[place] for place in evenly(len(data.layers), _MOST_LAYERS)]
    for arm, colour, dash in (("search", WINNER, "solid"), ("baseline", BASELINE, "dash")):
        if arm not in data.heads:
            continue
        for place, layer in enumerate(layers):
            if not (values := data.layer(arm, layer)):
                continue
            made.add_trace(
                go.Scatter(
                    x=np.array(data.steps, dtype=np.int32),
                    y=np.array(values, dtype=np.float32),
                    mode="lines+markers",
                    # the first layer thin, the last thick: colour and dash say which arm
                    line={
                        "color": colour,
                        "dash": dash,
                        "width": 1.2 + 2.3 * place / max(1, len(layers) - 1),
                    },
                    marker={"color": colour, "size": 3},
                    name=data.name(arm),
                    showlegend=layer == layers[-1],
                    hovertemplate=f"{data.name(arm)}, layer {layer}, step %{{x}}: %{{y:.1%}}<extra></extra>",
                    connectgaps=True,
                )
            )
    made.update_yaxes(tickformat=".0%", rangemode="tozero")
    return made


def plot_heads(data: HeadEntropies) -> go.Figure:
    """Return a map of head and step for each arm, one above the other."""
    arms = list(data.entropies.heads)
    heads = sorted({head for arm in arms for head in data.entropies.heads[arm]})
    shown = [heads[place] for place in evenly(len(heads), _MOST_HEADS)]
    titles = [data.entropies.name(arm) for arm in arms]
    made = make_subplots(
        rows=len(arms), cols=1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.12
    )
    empty = (math.nan,) * len(data.entropies.steps)
    for row, arm in enumerate(arms, start=1):
        of, name = data.entropies.heads[arm], data.entropies.name(arm)
        made.add_trace(
            go.Heatmap(
                x=np.array(data.entropies.steps, dtype=np.int32),
                y=[f"{layer}.{head}" for layer, head in shown],
                z=np.array([of.get(head, empty) for head in shown], dtype=np.float32).round(4),
                coloraxis="coloraxis",
                hovertemplate=f"{name}, head %{{y}}, step %{{x}}: %{{z:.1%}}<extra></extra>",
            ),
            row=row,
            col=1,
        )
    made.update_layout(
        template=TEMPLATE,
        height=120 + len(arms) * (70 + 16 * min(len(shown), 24)),
        margin={"t": 36},
        coloraxis={
            "cmin": 0,
            "cmax": 1,
            "colorscale": scale(SEQUENTIAL),
            "colorbar": {"thickness": 12, "outlinewidth": 0, "tickformat": ".0%"},
        },
    )
    made.update_annotations(font={"size": 13, "color": QUIET})
    made.update_yaxes(type="category", autorange="reversed", showgrid=False, title={"text": "head"})
    made.update_xaxes(showgrid=False)
    made.update_xaxes(title={"text": "training step"}, row=len(arms), col=1)
    return made

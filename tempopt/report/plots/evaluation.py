"""A trained model evaluated at other temperatures (``study.evaluate_only``): the metric at each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from tempopt.confirmation.evaluated import Evaluated
from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Cell, Table
from tempopt.report.plots.inference import InferenceShown, inference_data, plot_inference
from tempopt.report.plots.style import (
    BASELINE,
    CONSTANT,
    GROUND,
    WINNER,
    WINNER_BAND,
    figure,
    label,
    number,
    plain,
    temperature_axis,
)
from tempopt.results.study_result import StudyResult
from tempopt.temperature import NEUTRAL, effective

_AXES = {"temperature_init": "τ at inference", "output_temperature": "output temperature at inference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPoint:
    """The model at one temperature, on the validation data.

    Args:
        temperature: The temperature of the axis.
        value: The metric.
        low: Lower end of the interval: the value at τ = 1 and the interval of the difference; None: none.
        high: Upper end.
        alone: Whether nothing else is set than the temperature of the axis.
        params: The parameter set.
    """

    temperature: float
    value: float
    low: float | None
    high: float | None
    alone: bool
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationShown:
    """The metric of a trained model over the temperature that it is evaluated at.

    Args:
        metric: Name of the metric.
        axis: Parameter that is the temperature of the axis.
        points: On the validation data, by temperature.
        at_one: The metric at τ = 1 on the validation data.
        found: What the evaluations have found.
    """

    metric: str
    axis: str
    points: tuple[EvaluationPoint, ...]
    at_one: float
    found: Evaluated

    @property
    def has_intervals(self) -> bool:
        """Whether there is an interval at the points."""
        return any(each.low is not None for each in self.points)

    def caption(self) -> str:
        """Return how to read it and what it says."""
        found = self.found
        text = (
            "The trained model on the validation data, evaluated at each temperature. Dashed: at τ = 1. The "
            "star is the temperature that was chosen."
        )
        if self.has_intervals:
            sure = f"{100 * found.confidence:.4g} %"
            text += (
                f" The band is the value at τ = 1 and the {sure} interval of the difference from it, for "
                "each temperature by itself, of this checkpoint over data: where it holds the dashed line, "
                "no difference is shown."
            )
        if not all(each.alone for each in self.points):
            text += " Points off the line have other settings as well."
        if found.on == "test":
            text += (
                f" On the test data the model has {number(found.value_at_one)} at τ = 1 and "
                f"{number(found.value)} at the star (squares)."
            )
        return text

    def table(self) -> Table:
        """Return the metric at each temperature."""
        rows: list[tuple[Cell, ...]] = [
            ("validation", each.temperature, each.value, each.low, each.high) for each in self.points
        ]
        if self.found.on == "test":
            chosen = float(self.found.params.get(self.axis, NEUTRAL[self.axis]))
            rows.append(("test", 1.0, self.found.value_at_one, None, None))
            if not self.found.at_one:
                rows.append(("test", chosen, self.found.value, None, None))
        return Table(columns=("data", "τ", self.metric, "low", "high"), rows=tuple(rows))


def evaluation_data(result: StudyResult) -> EvaluationShown:
    """Return the metric at each temperature that a trained model was evaluated at.

    Raises:
        NothingToPlot: τ = 1 was not evaluated yet, or no temperature is searched.
    """
    found = result.evaluated
    if found is None:
        raise NothingToPlot("The model has not been evaluated at τ = 1 yet.")
    axis = next((name for name in _AXES if name in result.spec.search), None)
    if axis is None:
        raise NothingToPlot("No temperature is searched that could be an axis.")
    sign = 1.0 if result.direction == "maximize" else -1.0
    points: dict[str, EvaluationPoint] = {}
    for each in found.curve:
        params = effective(each.params)
        ends: list[float | None] = [None, None]
        if each.interval is not None:
            shifts = (sign * each.interval.low, sign * each.interval.high)
            ends = sorted(found.chosen_at_one + shift for shift in shifts)  # type: ignore[assignment]
        # τ = 1 and a trial there are the same point
        points[repr(sorted(params.items()))] = EvaluationPoint(
            temperature=float(params.get(axis, NEUTRAL[axis])),
            value=each.value,
            low=ends[0],
            high=ends[1],
            alone=all(name == axis or NEUTRAL.get(name) == value for name, value in params.items()),
            params=params,
        )
    return EvaluationShown(
        metric=result.metric,
        axis=axis,
        points=tuple(sorted(points.values(), key=lambda each: each.temperature)),
        at_one=found.chosen_at_one,
        found=found,
    )


def plot_evaluation(data: EvaluationShown) -> go.Figure:
    """Return the line of value over temperature with its band, τ = 1 and what was chosen."""
    shown = [*(each.temperature for each in data.points), 1.0]
    made = figure(x=_AXES[data.axis], y=data.metric, height=400)
    line = [each for each in data.points if each.alone]
    others = [each for each in data.points if not each.alone]
    band = [each for each in line if each.low is not None]
    if band:
        made.add_trace(_band(band))
    made.add_trace(
        go.Scatter(
            x=[min(shown), max(shown)],
            y=[data.at_one] * 2,
            mode="lines",
            line={"color": BASELINE, "width": 1.5, "dash": "dash"},
            name="τ = 1",
            hovertemplate="τ = 1: %{y:.4g}<extra></extra>",
        )
    )
    for points, mode, name in (
        (line, "lines+markers", "validation data"),
        (others, "markers", "other settings"),
    ):
        if points:
            made.add_trace(_points(points, mode, name))
    chosen = float(data.found.params.get(data.axis, NEUTRAL[data.axis]))
    made.add_trace(_mark([chosen], [data.found.chosen], "chosen", WINNER, "star", 15))
    if data.found.on == "test":
        taus, values = [1.0, chosen], [data.found.value_at_one, data.found.value]
        last = 1 if data.found.at_one else 2
        made.add_trace(_mark(taus[:last], values[:last], "test data", CONSTANT, "square", 9))
    made.update_xaxes(**temperature_axis(shown))
    return made


def _band(points: list[EvaluationPoint]) -> go.Scatter:
    taus = [each.temperature for each in points]
    return go.Scatter(
        x=[*taus, *reversed(taus)],
        y=[*(each.low for each in points), *(each.high for each in reversed(points))],
        fill="toself",
        fillcolor=WINNER_BAND,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        showlegend=False,
    )


def _points(points: list[EvaluationPoint], mode: str, name: str) -> go.Scatter:
    bars: dict[str, Any] = {}
    if mode == "markers" and all(each.low is not None for each in points):
        bars["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [(each.high or 0.0) - each.value for each in points],
            "arrayminus": [each.value - (each.low or 0.0) for each in points],
            "color": CONSTANT,
            "thickness": 1,
            "width": 0,
        }
    colour = WINNER if mode != "markers" else CONSTANT
    return go.Scatter(
        x=[each.temperature for each in points],
        y=[each.value for each in points],
        mode=mode,
        line={"color": colour, "width": 2},
        marker={"color": colour, "size": 5},
        name=name,
        text=[label(each.params) for each in points],
        hovertemplate="%{y:.4g}<br>%{text}<extra></extra>",
        **bars,
    )


def _mark(
    taus: list[float], values: list[float], name: str, colour: str, symbol: str, size: int
) -> go.Scatter:
    return go.Scatter(
        x=taus,
        y=values,
        mode="markers",
        marker={"color": colour, "size": size, "symbol": symbol, "line": {"width": 1.5, "color": GROUND}},
        name=name,
        hovertemplate=f"{plain(name)}, τ = %{{x:.4g}}: %{{y:.4g}}<extra></extra>",
    )


def at_inference_data(result: StudyResult) -> EvaluationShown | InferenceShown:
    """Return :func:`evaluation_data` of a trained model, else :func:`inference_data`; errors as there."""
    return inference_data(result) if result.spec.confirms else evaluation_data(result)


def plot_at_inference(data: EvaluationShown | InferenceShown) -> go.Figure:
    """Return the drawing of either."""
    return plot_evaluation(data) if isinstance(data, EvaluationShown) else plot_inference(data)

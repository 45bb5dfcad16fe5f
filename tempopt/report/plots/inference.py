"""Trained models evaluated at other temperatures: what the baseline's and the winner's reach at each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from tempopt.confirmation.evaluations import WINNER as WINNERS_PLAN
from tempopt.confirmation.inference import AS_TRAINED, Tuned
from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Cell, Table
from tempopt.report.plots.style import BASELINE, GROUND, WINNER, figure, number, plain, temperature_axis
from tempopt.results.study_result import StudyResult
from tempopt.results.wording import plan_text
from tempopt.temperature import TemperatureParameters

_CONSTANT = "constant="
_SCALED = ",length_scaling="
_NAMED = {"search": "winner", "baseline": "τ = 1"}
_COLOURS = {"search": WINNER, "baseline": BASELINE}
_LINES = ("solid", "dot", "dashdot")

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsShown:
    """The models of one arm, evaluated at other temperatures than they were trained with.

    Args:
        curves: Length scaling (``none``, or its name) to constant temperature and mean value, by temperature.
        as_trained: Mean value at their own temperature.
        own: The temperature that they were trained with at last.
        winners: Mean value under the winner's final plan, None where that is their own.
        picked: What the picked plan is called, its temperature and its mean value.
    """

    curves: Mapping[str, Points]
    as_trained: float
    own: float
    winners: float | None
    picked: tuple[str, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceShown:
    """Means on the validation data over the confirming seeds, by temperature at inference.

    Args:
        metric: Name of the metric.
        direction: Which values are better.
        arms: Arm (``baseline``, ``search``) to its models.
        last: The winner's last temperature.
        tested: Whether gains are counted on other data than the best temperature is picked on.
    """

    metric: str
    direction: str
    arms: Mapping[str, ModelsShown]
    last: float
    tested: bool

    def caption(self) -> str:
        """Return how to read it and what it says."""
        text = (
            "Trained models, evaluated at constant temperatures that they were not trained with: the mean on "
            "the validation data. Dashed: the same models as they were trained. A star is what was picked."
        )
        scalings = sorted({name for models in self.arms.values() for name in models.curves} - {"none"})
        if scalings:
            text += f" Dotted lines have length scaling as well ({', '.join(scalings)})."
        for arm, models in self.arms.items():
            name = "The winner's models" if arm == "search" else "Models trained at τ = 1"
            plan, _, value = models.picked
            if plan == AS_TRAINED:
                text += f" {name} do best at the temperature of their training."
            else:
                text += (
                    f" {name} do best at {plan_text(plan)}: {number(value)} in place of "
                    f"{number(models.as_trained)}."
                )
        if self.tested:
            text += " What that gains is counted on the test data."
        return text

    def table(self) -> Table:
        """Return each temperature's mean value for each arm."""
        rows: list[tuple[Cell, ...]] = []
        for arm, models in self.arms.items():
            rows.append((_NAMED[arm], "as trained", None, models.as_trained))
            if models.winners is not None:
                rows.append((_NAMED[arm], "the winner's final plan", None, models.winners))
            for scaling, points in models.curves.items():
                rows += [(_NAMED[arm], scaling, tau, value) for tau, value in points]
        return Table(columns=("models", "length scaling", "τ", self.metric), rows=tuple(rows))


def inference_data(result: StudyResult) -> InferenceShown:
    """Return what the models of baseline and winner are worth at each temperature.

    Raises:
        NothingToPlot: Nothing is confirmed, or no model was evaluated at another temperature, as where only
            named temperatures are searched.
    """
    verdict = result.verdict
    if not result.spec.attends:
        raise NothingToPlot("Not applicable: no temperature that an evaluation is known to read is searched.")
    if verdict is None or verdict.inference_only is None:
        raise NothingToPlot("No confirmed model has been evaluated at other temperatures yet.")
    last = _last(verdict.params)
    found = {"baseline": _models(verdict.inference_only.baseline, 1.0, last)}
    if verdict.inference_only.winner is not None and not verdict.at_one:
        found["search"] = _models(verdict.inference_only.winner, last, None)
    return InferenceShown(
        metric=result.metric,
        direction=result.direction,
        arms=found,
        last=last,
        tested=result.spec.study.confirm_on == "test",
    )


def _last(parameters: Mapping[str, object]) -> float:
    return TemperatureParameters.from_mapping(parameters).plan(1).schedule(1.0)


def _models(tuned: Tuned, own: float, winners: float | None) -> ModelsShown:
    curves: dict[str, list[tuple[float, float]]] = {}
    where = {AS_TRAINED: own, WINNERS_PLAN: own if winners is None else winners}
    for plan, value in tuned.curve.items():
        if plan.startswith(_CONSTANT):
            tau, _, scaling = plan.removeprefix(_CONSTANT).partition(_SCALED)
            where[plan] = float(tau)
            curves.setdefault(scaling or "none", []).append((float(tau), value))
    as_trained = tuned.curve[AS_TRAINED]
    if own == 1.0 and "none" in curves:
        # the grid has all but this
        curves["none"].append((own, as_trained))
    return ModelsShown(
        curves={name: tuple(sorted(points)) for name, points in curves.items()},
        as_trained=as_trained,
        own=own,
        winners=None if winners is None else tuned.curve.get(WINNERS_PLAN),
        picked=(tuned.plan, where[tuned.plan], tuned.curve[tuned.plan]),
    )


def plot_inference(data: InferenceShown) -> go.Figure:
    """Return a line of value over temperature for each arm, its own value as a dashed one."""
    taus = [tau for models in data.arms.values() for points in models.curves.values() for tau, _ in points]
    shown = [*taus, data.last, 1.0]
    made = figure(x="τ at inference", y=data.metric, height=400)
    ends = [min(shown), max(shown)]
    for arm, models in data.arms.items():
        made.add_trace(_reference(arm, models, ends))
        for place, (scaling, points) in enumerate(models.curves.items()):
            made.add_trace(_line(arm, scaling, points, _LINES[place % len(_LINES)]))
    for arm, models in data.arms.items():
        if models.winners is not None:
            said = plan_text(WINNERS_PLAN)
            made.add_trace(_mark(arm, data.last, models.winners, said, "diamond-open", 10))
        name, tau, value = models.picked
        made.add_trace(_mark(arm, tau, value, f"picked: {plan_text(name)}", "star", 15))
    made.update_xaxes(**temperature_axis(shown))
    return made


def _reference(arm: str, models: ModelsShown, ends: list[float]) -> go.Scatter:
    return go.Scatter(
        x=ends,
        y=[models.as_trained] * 2,
        mode="lines",
        line={"color": _COLOURS[arm], "width": 1.5, "dash": "dash"},
        showlegend=False,
        name=f"{_NAMED[arm]}, as trained",
        hovertemplate=f"{_NAMED[arm]}, as trained: %{{y:.4g}}<extra></extra>",
    )


def _line(arm: str, scaling: str, points: Points, dash: str) -> go.Scatter:
    name = f"{'winner' if arm == 'search' else 'trained at τ = 1'}"
    if scaling != "none":
        name += f", {plain(scaling)}"
    return go.Scatter(
        x=[tau for tau, _ in points],
        y=[value if math.isfinite(value) else None for _, value in points],
        mode="lines+markers",
        line={"color": _COLOURS[arm], "width": 2, "dash": dash},
        marker={"color": _COLOURS[arm], "size": 5},
        name=name,
        hovertemplate=f"{name}, evaluated at τ = %{{x:.4g}}: %{{y:.4g}}<extra></extra>",
    )


def _mark(arm: str, tau: float, value: float, said: str, symbol: str, size: int) -> go.Scatter:
    # what is filled lies on lines of its own colour
    line = {"width": 2} if symbol.endswith("-open") else {"width": 1.5, "color": GROUND}
    return go.Scatter(
        x=[tau],
        y=[value],
        mode="markers",
        marker={"color": _COLOURS[arm], "size": size, "symbol": symbol, "line": line},
        showlegend=False,
        name=plain(said),
        hovertemplate=f"{_NAMED[arm]}: %{{y:.4g}}<br>{plain(said)}<extra></extra>",
    )

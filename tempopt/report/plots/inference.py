"""Trained models evaluated at other temperatures: what the baseline's and the winner's reach at each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import plotly.graph_objects as go

from tempopt.confirmation.evaluations import WINNER as WINNERS_PLAN
from tempopt.confirmation.evaluations import ConstantPlan
from tempopt.confirmation.inference import AS_TRAINED, Tuned
from tempopt.confirmation.verdict import Verdict
from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Cell, Table
from tempopt.report.plots.style import BASELINE, GROUND, WINNER, figure, number, plain, temperature_axis
from tempopt.results.study_result import StudyResult
from tempopt.results.wording import baseline_label, baseline_name, plan_text
from tempopt.temperature import TemperatureParameters, neutral, own_parameters

_COLOURS = {"search": WINNER, "baseline": BASELINE}
_LINES = ("solid", "dot", "dashdot")

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsShown:
    """The models of one arm, evaluated at other temperatures than they were trained with.

    Args:
        curves: Temperature (attention's is the empty text) and length scaling (``none``, or its name) to
            constant temperature and mean value, by temperature.
        as_trained: Mean value at their own temperature.
        own: The temperature that they were trained with at last, the first one where there are several.
        winners: The winner's last temperature, the first one where there are several, and the mean value
            under its final plan; None where that is their own.
        picked: What the picked plan is called, its temperature and its mean value.
    """

    curves: Mapping[tuple[str, str], Points]
    as_trained: float
    own: float
    winners: tuple[float, float] | None
    picked: tuple[str, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceShown:
    """Means on the validation data over the confirming seeds, by temperature at inference.

    Args:
        metric: Name of the metric.
        direction: Which values are better.
        baseline: What the baseline is called, as a sentence says it.
        label: The same in a word.
        arms: Arm (``baseline``, ``search``) to its models.
        tested: Whether gains are counted on other data than the best temperature is picked on.
    """

    metric: str
    direction: str
    baseline: str
    label: str
    arms: Mapping[str, ModelsShown]
    tested: bool

    def caption(self) -> str:
        """Return how to read it and what it says."""
        text = (
            "Trained models, evaluated at constant temperatures that they were not trained with: the mean on "
            "the validation data. Dashed: the same models as they were trained. A star is what was picked."
        )
        shown = {each for models in self.arms.values() for each in models.curves}
        scalings = sorted({scaling for _, scaling in shown} - {"none"})
        if scalings:
            text += f" Dotted lines have length scaling as well ({', '.join(scalings)})."
        for arm, models in self.arms.items():
            name = "The winner's models" if arm == "search" else f"Models trained at {self.baseline}"
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

    def name(self, arm: str) -> str:
        """Return what the models of an arm are called."""
        return "winner" if arm == "search" else self.label

    def table(self) -> Table:
        """Return each temperature's mean value for each arm."""
        rows: list[tuple[Cell, ...]] = []
        for arm, models in self.arms.items():
            rows.append((self.name(arm), "as trained", None, models.as_trained))
            if models.winners is not None:
                rows.append((self.name(arm), "the winner's final plan", None, models.winners[1]))
            for (name, scaling), points in models.curves.items():
                rows += [(self.name(arm), name or scaling, tau, value) for tau, value in points]
        what = "temperature or length scaling" if self.named else "length scaling"
        return Table(columns=("models", what, self.axis, self.metric), rows=tuple(rows))

    @property
    def named(self) -> bool:
        """Whether a temperature that is not attention's was changed."""
        return any(name for models in self.arms.values() for name, _ in models.curves)

    @property
    def axis(self) -> str:
        """What the axis of the temperature is called."""
        return "temperature" if self.named else "τ"


def inference_data(result: StudyResult) -> InferenceShown:
    """Return what the models of baseline and winner are worth at each temperature.

    Raises:
        NothingToPlot: Nothing is confirmed, or no model was evaluated at another temperature, as where no
            evaluation reads those that are searched.
    """
    verdict = result.verdict
    if not result.spec.evaluated:
        raise NothingToPlot("Not applicable: no temperature that an evaluation is known to read is searched.")
    if verdict is None or verdict.inference_only is None:
        raise NothingToPlot("No confirmed model has been evaluated at other temperatures yet.")
    names = result.spec.evaluated
    one = neutral(verdict.params)
    found = {"baseline": _models(verdict.inference_only.baseline, _lasts(one, names), verdict.params)}
    if verdict.inference_only.winner is not None and not verdict.at_one:
        found["search"] = _models(verdict.inference_only.winner, _winners_lasts(verdict, names), None)
    return InferenceShown(
        metric=result.metric,
        direction=result.direction,
        baseline=baseline_name(result.spec),
        label=baseline_label(result.spec),
        arms=found,
        tested=result.spec.study.confirm_on == "test",
    )


def _lasts(parameters: Mapping[str, object], names: Sequence[str]) -> dict[str, float]:
    """Return the last temperature of a training by name."""
    plans = {name: TemperatureParameters.from_mapping(own_parameters(parameters, name)) for name in names}
    return {name: plan.plan(1).schedule(1.0) for name, plan in plans.items()}


def _winners_lasts(verdict: Verdict, names: Sequence[str]) -> dict[str, float]:
    """Return them of the winner, which may have been measured: the geometric mean over layers and runs."""
    found = _lasts(verdict.params, names)
    if "" in found and verdict.controlled:
        found[""] = geometric_mean(mean for mean, _, _ in verdict.controlled.values())
    return found


def _models(tuned: Tuned, own: Mapping[str, float], winner: Mapping[str, object] | None) -> ModelsShown:
    """Return the models of one arm.

    Args:
        tuned: What they reach at each temperature.
        own: The last temperatures of their training, by name.
        winner: The winner's parameters, None for the winner's own models.
    """
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    as_trained = tuned.curve[AS_TRAINED]
    for plan, value in tuned.curve.items():
        constant = ConstantPlan.of(plan)
        if constant is not None:
            curve = curves.setdefault((constant.temperature, constant.length_scaling), [])
            curve.append((constant.tau, value))
    first = next(iter(own.values()))
    winners = None
    if winner is not None:
        # the grid has all but what the baseline was trained at
        for name in own:
            if (name, "none") in curves:
                curves[name, "none"].append((own[name], as_trained))
        if WINNERS_PLAN in tuned.curve:
            winners = (next(iter(_lasts(winner, list(own)).values())), tuned.curve[WINNERS_PLAN])
    picked = ConstantPlan.of(tuned.plan)
    where = first if picked is None else picked.tau
    if tuned.plan == WINNERS_PLAN and winners is not None:
        where = winners[0]
    return ModelsShown(
        curves={name: tuple(sorted(points)) for name, points in curves.items()},
        as_trained=as_trained,
        own=first,
        winners=winners,
        picked=(tuned.plan, where, tuned.curve[tuned.plan]),
    )


def plot_inference(data: InferenceShown) -> go.Figure:
    """Return a line of value over temperature for each arm, its own value as a dashed one."""
    taus = [tau for models in data.arms.values() for points in models.curves.values() for tau, _ in points]
    for models in data.arms.values():
        taus += [models.own, *(() if models.winners is None else models.winners[:1])]
    shown = taus
    made = figure(x=f"{data.axis} at inference", y=data.metric, height=400)
    ends = [min(shown), max(shown)]
    for arm, models in data.arms.items():
        made.add_trace(_reference(arm, models, ends, data.name(arm)))
        for place, (curve, points) in enumerate(models.curves.items()):
            made.add_trace(_line(arm, data, curve, points, _LINES[place % len(_LINES)]))
    for arm, models in data.arms.items():
        if models.winners is not None:
            said = plan_text(WINNERS_PLAN)
            made.add_trace(_mark(arm, data, *models.winners, said, "diamond-open", 10))
        name, tau, value = models.picked
        made.add_trace(_mark(arm, data, tau, value, f"picked: {plan_text(name)}", "star", 15))
    made.update_xaxes(**temperature_axis(shown))
    return made


def _reference(arm: str, models: ModelsShown, ends: list[float], name: str) -> go.Scatter:
    return go.Scatter(
        x=ends,
        y=[models.as_trained] * 2,
        mode="lines",
        line={"color": _COLOURS[arm], "width": 1.5, "dash": "dash"},
        showlegend=False,
        name=f"{name}, as trained",
        hovertemplate=f"{name}, as trained: %{{y:.4g}}<extra></extra>",
    )


def _line(arm: str, data: InferenceShown, curve: tuple[str, str], points: Points, dash: str) -> go.Scatter:
    temperature, scaling = curve
    name = "winner" if arm == "search" else f"trained at {data.label}"
    if temperature or scaling != "none":
        name += f", {plain(temperature or scaling)}"
    return go.Scatter(
        x=[tau for tau, _ in points],
        y=[value if math.isfinite(value) else None for _, value in points],
        mode="lines+markers",
        line={"color": _COLOURS[arm], "width": 2, "dash": dash},
        marker={"color": _COLOURS[arm], "size": 5},
        name=name,
        hovertemplate=f"{name}, evaluated at {temperature or 'τ'} = %{{x:.4g}}: %{{y:.4g}}<extra></extra>",
    )


def _mark(
    arm: str, data: InferenceShown, tau: float, value: float, said: str, symbol: str, size: int
) -> go.Scatter:
    # what is filled lies on lines of its own colour
    line = {"width": 2} if symbol.endswith("-open") else {"width": 1.5, "color": GROUND}
    return go.Scatter(
        x=[tau],
        y=[value],
        mode="markers",
        marker={"color": _COLOURS[arm], "size": size, "symbol": symbol, "line": line},
        showlegend=False,
        name=plain(said),
        hovertemplate=f"{data.name(arm)}: %{{y:.4g}}<br>{plain(said)}<extra></extra>",
    )

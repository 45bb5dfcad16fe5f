"""Constant and learned temperatures: the metric over a constant one; learned ones over training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tempopt.errors import NothingToPlot
from tempopt.report.findings import attention_position
from tempopt.report.formatting import baseline_label, baseline_name, finite, plan_text
from tempopt.report.plots import style
from tempopt.report.plots.confirmation import pairs_before_round
from tempopt.report.plots.temperatures import (
    DisplayedTemperature,
    displayed_temperatures,
    measured_levels,
    values_by_name_and_step,
)
from tempopt.report.study_result import StudyResult
from tempopt.storage.ticket_queries import is_usable, of_kind
from tempopt.temperature import to_neutral
from tempopt.training.messages import LEARNED_CURVE
from tempopt.verdict.explanation import LEARNED_ARM
from tempopt.verdict.inference import AS_TRAINED, TunedInference
from tempopt.verdict.run_evaluations import WINNER as WINNERS_PLAN
from tempopt.verdict.run_evaluations import InferenceConstant

_COLOURS = {"search": style.WINNER, "baseline": style.BASELINE}
_DASHES = ("solid", "dot", "dashdot")
_PATH_COLOURS = (style.WINNER, style.BASELINE, style.CONSTANT, style.SECONDARY)
_MAX_PATHS = 6
_MAX_LEARNED_ROWS = 200
_PANEL_HEIGHT = 300

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsData:
    """The models of one arm, evaluated at other temperatures than those of their training.

    Args:
        curves: Temperature (attention's is the empty text) and length scaling (``none``, or its name) to
            constant temperature and mean value, by temperature.
        as_trained: Mean value at their own temperature.
        trained_at: Their temperature at the end of training.
        winners: The winner's last temperature and the mean value under its final plan; None for the winner.
        picked: Name, temperature and mean value of the selected plan.
    """

    curves: Mapping[tuple[str, str], Points]
    as_trained: float
    trained_at: float
    winners: tuple[float, float] | None
    picked: tuple[str, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedPath:
    """One learned temperature over training, as the geometric mean over the runs.

    Args:
        name: Its name, or the layer of attention and the head.
        mean: Geometric mean at each step; NaN before the first measurement.
        neutral: Neutral temperature, by which the plot divides.
        winner: The winner's temperature at each step; empty without one.
    """

    name: str
    mean: tuple[float, ...]
    neutral: float
    winner: tuple[float, ...]

    @property
    def first(self) -> float:
        """Its first value; heads of a layer that attends late begin later than others."""
        return next(value for value in self.mean if value == value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantAndLearned:
    """Values at constant temperatures, trained and evaluated, and learned temperatures.

    Args:
        metric: Name of the metric.
        baseline: Name of the baseline in a sentence.
        label: The same in one word.
        trained: Temperature and value of each run of the constant arm, by temperature; empty if several
            temperatures are searched.
        arms: Arm (``baseline``, ``search``) to its models, evaluated on the validation data.
        is_tested: Whether gains are estimated on other data than those that select the temperature.
        steps: Optimizer steps of the learned temperatures.
        paths: The learned temperatures.
        num_learned: Number of runs in the mean of the paths.
        why_not_learned: Reason for missing paths; empty if there are paths.
    """

    metric: str
    baseline: str
    label: str
    trained: Points
    arms: Mapping[str, ModelsData]
    is_tested: bool
    steps: tuple[int, ...]
    paths: tuple[LearnedPath, ...]
    num_learned: int
    why_not_learned: str

    @property
    def has_constants(self) -> bool:
        """Whether there are values at constant temperatures."""
        return bool(self.trained or self.arms)

    def name(self, arm: str) -> str:
        """Return the name of the models of an arm."""
        return "winner" if arm == "search" else self.label

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        training_notes = ["Squares were trained at that constant temperature, during the search."]
        return " ".join(
            [*(training_notes if self.trained else []), *self._describe_models(), self._describe_learned()]
        )

    def _describe_models(self) -> Iterator[str]:
        if not self.arms:
            return
        yield (
            "Lines are confirmed models, evaluated at constant temperatures (mean on the validation data); "
            "dashed, the same models as they were trained. A star is what was picked."
        )
        curves = {curve for models in self.arms.values() for curve in models.curves}
        scalings = sorted({scaling for _, scaling in curves} - {"none"})
        if scalings:
            yield f"Dotted lines have length scaling as well ({', '.join(scalings)})."
        for arm, models in self.arms.items():
            name = "The winner's models" if arm == "search" else f"Models trained at {self.baseline}"
            plan, _, value = models.picked
            if plan == AS_TRAINED:
                yield f"{name} do best at the temperature of their training."
            else:
                value_text = style.number(models.as_trained)
                yield f"{name} do best at {plan_text(plan)}: {style.number(value)} in place of {value_text}."
        if self.is_tested:
            yield "What that gains is counted on the test data."

    def _describe_learned(self) -> str:
        if not self.paths:
            return self.why_not_learned
        ends = [
            f"{path.name} from {style.number(path.first)} to {style.number(path.mean[-1])}"
            for path in self.paths[:_MAX_PATHS]
        ]
        num_more = len(self.paths) - len(ends)
        return (
            f"Below, the temperatures that {self.num_learned} runs have learned, in the geometric "
            f"mean; dashed is the winner's. Learned: {', '.join(ends)}"
            f"{f' and {num_more} more' if num_more else ''}."
        )

    def table(self) -> style.Table:
        """Return the value at each constant temperature, then each learned temperature over steps."""
        rows: list[tuple[style.Cell, ...]] = [
            ("trained at", "", tau, None, value) for tau, value in self.trained
        ]
        for arm, models in self.arms.items():
            name = f"{self.name(arm)}, evaluated"
            rows.append((name, "as trained", models.trained_at, None, models.as_trained))
            if models.winners is not None:
                rows.append((name, "the winner's final plan", None, None, models.winners[1]))
            for (temperature, scaling), points in models.curves.items():
                rows += [(name, temperature or scaling, tau, None, value) for tau, value in points]
        learned_cells: list[tuple[style.Cell, ...]] = [
            ("learned", path.name, path.mean[index], step, None)
            for path in self.paths
            for index, step in enumerate(self.steps)
            if path.mean[index] == path.mean[index]
        ]
        rows += [learned_cells[index] for index in style.evenly(len(learned_cells), _MAX_LEARNED_ROWS)]
        return style.Table(columns=("models", "what", "temperature", "step", self.metric), rows=tuple(rows))


def constant_data(result: StudyResult) -> ConstantAndLearned:
    """Return values at constant temperatures and the learned temperatures.

    Raises:
        NothingToPlot: There is neither.
    """
    temperatures = displayed_temperatures(result)
    steps, paths, num_learned = _learned_paths(result, temperatures)
    data = ConstantAndLearned(
        metric=result.metric,
        baseline=baseline_name(result.spec),
        label=baseline_label(result.spec),
        trained=_points_at_constants(result, temperatures),
        arms=_models_by_arm(result),
        is_tested=result.spec.study.confirm_on == "test",
        steps=steps,
        paths=paths,
        num_learned=num_learned,
        why_not_learned="" if paths else _why_not_learned(result),
    )
    if not data.has_constants and not paths:
        raise NothingToPlot(
            "No run at a constant temperature is complete, and no confirmed model has been evaluated at "
            "another temperature."
        )
    return data


def _points_at_constants(result: StudyResult, temperatures: Sequence[DisplayedTemperature]) -> Points:
    if len(temperatures) > 1:
        return ()
    points = [
        (temperatures[0].levels(run.parameters, (1.0,))[0], run.value)
        for run in of_kind(result.runs, "constant")
        if is_usable(run) and run.value is not None and run.parameters is not None
    ]
    return tuple(sorted(points))


def _models_by_arm(result: StudyResult) -> dict[str, ModelsData]:
    verdict = result.verdict
    if not result.spec.evaluated or verdict is None or verdict.inference_only is None:
        return {}
    names = result.spec.evaluated
    baseline = _last_temperatures(to_neutral(verdict.params), names)
    arms = {"baseline": _models_of_arm(verdict.inference_only.baseline, baseline, verdict.params)}
    if verdict.inference_only.winner is not None and not verdict.at_one:
        winner = _last_temperatures(verdict.params, names)
        if "" in winner and verdict.controlled:
            # measured: the geometric mean over layers and runs
            winner[""] = geometric_mean(mean for mean, _, _ in verdict.controlled.values())
        arms["search"] = _models_of_arm(verdict.inference_only.winner, winner, None)
    return arms


def _last_temperatures(parameters: Mapping[str, object], names: Sequence[str]) -> dict[str, float]:
    return {name: DisplayedTemperature(name=name).levels(parameters, (1.0,))[0] for name in names}


def _models_of_arm(
    tuned: TunedInference, last_levels: Mapping[str, float], winner: Mapping[str, object] | None
) -> ModelsData:
    """Return the models of one arm.

    Args:
        tuned: Their values at each temperature.
        last_levels: The last temperatures of their training, by name.
        winner: The winner's parameters, None for the winner's own models.
    """
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    as_trained = tuned.curve[AS_TRAINED]
    last_level = next(iter(last_levels.values()))
    taus = {AS_TRAINED: last_level}
    for plan, value in tuned.curve.items():
        constant = InferenceConstant.of(plan)
        if constant is not None:
            taus[plan] = constant.tau
            curve = curves.setdefault((constant.temperature, constant.length_scaling), [])
            curve.append((constant.tau, value))
    winners = None
    if winner is not None:
        # the grid has no point at the temperature of the baseline's training
        for name in last_levels:
            if (name, "none") in curves:
                curves[name, "none"].append((last_levels[name], as_trained))
        if WINNERS_PLAN in tuned.curve:
            taus[WINNERS_PLAN] = next(iter(_last_temperatures(winner, list(last_levels)).values()))
            winners = (taus[WINNERS_PLAN], tuned.curve[WINNERS_PLAN])
    return ModelsData(
        curves={key: tuple(sorted(points)) for key, points in curves.items()},
        as_trained=as_trained,
        trained_at=last_level,
        winners=winners,
        picked=(tuned.plan_name, taus.get(tuned.plan_name, last_level), tuned.curve[tuned.plan_name]),
    )


def _learned_paths(
    result: StudyResult, temperatures: Sequence[DisplayedTemperature]
) -> tuple[tuple[int, ...], tuple[LearnedPath, ...], int]:
    """Return steps, paths and number of runs of the learned temperatures of the verdict."""
    runs = [
        run
        for of_round in pairs_before_round(result)
        for run in of_kind(result.runs, "ablation", LEARNED_ARM, of_round=of_round)
        if is_usable(run)
    ]
    points = values_by_name_and_step(result, runs, LEARNED_CURVE)
    steps = sorted({step for of_name in points.values() for step in of_name})
    by_name = {temperature.name: temperature for temperature in temperatures}
    progress = tuple(step / max(steps[-1], 1) for step in steps)
    paths = []
    for name, of_name in points.items():
        means = tuple(math.exp(fmean(map(math.log, of_name.get(step, [math.nan])))) for step in steps)
        location = attention_position(name)
        path = LearnedPath(name=f"τ of {location}" if location else name, mean=means, neutral=1.0, winner=())
        if (temperature := by_name.get("" if location else name)) is not None:
            winner = measured_levels(result, result.winner, temperature, progress)
            path = replace(path, neutral=temperature.neutral, winner=winner)
        paths.append(path)
    return tuple(steps), tuple(paths), len(runs)


def _why_not_learned(result: StudyResult) -> str:
    study = result.spec.study
    if study.not_learned is not None:
        return f"The temperatures cannot be learned here: {study.not_learned.rstrip('.')}."
    if not study.learned:
        return "The study spec asks for no learned temperatures (study.learned)."
    return f"No temperature was learned; tempopt explain {result.name} trains such runs."


def plot_constant(data: ConstantAndLearned) -> go.Figure:
    """Return the metric over a constant temperature and, below, the learned temperatures over steps."""
    contents = {"constant temperature": data.has_constants, "learned temperatures": bool(data.paths)}
    titles = [title for title, is_shown in contents.items() if is_shown]
    figure = make_subplots(rows=len(titles), cols=1, subplot_titles=titles, vertical_spacing=0.24)
    figure.update_layout(template=style.TEMPLATE, height=110 + _PANEL_HEIGHT * len(titles))
    figure.update_layout(legend={"y": -0.28 / len(titles), "yanchor": "top"})
    figure.update_annotations(font={"size": 13, "color": style.QUIET})
    if data.has_constants:
        _add_constants(figure, data)
    if data.paths:
        _add_learned(figure, data, row=len(titles))
    return figure


def _add_constants(figure: go.Figure, data: ConstantAndLearned) -> None:
    taus = [tau for tau, _ in data.trained]
    for models in data.arms.values():
        taus += [tau for points in models.curves.values() for tau, _ in points]
        taus += [models.trained_at, *(() if models.winners is None else models.winners[:1])]
    traces = [trace for arm in data.arms for trace in _model_lines(data, arm, [min(taus), max(taus)])]
    if data.trained:
        trace = _filled_marks(data.trained, "trained at", style.CONSTANT, "square", 9)
        traces.append(trace.update(showlegend=True))
    for arm, models in data.arms.items():
        name, colour = data.name(arm), _COLOURS[arm]
        if models.winners is not None:
            text = f"{name}, {plan_text(WINNERS_PLAN)}"
            traces.append(_filled_marks([models.winners], text, colour, "diamond-open", 10))
        plan, *point = models.picked
        text = f"{name}, picked: {plan_text(plan)}"
        traces.append(_filled_marks([point], text, colour, "star", 15))
    for trace in traces:
        figure.add_trace(trace, row=1, col=1)
    figure.update_xaxes(title={"text": "temperature"}, **style.temperature_axis(taus), row=1, col=1)
    figure.update_yaxes(title={"text": style.plain(data.metric)}, row=1, col=1)


def _model_lines(data: ConstantAndLearned, arm: str, ends: list[float]) -> Iterator[go.Scatter]:
    """Yield the lines of the models of an arm: as they were trained, and at each constant."""
    models, colour = data.arms[arm], _COLOURS[arm]
    name = f"{data.name(arm)}, as trained"
    yield style.lines(
        ends,
        [models.as_trained] * 2,
        name,
        colour,
        width=1.5,
        line={"dash": "dash"},
        showlegend=False,
        hovertemplate=f"{name}: %{{y:.4g}}<extra></extra>",
    )
    for index, ((temperature, scaling), points) in enumerate(models.curves.items()):
        name = f"{data.name(arm)}, evaluated"
        if temperature or scaling != "none":
            name += f", {style.plain(temperature or scaling)}"
        yield style.lines(
            [tau for tau, _ in points],
            [finite(value) for _, value in points],
            name,
            colour,
            mode="lines+markers",
            line={"dash": _DASHES[index % len(_DASHES)]},
            marker={"color": colour, "size": 5},
            hovertemplate=f"{name} at {temperature or 'τ'} = %{{x:.4g}}: %{{y:.4g}}<extra></extra>",
        )


def _filled_marks(
    points: Sequence[Sequence[float]], name: str, colour: str, symbol: str, size: int
) -> go.Scatter:
    # filled marks need an outline on lines of the same colour
    line = {"width": 2} if symbol.endswith("-open") else {"width": 1.5, "color": style.GROUND}
    hover = f"{style.plain(name)} %{{x:.4g}}: %{{y:.4g}}<extra></extra>"
    x, y = ([point[axis] for point in points] for axis in (0, 1))
    options: dict[str, Any] = {"marker": {"line": line}, "showlegend": False, "hovertemplate": hover}
    return style.marks(x, y, style.plain(name), colour, symbol, size, **options)


def _add_learned(figure: go.Figure, data: ConstantAndLearned, *, row: int) -> None:
    paths = [data.paths[index] for index in style.evenly(len(data.paths), _MAX_PATHS)]
    values: list[float] = []
    is_relative = any(path.neutral != 1.0 for path in paths)
    for index, path in enumerate(paths):
        curves = [(path.mean, _PATH_COLOURS[index % len(_PATH_COLOURS)], "solid", path.name)]
        # layers share the schedule of attention
        if path.winner and path.winner not in [earlier.winner for earlier in paths[:index]]:
            name = f"winner, {path.name}" if is_relative else "winner"
            curves.append((path.winner, style.INK, "dash", name))
        for levels, ink, dash, name in curves:
            scaled_levels = [level / path.neutral for level in levels]
            values += [level for level in scaled_levels if level == level]
            trace = style.lines(
                list(data.steps),
                scaled_levels,
                style.plain(name),
                ink,
                line={"dash": dash},
                customdata=list(levels),
                hovertemplate=f"{style.plain(name)}, step %{{x}}: %{{customdata:.4g}}<extra></extra>",
            )
            figure.add_trace(trace, row=row, col=1)
    figure.update_xaxes(title={"text": "training step"}, row=row, col=1)
    title = "temperature / baseline" if is_relative else "temperature"
    figure.update_yaxes(title={"text": title}, **style.temperature_axis(values), row=row, col=1)

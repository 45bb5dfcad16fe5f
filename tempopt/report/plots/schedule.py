"""The temperature over training: the recommended plan and the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from statistics import geometric_mean
from typing import Any

import plotly.graph_objects as go

from tempopt.errors import NothingToPlot
from tempopt.report.formatting import describe_schedule, parameters_text, schedule_points, temperature_text
from tempopt.report.plots import style
from tempopt.report.plots.temperatures import (
    ATTENTION,
    DisplayedTemperature,
    MeasuredTemperatures,
    controlled_temperatures,
    displayed_temperatures,
)
from tempopt.report.study_result import StudyResult
from tempopt.temperature import (
    NEUTRAL,
    SCHEDULES,
    TEMPERATURE_PARAMETERS,
    ControlParameters,
    LinearNormaliser,
    drop_unused_params,
    is_controlled,
    split_name,
)

_NUM_CURVE_POINTS = 201
_NUM_TABLE_STEPS = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanData:
    """A plan's temperature at every progress and, if known, in every layer.

    Args:
        progress: Training progress, from 0 to 1.
        temperatures: One tuple per layer, first layer first, a value for each progress. A single layer stands
            for the level of all if their number is unknown.
        pattern: Name of the layer pattern.
        beside: Parameters that act on attention in addition to this temperature, by name.
        confirmed: Whether there is a verdict.
        role: Role of the plan: ``recommended``, ``winner`` or ``best trial``.
        main_temperature: The temperature of the plot.
        others: The other temperatures of the study, each with its value at each progress.
        on_control: Note on temperatures under entropy control; empty for a schedule.
        is_path: Whether the line between start and end is the measured course.
        bends: Progress values at which a temperature bends, as in a piecewise schedule.
        courses: Description of the course of each bending temperature, by name; attention's is empty.
    """

    progress: tuple[float, ...]
    temperatures: tuple[tuple[float, ...], ...]
    pattern: str
    beside: Mapping[str, Any]
    confirmed: bool
    role: str = "winner"
    main_temperature: DisplayedTemperature = ATTENTION
    others: tuple[tuple[DisplayedTemperature, tuple[float, ...]], ...] = ()
    on_control: str = ""
    is_path: bool = True
    bends: tuple[float, ...] = ()
    courses: Mapping[str, str] = field(default_factory=dict)

    @property
    def level(self) -> tuple[float, ...]:
        """The schedule itself: the geometric mean over the layers at each progress."""
        return tuple(map(geometric_mean, zip(*self.temperatures, strict=True)))

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        flat = "stays" if self.is_path else "starts"
        course = _describe_course(self.level, self.courses.get(self.main_temperature.name), flat)
        subject = self.role if self.role == "recommended" else f"{self.role}'s"
        if name := self.main_temperature.name:
            neutral = f"the temperature as found, {style.number(self.main_temperature.neutral)}"
            text = f"The {subject} temperature {name} {course}; the dashed line is {neutral}."
        else:
            text = (
                f"The {subject} temperature {course}; the dashed line is τ = 1, where softmax is as usual. "
                "Above it attention is softer, below it sharper."
            )
        for temperature, levels in self.others:
            text += f" {temperature.name}, {style.number(temperature.neutral)} as found, "
            text += f"{_describe_course(levels, self.courses.get(temperature.name))}."
        if len(self.temperatures) > 1 and self.varies:
            pattern = "" if self.on_control else f', whose pattern is "{self.pattern}"'
            text += f" The band is the spread over the layers{pattern}."
        if self.on_control:
            text += f" {self.on_control}"
        if self.beside:
            text += f" The plan has more than this curve shows: {parameters_text(self.beside)}."
        return text if self.confirmed else f"{text} This plan is not confirmed."

    @property
    def varies(self) -> bool:
        """Whether layers differ in temperature."""
        return any(len(set(column)) > 1 for column in zip(*self.temperatures, strict=True))

    def table(self) -> style.Table:
        """Return the temperature at eleven moments, and at its bends."""
        names = [f"layer {index}" for index in range(len(self.temperatures))]
        if len(names) == 1:
            names = [self.main_temperature.name or "τ"]
        names += [temperature.name for temperature, _ in self.others]
        columns = [*self.temperatures, *(levels for _, levels in self.others)]
        moments = {*self.bends, *(step / (_NUM_TABLE_STEPS - 1) for step in range(_NUM_TABLE_STEPS))}
        rows = tuple(
            (round(progress, 3), *values)
            for progress, *values in zip(self.progress, *columns, strict=True)
            if progress in moments
        )
        return style.Table(columns=("progress", *names), rows=rows)


def _describe_course(levels: tuple[float, ...], words: str | None = None, flat: str = "stays") -> str:
    """Return the course of a temperature, ``goes from 0.5 to 2``; ``words`` for one that bends."""
    if words:
        return f"is {words}"
    if min(levels) == max(levels):
        return f"{flat} at {style.number(levels[0])}"
    return f"goes from {style.number(levels[0])} to {style.number(levels[-1])}"


def _num_layers(result: StudyResult) -> int:
    """Return the number of attention layers according to the measured entropies, else 1."""
    layers = {
        name.split("/")[1]
        for curves in result.measured.values()
        for name in curves
        if name.startswith("entropy/")
    }
    return len(layers) or 1


def schedule_data(result: StudyResult) -> PlanData:
    """Return the recommended plan, else that of the winner, else that of the best trial.

    Raises:
        NothingToPlot: No search trial is complete, or the plan's attention has no temperature.
    """
    role, parameters = result.plan
    if parameters is None:
        raise NothingToPlot("No search trial is complete, so there is no schedule to show.")
    main_temperature, *other_temperatures = displayed_temperatures(result)
    values = main_temperature.parameters(parameters)
    if values.normaliser == LinearNormaliser.name:
        raise NothingToPlot("Attention is linear: it has no temperature.")
    shapes = [schedule_points(parameters, temperature.name) for temperature in displayed_temperatures(result)]
    bends = {position for shape in shapes for position, _ in shape[1:-1]}
    even_progress = (index / (_NUM_CURVE_POINTS - 1) for index in range(_NUM_CURVE_POINTS))
    progress = tuple(sorted({*even_progress, *bends}))
    layers = 1 if main_temperature.name else _num_layers(result)
    on_control, measured = "", None
    is_controlling = not main_temperature.name and is_controlled(parameters)
    if is_controlling:
        role, parameters, measured, on_control = _controlled_plan(result, progress)
        values = main_temperature.parameters(drop_unused_params(parameters))
    columns = [values.plan(layers).temperatures(moment) for moment in progress]
    return PlanData(
        progress=progress,
        temperatures=tuple(zip(*columns, strict=True)) if measured is None else measured.layers,
        pattern=values.layer_pattern,
        beside=_further_params(parameters),
        confirmed=result.verdict is not None,
        role=role,
        main_temperature=main_temperature,
        others=tuple((extra, extra.levels(parameters, progress)) for extra in other_temperatures),
        on_control=on_control,
        is_path=measured.is_path if measured is not None else not is_controlling,
        bends=tuple(sorted(bends)),
        courses={
            temperature.name: words
            for temperature in displayed_temperatures(result)
            if (words := describe_schedule(parameters, temperature.name))
        },
    )


def _controlled_plan(
    result: StudyResult, progress: tuple[float, ...]
) -> tuple[str, dict[str, Any], MeasuredTemperatures | None, str]:
    """Return role and parameters of the plan under control, its measured temperatures, and their description.

    If only the winner's path was measured, and its target is the same, everything is the winner's.
    """
    role, parameters = result.plan
    assert parameters is not None
    measured, winner = controlled_temperatures(result, parameters, progress), result.winner
    text = "Control of the entropy moves it in training"
    if measured is not None and measured.is_path:
        return role, parameters, measured, f"{text}: the geometric mean of {measured.runs} runs."
    if winner is not None and _control_target(winner) == _control_target(parameters):
        path = controlled_temperatures(result, winner, progress)
        if path is not None and path.is_path:
            ends = [] if measured is None else [measured.level[0], measured.level[-1]]
            goes = f"goes from {' to '.join(map(style.number, ends))}" if ends else "goes"
            text += (
                f": the geometric mean of {path.runs} runs of the winner, with the same target as what is "
                f"recommended ({temperature_text(parameters)}), which {goes} on a path not measured."
            )
            return "winner", winner, path, text
    if measured is None:
        return role, parameters, None, f"{text}, which was not measured: the line is only the start."
    return role, parameters, measured, f"{text}; the dotted line joins its ends and is not its path."


def _control_target(parameters: Mapping[str, Any]) -> ControlParameters:
    return ControlParameters.from_mapping(drop_unused_params(parameters))


def _further_params(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a plan besides the temperature over progress and depth."""
    read_params = drop_unused_params(parameters)
    shown_names = {"temperature_init", "temperature_final", "schedule", "layer_pattern", "layer_ratio"}
    shown_names |= {field.name for kind in SCHEDULES.values() for field in fields(kind)}
    plan_params = {
        name: value
        for name, value in read_params.items()
        if name in TEMPERATURE_PARAMETERS and name not in shown_names and not split_name(name)[0]
    }
    # these have an effect at any value if they are used
    return {n: value for n, value in plan_params.items() if value != NEUTRAL[n] or n in ("n0", "window")}


def plot_schedule(data: PlanData) -> go.Figure:
    """Return the plan's temperatures and the baseline over progress, a panel for each temperature."""
    curves = [(data.main_temperature, data.level), *data.others]
    fig, cells = style.panels(
        [temperature.title for temperature, _ in curves],
        x="training progress",
        y=[temperature.axis for temperature, _ in curves] if len(curves) == 1 else [""] * len(curves),
        height=340,
        panel_height=130,
    )
    if data.varies:
        fig.add_trace(_layers(data), **cells[0])
    for (temperature, levels), cell in zip(curves, cells, strict=True):
        is_first, is_single = temperature is data.main_temperature, len(curves) == 1
        variable = temperature.name or "τ"
        plan_trace = style.lines(
            data.progress,
            levels,
            data.role,
            style.WINNER,
            width=3,
            line={"dash": "solid" if data.is_path or not is_first else "dot"},
            showlegend=is_first,
            hovertemplate=f"progress %{{x:.2f}}: {variable} = %{{y:.4g}}<extra>{data.role}</extra>",
        )
        baseline_trace = style.lines(
            [0, 1],
            [temperature.neutral, temperature.neutral],
            temperature.baseline if is_single else "baseline",
            style.BASELINE,
            line={"dash": "dash"},
            showlegend=is_first,
            hovertemplate=f"{temperature.baseline}<extra></extra>",
        )
        for trace in (plan_trace, baseline_trace):
            fig.add_trace(trace, **cell)
        axis_values = [*levels, temperature.neutral]
        if is_first:
            axis_values += [value for layer in data.temperatures for value in layer]
        fig.update_yaxes(style.temperature_axis(axis_values, few=not is_single), **cell)
    fig.update_xaxes(range=[0, 1], tickformat=".0%")
    return fig


def _layers(data: PlanData) -> go.Scatter:
    """Return the band between the lowest and the highest temperature of the layers."""
    edges = [(min(column), max(column)) for column in zip(*data.temperatures, strict=True)]
    x = [*data.progress, *reversed(data.progress)]
    y = [high for _, high in edges] + [low for low, _ in reversed(edges)]
    fill: dict[str, Any] = {"fill": "toself", "fillcolor": style.WINNER_BAND}
    return style.lines(x, y, "layers", style.WINNER, width=0, mode=None, hoverinfo="skip", **fill)

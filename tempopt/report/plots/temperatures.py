"""The temperatures of a study over training: by their schedules, or as measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import numpy as np

from tempopt.errors import NothingToPlot
from tempopt.report.plots.confirmation import confirming_runs
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import Parameters, TicketRow
from tempopt.storage.ticket_queries import is_usable
from tempopt.temperature import TemperatureParameters, is_controlled, parameters_of_temperature, training_key
from tempopt.training.messages import CONTROLLED_CURVE


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayedTemperature:
    """A temperature in a plot.

    Args:
        name: Its name in the spec; the empty text for attention's.
        neutral: Its neutral value: 1 for attention, else the temperature as found.
    """

    name: str = ""
    neutral: float = 1.0

    @property
    def axis(self) -> str:
        """Title of the axis of the temperature."""
        return f"temperature {self.name}" if self.name else "temperature τ"

    @property
    def baseline(self) -> str:
        """Label of the baseline."""
        return f"{self.name} = {self.neutral:.4g}, as found" if self.name else "τ = 1"

    @property
    def title(self) -> str:
        """Title of its panel."""
        return self.name or "attention, τ"

    def parameters(self, parameters: Mapping[str, Any]) -> TemperatureParameters:
        """Return the parameters of this temperature in a parameter set."""
        return TemperatureParameters.from_mapping(parameters_of_temperature(parameters, self.name))

    def levels(self, parameters: Mapping[str, Any], progress: tuple[float, ...]) -> tuple[float, ...]:
        """Return the level of its schedule, the geometric mean over layers, at each progress."""
        schedule = self.parameters(parameters).plan(1).schedule
        return tuple(schedule(moment) for moment in progress)


ATTENTION = DisplayedTemperature()
"""Attention's temperature."""


def displayed_temperatures(result: StudyResult) -> list[DisplayedTemperature]:
    """Return the temperatures of a study, attention's first; at least one.

    Raises:
        NothingToPlot: A program is searched, and no temperature of it.
    """
    spec = result.spec
    if not spec.has_temperature:
        raise NothingToPlot("No temperature is searched.")
    temperatures = [
        DisplayedTemperature(
            name=name, neutral=temperature.as_found if temperature.as_found is not None else 1.0
        )
        for name, temperature in spec.temperatures.items()
    ]
    return [*([ATTENTION] if spec.attends else []), *temperatures]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTemperatures:
    """Measured temperatures of layers under entropy control.

    Args:
        layers: One tuple for each layer, first layer first, a value for each progress: the geometric mean
            over the runs.
        runs: Number of runs.
        is_path: Whether there are measurements between the first step and the last.
    """

    layers: tuple[tuple[float, ...], ...]
    runs: int
    is_path: bool

    @property
    def level(self) -> tuple[float, ...]:
        """The geometric mean over the layers at each progress."""
        return tuple(map(geometric_mean, zip(*self.layers, strict=True)))


def _runs_with_params(result: StudyResult, parameters: Parameters) -> list[TicketRow]:
    """Return the runs of a parameter set: confirming runs, or if there are none the others."""
    key = training_key(parameters)
    for runs in (confirming_runs(result), result.runs):
        matching_runs = [run for run in runs if is_usable(run) and training_key(run.parameters or {}) == key]
        if matching_runs:
            return matching_runs
    return []


def controlled_temperatures(
    result: StudyResult,
    parameters: Parameters,
    progress: Sequence[float],
    runs: Sequence[TicketRow] | None = None,
) -> MeasuredTemperatures | None:
    """Return the temperatures under control at each progress; None if they were not measured.

    Between measured steps the logarithm is interpolated. Runs with only the first and last value count if no
    run has more.

    Args:
        result: The study with its measurements.
        parameters: Parameters of the training.
        progress: Training progress, from 0 to 1.
        runs: Complete runs with these parameters; None for those of the study.
    """
    curves = [
        (int(name.removeprefix(CONTROLLED_CURVE)), np.array(curve, dtype=float).T)  # steps, values
        for run in (_runs_with_params(result, parameters) if runs is None else runs)
        for name, curve in result.measured.get(run.id, {}).items()
        if name.startswith(CONTROLLED_CURVE)
    ]
    if not curves:
        return None
    paths = [(layer, curve) for layer, curve in curves if curve.shape[1] > 2]
    logs: dict[int, list[np.ndarray]] = {}  # of each run by layer; the last step is the end of training
    for layer, (steps, taus) in paths or curves:
        logs.setdefault(layer, []).append(np.interp(progress, steps / max(steps[-1], 1.0), np.log(taus)))
    layers = [np.mean(logs[layer], axis=0) for layer in sorted(logs)]
    return MeasuredTemperatures(
        layers=tuple(tuple(map(math.exp, layer)) for layer in layers),
        runs=max(map(len, logs.values())),
        is_path=bool(paths),
    )


def values_by_name_and_step(
    result: StudyResult, runs: Sequence[TicketRow], prefix: str
) -> dict[str, dict[int, list[float]]]:
    """Return the measurements whose names have a prefix: values by the rest of the name, then by step.

    Values that are not finite are left out, and so are names without values.
    """
    values: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for name, curve in result.measured.get(run.id, {}).items():
            if name.startswith(prefix):
                for step, value in curve:
                    if math.isfinite(value):
                        values_by_step = values.setdefault(name.removeprefix(prefix), {})
                        values_by_step.setdefault(step, []).append(value)
    return values


def measured_levels(
    result: StudyResult,
    parameters: Parameters | None,
    temperature: DisplayedTemperature,
    progress: Sequence[float],
    runs: Sequence[TicketRow] | None = None,
) -> tuple[float, ...]:
    """Return a temperature at each progress, by its schedule or as measured.

    Empty without parameters, and if a required measurement is missing.

    Args:
        result: The study.
        parameters: Parameters of the training.
        temperature: The temperature.
        progress: Training progress, from 0 to 1.
        runs: Complete runs with these parameters; None for those of the study.
    """
    if parameters is None:
        return ()
    # entropy control acts on attention's temperature only
    if temperature.name or not is_controlled(parameters):
        return temperature.levels(parameters, tuple(progress))
    measured = controlled_temperatures(result, parameters, progress, runs)
    return () if measured is None else measured.level

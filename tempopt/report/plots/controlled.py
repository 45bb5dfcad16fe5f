"""The temperatures of runs whose entropy was controlled: measured, since no parameter says them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np

from tempopt.records.rows import Parameters, TicketRow
from tempopt.records.tickets import usable
from tempopt.report.plots.confirming import confirming
from tempopt.report.plots.temperatures import Shown
from tempopt.results.study_result import StudyResult
from tempopt.temperature import is_controlled, training_key
from tempopt.workers.messages import CONTROLLED_CURVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Controlled:
    """Measured temperatures.

    Args:
        layers: One tuple for each layer, first layer first, a value for each progress: the geometric mean
            over the runs.
        runs: Number of runs.
    """

    layers: tuple[tuple[float, ...], ...]
    runs: int

    @property
    def level(self) -> tuple[float, ...]:
        """The geometric mean over the layers at each progress."""
        return tuple(map(geometric_mean, zip(*self.layers, strict=True)))


def controlled_runs(result: StudyResult, parameters: Parameters) -> list[TicketRow]:
    """Return the runs that show a parameter set: confirming runs, or without any the others that have it."""
    wanted = training_key(parameters)
    for runs in (confirming(result), result.runs):
        same = [run for run in runs if usable(run) and training_key(run.parameters or {}) == wanted]
        if same:
            return same
    return []


def controlled(
    result: StudyResult, runs: Sequence[TicketRow], progress: Sequence[float]
) -> Controlled | None:
    """Return the temperatures of runs at each progress; None: they were not measured.

    Between the steps at which a temperature was noted its logarithm is interpolated.

    Args:
        result: The study, with what was measured.
        runs: The runs.
        progress: Training progress, from 0 to 1.
    """
    logs: dict[int, list[np.ndarray]] = {}
    for run in runs:
        for name, curve in result.measured.get(run.id, {}).items():
            if not name.startswith(CONTROLLED_CURVE):
                continue
            steps, taus = np.array(curve, dtype=float).T
            at = steps / max(steps[-1], 1.0)
            layer = int(name.removeprefix(CONTROLLED_CURVE))
            logs.setdefault(layer, []).append(np.interp(progress, at, np.log(taus)))
    if not logs:
        return None
    layers = [np.mean(logs[layer], axis=0) for layer in sorted(logs)]
    return Controlled(
        layers=tuple(tuple(map(math.exp, layer)) for layer in layers),
        runs=max(map(len, logs.values())),
    )


def measured_levels(
    result: StudyResult,
    runs: Sequence[TicketRow],
    parameters: Parameters,
    shown: Shown,
    progress: Sequence[float],
) -> tuple[float, ...]:
    """Return a temperature of some runs at each progress: as their schedule says it, or as it was measured.

    Empty where it would have had to be measured, and was not.

    Args:
        result: The study.
        runs: Complete runs with these parameters.
        parameters: Their parameters.
        shown: Which temperature.
        progress: Training progress, from 0 to 1.
    """
    if shown.name or not is_controlled(parameters):
        return shown.levels(parameters, tuple(progress))
    found = controlled(result, runs, progress)
    return () if found is None else found.level


def winners_levels(result: StudyResult, shown: Shown, progress: Sequence[float]) -> tuple[float, ...]:
    """Return a temperature of the winner at each progress; empty where there is none, or it is not known."""
    if result.winner is None:
        return ()
    runs = controlled_runs(result, result.winner) if is_controlled(result.winner) else []
    return measured_levels(result, runs, result.winner, shown, progress)

"""The run of a study as the code of a program sees it: parameters, seed, temperature, reports.

Imports neither torch nor Lightning, so that a script starts quickly.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RUN_FILE = "TEMPOPT_RUN"
"""Environment variable with the path of the file that describes the run of a command, or with JSON itself."""
REPORTS, STOP = "reports.jsonl", "stop"
"""Files beside it: a line for each report, and the request to stop."""
FILES = "files"
"""Folder for what a run writes itself."""
ATTACHED = {"attached": True}
"""Line of the reports of a process that has read its run."""


class RunParams(dict[str, Any]):
    """Parameters of a run: temperature parameters, and ordinary ones that :func:`tempopt.attach` ignores."""


_MAX_STEP = 2**31 - 1


class Reporter:
    """Receiver of the reports of a run; outside of a study it drops them and never stops the run."""

    _last_step = -1

    def report(self, value: float, step: float | None) -> None:
        """Report a value; step None: one more than the last one.

        Raises:
            UsageError: The step is no whole number, too large, or not above that of the last report.
        """
        next_step = max(self._last_step, 0) + 1 if step is None else step
        if next_step != next_step // 1 or not self._last_step < next_step <= _MAX_STEP:
            from tempopt.errors import UsageError

            raise UsageError(
                f"run.report was given step={step!r}. Give whole numbers in ascending order, now from "
                f"{self._last_step + 1} to {_MAX_STEP}, or leave step out."
            )
        self._last_step = int(next_step)
        self._send(value, self._last_step)

    def _send(self, value: float, step: int) -> None:
        """Pass a report on."""

    @property
    def should_stop(self) -> bool:
        """Whether the run is to end."""
        return False


class FileReporter(Reporter):
    """Reports of a process that a worker has started, in the folder of its run.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._reports, self._stop = folder / REPORTS, folder / STOP
        self._append(ATTACHED)

    def _send(self, value: float, step: int) -> None:
        """Append a line to the reports; not in the other processes of torchrun."""
        if os.environ.get("RANK", "0") == "0":
            self._append({"step": step, "value": value})

    @property
    def should_stop(self) -> bool:
        """Whether the run is to end."""
        return self._stop.exists()

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._reports.open("a", encoding="utf-8") as file:
            # one call, so that lines of several processes do not mix
            file.write(json.dumps(line) + "\n")


class Run:
    """A training, as its own code sees it: ``run = tempopt.current_run()``.

    Attributes:
        params: Parameters by name. :func:`tempopt.attach` takes them as they are.
        seed: Seed of the run, below 2³¹; two runs of a pair have the same.
        folder: Folder of this run alone, which stays when the run is interrupted and starts again: what is
            written there, such as a checkpoint, is there then.
    """

    def __init__(
        self, params: Mapping[str, Any], seed: int, folder: Path, reporter: Reporter | None = None
    ) -> None:
        self.params = RunParams(params)
        self.seed = seed
        self.folder = folder
        self._reporter = reporter or Reporter()

    def report(self, value: float, step: int | None = None) -> None:
        """Report a value of the metric in the course of training, by which runs are pruned.

        Args:
            value: The value; a run with one that is not finite has diverged.
            step: Number of the training step, below 2³¹ and in ascending order; None: one more than in the
                last report.

        Raises:
            UsageError: The step is not such a number.
        """
        self._reporter.report(float(value), step)

    @property
    def should_stop(self) -> bool:
        """Whether the run is to save what it needs and end: it is pruned, or its agent leaves."""
        return self._reporter.should_stop

    def temperature(
        self, step: int, total_steps: int, *, layer: int | None = None, num_layers: int | None = None
    ) -> float:
        """Return the temperature at a step, 1 where none is searched.

        Args:
            step: Number of the step, from 0.
            total_steps: Number of steps of the training.
            layer: Number of the attention layer, from 0; None: a model whose layers are all alike.
            num_layers: Number of attention layers.

        Raises:
            UsageError: The parameters ask for more than one number: a layer pattern and no layer was given,
                or head patterns, length scaling and so on, which :func:`tempopt.attach` sets.
        """
        from tempopt.class_loading import load_schedule
        from tempopt.errors import UsageError
        from tempopt.temperature import NEUTRAL, TemperatureParameters, progress
        from tempopt.temperature.custom_schedules import is_custom_schedule

        if is_custom_schedule(schedule := self.params.get("schedule")):
            load_schedule(str(schedule), where="schedule")
        parameters = TemperatureParameters.from_mapping(self.params)
        for name in ("head_pattern", "length_scaling", "normaliser", "local_share"):
            if (value := getattr(parameters, name)) != NEUTRAL[name]:
                raise UsageError(
                    f"{name}={value!r} is more than a temperature for each layer. Let tempopt.attach(model, "
                    "run.params) set it."
                )
        if layer is None or num_layers is None:
            if parameters.layer_pattern != NEUTRAL["layer_pattern"]:
                raise UsageError(
                    f"layer_pattern={parameters.layer_pattern!r} gives each layer a temperature of its own. "
                    "Ask for one: run.temperature(step, total_steps, layer=0, num_layers=12)."
                )
            layer, num_layers = 0, 1
        if not 0 <= layer < num_layers:
            raise UsageError(f"layer is {layer} of {num_layers}. Give a layer from 0 to {num_layers - 1}.")
        return parameters.plan(num_layers).temperatures(progress(step, total_steps))[layer]


_active: list[Run] = []
_file_reporters: dict[Path, FileReporter] = {}


def current_run(*, params: Mapping[str, Any] | None = None, seed: int = 0) -> Run:
    """Return the run of a study that this process trains.

    Outside of a study it is a run with the given parameters and seed, which reports nowhere. The environment
    variable TEMPOPT_RUN, as in ``TEMPOPT_RUN='{"params": {"lr": 0.1}}'``, has precedence over both.

    Args:
        params: Values of parameters that the study does not have.
        seed: Seed outside of a study.
    """
    defaults = dict(params or {})
    if _active:
        run = _active[-1]
        return Run({**defaults, **run.params}, run.seed, run.folder, run._reporter)
    description = os.environ.get(RUN_FILE, "{}")
    if description.startswith("{"):
        data = json.loads(description)
        return Run({**defaults, **data.get("params", {})}, data.get("seed", seed), Path.cwd())
    path = Path(description)
    data = json.loads(path.read_text(encoding="utf-8"))
    if path not in _file_reporters:
        _file_reporters[path] = FileReporter(path.parent)
    return Run({**defaults, **data["params"]}, data["seed"], Path(data["folder"]), _file_reporters[path])


@contextlib.contextmanager
def activate(run: Run) -> Iterator[None]:
    """Let :func:`current_run` return this run inside the context."""
    _active.append(run)
    try:
        yield
    finally:
        _active.remove(run)

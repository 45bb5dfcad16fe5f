"""The loggers in a spec's ``trainer.logger``: checked, and created for a run under its name.

They are Lightning's own; this module has the details of each kind. ``trackers.py`` opens and closes them.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lightning.fabric.utilities.cloud_io import get_filesystem

from tempopt.class_loading import load_class
from tempopt.errors import SpecError, unknown
from tempopt.spec.logger_secrets import check_no_secrets
from tempopt.training.arguments import Arguments
from tempopt.training.lightning_package import (
    CSVLogger,
    Logger,
    MLFlowLogger,
    TensorBoardLogger,
    WandbLogger,
)
from tempopt.training.messages import RunLabel

State = Literal["complete", "pruned", "diverged", "interrupted", "failed"]

OUTCOME = "tempopt.outcome"
_ID = "tempopt.id"
_KEYS = ("class_path", "init_args", "dict_kwargs")
_EXAMPLE = "{class_path: lightning.pytorch.loggers.TensorBoardLogger, init_args: {save_dir: logs}}"
# A server that is away or does not respond must not cost a run its lease; MLflow's default of eight retries
# of two minutes would. Set these variables for longer timeouts.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "WANDB_FINISH_TIMEOUT": "120",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How an attempt at a run ended.

    Args:
        state: ``complete``, ``pruned`` or ``diverged`` (final); ``interrupted`` (will be continued);
            ``failed`` (it raised).
        step: Last logged step.
        value: Last validated metric of the study; NaN if there is none.
        hyperparameters: Hyperparameters logged at the start.
    """

    state: State
    step: int
    value: float
    hyperparameters: Mapping[str, Any]

    @property
    def status(self) -> str:
        """Lightning's status; a pruned or diverged run did not fail."""
        return "failed" if self.state == "failed" else "success"


class LoggerAdapter:
    """Names, opens and closes runs in a logger of which only Lightning's interface is known.

    Subclasses implement the details of one kind of logger.

    Attributes:
        package: Required package; empty if there is none.
        reserved_arguments: Arguments that identify a run, and therefore cannot be set by the spec.
    """

    package: ClassVar[str] = ""
    reserved_arguments: ClassVar[tuple[str, ...]] = ()

    def label_arguments(self, arguments: Mapping[str, Any], label: RunLabel) -> dict[str, Any]:
        """Return the logger's arguments for the run's name and group, which override those of the spec."""
        return {}

    def open(self, logger: Any, label: RunLabel, *, start: int, is_retry: bool) -> None:
        """Open the run.

        Args:
            logger: The logger.
            label: Name of the run.
            start: Step that is logged next.
            is_retry: Whether an earlier attempt may have created it.
        """
        # as Lightning does
        if hasattr(logger, "experiment"):
            _ = logger.experiment

    def close(self, logger: Any, outcome: RunEnd) -> None:
        """Log the end of the run; the logger is finalized afterwards."""
        logger.log_hyperparams({OUTCOME: outcome.state})


def _version_arguments(arguments: Mapping[str, Any], label: RunLabel) -> dict[str, Any]:
    if "name" in arguments:
        return {"version": f"{label.study}-{label.run}"}
    return {"name": label.study, "version": label.run}


class _TensorBoard(LoggerAdapter):
    package = "tensorboard"
    reserved_arguments = ("version",)

    def label_arguments(self, arguments: Mapping[str, Any], label: RunLabel) -> dict[str, Any]:
        # otherwise a placeholder would be shown as the run's value until its end
        return {"default_hp_metric": False, **_version_arguments(arguments, label)}

    def open(self, logger: TensorBoardLogger, label: RunLabel, *, start: int, is_retry: bool) -> None:
        # removes records after the checkpoint
        logger._kwargs.setdefault("purge_step", start)
        _ = logger.experiment

    def close(self, logger: TensorBoardLogger, outcome: RunEnd) -> None:
        parameters = {**outcome.hyperparameters, OUTCOME: outcome.state}
        logger.log_hyperparams(parameters, {"hp_metric": outcome.value}, step=outcome.step)


class _Csv(LoggerAdapter):
    reserved_arguments = ("version",)

    def label_arguments(self, arguments: Mapping[str, Any], label: RunLabel) -> dict[str, Any]:
        return _version_arguments(arguments, label)

    def open(self, logger: CSVLogger, label: RunLabel, *, start: int, is_retry: bool) -> None:
        rows = [row for row in _read_rows(logger.log_dir) if int(row["step"]) < start]
        with warnings.catch_warnings():
            # Lightning deletes existing files, and warns about it
            warnings.filterwarnings("ignore", "Experiment logs directory .* exists", UserWarning)
            experiment = logger.experiment
        for row in rows:
            metrics: Any = {name: value for name, value in row.items() if name != "step" and value != ""}
            experiment.log_metrics(metrics, step=int(row["step"]))
        experiment.save()


class _Wandb(LoggerAdapter):
    package = "wandb"
    reserved_arguments = ("version", "id", "experiment")

    def label_arguments(self, arguments: Mapping[str, Any], label: RunLabel) -> dict[str, Any]:
        return {"name": label.run, "group": label.study, "job_type": label.kind, "id": _run_id(label)}

    def open(self, logger: WandbLogger, label: RunLabel, *, start: int, is_retry: bool) -> None:
        import wandb

        # an open run of a lost logger would receive the logs of this run
        if wandb.run is not None:
            wandb.finish(exit_code=1)
        _ = logger.experiment

    def close(self, logger: WandbLogger, outcome: RunEnd) -> None:
        experiment: Any = logger.experiment
        experiment.summary.update({OUTCOME: outcome.state})
        experiment.finish(exit_code=int(outcome.state == "failed"))


class _MLFlow(LoggerAdapter):
    package = "mlflow"
    reserved_arguments = ("run_id",)

    def label_arguments(self, arguments: Mapping[str, Any], label: RunLabel) -> dict[str, Any]:
        tags = {**(arguments.get("tags") or {}), _ID: _run_id(label), "tempopt.service": label.study}
        return {"experiment_name": label.study, "run_name": label.run, "tags": tags}

    def open(self, logger: MLFlowLogger, label: RunLabel, *, start: int, is_retry: bool) -> None:
        client = logger._mlflow_client
        name = logger._experiment_name
        if client.get_experiment_by_name(name) is None:
            # other workers may create it at the same time
            with contextlib.suppress(Exception):
                client.create_experiment(name, artifact_location=logger._artifact_location)
        experiment = client.get_experiment_by_name(name)
        if is_retry and experiment is not None:
            runs = client.search_runs([experiment.experiment_id], f"tags.`{_ID}` = '{_run_id(label)}'")
            if runs:
                logger._run_id = runs[0].info.run_id
                client.update_run(logger._run_id, status="RUNNING")
        _ = logger.experiment

    def close(self, logger: MLFlowLogger, outcome: RunEnd) -> None:
        logger.experiment.set_tag(logger.run_id, OUTCOME, outcome.state)


_ADAPTERS: dict[type[Logger], LoggerAdapter] = {
    TensorBoardLogger: _TensorBoard(),
    CSVLogger: _Csv(),
    WandbLogger: _Wandb(),
    MLFlowLogger: _MLFlow(),
}


def _run_id(label: RunLabel) -> str:
    """Return a name that is unique over all studies, the same for all attempts at the run."""
    text = "\n".join((label.study, label.study_created_at, label.run))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def _read_rows(folder: str) -> list[dict[str, str]]:
    """Return the rows that a CSVLogger has written into a folder."""
    path = f"{folder}/metrics.csv"
    fs = get_filesystem(path)
    if not fs.isfile(path):
        return []
    with fs.open(path, "r", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerConfig:
    """A checked logger of the spec that is not yet created.

    Args:
        path: Path in the spec.
        cls: Its class.
        arguments: Its ``init_args``.
        more: Its ``dict_kwargs``, which it passes on to the tracker unchecked.
    """

    path: str
    cls: type[Logger]
    arguments: Arguments
    more: Mapping[str, Any]

    @property
    def tracker(self) -> str:
        """Identifies the tracker: the same class with the same arguments uses the same server."""
        return repr((self.path, self.cls, self.arguments.init_args, dict(self.more)))

    @property
    def kind(self) -> LoggerAdapter:
        """The adapter of its kind."""
        adapters = (adapter for cls, adapter in _ADAPTERS.items() if issubclass(self.cls, cls))
        return next(adapters, LoggerAdapter())

    def make(self, label: RunLabel) -> Logger:
        """Return a new logger for the run of that label.

        Raises:
            SpecError: A required package is not installed.
        """
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        arguments = {**self.arguments.values({}), **self.more}
        run_arguments = self.kind.label_arguments(arguments, label)
        # tags are extended, other arguments are kept as given
        kept_arguments = {name: value for name, value in arguments.items() if name != "tags"}
        try:
            return self.cls(**{**arguments, **run_arguments, **kept_arguments})
        except ImportError as error:
            package = self.kind.package
            requirement = f"{package}, which is not installed here (pip install {package})"
            if not package:
                requirement = f"what is not installed here ({' '.join(str(error).split())})"
            raise SpecError(
                f"{self.path}: {self.cls.__name__} needs {requirement}. Install it on every machine that "
                "trains, or take the logger out."
            ) from error


def parse_loggers(value: object) -> tuple[list[LoggerConfig], list[str]]:
    """Return the loggers in ``trainer.logger``, and a line for each error."""
    if value is None or value is False:
        return [], []
    loggers, faults = [], []
    for number, logger in enumerate(value if isinstance(value, list) else [value]):
        path = f"trainer.logger.{number}" if isinstance(value, list) else "trainer.logger"
        try:
            loggers.append(_parse_logger(logger, path))
        except SpecError as error:
            faults.append(str(error))
    return loggers, faults


def _parse_logger(value: object, path: str) -> LoggerConfig:
    # before any message that repeats values
    check_no_secrets(value, path)
    if value is True:
        raise SpecError(
            f"{path}: given true, which is one logger or another by what is installed on a machine. "
            f"Say which: logger: {_EXAMPLE}. A study that was begun with it goes on by tempopt search SPEC "
            "with the logger changed: that is no change of its question."
        )
    settings: object = {"class_path": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping) or not isinstance(settings.get("class_path"), str):
        raise SpecError(
            f"{path}: given {value!r}. Give a logger, as in logger: {_EXAMPLE}, or a list of them."
        )
    for key in settings:
        if key not in _KEYS:
            raise SpecError(f"{path}: {unknown('key', key, _KEYS, 'Arguments go under init_args.')}")
    class_path = settings["class_path"]
    if "." not in class_path:
        class_path = f"lightning.pytorch.loggers.{class_path}"
    cls = load_class(class_path, base=Logger, where=f"{path}.class_path")
    init_args, dict_kwargs = settings.get("init_args") or {}, settings.get("dict_kwargs") or {}
    logger = LoggerConfig(path=path, cls=cls, arguments=Arguments(path, cls, init_args), more=dict_kwargs)
    for name in logger.kind.reserved_arguments:
        if init_args.get(name, dict_kwargs.get(name)) is not None:
            raise SpecError(
                f"{path}: {name} is not the spec's to give: it tells one run from another, and those of the "
                "study would be written over each other. Take it out; it follows from the study and the run."
            )
    return logger

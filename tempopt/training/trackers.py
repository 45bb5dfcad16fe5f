"""The loggers of one run, from resumption to close; a failing logger never ends the run.

Lightning and TrackCallback log while the run trains.
"""

from __future__ import annotations

import contextlib
import functools
import math
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger

from tempopt.errors import SpecError, mask_secrets
from tempopt.temperature import TemperatureParameters
from tempopt.training.callbacks import TemperatureLogger, TemperatureTarget
from tempopt.training.lightning_internals import logs_hyperparameters
from tempopt.training.loggers import LoggerConfig, RunEnd, State
from tempopt.training.messages import Finished, RunLabel, RunRequest, Stop

_MAX_REASON_CHARS = 300
# If a run waited this long before a tracker failed, runs of the next minutes skip the tracker, so that they
# do not all wait; a tracker that fails at once is tried by each run.
_WAITED_SECONDS = 5.0
_AWAY_SECONDS = 600.0
_away: dict[str, float] = {}
"""When each unavailable tracker may be tried again, by the monotonic clock; kept between runs of this
process.
"""
_GUARDED = ("log_metrics", "log_hyperparams", "log_graph", "save")
# label of a logger that is created only to test that it can be
_DEFAULT_LABEL = RunLabel(study="study", study_created_at="", run="run", kind="search", arm="search")


@dataclass(slots=True, kw_only=True)
class _Tracker:
    """A logger of one run, which may be dropped; ``finalize`` is set once it is open."""

    logger_config: LoggerConfig
    logger: Logger
    finalize: Callable[[str], None] | None = None
    lost: bool = False


class Trackers:
    """The loggers of one run.

    Lightning would log each evaluation at the end of a run into its curves, and finalize the logger after
    each; therefore it has the loggers during training only, and this class closes them. A logger that raises
    an error is dropped.

    Args:
        request: The run. Without a label it is not logged; its loggers are created to test that they can be.
        request: The run. One without a label is not logged; its loggers are made to see that they can be.
        tempered: The object with the logged temperature.
        observations_at: Returns the observations of its attention at an optimizer step, by name.
        rank: Rank of this process; only the first one logs.

    Raises:
        SpecError: A logger cannot be made, in a run without a label; or its package is not installed.
    """

    def __init__(
        self,
        logger_configs: Sequence[LoggerConfig],
        request: RunRequest,
        *,
        tempered: TemperatureTarget,
        observations_at: Callable[[int], dict[str, float]],
        rank: int = 0,
    ) -> None:
        self._request = request
        self._tempered = tempered
        self._autolog = True
        self._hyperparameters: Mapping[str, Any] = {}
        self._faults: list[str] = []
        self._silent: list[Logger] = [DummyLogger() for _ in logger_configs]
        self._track = TemperatureLogger(tempered=tempered, observations_at=observations_at)
        self._trackers: list[_Tracker] = []
        for logger_config in logger_configs if rank == 0 else ():
            logger = None if self._is_away(logger_config) else self._create_logger(logger_config)
            if logger is not None and request.label is not None:
                self._trackers.append(_Tracker(logger_config=logger_config, logger=logger))

    def options(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Trainer's arguments, with loggers that log nothing in place of real ones."""
        if not self._silent:
            return dict(arguments)
        self._autolog = arguments.get("enable_autolog_hparams", True)
        return {**arguments, "logger": self._silent, "enable_autolog_hparams": False}

    @property
    def callbacks(self) -> list[L.Callback]:
        """Callbacks for the Trainer."""
        return [self._track] if self._trackers else []

    def new_faults(self) -> list[str]:
        """Return a sentence for each logger that was dropped since the last call."""
        faults, self._faults = self._faults, []
        return faults

    def open(
        self,
        module: L.LightningModule,
        datamodule: L.LightningDataModule | None,
        plan: TemperatureParameters,
        *,
        resume: Path | None,
    ) -> None:
        """Open the run in each logger, at the position of the resumed checkpoint."""
        if not self._trackers:
            return
        start = 0 if resume is None else _next_step(resume)
        owners = (datamodule, module) if self._autolog else ()
        self._hyperparameters = hyperparameters(self._request, self._tempered, plan, owners=owners)
        for tracker in self._trackers:
            with self._catch_tracker_errors(tracker):
                self._open_tracker(tracker, start)
                tracker.logger.log_hyperparams(dict(self._hyperparameters))
                tracker.logger.log_graph(module)
                tracker.logger.save()

    @contextlib.contextmanager
    def logging(self, trainer: L.Trainer) -> Iterator[None]:
        """Return a context in which the Trainer has the loggers."""
        if not self._trackers:
            yield
            return
        silent_logger = DummyLogger()
        trainer.loggers = [silent_logger if tracker.lost else tracker.logger for tracker in self._trackers]
        try:
            yield
        finally:
            trainer.loggers = self._silent

    def close(self, finished: Finished | None, stop: Stop | None = None) -> None:
        """Log the end of the run and its measurements in each logger.

        Args:
            finished: Its end message; None if it raised an error.
            stop: The agent's stop request, if there was one.
        """
        measurements = {} if finished is None else finished.measurements
        outcome = RunEnd(
            state=_final_state(finished, stop),
            step=self._track.last_step,
            value=math.nan if finished is None or not finished.reports else finished.reports[-1][1],
            hyperparameters=self._hyperparameters,
        )
        values = {f"measured/{name}": value for name, value in measurements.items()}
        for tracker in self._trackers:
            if tracker.lost or tracker.finalize is None:
                continue
            with self._catch_tracker_errors(tracker):
                if values:
                    tracker.logger.log_metrics(values, step=outcome.step)
                tracker.logger_config.kind.close(tracker.logger, outcome)
                tracker.finalize(outcome.status)

    def _is_away(self, logger_config: LoggerConfig) -> bool:
        if self._request.label is None or _away.get(logger_config.tracker, 0.0) <= time.monotonic():
            return False
        self._add_fault(
            f"{logger_config.path}: {logger_config.cls.__name__} kept an earlier run waiting, and is asked "
            f"again after {_AWAY_SECONDS / 60:.0f} minutes. The run continues without it."
        )
        return True

    def _create_logger(self, logger_config: LoggerConfig) -> Logger | None:
        label = self._request.label
        start_time = time.monotonic()
        try:
            return logger_config.make(label or _DEFAULT_LABEL)
        except SpecError:
            raise
        except Exception as error:
            if label is None:
                raise SpecError(
                    f"{logger_config.path}: {logger_config.cls.__name__} cannot be made: "
                    f"{mask_secrets(str(error))}"
                ) from error
            self._report_tracker_error(logger_config, error, start_time)
            return None

    def _open_tracker(self, tracker: _Tracker, start: int) -> None:
        label, logger = self._request.label, tracker.logger
        assert label is not None
        tracker.logger_config.kind.open(logger, label, start=start, is_retry=self._request.attempt > 1)
        tracker.finalize = logger.finalize
        for name in _GUARDED:
            vars(logger)[name] = self._guard_log(tracker, getattr(logger, name))
        # Lightning would call it at the end of training, but evaluations follow
        vars(logger)["finalize"] = lambda status: None

    def _guard_log(self, tracker: _Tracker, log: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(log)
        def log_carefully(*args: Any, **kwargs: Any) -> None:
            if not tracker.lost:
                with self._catch_tracker_errors(tracker):
                    log(*args, **kwargs)

        return log_carefully

    @contextlib.contextmanager
    def _catch_tracker_errors(self, tracker: _Tracker) -> Iterator[None]:
        start_time = time.monotonic()
        try:
            yield
        except Exception as error:
            tracker.lost = True
            self._report_tracker_error(tracker.logger_config, error, start_time)

    def _report_tracker_error(self, logger_config: LoggerConfig, error: Exception, start_time: float) -> None:
        now = time.monotonic()
        if now - start_time >= _WAITED_SECONDS:
            _away[logger_config.tracker] = now + _AWAY_SECONDS
        # messages of libraries can be pages long, and an address from their environment may contain a
        # password
        reason = textwrap.shorten(mask_secrets(str(error)), _MAX_REASON_CHARS, placeholder=" ...")
        self._add_fault(
            f"{logger_config.path}: {logger_config.cls.__name__} failed ({type(error).__name__}: {reason}). "
            "The run continues without it."
        )

    def _add_fault(self, fault: str) -> None:
        print(fault, flush=True)
        self._faults.append(fault)


def hyperparameters(
    request: RunRequest,
    tempered: TemperatureTarget,
    plan: TemperatureParameters,
    *,
    owners: Sequence[L.LightningModule | L.LightningDataModule | None] = (),
) -> dict[str, Any]:
    """Return the hyperparameters of a run for logging.

    Args:
        request: The run: its parameters under the names of the study, its seed and its ticket.
        tempered: The object with the entropy term.
        plan: Parameters of the temperature, which an attached module does not know.
        owners: Objects whose own hyperparameters are logged as well, as by Lightning.
    """
    hparams: dict[str, Any] = {}
    for owner in owners:
        if owner is not None and logs_hyperparameters(owner):
            hparams |= {name: value for name, value in owner.hparams_initial.items() if name != "_class_path"}
    label = request.label
    init = plan.temperature_init
    final = init if plan.temperature_final is None else plan.temperature_final
    if plan.temperature_knots is not None:
        init, final = plan.temperature_knots[0][1], plan.temperature_knots[-1][1]
    return {
        **hparams,
        **request.parameters,
        "temperature_init": init,
        "temperature_final": final,
        "schedule": plan.schedule,
        "layer_pattern": plan.layer_pattern,
        "head_pattern": plan.head_pattern,
        "entropy_lambda": tempered.entropy.entropy_lambda,
        "seed": request.seed,
        **({} if label is None else {"kind": label.kind, "arm": label.arm}),
    }


def _final_state(finished: Finished | None, stop: Stop | None) -> State:
    if finished is None:
        return "failed"
    if finished.state != "stopped":
        return finished.state
    return "pruned" if stop is not None and not stop.keep else "interrupted"


def _next_step(checkpoint: Path) -> int:
    """Return the next logged step of a run that resumes from a checkpoint."""
    content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    # a checkpoint from before the study had a logger only has the optimizer's steps
    logger_state = content["callbacks"].get(
        TemperatureLogger.__qualname__, {"next_step": content["global_step"]}
    )
    return int(logger_state["next_step"])

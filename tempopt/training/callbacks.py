"""What Lightning calls while a run trains: temperature, entropy weight, randomness, reports and the end.

Each callback does one thing; none of them knows where its reports go.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import lightning as L
import numpy as np
import torch
from torch import Tensor

from tempopt.attention.attach.learning import HeadTemperatures
from tempopt.attention.attach.observers import Observe
from tempopt.errors import SpecError, unknown
from tempopt.seeds import derive
from tempopt.storage.rows import is_finite
from tempopt.temperature import Constant, EntropyParameters, TemperatureParameters, TemperaturePlan, progress
from tempopt.training import lightning_internals as internals
from tempopt.training.lightning_package import LightningCallback, LightningCheckpoint, MixedPrecision
from tempopt.training.ranks import ALONE, Ranks, StopSignals
from tempopt.training.steps import current_step, total_steps


class TemperatureTarget(Protocol):
    """An object whose temperature changes during training: a TemperedModule or an Attachment."""

    @property
    def layers(self) -> Sequence[str]:
        """Names of the tempered layers in depth order."""

    @property
    def plan(self) -> TemperaturePlan:
        """The plan in force."""

    @property
    def entropy(self) -> EntropyParameters:
        """The entropy term of the loss."""

    @property
    def progress(self) -> float:
        """The progress whose temperature is in force."""

    def use(self, parameters: TemperatureParameters) -> None:
        """Put another plan in force, at the progress that training has reached."""

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperature of each layer in force."""

    def set_progress(self, progress: float) -> None:
        """Set every layer's temperature to the plan's at ``progress`` in [0, 1]."""

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Hold each layer at a temperature of its own until ``use``."""

    def learn(self) -> None:
        """Let backward passes compute the gradient of the temperatures from now on."""

    def log_gradients(self) -> list[float] | None:
        """Return and clear the gradient with respect to ln τ of each layer; None if there is none."""

    def observed(self, observe: Observe) -> AbstractContextManager[None]:
        """Return a context in which an observer receives queries and keys."""


class TemperedAttention(TemperatureTarget, Protocol):
    """An object that tempers attention, whose heads can have separate temperatures."""

    def learn_heads(self) -> HeadTemperatures:
        """Give each head its own temperature, starting at that of its layer, and return them."""


def check_validate_at(value: object) -> None:
    """Refuse a value other than ``final`` and ``current``; raises SpecError."""
    if value not in ("final", "current"):
        raise SpecError(f"validate_at is {value!r}; allowed are final and current.")


class TemperedCallback(LightningCallback):
    """A callback for an object with a temperature.

    Args:
        tempered: The object; None for the LightningModule itself, a TemperedModule.
    """

    def __init__(self, *, tempered: TemperatureTarget | None = None) -> None:
        super().__init__()
        self._tempered = tempered

    def _of(self, module: L.LightningModule) -> TemperatureTarget:
        tempered_module: Any = module
        return tempered_module if self._tempered is None else self._tempered


class TemperatureCallback(TemperedCallback):
    """Set the temperature at each optimizer step; it is computed from the step, so a resume is exact.

    Args:
        validate_at: ``final``: validation, testing and prediction run under the plan's last temperature,
            which is what is exported; ``current``: under the temperature that training has reached.
        tempered: What to move; None for the LightningModule itself, a TemperedModule.
    """

    def __init__(self, *, validate_at: str = "final", tempered: TemperatureTarget | None = None) -> None:
        check_validate_at(validate_at)
        super().__init__(tempered=tempered)
        self.validate_at = validate_at
        self._step = -1
        self._total = 1
        self._reached = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = -1
        # a constant temperature does not need the length of the training
        tempered = self._of(pl_module)
        is_moving = not isinstance(tempered.plan.schedule, Constant) or tempered.entropy.moves
        self._total = total_steps(trainer) if is_moving else 1

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if current_step(trainer) != self._step:
            self._step = current_step(trainer)
            self._of(pl_module).set_progress(progress(self._step, self._total))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._reached = self._of(pl_module).progress
        if self.validate_at == "final":
            self._of(pl_module).set_progress(1.0)

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        # averaged weights with their own buffers and parameters may have been loaded since validation began
        if batch_idx == 0 and dataloader_idx == 0:
            tempered = self._of(pl_module)
            tempered.set_progress(tempered.progress)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._of(pl_module).set_progress(self._reached)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end


class LossScaleCallback(TemperedCallback):
    """Pass Lightning's scale of the loss to a module, so that an auxiliary term keeps its weight.

    Lightning divides the loss by ``accumulate_grad_batches`` and multiplies it by a gradient scaler's scale.
    """

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        tempered: Any = self._of(pl_module)
        tempered.set_loss_scale(loss_scale(trainer) / trainer.accumulate_grad_batches)


def loss_scale(trainer: L.Trainer) -> float:
    """Return the factor of a gradient scaler on the loss; 1 without one."""
    plugin = trainer.precision_plugin
    return plugin.scaler.get_scale() if isinstance(plugin, MixedPrecision) and plugin.scaler else 1.0


def seed_generators(*parts: int | str) -> None:
    """Set Python's, NumPy's and torch's generators (CUDA's too, once in use) as a function of ``parts``."""
    seed = derive(*parts)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed would record a stack trace at each call for devices that are not in use
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


class SeedCallback(LightningCallback):
    """Set the generators from (seed, batch) at each batch, so that no generator state has to be saved.

    In training, ranks draw different numbers (otherwise dropout would be equal on all of them), the first
    rank those of a single device; in validation, which every rank does completely, they draw the same.

    Args:
        seed: Seed of the run.
        ranks: The processes that train the run.
    """

    def __init__(self, seed: int, ranks: Ranks = ALONE) -> None:
        self._seed = seed
        self._rank_seed_parts = ranks.rank_seed_parts

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        seed_generators(
            self._seed, "batch", trainer.fit_loop.epoch_loop.total_batch_idx, *self._rank_seed_parts
        )

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        seed_generators(self._seed, "validate")


class TemperatureLogger(LightningCallback):
    """Log the temperature of each layer, and what is observed of its attention, to the loggers of a run.

    ``temperature/<layer>`` is that in force, before what follows from the length of a sequence; it is
    logged as often as Lightning logs (``log_every_n_steps``), with the first step and with each validation.

    Args:
        tempered: Whose temperature it is.
        observations_at: Returns what was observed at an optimizer step, by name.

    Attributes:
        next_step: Step that is logged next, as Lightning counts steps for loggers; travels in the checkpoint.
    """

    def __init__(
        self, *, tempered: TemperatureTarget, observations_at: Callable[[int], dict[str, float]]
    ) -> None:
        self._tempered = tempered
        self._observed = observations_at
        self._step = -1
        self._new = False
        self._temperatures: Sequence[float] = ()
        self._logged = -1
        self.next_step = 0

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self._new = current_step(trainer) != self._step
        self._step = current_step(trainer)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self._temperatures = self._tempered.temperatures
        observations = self._observed(self._step) if self._new else {}
        has_stepped = not internals.is_accumulating(trainer)
        is_due = has_stepped and (self._step == 0 or internals.should_log_now(trainer))
        if observations or is_due:
            self._log(trainer, observations)
        self.next_step = internals.logged_steps(trainer) + has_stepped

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        step = internals.logged_steps(trainer)
        if trainer.state.fn == "fit" and not trainer.sanity_checking and step != self._logged:
            self._log(trainer, {})

    def _log(self, trainer: L.Trainer, observations: dict[str, float]) -> None:
        self._logged = internals.logged_steps(trainer)
        values = dict(observations)
        if self._tempered.layers:
            temperatures = self._temperatures or self._tempered.plan.temperatures(0.0)
            values = {f"temperature/{layer}": value for layer, value in enumerate(temperatures)} | values
        for logger in trainer.loggers:
            logger.log_metrics(values, step=self._logged)

    @property
    def last_step(self) -> int:
        """Step that was logged last, 0 before the first."""
        return max(self.next_step - 1, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"next_step": self.next_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.next_step = state_dict["next_step"]


class EvaluationAbortedError(Exception):
    """An evaluation at the end of a run was interrupted, since the run is to end."""


def stop_training(trainer: L.Trainer) -> None:
    """End the training after this batch, regardless of the minimal length in its Trainer."""
    internals.end_at_once(trainer)
    trainer.fit_loop.min_epochs = 0
    trainer.fit_loop.epoch_loop.min_steps = None
    # Lightning would validate once more after a stop, without use.
    trainer.limit_val_batches = 0


class ReportCallback(LightningCheckpoint):
    """Report validations, detect divergence, obey stop requests and send heartbeats.

    Its state is the history of reports, which travels in the checkpoint. It is a ``Checkpoint`` so that
    Lightning calls it last, after all that may still log something.

    A validation that does not log the metric is no report, though Lightning keeps the earlier value.

    Args:
        metric: Name of the logged metric that counts.
        on_report: Called with the optimizer step, the metric and all logged numbers after each validation
            that logs it.
        on_heartbeat: Called with the optimizer step after each batch, of training and of validation.
        stop_signals: Exchanged between ranks after each batch and validation of the training, and after each
            batch of an evaluation at its end.
        sum_weights: Returns sums by which the weights of the module are told from others.

    Attributes:
        validated_weights: Those sums, of the weights that the newest validation was of.
    """

    def __init__(
        self,
        *,
        metric: str,
        on_report: Callable[[int, float, dict[str, float]], None],
        on_heartbeat: Callable[[int], None],
        stop_signals: StopSignals,
        sum_weights: Callable[[], list[float]] = list,
    ) -> None:
        self._metric = metric
        self._sum_weights = sum_weights
        self._earlier_metrics: dict[str, Tensor] = {}
        self._validation_names: set[str] = set()
        self.validated_weights: list[float] | None = None
        self._report = on_report
        self._beat = on_heartbeat
        self._stop_signals = stop_signals
        self.reports: list[list[float]] = []
        self.metrics: dict[str, float] = {}
        self.diverged_at: int | None = None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._stop_signals.exchange(diverged=loss is not None and not math.isfinite(loss)):
            self.diverged_at = current_step(trainer)
            stop_training(trainer)
        elif self._stop_signals.stop:
            stop_training(trainer)
        self._beat(current_step(trainer))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._earlier_metrics = dict(trainer.callback_metrics)

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        # averaged weights have come in since validation began
        if trainer.state.fn == "fit" and batch_idx == 0 and dataloader_idx == 0:
            self.validated_weights = self._sum_weights()

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        self._beat(current_step(trainer))
        if trainer.state.fn != "fit":
            self._stop_signals.exchange()
            if self._stop_signals.leave:
                raise EvaluationAbortedError

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or self.diverged_at is not None:
            return
        # Lightning keeps the metrics of earlier validations; those logged in this one are new tensors
        logged_names = {
            name
            for name, tensor in trainer.callback_metrics.items()
            if tensor is not self._earlier_metrics.get(name)
        }
        self._validation_names |= logged_names
        metrics = {
            name: float(tensor)
            for name, tensor in trainer.callback_metrics.items()
            if name in logged_names or name not in self._validation_names
        }
        value = metrics[self._metric] if self._metric in logged_names else None
        if self._stop_signals.exchange(diverged=value is not None and not is_finite(value)):
            self.diverged_at = current_step(trainer)
            stop_training(trainer)
            return
        if value is not None:
            self.record_report(current_step(trainer), value, metrics)
        if self._stop_signals.stop:
            stop_training(trainer)

    def has_report_at(self, step: int) -> bool:
        """Return whether the newest report is for this step."""
        return bool(self.reports) and self.reports[-1][0] == step

    def record_report(self, step: int, value: float, metrics: dict[str, float]) -> None:
        """Add a validation to the history, in place of another one at its step, and report it."""
        if self.has_report_at(step):
            self.reports.pop()
        self.reports.append([step, value])
        self.metrics = metrics
        self._report(step, value, metrics)

    def state_dict(self) -> dict[str, Any]:
        names = sorted(self._validation_names)
        return {"reports": self.reports, "metrics": self.metrics, "validation_names": names}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.reports = [list(report) for report in state_dict["reports"]]
        self.metrics = dict(state_dict["metrics"])
        self._validation_names = set(state_dict["validation_names"])


def of_a_single_loader(metrics: dict[str, float], names: Sequence[str]) -> dict[str, float]:
    """Return metrics by the names that Lightning gives them if there are several dataloaders.

    With several for validation and one for testing, the latter logs each under its plain name.
    """
    plain_names = {name: name.partition("/dataloader_idx_")[0] for name in names if name not in metrics}
    return {name: metrics[plain_name] for name, plain_name in plain_names.items() if plain_name in metrics}


def extract_metric(metrics: dict[str, float], metric: str) -> float:
    """Return the metric of the study from the logged metrics of a validation.

    Raises:
        SpecError: It was never logged.
    """
    if metric not in metrics:
        raise SpecError(
            unknown(
                "metric",
                metric,
                sorted(metrics) or ["none"],
                "Log it in validation_step with self.log, in evaluations behind the training, too.",
            )
        )
    return metrics[metric]

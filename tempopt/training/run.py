"""Train one run: parameters by value in, reports and measurements out, the same for the same seed.

It is independent of Optuna, SQL and the receiver of its reports; worker.py provides a channel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch

from tempopt.attention.attach.attachment import Attachment
from tempopt.errors import SpecError, unknown
from tempopt.spec.program import ValidateAt, guard_name
from tempopt.storage.rows import is_finite
from tempopt.temperature import (
    PER_HEAD,
    Constant,
    TemperatureParameters,
    group_by_temperature,
    remove_learned_temperatures,
)
from tempopt.training import gpu_memory
from tempopt.training.arguments import loaders
from tempopt.training.attention_observer import AttentionObserver
from tempopt.training.build import build
from tempopt.training.callbacks import (
    EvaluationAbortedError,
    LossScaleCallback,
    ReportCallback,
    SeedCallback,
    TemperatureCallback,
    TemperatureTarget,
    extract_metric,
    of_a_single_loader,
    seed_generators,
)
from tempopt.training.checkpoints import CheckpointCallback, RunCheckpoints
from tempopt.training.data import NoTestDataError, seed_data, undivided_data_note, use_test_loaders
from tempopt.training.entropy_control import EntropyControl, PlannedControl
from tempopt.training.evaluate_only import PerItemMetricCallback, load_trained
from tempopt.training.identity import run_code, run_identity
from tempopt.training.learned_callback import build_learned_callback
from tempopt.training.lightning_internals import disable_signal_handlers
from tempopt.training.lightning_package import (
    ClusterEnvironment,
    DoublePrecision,
    ModelCheckpoint,
    lightning_package,
)
from tempopt.training.messages import (
    Channel,
    CheckpointFailed,
    CheckpointSaved,
    Evaluation,
    Finished,
    Message,
    Progress,
    Report,
    RunRequest,
    Started,
    Stop,
)
from tempopt.training.module import TemperedModule
from tempopt.training.named_values import NamedValues, attach_attention_temperature
from tempopt.training.plain_data import reading_as_data
from tempopt.training.ranks import ALONE, BuffersCallback, RankEnvironment, Ranks, StopSignals
from tempopt.training.steps import current_step, other_length, total_steps
from tempopt.training.trackers import Trackers
from tempopt.training.usual_callbacks import as_list, prepare_own_callbacks, usual_callbacks
from tempopt.training.weights import weight_sums

BEAT_SECONDS = 0.25

NOT_RESUMED = "A resumed run starts again from its first step:"

MAX_VALIDATIONS = 4
"""Validations until one logs the metric: a module may log it, if it is costly, at some of them only."""

# A logger is used only if the spec has one; the agent does the rest.
DEFAULTS: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    # tempopt orders the data and divides them among ranks
    "use_distributed_sampler": False,
}


class LightningRun:
    """One run: its objects are created here, from its seed; :meth:`execute` trains them.

    Args:
        request: What to train.
        channel: Receiver of the reports.
        ranks: The processes that train it; each creates a Run from the same request.
        overrides: Trainer arguments that override all others.

    Raises:
        SpecError: A class, an argument or a parameter is wrong.
        AttachError: The temperature cannot be attached to this module.
    """

    def __init__(self, request: RunRequest, channel: Channel, ranks: Ranks = ALONE, **overrides: Any) -> None:
        self.request = request
        self._ranks, self._channel = ranks, channel
        self._clock, self._beaten = time.monotonic(), -math.inf
        seeds = {"data": request.program.data_seed, "model": request.seed}
        parameters = remove_learned_temperatures(request.parameters)
        built = build(request.program, parameters, reseed=lambda part: seed_generators(seeds[part], part))
        self.module = built.module
        self.datamodule = built.datamodule
        self._plan = TemperatureParameters.from_mapping(built.temperature)
        self._target = built.control
        self._control: PlannedControl | None = None
        learns_heads = bool(request.parameters.get(PER_HEAD))
        self.tempered = attach_attention_temperature(built, request.program, learns_heads=learns_heads)
        self.values = NamedValues(
            self.module, request.program.values, request.parameters, validate_at=request.program.validate_at
        )
        self.learned = build_learned_callback(self.tempered, self.values.attachments, request, ranks)
        self._notes: list[str] = []
        self._total_steps = 0
        self._code = run_code(self.module, self.datamodule)
        self.not_resumed = request.program.not_resumed
        self._checkpoints = self._own_checkpoints()
        self.stop_signals = StopSignals(ranks, self._poll_stop, interval_seconds=request.checkpoint_every)
        self.stop_signals.keeps = self._checkpoints is not None
        self._create_reporting_callbacks(request)
        # observation would need a second compilation
        is_observed = request.observe and request.program.compile is None
        observer = AttentionObserver(self.tempered, request.seed, maps=request.maps)
        self._observed = observer if is_observed else None
        self._units = PerItemMetricCallback(request.program.metric)
        self._follow = TemperatureCallback(validate_at=request.program.validate_at, tempered=self.tempered)
        self._trackers = Trackers(
            built.loggers,
            request,
            tempered=self.tempered,
            observations_at=self._observed.at if self._observed is not None else lambda step: {},
            rank=ranks.rank,
        )
        self._seed_data()
        options = {**DEFAULTS, **self._compile(request.program.compile), **built.trainer_kwargs, **overrides}
        self.trainer = self._trainer(self._trackers.options(options))
        gpu_memory.start_memory_tracking(self._device, request.memory_share)
        self._beat(0)

    def _create_reporting_callbacks(self, request: RunRequest) -> None:
        self._callback = ReportCallback(
            metric=request.program.metric,
            on_report=self._report,
            on_heartbeat=self._beat,
            stop_signals=self.stop_signals,
            sum_weights=self._sum_weights,
        )
        self._keeping = CheckpointCallback(
            self._checkpoints,
            is_due_at_validation=request.checkpoint_every is None,
            ranks=self._ranks,
            stop_signals=self.stop_signals,
            on_saved=lambda saved: self._send(CheckpointSaved, saved=saved),
        )

    @property
    def owner(self) -> Any:
        """The object whose dataloaders the run uses."""
        return self.datamodule or self.module

    @property
    def logged(self) -> dict[str, float]:
        """All numbers logged by the newest validation of the training with the metric; empty before it."""
        return self._callback.metrics

    @property
    def has_validated(self) -> bool:
        """Whether the training has validated."""
        return self._callback.validated_weights is not None

    @property
    def diverged_at(self) -> int | None:
        """Optimizer step at which a value was not finite, or None."""
        return self._callback.diverged_at

    def execute(self) -> Finished:
        """Train to the end (or evaluate only) and measure.

        Raises:
            SpecError: The metric was never logged, or the training has no known end.
        """
        try:
            finished = self._train_and_evaluate()
        except BaseException:
            self._trackers.close(None)
            raise
        self._trackers.close(finished, self._poll_stop())
        return dataclasses.replace(finished, notes=[*finished.notes, *self._trackers.new_faults()])

    def _train_and_evaluate(self) -> Finished:
        try:
            resume = self.find_checkpoint()
            self._trackers.open(self.module, self.datamodule, self._plan, resume=resume)
            self._notes += self._trackers.new_faults()
            if self.request.program.weights is not None:
                return self._evaluate_trained(self.request.program.weights)
            self.fit(resume=resume)
            if self.diverged_at is not None:
                return self.build_finished_message("diverged", self.diverged_at)
            self.stop_signals.exchange()
            if not self.stop_signals.leave:
                return self._run_evaluations()
        except EvaluationAbortedError:
            pass
        return self.build_finished_message("stopped", current_step(self.trainer))

    def note(self, text: str) -> None:
        """Tell a person something when training begins."""
        self._notes.append(text)

    def detach(self) -> None:
        """Remove the temperatures, since the next run may attach to shared modules such as a loss."""
        if isinstance(self.tempered, Attachment):
            self.tempered.detach()
        self.values.detach()

    def fit(self, *, resume: Path | None = None) -> None:
        """Train, from a checkpoint if one is given."""
        if isinstance(self.trainer.precision_plugin, DoublePrecision):
            # Lightning does this after it loads a checkpoint, which would round the weights to 32 bits
            self.module.double()
        limit_val_batches = self.trainer.limit_val_batches
        try:
            with (
                self._trackers.logging(self.trainer),
                contextlib.nullcontext() if resume is None else reading_as_data(resume),
            ):
                self.trainer.fit(
                    self.module,
                    datamodule=self.datamodule,
                    ckpt_path=resume,
                    weights_only=None if resume is None else True,
                )
            # a module adds further ones for each evaluation
            callbacks: list[L.Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
            self._control = next((c for c in callbacks if isinstance(c, PlannedControl)), None)
            # ending a training sets this to 0
            self.trainer.limit_val_batches = limit_val_batches
        finally:
            if self._checkpoints is not None:
                self._checkpoints.close()

    def evaluate(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the logged metrics of the validation loop on the evaluation's data, at its temperature.

        Raises:
            SpecError: There is no such dataloader, or the metric is not logged.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._at(evaluation.at))
            if evaluation.on == "test":
                stack.enter_context(use_test_loaders(self.owner))
            if evaluation.temperature is not None:
                stack.enter_context(self._other_plan(evaluation.temperature))
            for _ in range(MAX_VALIDATIONS):
                self.trainer.validate(self.module, datamodule=self.datamodule, verbose=False)
                metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
                metrics |= of_a_single_loader(metrics, [self.request.program.metric, *evaluation.guards])
                if self.request.program.metric in metrics:
                    break
        extract_metric(metrics, self.request.program.metric)
        guard_values(evaluation, metrics)
        return metrics

    def build_finished_message(
        self,
        state: Literal["complete", "stopped", "diverged"],
        step: int,
        metrics_by_name: dict[str, dict[str, float]] | None = None,
    ) -> Finished:
        """Return the message that ends this run."""
        metrics_by_name, request, observer = metrics_by_name or {}, self.request, self._observed
        has_dropped_checkpoints = self._checkpoints is not None and self.not_resumed is not None
        peaks = self._ranks.all_gather(gpu_memory.peak(self._device))
        return Finished(
            ticket=request.ticket,
            attempt=request.attempt,
            state=state,
            step=step,
            measurements=measurements(request, metrics_by_name),
            metrics=metrics_by_name,
            seconds=time.monotonic() - self._clock,
            reports=self._callback.reports,
            checkpoint_seconds=self._checkpoints.seconds if self._checkpoints is not None else 0.0,
            notes=[
                *self._compile_faults(),
                *(observer.notes if observer is not None else []),
                *([self.length_fault] if state == "complete" and self.length_fault else []),
                *([f"{NOT_RESUMED} {self.not_resumed}."] if has_dropped_checkpoints else []),
            ],
            peak_memory=max((peak for peak in peaks if peak is not None), default=None),
            curves=self._measured_curves() if state == "complete" else {},
            maps=observer.maps if observer is not None and state == "complete" else None,
        )

    def _measured_curves(self) -> dict[str, list[list[float]]]:
        learned = {} if self.learned is None else self.learned.curves
        control: dict[str, list[list[float]]] = {}
        if self._control is not None:
            control = self._control.reported_curves(is_observed=self.request.observe)
        return {**(self._units if self._observed is None else self._observed).curves, **learned, **control}

    @property
    def length_fault(self) -> str:
        """Why schedules have not ended with a training that ended by itself; empty if they have."""
        num_steps = current_step(self.trainer)
        schedules = [tempered.plan.schedule for tempered in self._scheduled]
        is_moving = not all(isinstance(schedule, Constant) for schedule in schedules)
        # the last batch of a manual optimization may step more than once
        has_ended = num_steps == self._total_steps or (
            num_steps > self._total_steps and not self.module.automatic_optimization
        )
        if has_ended or not is_moving or self.trainer.should_stop:
            return ""
        return other_length(num_steps, self._total_steps)

    @property
    def _scheduled(self) -> list[TemperatureTarget]:
        return [self.tempered, *self.values.attachments.values()]

    def _sum_weights(self) -> list[float]:
        """Return sums over the weights, without the named temperatures, which evaluations set."""
        temperatures = [attachment.tensor for attachment in self.values.attachments.values()]
        return weight_sums(self.module, ignored=temperatures)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.trainer.strategy.root_device
        return device

    def _compile(self, mode: str | None) -> dict[str, Any]:
        """Compile the steps of the module unless ``mode`` is None; return arguments of its Trainer."""
        self._compile_faults: Callable[[], list[str]] = list
        if mode is None:
            return {}
        # imported here since few runs need it
        from tempopt.training import compiling

        compiling.compile_steps(self.module, mode)
        self._compile_faults = compiling.faults
        # as in the validations of the training, so that the evaluations share their graph
        return {"inference_mode": False}

    def _own_checkpoints(self) -> RunCheckpoints | None:
        request = self.request
        if request.checkpoints is None or request.task != "train" or request.program.weights is not None:
            return None
        if self.not_resumed is not None:
            return None
        return RunCheckpoints(
            request,
            run=run_identity(request),
            ranks=self._ranks,
            on_checkpoint_failed=lambda reason: self._send(CheckpointFailed, why=reason),
            unreadable=lambda reason: self._keep_nothing(f"a checkpoint cannot be read as data ({reason})"),
        )

    def find_checkpoint(self) -> Path | None:
        """Return a local file of the newest usable checkpoint of the request; None: the run begins anew."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            if self.not_resumed is not None and self.request.attempt > 1:
                self._notes.append(f"{NOT_RESUMED} {self.not_resumed}.")
            return None
        path, notes = self._ranks.broadcast_from_first(lambda: checkpoints.newest(self.request.resume))
        self._notes += notes
        self._beat(0)
        return path

    def _seed_data(self) -> None:
        seed_data(
            self.module,
            self.datamodule,
            seed=self.request.seed,
            data_seed=self.request.program.data_seed,
            on_not_resumable=self._keep_nothing,
            on_not_divided=lambda: self._notes.append(undivided_data_note(self._ranks.size)),
            ranks=self._ranks,
            should_pin=lambda: self._device.type == "cuda",
        )

    def _keep_nothing(self, reason: str = "the training data do not know their position") -> None:
        self.not_resumed = reason
        self._keeping.checkpoints = None
        self.stop_signals.keeps = False
        if self.request.attempt > 1:
            self._notes.append(f"{NOT_RESUMED} {reason}.")

    def _trainer(self, options: dict[str, Any]) -> L.Trainer:
        ranks = self._ranks
        assert options.get("devices", 1) == ranks.size, "a run was given to another number of ranks"
        package = lightning_package(type(self.module))
        callbacks: list[L.Callback] = [
            package.callbacks.LambdaCallback(
                on_train_start=lambda trainer, _: self._send_start(
                    current_step(trainer), total_steps(trainer)
                )
            ),
            SeedCallback(self.request.seed, ranks),
        ]
        if ranks.size > 1:
            callbacks.append(BuffersCallback())
        # a TemperedModule adds these itself, unless its configure_callbacks was overridden
        callbacks += [self._follow, *self.values.callbacks, *([] if self.learned is None else [self.learned])]
        if self.tempered.entropy.has_term:
            callbacks.append(LossScaleCallback(tempered=self.tempered))
        if self._observed is not None:
            callbacks.append(self._observed)
        if self.request.program.weights is not None:
            callbacks.append(self._units)
        callbacks += self._trackers.callbacks
        if self._target.controls:
            callbacks.append(PlannedControl(self._target, tempered=self.tempered))
        has_logger = bool(options.get("logger"))
        prepare_own_callbacks(self.module, has_logger=has_logger)
        run_name = Path(self.request.folder or "dry-run").name
        trainer: L.Trainer = package.Trainer(
            **{
                **options,
                "callbacks": [
                    *usual_callbacks(
                        adapt_callbacks(options.get("callbacks"), run_name), has_logger=has_logger
                    ),
                    *callbacks,
                    self._callback,
                    self._keeping,
                ],
                "plugins": [*check_plugins(options.get("plugins")), RankEnvironment(ranks)],
                "devices": ranks.size,
            }
        )
        disable_signal_handlers(trainer)
        return trainer

    def _send_start(self, step: int, total_steps: int) -> None:
        self._total_steps = total_steps
        # a module adds callbacks when training begins
        refuse_control(self.trainer.callbacks, planned=self._target.controls)  # type: ignore[attr-defined]
        self._send(
            Started,
            step=step,
            total_steps=total_steps,
            device=gpu_memory.device_name(self._device, self._ranks.size),
            precision=str(self.trainer.precision),
            layers=[*self.tempered.layers, *self.values.places],
            code=self._code.text,
            reports=list(self._callback.reports),
            notes=self._notes,
        )

    def _poll_stop(self) -> Stop | None:
        return self._channel.find_stop(self.request)

    def _send(self, message_type: Callable[..., Message], **fields: Any) -> None:
        ticket, attempt = self.request.ticket, self.request.attempt
        self._channel.send(message_type(ticket=ticket, attempt=attempt, **fields))

    def _report(self, step: int, value: float, metrics: dict[str, float]) -> None:
        self._send(Report, step=step, value=value, metrics=metrics)

    def _beat(self, step: int) -> None:
        now = time.monotonic()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self._send(Progress, step=step)

    def _evaluate_trained(self, path: str) -> Finished:
        load_trained(self.module, path)
        self._send_start(0, 1)
        metrics_by_name: dict[str, dict[str, float]] = {}
        for split, evaluation in {
            evaluation.on: evaluation for evaluation in self._requested_evaluations()
        }.items():
            if split == "test" and "test" not in loaders(type(self.owner)):
                continue
            # a trained model has no training progress: it is evaluated at the end of the plan
            at_the_end = dataclasses.replace(evaluation, at="final")
            try:
                with self._units.record_metric(self.module):
                    metrics = self.evaluate(at_the_end)
            except NoTestDataError:
                continue
            value = metrics[self.request.program.metric]
            if self.stop_signals.exchange(diverged=not is_finite(value)):
                return self.build_finished_message("diverged", 1)
            if not metrics_by_name:
                self._callback.record_report(1, value, metrics)
            self._units.take(split, value)
            metrics_by_name |= {
                evaluation.name: metrics
                for evaluation in self._requested_evaluations()
                if evaluation.on == split
            }
        return self.build_finished_message("complete", 1, metrics_by_name)

    def _run_evaluations(self) -> Finished:
        step = current_step(self.trainer)
        # at the end of a plan, or of a constant one, the current temperature is the final one
        has_ended = all(
            tempered.progress == 1.0 or isinstance(tempered.plan.schedule, Constant)
            for tempered in self._scheduled
        )
        metrics_by_key: dict[tuple[str, str, str], dict[str, float]] = {}
        # weights that came in behind the last validation, as averaged ones do, have another value
        has_report = self._callback.has_report_at(step)
        validated_key = ("validate", "final" if has_ended else self.request.program.validate_at, "None")
        # the ranks decide together, since buffers may differ between them
        (has_other_weights,) = self._ranks.any(self._callback.validated_weights != self._sum_weights())
        if has_report and not has_other_weights:
            metrics_by_key[validated_key] = self.logged
        metrics_by_name: dict[str, dict[str, float]] = {}
        for evaluation in self._requested_evaluations():
            key = (evaluation.on, "final" if has_ended else evaluation.at, repr(evaluation.temperature))
            if key not in metrics_by_key or not set(evaluation.guards) <= metrics_by_key[key].keys():
                metrics_by_key[key] = self.evaluate(evaluation)
                value = metrics_by_key[key][self.request.program.metric]
                if has_report and key == validated_key and is_finite(value):
                    self._callback.record_report(step, value, metrics_by_key[key])
            if not self.stop_signals.exchange(
                diverged=not is_finite(metrics_by_key[key][self.request.program.metric])
            ):
                metrics_by_name[evaluation.name] = metrics_by_key[key]
            elif evaluation.temperature is None:
                return self.build_finished_message("diverged", step)
        return self.build_finished_message("complete", step, metrics_by_name)

    def _requested_evaluations(self) -> list[Evaluation]:
        return [Evaluation(name="validate", on="validate"), *self.request.evaluations]

    @contextlib.contextmanager
    def _at(self, temperature: ValidateAt) -> Iterator[None]:
        self._validate_at(temperature)
        try:
            yield
        finally:
            self._validate_at(self.request.program.validate_at)

    def _validate_at(self, temperature: ValidateAt) -> None:
        self._follow.validate_at = temperature
        self.values.validate_at(temperature)
        # a TemperedModule creates its callback anew for every evaluation
        if isinstance(self.module, TemperedModule):
            self.module.validate_at = temperature

    @contextlib.contextmanager
    def _other_plan(self, temperature: dict[str, Any]) -> Iterator[None]:
        groups = group_by_temperature(temperature)
        if attention := groups.pop(""):
            self.tempered.use(TemperatureParameters.from_mapping(attention))
        try:
            with self.values.other_plans(groups):
                yield
        finally:
            if attention:
                self.tempered.use(self._plan)
            if attention and self._control is not None and self._control.temperatures is not None:
                self.tempered.set_temperatures(self._control.temperatures)


def measurements(request: RunRequest, metrics_by_name: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """Return the measurements of evaluations by name.

    Args:
        request: The run's request, whose evaluations name their guards.
        metrics_by_name: Evaluation name to all logged metrics.

    Raises:
        SpecError: The metric, or one that is guarded, was never logged.
    """
    values = {
        name: extract_metric(metrics, request.program.metric) for name, metrics in metrics_by_name.items()
    }
    for evaluation in request.evaluations:
        if evaluation.name in metrics_by_name:
            values |= guard_values(evaluation, metrics_by_name[evaluation.name])
    return values


def guard_values(evaluation: Evaluation, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the values of the guarded metrics of an evaluation, by name of the guard.

    Raises:
        SpecError: It was never logged.
    """
    for name in evaluation.guards:
        if name not in metrics:
            advice = "Log it in validation_step with self.log, or take the guard out."
            raise SpecError("study.guards: " + unknown("metric", name, sorted(metrics), advice))
    return {guard_name(evaluation.name, name): metrics[name] for name in evaluation.guards}


def adapt_callbacks(value: Any, run: str) -> list[Any]:
    """Return the callbacks of a spec; a ModelCheckpoint gets a folder of the run's own.

    Args:
        value: ``trainer.callbacks``, made for this run alone.
        run: Name of the run, as in ``search-0003``.

    Raises:
        SpecError: One of them sets temperatures.
    """
    callbacks = as_list(value)
    for callback in callbacks:
        if isinstance(callback, TemperatureCallback):
            raise SpecError(
                "trainer.callbacks: tempopt adds a TemperatureCallback to every run itself. Take it out; the "
                "temperature that validation runs under is said by study.validate_at."
            )
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            # simultaneous runs would overwrite each other's files
            callback.dirpath = f"{str(callback.dirpath).rstrip('/')}/{run}"
    refuse_control(callbacks)
    return callbacks


def refuse_control(callbacks: Iterable[Any], *, planned: bool = False) -> None:
    """Refuse callbacks that would also set the temperature of the runs at temperature 1.

    Args:
        callbacks: Callbacks of a run.
        planned: Whether the parameters of the run have a target.

    Raises:
        SpecError: One of the callbacks does so.
    """
    controls = [callback for callback in callbacks if isinstance(callback, EntropyControl)]
    if any(not (planned and isinstance(control, PlannedControl)) for control in controls):
        raise SpecError(
            "EntropyControl sets the temperature of every run, those at temperature 1 that the others are "
            "measured against too. Take it out of trainer.callbacks, or of the module's "
            "configure_callbacks, and search the parameter entropy_control, which is none at temperature 1."
        )


def check_plugins(value: Any) -> list[Any]:
    """Return the plugins of a spec.

    Raises:
        SpecError: One of them defines the processes of the training.
    """
    plugins = as_list(value)
    for plugin in plugins:
        if isinstance(plugin, ClusterEnvironment):
            raise SpecError(
                f"trainer.plugins: {type(plugin).__name__} says which processes train together, and tempopt "
                "starts those itself, as many as trainer.devices says. Take it out."
            )
    return plugins

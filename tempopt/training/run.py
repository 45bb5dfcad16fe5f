"""Train one run: parameters by value in, reports and measurements out, the same for the same seed.

It knows nothing of Optuna, SQL or where its reports go; serve.py gives it a channel.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import lightning as L

from tempopt.attention.attach import attach
from tempopt.attention.query_rows import query_rows
from tempopt.errors import AttachError, SpecError
from tempopt.temperature import TemperatureParameters
from tempopt.training.build import build
from tempopt.training.callbacks import (
    LossScaleCallback,
    RunCallback,
    SeedCallback,
    StartCallback,
    StoppedError,
    TemperatureCallback,
    Tempered,
    metric_of,
    seed_generators,
)
from tempopt.training.checkpoints import RunCheckpoints, load_weights
from tempopt.training.data import seed_data
from tempopt.training.identity import code_identity, run_identity
from tempopt.training.keep import KeepCallback
from tempopt.training.messages import (
    Evaluation,
    Finished,
    Kept,
    Message,
    Progress,
    Report,
    RunRequest,
    Saved,
    Started,
    Stop,
    ValidateAt,
)
from tempopt.training.module import TemperedModule

BEAT_SECONDS = 0.25
# A person who wants a logger says so in the spec; the rest is the agent's business.
LEAN: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


class Channel(Protocol):
    """Where a run's messages go, and where the wish to stop it comes from."""

    def send(self, message: Message) -> None:
        """Send one message to the agent."""

    def stop(self, request: RunRequest) -> Stop | None:
        """Return the agent's wish that this run end, if there is one."""


class Run:
    """One run: its objects are made here, from its seed; :meth:`execute` trains them.

    Args:
        request: What to train.
        channel: Where to report.
        overrides: Trainer arguments that go over all others.

    Raises:
        SpecError: A class, an argument or a parameter is wrong.
        AttachError: The temperature cannot be put on this module.
    """

    def __init__(self, request: RunRequest, channel: Channel, **overrides: Any) -> None:
        self.request = request
        self._channel = channel
        self._clock = time.monotonic()
        self._beaten = -math.inf
        seeds = {"data": request.program.data_seed, "model": request.seed}
        built = build(
            request.program,
            request.parameters,
            before=lambda part: seed_generators(seeds[part], part),
        )
        self.module = built.module
        self.datamodule = built.datamodule
        self._plan = TemperatureParameters.from_mapping(built.temperature)
        self._layers = built.layers
        self.tempered = self._temper()
        self._bake()
        self._notes: list[str] = []
        self._checkpoints = self._own_checkpoints()
        self._callback = RunCallback(
            metric=request.program.metric,
            report=self._report,
            beat=self._beat,
            stopped=self._stopped,
            broken_off=lambda: channel.stop(request) is not None,
        )
        self._keeping = KeepCallback(
            self._checkpoints, every=request.checkpoint_every, leaving=self._leaving, kept=self._kept
        )
        self._follow = TemperatureCallback(validate_at=request.program.validate_at, tempered=self.tempered)
        seed_data(
            self.module,
            self.datamodule,
            seed=request.seed,
            data_seed=request.program.data_seed,
            not_resumable=self._keep_nothing,
        )
        self.trainer = self._trainer({**LEAN, **built.trainer_kwargs, **overrides})
        self._beat(0)

    @property
    def owner(self) -> Any:
        """The object whose dataloaders the run uses."""
        return self.datamodule or self.module

    @property
    def logged(self) -> dict[str, float]:
        """Everything that the newest validation of the training logged; empty before the first."""
        return self._callback.metrics

    @property
    def diverged_at(self) -> int | None:
        """Optimizer step at which something was not finite, or None."""
        return self._callback.diverged_at

    def execute(self) -> Finished:
        """Train to the end (or evaluate only) and measure.

        Raises:
            SpecError: The metric was never logged, or the training has no known end.
        """
        try:
            if self.request.program.weights is not None:
                return self._evaluate_only(Path(self.request.program.weights))
            self.fit(resume=self._newest())
            if self.diverged_at is not None:
                return self.finished("diverged", self.diverged_at)
            if self._channel.stop(self.request) is None:
                return self._measured()
        except StoppedError:
            pass
        return self.finished("stopped", self.trainer.global_step)

    def fit(self, *, resume: Path | None = None) -> None:
        """Train, from a checkpoint on if one is given."""
        try:
            self.trainer.fit(
                self.module,
                datamodule=self.datamodule,
                ckpt_path=resume,
                weights_only=None if resume is None else True,
            )
        finally:
            if self._checkpoints is not None:
                self._checkpoints.close()

    def evaluate(self, evaluation: Evaluation) -> dict[str, float]:
        """Return what the validation loop logs on the evaluation's data, under its temperature.

        Raises:
            SpecError: There is no such dataloader, or the metric is not logged.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._at(evaluation.at))
            if evaluation.on == "test":
                stack.enter_context(self._test_data())
            if evaluation.temperature is not None:
                stack.enter_context(self._other_plan(evaluation.temperature))
            self.trainer.validate(self.module, datamodule=self.datamodule, verbose=False)
        logged = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        metric_of(logged, self.request.program.metric)
        return logged

    def finished(
        self,
        state: Literal["complete", "stopped", "diverged"],
        step: int,
        measured: dict[str, dict[str, float]] | None = None,
    ) -> Finished:
        """Return the message that ends this run."""
        measured = measured or {}
        return Finished(
            ticket=self.request.ticket,
            attempt=self.request.attempt,
            state=state,
            step=step,
            measurements={name: logged[self.request.program.metric] for name, logged in measured.items()},
            metrics=measured,
            seconds=time.monotonic() - self._clock,
            reports=self._callback.reports,
            checkpoint_seconds=self._checkpoints.seconds if self._checkpoints is not None else 0.0,
            notes=self._checkpoints.faults[:1] if self._checkpoints is not None else [],
        )

    def _own_checkpoints(self) -> RunCheckpoints | None:
        request = self.request
        if request.checkpoints is None or request.task != "train" or request.program.weights is not None:
            return None
        return RunCheckpoints(request, run=run_identity(request))

    def _newest(self) -> Path | None:
        if self._checkpoints is None:
            return None
        path, notes = self._checkpoints.newest(self.request.resume)
        self._notes += notes
        self._beat(0)
        return path

    def _keep_nothing(self) -> None:
        self._keeping.checkpoints = None
        if self.request.attempt > 1:
            self._notes.append("The training data do not know their position: the run begins again.")

    def _stopped(self) -> bool:
        stop = self._channel.stop(self.request)
        # with something to keep, it ends as soon as that is kept
        return stop is not None and not (stop.keep and self._keeping.checkpoints is not None)

    def _leaving(self) -> bool:
        return self._channel.stop(self.request) is not None

    def _temper(self) -> Tempered:
        if isinstance(self.module, TemperedModule):
            self.module.validate_at = self.request.program.validate_at
            return self.module
        return attach(self.module, self._plan, layers=self._layers)

    def _bake(self) -> None:
        if self.request.bake is None:
            return
        rows = query_rows(self.module, self._layers)
        if len(rows) != len(self.tempered.layers):
            raise AttachError(
                f"{type(self.module).__name__} has {len(self.tempered.layers)} tempered layers, but query "
                f"projections were found in {[row.name for row in rows]}; an initial temperature cannot be "
                "baked into their weights."
            )
        plan = TemperatureParameters.from_mapping(self.request.bake).plan(len(rows))
        for row, temperature in zip(rows, plan.temperatures(0.0), strict=True):
            row.scale_(1.0 / temperature)

    def _trainer(self, options: dict[str, Any]) -> L.Trainer:
        callbacks: list[L.Callback] = [StartCallback(self._started), SeedCallback(self.request.seed)]
        # a TemperedModule brings these itself, unless its configure_callbacks was overridden
        callbacks.append(self._follow)
        if isinstance(self.module, TemperedModule) and self.module.entropy_lambda:
            callbacks.append(LossScaleCallback())
        theirs = options.pop("callbacks", None) or []
        theirs = theirs if isinstance(theirs, list) else [theirs]
        trainer = L.Trainer(callbacks=[*theirs, *callbacks, self._callback, self._keeping], **options)
        # Lightning would end the run on SIGTERM (and requeue it under Slurm); that is the agent's to decide
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        return trainer

    def _started(self, step: int, total_steps: int) -> None:
        trainer = self.trainer
        self._channel.send(
            Started(
                ticket=self.request.ticket,
                attempt=self.request.attempt,
                step=step,
                total_steps=total_steps,
                device=str(trainer.strategy.root_device),
                precision=str(trainer.precision),
                layers=list(self.tempered.layers),
                code=code_identity(self.module, self.datamodule),
                reports=self._callback.reports,
                notes=self._notes,
            )
        )

    def _kept(self, saved: Saved) -> None:
        self._channel.send(Kept(ticket=self.request.ticket, attempt=self.request.attempt, saved=saved))

    def _report(self, step: int, value: float, metrics: dict[str, float]) -> None:
        ticket, attempt = self.request.ticket, self.request.attempt
        self._channel.send(Report(ticket=ticket, attempt=attempt, step=step, value=value, metrics=metrics))

    def _beat(self, step: int) -> None:
        now = time.monotonic()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self._channel.send(Progress(ticket=self.request.ticket, attempt=self.request.attempt, step=step))

    def _evaluate_only(self, path: Path) -> Finished:
        try:
            self.module.load_state_dict(load_weights(path))
        except RuntimeError as error:
            # torch lists what differs, by name and shape
            raise SpecError(
                f"The checkpoint {path} is of another model than the spec's model: section builds. {error}"
            ) from error
        self._started(0, 1)
        # a frozen model has no training behind it: what it is asked about is the plan's end
        logged = self.evaluate(Evaluation(name="validate", on="validate"))
        value = logged[self.request.program.metric]
        if not math.isfinite(value):
            return self.finished("diverged", 1)
        self._callback.take(1, value, logged)
        return self.finished("complete", 1, {each.name: logged for each in self._asked()})

    def _measured(self) -> Finished:
        step = self.trainer.global_step
        # where a plan has come to its end, the current temperature is the final one
        ended = self.tempered.progress == 1.0
        known: dict[tuple[str, str, str], dict[str, float]] = {}
        if self._callback.reports and self._callback.reports[-1][0] == step:
            known["validate", "final" if ended else self.request.program.validate_at, "None"] = self.logged
        measured: dict[str, dict[str, float]] = {}
        for evaluation in self._asked():
            key = (evaluation.on, "final" if ended else evaluation.at, repr(evaluation.temperature))
            if key not in known:
                known[key] = self.evaluate(evaluation)
            if math.isfinite(known[key][self.request.program.metric]):
                measured[evaluation.name] = known[key]
            elif evaluation.temperature is None:
                return self.finished("diverged", step)
        return self.finished("complete", step, measured)

    def _asked(self) -> list[Evaluation]:
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
        # the callback of a TemperedModule is made anew from the module for every evaluation
        if isinstance(self.module, TemperedModule):
            self.module.validate_at = temperature

    @contextlib.contextmanager
    def _other_plan(self, temperature: dict[str, Any]) -> Iterator[None]:
        self.tempered.use(TemperatureParameters.from_mapping(temperature))
        try:
            yield
        finally:
            self.tempered.use(self._plan)

    @contextlib.contextmanager
    def _test_data(self) -> Iterator[None]:
        owner = self.owner
        if self.datamodule is not None:
            self.datamodule.setup("test")
        own: Callable[[], Any] = owner.val_dataloader
        owner.val_dataloader = lambda: _given(owner.test_dataloader(), owner)
        try:
            yield
        finally:
            owner.val_dataloader = own


def _given(loaders: Any, owner: object) -> Any:
    if loaders is None:
        raise SpecError(
            f"{type(owner).__name__}.test_dataloader() gives nothing, and the verdict needs data that no "
            "search has seen. Write one, or say study.confirm_on: validate, which the verdict then states."
        )
    return loaders

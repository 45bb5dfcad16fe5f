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
from tempopt.errors import SpecError
from tempopt.temperature import TemperatureParameters
from tempopt.training.build import build, prepare
from tempopt.training.callbacks import (
    RunCallback,
    SeedCallback,
    StartCallback,
    TemperatureCallback,
    Tempered,
    metric_of,
    seed_generators,
)
from tempopt.training.checkpoints import NEWEST, load_weights
from tempopt.training.data import seed_data
from tempopt.training.identity import code_identity
from tempopt.training.messages import Evaluation, Finished, Message, Progress, Report, RunRequest, Started
from tempopt.training.module import TemperedModule

BEAT_SECONDS = 0.25
# A person who wants a logger says so in the spec; the rest is the agent's business.
LEAN: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
}


class Channel(Protocol):
    """Where a run's messages go, and where the wish to stop it comes from."""

    def send(self, message: Message) -> None:
        """Send one message to the agent."""

    def stopped(self, request: RunRequest) -> bool:
        """Return whether the agent wants this run to end."""


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
        self._beaten = 0.0
        # imports a person's code, which may draw
        prepare(request.program)
        seed_generators(request.seed, "model")
        built = build(request.program, request.parameters)
        self.module = built.module
        self.datamodule = built.datamodule
        self._plan = TemperatureParameters.from_mapping(built.temperature)
        self._layers = built.layers
        self.tempered = self._temper()
        self._bake()
        seed_data(self.module, self.datamodule, seed=request.seed, data_seed=request.program.data_seed)
        self._callback = RunCallback(
            metric=request.program.metric,
            report=self._report,
            beat=self._beat,
            stopped=lambda: channel.stopped(request),
            checkpoint=self._checkpoint if request.task == "train" else None,
        )
        self.trainer = self._trainer({**LEAN, **built.trainer_kwargs, **overrides})

    @property
    def owner(self) -> Any:
        """The object whose dataloaders the run uses."""
        return self.datamodule or self.module

    @property
    def logged(self) -> dict[str, float]:
        """Everything that the newest validation of the training logged; empty before the first."""
        return self._callback.metrics

    def execute(self) -> Finished:
        """Train to the end (or evaluate only) and measure.

        Raises:
            SpecError: The metric was never logged, or the training has no known end.
        """
        if self.request.program.weights is not None:
            return self._evaluate_only(Path(self.request.program.weights))
        resume = self._checkpoint if self.request.resume else None
        self.fit(resume=resume if resume is not None and resume.exists() else None)
        if self._callback.diverged_at is not None:
            return self.finished("diverged", self._callback.diverged_at)
        if self._channel.stopped(self.request):
            return self.finished("stopped", self.trainer.global_step)
        return self._measured()

    def fit(self, *, resume: Path | None = None) -> None:
        """Train, from a checkpoint on if one is given."""
        self.trainer.fit(
            self.module,
            datamodule=self.datamodule,
            ckpt_path=resume,
            weights_only=None if resume is None else True,
        )

    def evaluate(self, evaluation: Evaluation) -> dict[str, float]:
        """Return what the validation loop logs on the evaluation's data, under its temperature.

        Raises:
            SpecError: There is no such dataloader, or the metric is not logged.
        """
        with contextlib.ExitStack() as stack:
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
        )

    @property
    def _checkpoint(self) -> Path | None:
        return Path(self.request.folder) / NEWEST if self.request.folder is not None else None

    def _temper(self) -> Tempered:
        if isinstance(self.module, TemperedModule):
            self.module.validate_at = self.request.program.validate_at
            return self.module
        return attach(self.module, self._plan, layers=self._layers)

    def _bake(self) -> None:
        if self.request.bake is None:
            return
        rows = query_rows(self.module, self._layers)
        plan = TemperatureParameters.from_mapping(self.request.bake).plan(len(rows))
        for row, temperature in zip(rows, plan.temperatures(0.0), strict=True):
            row.scale_(1.0 / temperature)

    def _trainer(self, options: dict[str, Any]) -> L.Trainer:
        callbacks: list[L.Callback] = [StartCallback(self._started), SeedCallback(self.request.seed)]
        if not isinstance(self.module, TemperedModule):
            follow = TemperatureCallback(validate_at=self.request.program.validate_at, tempered=self.tempered)
            callbacks.append(follow)
        theirs = options.pop("callbacks", None) or []
        theirs = theirs if isinstance(theirs, list) else [theirs]
        return L.Trainer(callbacks=[*theirs, *callbacks, self._callback], **options)

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
            )
        )

    def _report(self, step: int, value: float, metrics: dict[str, float]) -> None:
        ticket, attempt = self.request.ticket, self.request.attempt
        self._channel.send(Report(ticket=ticket, attempt=attempt, step=step, value=value, metrics=metrics))

    def _beat(self, step: int) -> None:
        now = time.monotonic()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self._channel.send(Progress(ticket=self.request.ticket, attempt=self.request.attempt, step=step))

    def _evaluate_only(self, path: Path) -> Finished:
        problems = self.module.load_state_dict(load_weights(path), strict=False)
        if problems.missing_keys or problems.unexpected_keys:
            raise SpecError(
                f"The checkpoint {path} is of another model: it lacks {problems.missing_keys or 'nothing'} "
                f"and has {problems.unexpected_keys or 'nothing'} besides."
            )
        self._started(0, 1)
        logged = self.evaluate(Evaluation(name="validate", on="validate"))
        value = logged[self.request.program.metric]
        if not math.isfinite(value):
            return self.finished("diverged", 1)
        self._callback.take(1, value, logged)
        return self.finished("complete", 1, {"validate": logged})

    def _measured(self) -> Finished:
        step = self.trainer.global_step
        # training ends at the plan's final temperature, so what is measured at the current one is the same
        known: dict[tuple[str, str], dict[str, float]] = {}
        if self._callback.reports and self._callback.reports[-1][0] == step:
            known["validate", "null"] = self.logged
        measured: dict[str, dict[str, float]] = {}
        for evaluation in (Evaluation(name="validate", on="validate"), *self.request.evaluations):
            key = (evaluation.on, repr(evaluation.temperature) if evaluation.temperature else "null")
            if key not in known:
                known[key] = self.evaluate(evaluation)
            if math.isfinite(known[key][self.request.program.metric]):
                measured[evaluation.name] = known[key]
            elif evaluation.temperature is None:
                return self.finished("diverged", step)
        return self.finished("complete", step, measured)

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

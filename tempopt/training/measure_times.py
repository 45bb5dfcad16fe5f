"""Measure the duration of the parts of a run, on some of its steps, before a study begins.

The Trainer is that of the spec and the training is ended early, so steps, data and schedules are those of a
run. ``tempopt.verdict.planned_runs`` computes the duration of a whole run from these parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import lightning as L

from tempopt.training.callbacks import EvaluationAbortedError
from tempopt.training.lightning_package import LightningCallback
from tempopt.training.messages import Evaluation, Finished, LocalChannel, RunRequest, Times
from tempopt.training.ranks import ALONE, Ranks
from tempopt.training.run import LightningRun
from tempopt.training.steps import current_step, total_steps

_WARM_UP_STEPS = 5
_MAX_STEPS = 60
_MIN_STEPS = 5
_MAX_SECONDS = 20.0
_EVALUATION_SECONDS = 30.0
# the first evaluation may set up data, unlike the later ones of a run
_TWICE_BELOW = 3.0

Clock = Callable[[], float]


class StepTimer(LightningCallback):
    """Times optimizer steps without the validations between them.

    Args:
        clock: Returns seconds.

    Attributes:
        first: Time of the end of the first batch; None before.
        batches: Number of trained batches.
        evaluated: Number of batches of the newest evaluation.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._timed: list[tuple[float, float]] = []
        self.first: float | None = None
        self.batches = 0
        self.evaluated = 0

    @property
    def enough(self) -> bool:
        """Whether enough steps were timed."""
        timed_steps = self._timed[_WARM_UP_STEPS:]
        if len(timed_steps) < _MIN_STEPS:
            return False
        return len(timed_steps) >= _MAX_STEPS or timed_steps[-1][0] - timed_steps[0][0] >= _MAX_SECONDS

    @property
    def step(self) -> float:
        """Median seconds per step after the warm-up; over all steps if there are too few."""
        timed_steps = self._timed[_WARM_UP_STEPS:]
        counted_steps = timed_steps if len(timed_steps) >= _MIN_STEPS else self._timed
        return median(seconds for _, seconds in counted_steps) if counted_steps else 0.0

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        now, step = self._clock(), current_step(trainer)
        self.batches += 1
        self.first = now if self.first is None else self.first
        if self._last is not None and step > self._last[1]:
            self._timed.append((now, (now - self._last[0]) / (step - self._last[1])))
        if self._last is None or step > self._last[1]:
            self._last = now, step

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._last = None
        self.evaluated = 0

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        self.evaluated += 1


def measure(request: RunRequest, ranks: Ranks = ALONE, *, clock: Clock = time.monotonic) -> Finished:
    """Train some steps of a run and evaluate it, and return the duration of each part.

    Args:
        request: The run; its evaluations name the data.
        ranks: The processes that train it.
        clock: Returns seconds.
    """
    start_time, channel = clock(), LocalChannel()
    run = LightningRun(request, channel, ranks)
    try:
        return _time_run(run, channel, start_time, clock)
    finally:
        run.detach()


def _time_run(run: LightningRun, channel: LocalChannel, start_time: float, clock: Clock) -> Finished:
    request = run.request
    if request.program.weights is not None:
        run.execute()
        return _build_finished_message(run, Times(start=clock() - start_time))
    timer = StepTimer(clock)
    run.trainer.callbacks.insert(0, timer)  # type: ignore[attr-defined]
    data = run.trainer.limit_val_batches
    channel.should_stop = lambda: timer.enough
    run.fit()
    assert timer.first is not None, "a training without a batch passed the dry run"
    # ending a training sets this to 0
    run.trainer.limit_val_batches = data
    validate = _time_evaluation(run, channel, timer, "validate", clock)
    tests = any(evaluation.on == "test" for evaluation in request.evaluations)
    count, ends = _count_validations(run.trainer, timer.batches)
    times = Times(
        start=max(0.0, timer.first - start_time - timer.step),
        step=timer.step,
        steps=total_steps(run.trainer),
        validate=validate,
        validations=count,
        ends_validated=ends,
        test=_time_evaluation(run, channel, timer, "test", clock) if tests else 0.0,
    )
    return _build_finished_message(run, times)


def _build_finished_message(run: LightningRun, times: Times) -> Finished:
    return replace(run.build_finished_message("complete", current_step(run.trainer)), times=times)


def _time_evaluation(
    run: LightningRun, channel: LocalChannel, timer: StepTimer, split: Any, clock: Clock
) -> float:
    """Return the seconds of one evaluation, extrapolated from its first batches if it takes long."""
    seconds = 0.0
    for _ in range(2):
        start_time = clock()
        channel.should_stop = lambda start_time=start_time: clock() - start_time > _EVALUATION_SECONDS  # type: ignore[misc]
        try:
            run.evaluate(Evaluation(name=split, on=split))
        except EvaluationAbortedError:
            num_batches = sum(run.trainer.num_val_batches)
            return (clock() - start_time) * num_batches / max(1, timer.evaluated)
        seconds = clock() - start_time
        if seconds > _TWICE_BELOW:
            break
    return seconds


def _count_validations(trainer: L.Trainer, batches: int) -> tuple[int, bool]:
    """Return :func:`validations` of a whole training, from one that has trained some batches."""
    a_step: float = trainer.accumulate_grad_batches
    if not trainer.lightning_module.automatic_optimization:
        a_step = batches / max(1, current_step(trainer))
    assert trainer.val_check_batch is not None, "no data to validate on, which the dry run has refused"
    return validations(
        round(total_steps(trainer) * a_step),
        check=trainer.val_check_batch,
        epoch=trainer.num_training_batches,
        every_n_epochs=trainer.check_val_every_n_epoch,
    )


def validations(batches: int, *, check: float, epoch: float, every_n_epochs: int | None) -> tuple[int, bool]:
    """Return the number of validations of a training, and whether the last follows its last batch.

    Args:
        batches: Batches of the whole training.
        check: Number of batches between validations.
        epoch: Number of batches per epoch.
        every_n_epochs: Number of epochs per validation; None: batches are counted across epochs.
    """
    if every_n_epochs is None:
        return int(batches // check), batches % check == 0
    epochs, remainder = divmod(batches, epoch)
    num_validations = (epochs // every_n_epochs) * (epoch // check)
    if remainder:
        is_due = (epochs + 1) % every_n_epochs == 0
        return int(num_validations + is_due * (remainder // check)), bool(is_due and remainder % check == 0)
    return int(num_validations), bool(epochs % every_n_epochs == 0 and epoch % check == 0)

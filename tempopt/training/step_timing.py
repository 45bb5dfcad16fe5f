"""Times a training step of one parameter set beside one of another, in one process and by turns.

Timed one after the other, the second of two runs would be slower or faster by whatever else the machine does
meanwhile. So short blocks of steps of the two follow each other, in the order A B B A, which cancels what
grows steadily. All blocks of a parameter set take the same steps: of each step the fastest time counts, since
a busy machine only ever makes it slower.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

import lightning as L
import torch

from tempopt.errors import SpecError
from tempopt.training import gpu_memory
from tempopt.training.callbacks import end
from tempopt.training.channel import Channel
from tempopt.training.ranks import ALONE, Ranks
from tempopt.training.run import Run
from tempopt.training.steps import step_of
from tempopt.workers.messages import (
    BASELINE_TIME,
    TIME_RATIO,
    WINNER_TIME,
    Finished,
    Message,
    Progress,
    RunRequest,
    Started,
    Stop,
)

WARM = 5
"""Steps of a block that are not timed: the first ones allocate, choose kernels and compile."""
TIMED = 20
"""Steps of a block that are timed."""

_ORDER = (0, 1, 1, 0)
_CYCLES_ON_GPU, _CYCLES = 1, 4

# the Trainer that takes so many steps, and none of its time to validate, to log or to stop for other reasons
_BLOCK: dict[str, Any] = {
    "max_steps": WARM + TIMED,
    "max_epochs": -1,
    "max_time": None,
    "min_steps": None,
    "min_epochs": None,
    "limit_val_batches": 1,
    "val_check_interval": 1.0,
    "check_val_every_n_epoch": 1,
}


class StepClock(L.Callback):
    """Takes the time of each optimizer step: its batches, without fetching them and without validation.

    On a GPU it is wall-clock time, with the device synchronised at both ends; on the CPU it is the time that
    the process computes, in which other programs have no part. After the last step it ends the training.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """Seconds of each optimizer step so far."""
        self._began = 0.0
        self._batches = 0.0
        self._step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = step_of(trainer)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._began = self._now(pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches += self._now(pl_module) - self._began
        if step_of(trainer) != self._step:
            self._step = step_of(trainer)
            self.seconds.append(self._batches)
            self._batches = 0.0
            if len(self.seconds) == WARM + TIMED:
                end(trainer)

    @staticmethod
    def _now(module: L.LightningModule) -> float:
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)
            return time.perf_counter()
        return time.process_time()


class _Block:
    """The channel of a block: the agent hears once that the run begins, and of every step that it moves."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._begun = False

    def send(self, message: Message) -> None:
        """Pass on what tells of the ticket, and drop what tells of a single block."""
        if isinstance(message, Started):
            if self._begun:
                return
            self._begun = True
            blocks = len(_ORDER) * (_CYCLES if message.device == "cpu" else _CYCLES_ON_GPU)
            message = dataclasses.replace(message, total_steps=blocks * (WARM + TIMED))
        if isinstance(message, Started | Progress):
            self._channel.send(message)

    def stop(self, request: RunRequest) -> Stop | None:
        """Return the agent's wish that the run end."""
        return self._channel.stop(request)


def time_steps(request: RunRequest, channel: Channel, ranks: Ranks = ALONE) -> Finished:
    """Train short blocks of the request's parameters and of those that it is timed against, by turns.

    Args:
        request: What to train; ``against`` says with what, and is the first to be where the seed is odd.
        channel: Where to report.
        ranks: Who train it together.

    Raises:
        SpecError: A class, an argument or a parameter is wrong.
    """
    assert request.against is not None, "a step is timed against another"
    began, quiet = time.monotonic(), _Block(channel)
    sets = (request.parameters, request.against)
    taken: tuple[list[list[float]], list[list[float]]] = ([], [])
    steps, cycles = 0, 1
    while len(taken[0]) + len(taken[1]) < len(_ORDER) * cycles:
        which = _ORDER[(len(taken[0]) + len(taken[1])) % len(_ORDER)] ^ (request.seed & 1)
        finished, seconds, on_gpu = _block(request, sets[which], quiet, ranks)
        steps += finished.step
        if finished.state != "complete":
            return dataclasses.replace(finished, seconds=time.monotonic() - began)
        taken[which].append(seconds)
        cycles = _CYCLES_ON_GPU if on_gpu else _CYCLES
    winner, baseline = (_seconds_a_step(each) for each in taken)
    if not baseline > 0:
        raise SpecError(
            "A training step takes no time that the clock of the process can see, so study.guards: step_time "
            "cannot be judged. Take the guard out."
        )
    return dataclasses.replace(
        finished,
        step=steps,
        measurements={TIME_RATIO: winner / baseline, WINNER_TIME: winner, BASELINE_TIME: baseline},
        seconds=time.monotonic() - began,
    )


def _seconds_a_step(blocks: Sequence[Sequence[float]]) -> float:
    return fmean(min(times) for times in zip(*blocks, strict=True))


def _block(
    request: RunRequest, parameters: Mapping[str, Any], channel: Channel, ranks: Ranks
) -> tuple[Finished, list[float], bool]:
    """Return how a block ended, the seconds of its timed steps, and whether it was trained on GPUs."""
    run = Run(dataclasses.replace(request, parameters=dict(parameters)), channel, ranks, **_BLOCK)
    if not run.module.automatic_optimization:
        # where batches are counted, since one may take more steps than are timed
        run.trainer.fit_loop.epoch_loop.max_steps, run.trainer.fit_loop.max_epochs = -1, WARM + TIMED
        run.trainer.limit_train_batches = WARM + TIMED
    clock = StepClock()
    # first of all, so that what other callbacks do before a step is part of it
    run.trainer.callbacks.insert(0, clock)  # type: ignore[attr-defined]
    try:
        run.fit()
        state: Literal["complete", "stopped", "diverged"] = "stopped" if run.wishes.leave else "complete"
        if run.diverged_at is not None:
            state = "diverged"
        finished, on_gpu = run.finished(state, step_of(run.trainer)), run.module.device.type == "cuda"
    finally:
        run.detach()
        del run
        gpu_memory.release()
    return finished, clock.seconds[WARM:], on_gpu

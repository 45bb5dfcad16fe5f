"""When a run writes a checkpoint: only between two batches from which Lightning goes on exactly.

How one is written and found again is checkpoints.py's business.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from tempopt.training.callbacks import end, steps_of
from tempopt.training.checkpoints import RunCheckpoints
from tempopt.training.messages import Saved

# Without a wish of the person's own: at every validation, and no longer than this apart.
AT_LATEST = 300.0
_STATE = "tempopt_loop"


class KeepCallback(Checkpoint):
    """Write checkpoints when they are due, and one on demand before the run ends.

    Lightning goes on exactly from two places: the end of a validation, and after a batch that no validation,
    no end of an epoch and no half-accumulated gradient follows. What is due elsewhere waits for the next of
    these. It is a ``Checkpoint`` so that Lightning calls it last: the state of all others is then that of
    after the validation.

    Args:
        checkpoints: Where to write them; None once it turns out that this run cannot be gone on with.
        every: Seconds between two; None for one at each validation and at the latest after ``AT_LATEST``.
        leaving: Asked between batches whether to write one and end the run.
        kept: Called with each that was written.
    """

    def __init__(
        self,
        checkpoints: RunCheckpoints | None,
        *,
        every: float | None,
        leaving: Callable[[], bool],
        kept: Callable[[Saved], None],
    ) -> None:
        self.checkpoints = checkpoints
        self._every = every
        self._leaving = leaving
        self._kept = kept
        self._clock = time.monotonic()
        self._due = False
        self._validated = False
        self._loaded: dict[str, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore(trainer, pl_module)
        self._clock = time.monotonic()
        loop = trainer.fit_loop.epoch_loop
        inner = loop.on_advance_end

        # No callback is called when a batch is over for Lightning: on_train_batch_end comes before the batch
        # is counted, before the module's own hook and before a validation that is due, on_train_batch_start
        # after the next batch was drawn.
        @functools.wraps(inner)
        def on_advance_end(data_fetcher: Any) -> None:
            # a validation that is due but has no data calls no hook, and yet is skipped on a resume
            self._validated = loop._should_check_val_fx(data_fetcher)
            inner(data_fetcher)
            self._after_batch(trainer)

        loop.on_advance_end = on_advance_end  # type: ignore[method-assign]

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validated = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self._due = self._due or self._every is None
        self._keep(trainer)

    def _after_batch(self, trainer: L.Trainer) -> None:
        # Lightning takes the rest of a resumed epoch for restarted, and would leave out what is done at its
        # end: the schedulers that go by a metric.
        trainer.fit_loop._restarting = False
        if not self._validated and not trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            self._keep(trainer)

    def _keep(self, trainer: L.Trainer) -> None:
        if self.checkpoints is None:
            return
        # this comes first: it is asked at every batch, and answered with less than the rest is
        leaving = self._leaving()
        late = time.monotonic() - self._clock >= (AT_LATEST if self._every is None else self._every)
        if not (self._due or leaving or late) or trainer.fit_loop._should_accumulate() or _ends(trainer):
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if progress.is_last_batch and trainer.num_training_batches == math.inf:
            # going on from the end of an epoch, Lightning would draw a stream's first batch and forget it
            return
        saved = self.checkpoints.save(trainer)
        self._due = False
        self._clock = time.monotonic()
        if saved is not None:
            self._kept(saved)
        if leaving:
            end(trainer)

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self.checkpoints is None or not self.checkpoints.mark(checkpoint):
            return
        state: dict[str, Any] = {
            # what goes by a metric may look for it before it is measured again
            "metrics": {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()},
            # a wish to stop waits where min_epochs or min_steps keep it from being obeyed
            "should_stop": trainer.should_stop,
        }
        if not pl_module.automatic_optimization:
            # only the module knows whether it is accumulating
            state["gradients"] = {
                name: each.grad for name, each in pl_module.named_parameters() if each.grad is not None
            }
        checkpoint[_STATE] = state

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._loaded = checkpoint[_STATE]

    def _restore(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        state, self._loaded = self._loaded, {}
        if not state:
            return
        device = trainer.strategy.root_device
        trainer._logger_connector._callback_metrics.update(
            {name: value.to(device) for name, value in state["metrics"].items()}
        )
        trainer.should_stop = state["should_stop"]
        parameters: dict[str, torch.nn.Parameter] = dict(pl_module.named_parameters())
        for name, gradient in state.get("gradients", {}).items():
            parameters[name].grad = gradient.to(parameters[name].device)


def _ends(trainer: L.Trainer) -> bool:
    stopping = trainer.should_stop and trainer.fit_loop._can_stop_early
    return stopping or trainer.global_step >= steps_of(trainer)

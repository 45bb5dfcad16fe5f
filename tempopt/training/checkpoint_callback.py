"""When a run writes a checkpoint: only between two batches from which Lightning goes on exactly.

How one is written and found again is checkpoints.py's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from tempopt.training import lightning_internals as internals
from tempopt.training.callbacks import stop_training
from tempopt.training.checkpoints import RunCheckpoints
from tempopt.training.messages import CheckpointRef
from tempopt.training.ranks import Ranks, StopSignals
from tempopt.training.steps import current_step, total_steps

_STATE = "tempopt_loop"


class CheckpointCallback(Checkpoint):
    """Write checkpoints when they are due, and one on demand before the run ends.

    Lightning goes on exactly from two places: the end of a validation, and after a batch that no validation,
    no end of an epoch and no half-accumulated gradient follows. What is due elsewhere waits for the next of
    these. It is a ``Checkpoint`` so that Lightning calls it last: the state of all others is then that of
    after the validation.

    Args:
        checkpoints: Where to write them; None once it turns out that this run cannot be continued.
        is_due_at_validation: Whether one is due at each validation, besides those that are due by the clock.
        ranks: Those that train the run; all of them write.
        wishes: What they have agreed on after the batch or the validation.
        on_saved: Called with each that was written.
    """

    def __init__(
        self,
        checkpoints: RunCheckpoints | None,
        *,
        is_due_at_validation: bool,
        ranks: Ranks,
        wishes: StopSignals,
        on_saved: Callable[[CheckpointRef], None],
    ) -> None:
        self.checkpoints = checkpoints
        self._is_due_at_validation = is_due_at_validation
        self._ranks = ranks
        self._wishes = wishes
        self._on_saved = on_saved
        self._due = False
        self._validated = False
        self._loaded: dict[str, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore(trainer, pl_module)
        self._wishes.restart()
        internals.on_batch_over(trainer, self._before_validation, lambda: self._after_batch(trainer))

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validated = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self._due = self._due or self._is_due_at_validation
        self._save_if_due(trainer)

    def _before_validation(self, is_due: bool) -> None:
        # one that is due but has no data calls no hook, and yet is skipped on a resume
        self._validated = is_due

    def _after_batch(self, trainer: L.Trainer) -> None:
        internals.finish_restart(trainer)
        if not self._validated and not internals.epoch_is_over(trainer):
            self._save_if_due(trainer)

    def _save_if_due(self, trainer: L.Trainer) -> None:
        if self.checkpoints is None:
            return
        # this comes first: it is asked at every batch, and answered with less than the rest is
        is_leaving = self._wishes.leave
        if (
            not (self._due or is_leaving or self._wishes.late)
            or internals.is_accumulating(trainer)
            or _ends(trainer)
        ):
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if progress.is_last_batch and trainer.num_training_batches == math.inf:
            # going on from the end of an epoch, Lightning would draw a stream's first batch and forget it
            return
        saved = self.checkpoints.save(trainer)
        self._due = False
        self._wishes.restart()
        if saved is not None:
            self._on_saved(saved)
        if is_leaving:
            stop_training(trainer)

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
            # only the module knows whether it is accumulating, and whether each rank for itself
            named_parameters = pl_module.named_parameters()
            gradients = {
                name: parameter.grad.cpu()
                for name, parameter in named_parameters
                if parameter.grad is not None
            }
            state["gradients"], *other_gradients = self._ranks.all_gather(gradients)
            if not all(_same(rank_gradients, state["gradients"]) for rank_gradients in other_gradients):
                state["others"] = other_gradients
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
        metrics = {name: value.to(device) for name, value in state["metrics"].items()}
        internals.restore_metrics(trainer, metrics)
        trainer.should_stop = state["should_stop"]
        parameters: dict[str, torch.nn.Parameter] = dict(pl_module.named_parameters())
        gradients = state.get("gradients", {})
        if self._ranks.rank and "others" in state:
            gradients = state["others"][self._ranks.rank - 1]
        for name, gradient in gradients.items():
            parameters[name].grad = gradient.to(parameters[name].device)


def _same(gradients: dict[str, torch.Tensor], other_gradients: dict[str, torch.Tensor]) -> bool:
    return gradients.keys() == other_gradients.keys() and all(
        torch.equal(gradients[name], other_gradients[name]) for name in gradients
    )


def _ends(trainer: L.Trainer) -> bool:
    stopping = trainer.should_stop and internals.may_stop_early(trainer)
    return stopping or current_step(trainer) >= total_steps(trainer)

"""Every use of the Trainer's private attributes, so that a new version of Lightning can break one file only.

``tests/training/test_lightning_internals.py`` checks each of them against the installed version.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric

PROVED = ("2.6",)
"""Minor versions of Lightning that all of this was tested with."""


def is_accumulating(trainer: L.Trainer) -> bool:
    """Return whether the current batch adds to a gradient, and no optimizer step follows it."""
    return bool(trainer.fit_loop._should_accumulate())


def logged_steps(trainer: L.Trainer) -> int:
    """Return the step that Lightning logs at: batches that were followed by an optimizer step."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def should_log_now(trainer: L.Trainer) -> bool:
    """Return whether ``log_every_n_steps`` has something logged at the current step."""
    return bool(trainer._logger_connector.should_update_logs)


def max_epochs_with_steps(trainer: L.Trainer) -> int:
    """Return ``max_epochs`` without the epoch that weight averaging adds for batch norms."""
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, StochasticWeightAveraging) and hasattr(callback, "_max_epochs"):
            return callback._max_epochs
    assert trainer.max_epochs is not None
    return trainer.max_epochs


def epoch_is_over(trainer: L.Trainer) -> bool:
    """Return whether the batch that was trained is the last one of its epoch."""
    return bool(trainer.fit_loop.epoch_loop._num_ready_batches_reached())


def may_stop_early(trainer: L.Trainer) -> bool:
    """Return whether ``min_steps`` and ``min_epochs`` let a training end that was told to stop."""
    return bool(trainer.fit_loop._can_stop_early)


def finish_restart(trainer: L.Trainer) -> None:
    """Have the rest of a resumed epoch treated as any other.

    Lightning takes all of it for restarted, and would leave out what is done at its end: the schedulers that
    go by a metric.
    """
    trainer.fit_loop._restarting = False


def on_batch_over(
    trainer: L.Trainer, pre_hook: Callable[[bool], None], post_hook: Callable[[], None]
) -> None:
    """Have functions called around the end of each batch, when it is over for Lightning.

    No callback is called then: ``on_train_batch_end`` comes before the batch is counted, before the module's
    own hook and before a validation that is due, ``on_train_batch_start`` after the next batch was drawn.

    Args:
        trainer: Whose training it is.
        pre_hook: Called with whether a validation is due, which calls no hook where there are no data for it.
        post_hook: Called when the batch has been counted and the validation is done.
    """
    loop = trainer.fit_loop.epoch_loop
    original_hook = loop.on_advance_end

    @functools.wraps(original_hook)
    def on_advance_end(data_fetcher: Any) -> None:
        pre_hook(bool(loop._should_check_val_fx(data_fetcher)))
        original_hook(data_fetcher)
        post_hook()

    loop.on_advance_end = on_advance_end  # type: ignore[method-assign]


def restore_metrics(trainer: L.Trainer, metrics: Mapping[str, Tensor]) -> None:
    """Put logged metrics back: schedulers and callbacks go by them, and checkpoints do not hold them."""
    trainer._logger_connector._callback_metrics.update(metrics)


def restore_data_position(trainer: L.Trainer) -> None:
    """Have data that were loaded before the checkpoint, as for ``estimated_stepping_batches``, follow it."""
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load and loop._data_fetcher is not None:
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)


def resume_weight_averaging(trainer: L.Trainer) -> None:
    """Resume stochastic weight averaging, which Lightning resumes with the next epoch only."""
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, StochasticWeightAveraging) and callback._scheduler_state is not None:
            groups = trainer.optimizers[0].param_groups
            rates = [group["lr"] for group in groups]
            callback.on_train_epoch_start(trainer, trainer.lightning_module)
            # a scheduler steps when it is made
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def dump_checkpoint(trainer: L.Trainer) -> dict[str, Any]:
    """Return the checkpoint of a training.

    As ``Trainer.save_checkpoint`` writes it, but for its end, where ranks wait for each other: one that could
    not write would not come.
    """
    state: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(False)
    return state


def disable_signal_handlers(trainer: L.Trainer) -> None:
    """Have a Trainer neither handle signals nor look for checkpoints by itself: both are the agent's."""
    # Lightning would end the run on SIGTERM (and requeue it under Slurm)
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    # with several ranks it would ask them all at every batch, and wait for the GPU
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    # under Slurm, or with a callback for it, it would go on from what others left in this folder
    trainer._checkpoint_connector._select_ckpt_path = (  # type: ignore[method-assign]
        lambda state_fn, ckpt_path, **kwargs: ckpt_path
    )


def set_rank(rank: int) -> None:
    """Say which of several processes this one is, which Lightning reads when it is imported."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    rank_zero_only.rank = rank  # type: ignore[attr-defined]


def logs_hyperparameters(module: L.LightningModule | L.LightningDataModule) -> bool:
    """Return whether ``save_hyperparameters`` was told to have them logged."""
    return bool(module._log_hyperparams)


def last_of_metric(value: Any) -> Any:
    """Return what a metric of torchmetrics gave for its newest batch, or None; another value as it is."""
    return value._forward_cache if isinstance(value, Metric) else value


def size_of_batch(batch: Any) -> int:
    """Return the number of items that Lightning takes a batch to have where the module does not say it."""
    with warnings.catch_warnings():
        # it has warned of what it cannot tell for sure itself
        warnings.simplefilter("ignore")
        return extract_batch_size(batch)

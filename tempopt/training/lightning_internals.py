"""Every use of the Trainer's private attributes, so that a new version of Lightning can break only this file.

``tests/training/test_lightning_internals.py`` checks each of them against the installed version.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.utilities.data import extract_batch_size
from torch import Tensor
from torchmetrics import Metric

from tempopt.training.lightning_package import in_either_package

_WEIGHT_AVERAGING = in_either_package(StochasticWeightAveraging)
_LOG_ARGUMENTS = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    "metric_attribute",
)
TESTED_VERSIONS = ("2.6",)
"""Minor versions of Lightning that these were tested with."""


def is_accumulating(trainer: L.Trainer) -> bool:
    """Return whether the current batch only accumulates a gradient, without an optimizer step."""
    return bool(trainer.fit_loop._should_accumulate())


def logged_steps(trainer: L.Trainer) -> int:
    """Return the step at which Lightning logs: batches that were followed by an optimizer step."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def should_log_now(trainer: L.Trainer) -> bool:
    """Return whether ``log_every_n_steps`` logs at the current step."""
    return bool(trainer._logger_connector.should_update_logs)


def max_epochs_with_steps(trainer: L.Trainer) -> int:
    """Return ``max_epochs`` without the epoch that weight averaging adds for batch norms."""
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, _WEIGHT_AVERAGING) and hasattr(callback, "_max_epochs"):
            return int(callback._max_epochs)
    assert trainer.max_epochs is not None
    return trainer.max_epochs


def epoch_is_over(trainer: L.Trainer) -> bool:
    """Return whether the batch in training is the last one of its epoch."""
    return bool(trainer.fit_loop.epoch_loop._num_ready_batches_reached())


def may_stop_early(trainer: L.Trainer) -> bool:
    """Return whether ``min_steps`` and ``min_epochs`` allow a stopped training to end."""
    return bool(trainer.fit_loop._can_stop_early)


def finish_restart(trainer: L.Trainer) -> None:
    """Treat the rest of a resumed epoch like any other.

    Otherwise Lightning would regard all of it as restarted, and skip the work at its end: the schedulers that
    use a metric.
    """
    trainer.fit_loop._restarting = False


def on_batch_over(
    trainer: L.Trainer, pre_hook: Callable[[bool], None], post_hook: Callable[[], None]
) -> None:
    """Register functions that are called around the end of each batch.

    No callback hook is called there: ``on_train_batch_end`` precedes the counting of the batch, the module's
    own hook and a due validation, ``on_train_batch_start`` follows the drawing of the next batch.

    Args:
        trainer: Trainer of the training.
        pre_hook: Called with whether a validation is due; such a validation calls no hook if it has no data.
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


def on_train_begun(trainer: L.Trainer, hook: Callable[[], None]) -> None:
    """Register a function that is called behind all hooks ``on_train_start``, the module's included."""
    strategy = trainer.strategy
    original_hook = strategy.on_train_start

    def on_train_start() -> None:
        original_hook()
        hook()

    strategy.on_train_start = on_train_start  # type: ignore[method-assign]


def training_means(trainer: L.Trainer) -> list[dict[str, Any]]:
    """Return what has been logged in this epoch's training so far, for its end."""
    results = trainer.fit_loop.epoch_loop._results
    return [
        {
            "arguments": {
                **{name: getattr(result.meta, name) for name in _LOG_ARGUMENTS},
                "reduce_fx": result.meta.reduce_fx.__name__,
                "sync_dist": result.meta.sync.should,
                "rank_zero_only": result.meta.sync.rank_zero_only,
            },
            "state": result.metric_state if result.is_tensor else {},
            "num_updates": result.update_count,
        }
        for result in results.values()
        if result.meta.on_epoch and not result.has_reset
    ]


def restore_training_means(trainer: L.Trainer, means: list[dict[str, Any]]) -> None:
    """Restore what :func:`training_means` has returned."""
    module, results = trainer.lightning_module, trainer.fit_loop.epoch_loop._results
    for mean in means:
        arguments = dict(mean["arguments"])
        attribute = arguments["metric_attribute"]
        value: Any = torch.zeros(()) if attribute is None else module.get_submodule(attribute)
        results.log(**arguments, value=value, sync_dist_fn=trainer.strategy.reduce, batch_size=1)
        result = results[f"{arguments['fx']}.{arguments['name']}"]
        for name, tensor in mean["state"].items():
            setattr(result, name, tensor.to(trainer.strategy.root_device))
        result._update_count = mean["num_updates"]
        # what is logged in the first batch of an epoch begins anew
        trainer._logger_connector._first_loop_iter = False


def end_at_once(trainer: L.Trainer) -> None:
    """Have a training that ends within an epoch call no hook for the end of an epoch or of training.

    These may need what a whole epoch logs.
    """
    trainer.should_stop = True
    trainer.fit_loop.on_advance_end = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.on_run_end = lambda: None  # type: ignore[method-assign]


def restore_metrics(trainer: L.Trainer, metrics: Mapping[str, Tensor]) -> None:
    """Restore logged metrics, which schedulers and callbacks use and checkpoints do not contain."""
    trainer._logger_connector._callback_metrics.update(metrics)


def restore_data_position(trainer: L.Trainer) -> None:
    """Have data that were loaded before the checkpoint, as for ``estimated_stepping_batches``, follow it."""
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load and loop._data_fetcher is not None:
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)


def resume_weight_averaging(trainer: L.Trainer) -> None:
    """Resume stochastic weight averaging at once, which Lightning resumes only with the next epoch."""
    callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if isinstance(callback, _WEIGHT_AVERAGING) and callback._scheduler_state is not None:
            groups = trainer.optimizers[0].param_groups
            rates = [group["lr"] for group in groups]
            callback.on_train_epoch_start(trainer, trainer.lightning_module)
            # a scheduler steps when it is made
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def dump_checkpoint(trainer: L.Trainer) -> dict[str, Any]:
    """Return the checkpoint of a training.

    As ``Trainer.save_checkpoint``, except for its end, where ranks wait for each other: a rank that could not
    write would not arrive.
    """
    state: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(False)
    return state


def disable_signal_handlers(trainer: L.Trainer) -> None:
    """Disable the Trainer's signal handlers and search for checkpoints; the agent does both."""
    # Lightning would end the run on SIGTERM (and requeue it under Slurm)
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    # with several ranks it would communicate at every batch, and wait for the GPU
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    # under Slurm, or with a callback for it, it would resume from other files in this folder
    trainer._checkpoint_connector._select_ckpt_path = (  # type: ignore[method-assign]
        lambda state_fn, ckpt_path, **kwargs: ckpt_path
    )


def set_rank(rank: int) -> None:
    """Set the rank of this process, which Lightning reads when it is imported."""
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    rank_zero_only.rank = rank  # type: ignore[attr-defined]


def logs_hyperparameters(module: L.LightningModule | L.LightningDataModule) -> bool:
    """Return whether ``save_hyperparameters`` has requested logging."""
    return bool(module._log_hyperparams)


def last_of_metric(value: Any) -> Any:
    """Return the value of a torchmetrics metric for its newest batch, or None; other values unchanged."""
    return value._forward_cache if isinstance(value, Metric) else value


def size_of_batch(batch: Any) -> int:
    """Return the batch size that Lightning infers if the module does not give it."""
    with warnings.catch_warnings():
        # it warns about ambiguous sizes
        warnings.simplefilter("ignore")
        return extract_batch_size(batch)

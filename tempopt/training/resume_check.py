"""Check in the dry run whether a run resumes exactly: write a checkpoint, load it and continue."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from tempopt.errors import SpecError
from tempopt.training.data import SeededLoader
from tempopt.training.gpu_memory import is_cuda_oom
from tempopt.training.messages import CheckpointRef, CheckpointSaved, LocalChannel, RunRequest
from tempopt.training.plain_data import brief
from tempopt.training.ranks import Ranks
from tempopt.training.run import LightningRun

_STEPS_BEFORE = 3
_TWO_EPOCHS = {"max_epochs": 2, "limit_train_batches": 2}


def find_resume_fault(request: RunRequest, ranks: Ranks, options: dict[str, Any]) -> str | None:
    """Train two short epochs, repeat the end from a checkpoint in the second one, and compare.

    Args:
        request: The request of the dry run.
        ranks: The processes that train it.
        options: Arguments of the Trainer that make a training short.

    Returns:
        Why a resumed run would train something else; None: it would train the same.

    Raises:
        SpecError: The data of an epoch are not as many as their length says.
    """
    checkpoints: list[CheckpointRef] = []

    def collect(message: object) -> None:
        if isinstance(message, CheckpointSaved):
            checkpoints.append(message.saved)

    options = {**options, **_TWO_EPOCHS}
    with tempfile.TemporaryDirectory(prefix="tempopt-") as folder:
        training_request = dataclasses.replace(
            request, task="train", evaluations=[], checkpoints=folder, checkpoint_every=0.0, attempt=1
        )
        whole_run = LightningRun(training_request, LocalChannel(send=collect), ranks, **options)
        resumed_run: LightningRun | None = None
        try:
            whole_run.fit()
            checkpoints = [saved for saved in checkpoints if saved.step == _STEPS_BEFORE]
            if whole_run.not_resumed is not None or not checkpoints:
                return whole_run.not_resumed
            resumed_request = dataclasses.replace(training_request, attempt=2, resume=checkpoints)
            resumed_run = LightningRun(resumed_request, LocalChannel(), ranks, **options)
            try:
                resumed_run.fit(resume=resumed_run.find_checkpoint())
            except Exception as error:
                if is_cuda_oom(error):
                    raise
                return f"the checkpoint cannot be loaded ({brief(error)})"
            return (
                _find_data_fault(whole_run.trainer, resumed_run.trainer)
                or _find_weight_fault(whole_run.module, resumed_run.module)
                or _find_optimizer_fault(whole_run.trainer, resumed_run.trainer)
                or _find_value_fault(whole_run, resumed_run)
            )
        finally:
            whole_run.detach()
            if resumed_run is not None:
                resumed_run.detach()


def _find_data_fault(whole_trainer: L.Trainer, resumed_trainer: L.Trainer) -> str | None:
    """Compare the data of a later epoch, drawn after the earlier epochs and drawn by a new loader."""
    for loader, new_loader in zip(_loaders(whole_trainer), _loaders(resumed_trainer), strict=True):
        # each process that loads items has a copy of the dataset
        index = min(max(loader.num_workers, 1), len(loader) - 1)
        position = {"epoch": 2, "batch": 0, "draws": 2}
        loader.load_state_dict(position)
        *_, batch = itertools.islice(loader, index + 1)
        new_loader.load_state_dict({**position, "batch": index})
        if not _is_same(batch, next(iter(new_loader))):
            return (
                "a dataset or a sampler of the training data keeps a state of its own, as a generator, that "
                "no checkpoint holds"
            )
        _require_length(new_loader)
    return None


def _loaders(trainer: L.Trainer) -> list[SeededLoader]:
    return [loader for loader in tree_leaves(trainer.train_dataloader) if isinstance(loader, SeededLoader)]


def _require_length(loader: SeededLoader) -> None:
    num_batches, length = loader.count_batches(), len(loader)
    if num_batches != length:
        raise SpecError(
            f"data: an epoch of the training data says that it has {length} batches, and has {num_batches}, "
            "so that schedules would not end with the training. Correct the __len__ of the sampler, or give "
            "trainer.max_steps together with max_epochs: -1."
        )


def _is_same(batch: Any, other_batch: Any) -> bool:
    leaves, other_leaves = tree_leaves(batch), tree_leaves(other_batch)
    return len(leaves) == len(other_leaves) and all(map(_is_same_leaf, leaves, other_leaves))


def _is_same_leaf(leaf: Any, other_leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor) and isinstance(other_leaf, torch.Tensor):
        return leaf.shape == other_leaf.shape and _equal(leaf, other_leaf)
    if not isinstance(leaf, torch.Tensor | np.ndarray | np.generic | int | float | complex | str | bytes):
        # objects of other classes need not define equality
        return True
    if type(leaf) is not type(other_leaf):
        return False
    values = np.asarray(leaf)
    return bool(np.array_equal(values, np.asarray(other_leaf), equal_nan=values.dtype.kind in "fc"))


def _find_weight_fault(module: L.LightningModule, resumed_module: L.LightningModule) -> str | None:
    state, resumed_state = module.state_dict(), resumed_module.state_dict()
    is_different = any(
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and not _equal(value, resumed_state[name])
        for name, value in state.items()
    )
    if not is_different:
        # on a GPU, rounding differs between trainings
        return None
    return (
        "it ends with other weights than a run that was left alone, since the module or a callback keeps a "
        "state that no checkpoint holds (state_dict of the callback, a buffer of the module)"
    )


def _find_optimizer_fault(trainer: L.Trainer, resumed_trainer: L.Trainer) -> str | None:
    """Compare the optimizers, which have the learning rate of a step that the comparison does not take."""
    leaves = tree_leaves([optimizer.state_dict() for optimizer in trainer.optimizers])
    resumed_leaves = tree_leaves([optimizer.state_dict() for optimizer in resumed_trainer.optimizers])
    if trainer.strategy.root_device.type != "cpu" or _is_same(leaves, resumed_leaves):
        return None
    return (
        "it ends with another state of its optimizers, as a learning rate, than a run that was left alone, "
        "since a scheduler or an optimizer keeps a state that its state_dict does not hold"
    )


def _find_value_fault(run: LightningRun, resumed_run: LightningRun) -> str | None:
    metric = run.request.program.metric
    value, resumed_value = run.logged.get(metric), resumed_run.logged.get(metric)
    if value == resumed_value or run.trainer.strategy.root_device.type != "cpu":
        return None
    return (
        f'it reports {resumed_value} for "{metric}", and a run that was left alone {value}, since the '
        "module or a callback keeps a state that no checkpoint holds"
    )


def _equal(value: torch.Tensor, other_value: torch.Tensor) -> bool:
    return bool(torch.all((value == other_value) | (value.isnan() & other_value.isnan())))

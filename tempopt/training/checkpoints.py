"""Checkpoints of a run: written completely or not at all, read as data and never as code.

They are written only between two batches from which Lightning continues exactly.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from fsspec.implementations.local import LocalFileSystem
from torch.utils._pytree import tree_map

from tempopt.storage.checkpoints import open_filesystem
from tempopt.training import lightning_internals as internals
from tempopt.training.attribute_state import AttributeState
from tempopt.training.callbacks import stop_training
from tempopt.training.lightning_package import LightningCheckpoint
from tempopt.training.messages import CheckpointRef, RunRequest
from tempopt.training.module_state import optimized_names, read_modes, regroup_parameters, restore_modes
from tempopt.training.plain_data import brief, load_as_data
from tempopt.training.ranks import ALONE, Ranks, StopSignals
from tempopt.training.steps import current_step, estimate_total_steps, resume_total_steps, total_steps

_RUN, _STATE = "tempopt_run", "tempopt_loop"
_WRITING = ".writing"


class RunCheckpoints:
    """The checkpoints of one run, in a folder of its own.

    Only temporary files of killed attempts are deleted. If several ranks train, the first one writes; all of
    them have to save, since each may hold a part.

    Args:
        request: The run; its ``checkpoints`` are not None.
        run: Identity of the run; a checkpoint of another one is not resumed.
        ranks: Who train the run.
        on_checkpoint_failed: Called with the reason for each checkpoint that could not be written.
        unreadable: Called with the reason when one that was written cannot be read.

    Attributes:
        seconds: Total time of writing so far.
    """

    def __init__(
        self,
        request: RunRequest,
        *,
        run: str,
        ranks: Ranks = ALONE,
        on_checkpoint_failed: Callable[[str], None] = lambda reason: None,
        unreadable: Callable[[str], None] = lambda reason: None,
    ) -> None:
        assert request.checkpoints is not None
        self.seconds = 0.0
        self._request = request
        self._attempt = request.attempt
        self._timeout = request.checkpoint_timeout
        self._run = run
        self._ranks = ranks
        self._on_save_failed = on_checkpoint_failed
        self._on_unreadable = unreadable
        self._saving = False
        self._step: int | None = None
        self._fetched: Path | None = None
        self._url = request.checkpoints.rstrip("/")
        self._fs, self._folder = open_filesystem(self._url)
        if isinstance(self._fs, LocalFileSystem):
            self._local_folder = Path(self._folder)
        else:
            self._local_folder = Path(request.folder or Path(tempfile.gettempdir(), f"tempopt-{os.getpid()}"))
        if ranks.rank == 0:
            self._clean()

    def save(self, trainer: L.Trainer) -> CheckpointRef | None:
        """Write the trainer's state; None if this step has been written, or if it could not be."""
        step = current_step(trainer)
        if step == self._step:
            return None
        start_time = time.monotonic()
        name = f"step-{step}-{self._attempt}.ckpt"
        temporary_path = self._local_folder / (name + _WRITING)
        fault: OSError | None = None
        try:
            self._local_folder.mkdir(parents=True, exist_ok=True)
            self._dump(trainer, temporary_path)
        except OSError as error:
            fault = error
        saved = self._ranks.broadcast_from_first(
            lambda: self._finalize_save(temporary_path, name, step, fault)
        )
        self.seconds += time.monotonic() - start_time
        if isinstance(saved, str):
            self._on_unreadable(saved)
            return None
        if saved is not None:
            self._step = step
        return saved

    def _dump(self, trainer: L.Trainer, path: Path) -> None:
        self._saving = True
        try:
            trainer.strategy.save_checkpoint(internals.dump_checkpoint(trainer), path)
        finally:
            self._saving = False

    def _finalize_save(
        self, temporary_path: Path, name: str, step: int, fault: OSError | None
    ) -> CheckpointRef | str | None:
        """Move the written file to its place; return None and record a fault if that fails.

        Returns:
            Where it is, or why it cannot be read.
        """
        try:
            if fault is not None:
                raise fault
            try:
                load_as_data(temporary_path)
            except Exception as error:
                return brief(error)
            size, digest = temporary_path.stat().st_size, _digest(temporary_path)
            self._publish_file(temporary_path, name)
        except OSError as error:
            self._report_failure(name, error)
            return None
        finally:
            _forget(temporary_path)
        return CheckpointRef(step=step, url=f"{self._url}/{name}", digest=digest, size=size)

    def _publish_file(self, temporary_path: Path, name: str) -> None:
        if isinstance(self._fs, LocalFileSystem):
            _fsync(temporary_path)
            temporary_path.replace(self._local_folder / name)
            _fsync(self._local_folder)
            return
        try:
            self._fs.put_file(str(temporary_path), f"{self._folder}/{name}", timeout=self._timeout)
        except TimeoutError as error:
            raise OSError(f"no answer for {self._timeout:g} s") from error
        except Exception as error:
            # each kind of storage has its own errors
            raise OSError(f"{type(error).__name__}: {error}") from error

    def _report_failure(self, name: str, error: OSError) -> None:
        fault = f"The checkpoint {name} could not be written ({error}). The run continues without it."
        print(fault, flush=True)
        self._on_save_failed(error.strerror or str(error))

    def mark(self, checkpoint: dict[str, Any]) -> bool:
        """Write the run's identity into a checkpoint of this run; return whether it is one."""
        if self._saving:
            checkpoint[_RUN] = self._run
            # a run is built from its request; what these hold may be no plain data, and would not load
            for name in ("hyper_parameters", "datamodule_hyper_parameters"):
                checkpoint.pop(name, None)
        return self._saving

    def newest(self, saved: Sequence[CheckpointRef]) -> tuple[Path | None, list[str]]:
        """Return a local file of the newest usable checkpoint of this run, and notes on unusable ones.

        Args:
            saved: References, newest first.

        Returns:
            The file, or None if the run begins from step 0; and a sentence for each unusable checkpoint.
        """
        faults: list[str] = []
        for checkpoint in saved:
            path = self._local_folder / f"resume-{self._attempt}.ckpt{_WRITING}"
            try:
                path = self._fetch_and_verify(checkpoint, path)
            except Exception as error:
                _forget(path)
                reason = (
                    str(error) if isinstance(error, _UnusableError) else f"cannot be read ({brief(error)})"
                )
                name = checkpoint.url.rpartition("/")[2]
                faults.append(f"The checkpoint {name} of step {checkpoint.step} {reason}")
                continue
            return path, [f"{fault}: the one of step {checkpoint.step} is used." for fault in faults]
        return None, [f"{fault}." for fault in faults[:-1]] + [
            f"{fault}: the run begins again." for fault in faults[-1:]
        ]

    def _fetch_and_verify(self, saved: CheckpointRef, path: Path) -> Path:
        fs, fs_path = open_filesystem(saved.url)
        try:
            if isinstance(fs, LocalFileSystem):
                path = Path(fs_path)
            else:
                self._local_folder.mkdir(parents=True, exist_ok=True)
                self._fetched = path
                # file systems may cache listings
                fs.invalidate_cache()
                fs.get_file(fs_path, str(path), timeout=self._timeout)
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise _UnusableError("is not there") from error
        except TimeoutError as error:
            raise _UnusableError(f"cannot be read (no answer for {self._timeout:g} s)") from error
        if size != saved.size:
            raise _UnusableError(f"is damaged ({size} bytes instead of {saved.size})")
        if _digest(path) != saved.digest:
            raise _UnusableError("is damaged (its bytes are not those that were written)")
        try:
            content = load_as_data(path)
        except Exception as error:
            raise _UnusableError(f"cannot be loaded as data ({brief(error)})") from error
        if not isinstance(content, dict) or content.get(_RUN) != self._run:
            raise _UnusableError("is of another run")
        return path

    def close(self) -> None:
        """Remove the local copy of a fetched checkpoint."""
        if self._fetched is not None:
            _forget(self._fetched)

    def _clean(self) -> None:
        # a folder without permission cannot be listed
        with contextlib.suppress(OSError):
            for path in self._local_folder.glob("*" + _WRITING):
                _forget(path)


class _UnusableError(Exception):
    """A checkpoint cannot be resumed; the message follows its name."""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget(path: Path) -> None:
    # a file that cannot be deleted is harmless
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


class CheckpointCallback(LightningCheckpoint):
    """Write checkpoints when they are due, and one on request before the run ends.

    Lightning continues exactly from two places: after a validation, and after a batch that is not followed by
    a validation, the end of an epoch or the rest of an accumulated gradient. A checkpoint that is due
    elsewhere waits for the next of these places. It is a ``Checkpoint`` so that Lightning calls it last, when
    all other callbacks have the state after the validation.

    Args:
        checkpoints: The checkpoints; None from the moment that the run turns out not to be resumable.
        is_due_at_validation: Whether one is due at each validation, besides those due by time.
        ranks: The processes that train the run; all of them write.
        stop_signals: Their agreement after a batch or validation.
        on_saved: Called with each written checkpoint.
    """

    def __init__(
        self,
        checkpoints: RunCheckpoints | None,
        *,
        is_due_at_validation: bool,
        ranks: Ranks,
        stop_signals: StopSignals,
        on_saved: Callable[[CheckpointRef], None],
    ) -> None:
        self.checkpoints = checkpoints
        self._is_due_at_validation = is_due_at_validation
        self._ranks = ranks
        self._stop_signals = stop_signals
        self._on_saved = on_saved
        self._due = False
        self._validated = False
        self._total_steps = 0
        self._loaded: dict[str, Any] = {}
        self._modes: dict[str, list[str]] | None = None
        self._attributes: AttributeState | None = None

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        internals.on_train_begun(trainer, lambda: self._restore_attributes(trainer, pl_module))
        if self._loaded:
            # groups that training has added are not those that the optimizers were made with
            regroup_parameters(pl_module, trainer.optimizers, self._loaded["optimized"])

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._restore(trainer, pl_module)
        self._total_steps = total_steps(trainer)
        self._stop_signals.restart()
        internals.on_batch_over(
            trainer,
            lambda is_due: self._before_validation(pl_module, is_due),
            lambda: self._after_batch(trainer),
        )

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._validated = True

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self._due = self._due or self._is_due_at_validation
        self._save_if_due(trainer)

    def _before_validation(self, module: L.LightningModule, is_due: bool) -> None:
        # a due validation without data calls no hook, but is skipped on a resume
        self._validated = is_due
        # a validation puts all parts into the mode of evaluation until it is over
        self._modes = read_modes(module) if is_due else None

    def _after_batch(self, trainer: L.Trainer) -> None:
        internals.finish_restart(trainer)
        if not self._validated and not internals.epoch_is_over(trainer):
            self._save_if_due(trainer)

    def _save_if_due(self, trainer: L.Trainer) -> None:
        if self.checkpoints is None:
            return
        # first, since it is evaluated at every batch and is the cheapest condition
        is_leaving = self._stop_signals.leave
        if (
            not (self._due or is_leaving or self._stop_signals.late)
            or internals.is_accumulating(trainer)
            or _ends(trainer)
        ):
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if progress.is_last_batch and trainer.num_training_batches == math.inf:
            # when continuing from the end of an epoch, Lightning would draw and drop the first batch of a
            # stream
            return
        saved = self.checkpoints.save(trainer)
        self._due = False
        self._stop_signals.restart()
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
            # callbacks that use a metric may read it before it is measured again
            "metrics": {name: value.detach().cpu() for name, value in trainer.callback_metrics.items()},
            # a stop is delayed while min_epochs or min_steps are not reached
            "should_stop": trainer.should_stop,
            "total_steps": self._total_steps,
            # hooks at the begin of an epoch set these, and are not called in its middle
            "accumulate_grad_batches": trainer.accumulate_grad_batches,
            "modes": self._modes or read_modes(pl_module),
            "optimized": optimized_names(pl_module, trainer.optimizers),
        }
        assert self._attributes is not None
        rank_state: dict[str, Any] = {
            "attributes": self._attributes.changes(),
            "means": internals.training_means(trainer),
        }
        if not pl_module.automatic_optimization:
            # only the module knows whether it accumulates, and whether each rank does so separately
            named_parameters = pl_module.named_parameters()
            rank_state["gradients"] = {
                name: parameter.grad for name, parameter in named_parameters if parameter.grad is not None
            }
        state["ranks"] = self._ranks.all_gather(tree_map(_to_cpu, rank_state))
        checkpoint[_STATE] = state

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._loaded = checkpoint[_STATE]
        resume_total_steps(trainer, self._loaded["total_steps"])

    def _restore(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        state, self._loaded = self._loaded, {}
        if not state:
            return
        internals.restore_data_position(trainer)
        internals.resume_weight_averaging(trainer)
        trainer.accumulate_grad_batches = state["accumulate_grad_batches"]
        restore_modes(pl_module, state["modes"])
        device = trainer.strategy.root_device
        metrics = {name: value.to(device) for name, value in state["metrics"].items()}
        internals.restore_metrics(trainer, metrics)
        trainer.should_stop = state["should_stop"]
        parameters: dict[str, torch.nn.Parameter] = dict(pl_module.named_parameters())
        self._loaded = state["ranks"][self._ranks.rank]
        for name, gradient in self._loaded.get("gradients", {}).items():
            parameters[name].grad = gradient.to(parameters[name].device)

    def _restore_attributes(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Restore what hooks at the beginning of a training may set anew."""
        if self.checkpoints is None:
            return
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._attributes = AttributeState(module, callbacks)
        state, self._loaded = self._loaded, {}
        if state:
            self._attributes.write(state["attributes"], trainer.strategy.root_device)
            internals.restore_training_means(trainer, state["means"])


def _to_cpu(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def _ends(trainer: L.Trainer) -> bool:
    stopping = trainer.should_stop and internals.may_stop_early(trainer)
    return stopping or current_step(trainer) >= estimate_total_steps(trainer)

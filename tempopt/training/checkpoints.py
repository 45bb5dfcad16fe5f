"""Files that a run keeps while it trains: written whole or not at all, read as data and never as code."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from fsspec.implementations.local import LocalFileSystem

from tempopt.storage.checkpoints import open_filesystem
from tempopt.training.lightning_internals import dump_checkpoint
from tempopt.training.messages import CheckpointRef, RunRequest
from tempopt.training.ranks import ALONE, Ranks
from tempopt.training.steps import current_step

_RUN = "tempopt_run"
_WRITING = ".writing"


class RunCheckpoints:
    """The checkpoints of one run, in a folder that is the run's own.

    Nothing is deleted but what attempts that were killed left under temporary names. Where several ranks
    train, the first one writes; all of them have to save, since each may hold a part.

    Args:
        request: The run; its ``checkpoints`` are not None.
        run: Identity of the run; a checkpoint of another one is not resumed.
        ranks: Who train the run.
        not_kept: Called with the reason for each that could not be written.

    Attributes:
        seconds: What writing them took so far.
    """

    def __init__(
        self,
        request: RunRequest,
        *,
        run: str,
        ranks: Ranks = ALONE,
        not_kept: Callable[[str], None] = lambda reason: None,
    ) -> None:
        assert request.checkpoints is not None
        self.seconds = 0.0
        self._request = request
        self._attempt = request.attempt
        self._run = run
        self._ranks = ranks
        self._on_save_failed = not_kept
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
        if saved is not None:
            self._step = step
        return saved

    def _dump(self, trainer: L.Trainer, path: Path) -> None:
        self._saving = True
        try:
            trainer.strategy.save_checkpoint(dump_checkpoint(trainer), path)
        finally:
            self._saving = False

    def _finalize_save(
        self, temporary_path: Path, name: str, step: int, fault: OSError | None
    ) -> CheckpointRef | None:
        """Put what was written where it belongs; None, and a fault noted down, if that cannot be done."""
        try:
            if fault is not None:
                raise fault
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
            _synced(temporary_path)
            temporary_path.replace(self._local_folder / name)
            _synced(self._local_folder)
            return
        try:
            self._fs.put_file(str(temporary_path), f"{self._folder}/{name}")
        except Exception as error:
            # each store has errors of its own
            raise OSError(f"{type(error).__name__}: {error}") from error

    def _report_failure(self, name: str, error: OSError) -> None:
        fault = f"The checkpoint {name} could not be written ({error}). The run continues without it."
        print(fault, flush=True)
        self._on_save_failed(error.strerror or str(error))

    def mark(self, checkpoint: dict[str, Any]) -> bool:
        """Write the run's identity into a checkpoint that is saved, if it is one of ours; return whether."""
        if self._saving:
            checkpoint[_RUN] = self._run
            # a run is built from its request; what these hold may be no plain data, and would not load
            for name in ("hyper_parameters", "datamodule_hyper_parameters"):
                checkpoint.pop(name, None)
        return self._saving

    def newest(self, saved: Sequence[CheckpointRef]) -> tuple[Path | None, list[str]]:
        """Return a local file of the first checkpoint that is this run's and whole, and what was found out.

        Args:
            saved: Where they were written, newest first.

        Returns:
            The file, or None: the run begins at its beginning; and a sentence for each that is not usable.
        """
        faults: list[str] = []
        for checkpoint in saved:
            path = self._local_folder / f"resume-{self._attempt}.ckpt{_WRITING}"
            try:
                path = self._fetch_and_verify(checkpoint, path)
            except Exception as error:
                _forget(path)
                reason = (
                    str(error) if isinstance(error, _UnusableError) else f"cannot be read ({_named(error)})"
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
                # what was listed once may be listed from memory
                fs.invalidate_cache()
                fs.get_file(fs_path, str(path))
            size = path.stat().st_size
        except FileNotFoundError as error:
            raise _UnusableError("is not there") from error
        if size != saved.size:
            raise _UnusableError(f"is damaged ({size} bytes instead of {saved.size})")
        if _digest(path) != saved.digest:
            raise _UnusableError("is damaged (its bytes are not those that were written)")
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:
            raise _UnusableError(f"cannot be loaded as data ({_named(error)})") from error
        if not isinstance(content, dict) or content.get(_RUN) != self._run:
            raise _UnusableError("is of another run")
        return path

    def close(self) -> None:
        """Remove what was fetched in order to go on from it."""
        if self._fetched is not None:
            _forget(self._fetched)

    def _clean(self) -> None:
        # in a folder that is closed to this user now, there is nothing to see
        with contextlib.suppress(OSError):
            for path in self._local_folder.glob("*" + _WRITING):
                _forget(path)


class _UnusableError(Exception):
    """A checkpoint cannot be resumed; the message follows its name."""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget(path: Path) -> None:
    # what cannot be deleted does no harm
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _named(error: Exception) -> str:
    # torch's errors go on for a page
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}".removesuffix(": ")

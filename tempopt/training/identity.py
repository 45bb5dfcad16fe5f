"""Short hashes that identify a run over all of its attempts, and the code that trains it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from tempopt.spec.program import Program
from tempopt.storage.run_code import RunCode
from tempopt.training.messages import RunRequest, encode

if TYPE_CHECKING:
    import lightning as L

_PACKAGES = ("tempopt", "torch", "torchmetrics", "numpy")
_SHOWN_PACKAGES = ("tempopt", "torch", "optuna")
_GIT_SECONDS = 10.0


@functools.cache
def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        # defined at a prompt or in a notebook: only the name is available
        return module


@functools.cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _lightning(module: L.LightningModule) -> str:
    """Return the package whose Trainer trains a module, as pip calls it."""
    # a program needs no Lightning
    from tempopt.training.lightning_package import lightning_package

    return str(lightning_package(type(module)).__name__.partition(".")[0])


def code_identity(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> str:
    """Return a short hash of the modules' source files and the versions of the packages that train them."""
    packages = (*_PACKAGES, _lightning(module))
    text = ", ".join(f"{name} {_version(name) or 'from source'}" for name in packages)
    text += _source(type(module).__module__)
    if datamodule is not None:
        text += _source(type(datamodule).__module__)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def run_code(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> RunCode:
    """Return the code that trains a run: its identity, the commit of the module, package versions."""
    file = getattr(sys.modules[type(module).__module__], "__file__", None)
    commit, is_dirty = (None, False) if file is None else git_commit(Path(file))
    return RunCode(
        identity=code_identity(module, datamodule),
        commit=commit,
        is_dirty=is_dirty,
        packages=package_versions(_lightning(module)),
    )


def package_versions(*names: str) -> dict[str, str]:
    """Return the versions of the packages that are named with the code of a run, and of further ones."""
    return {name: text for name in (*_SHOWN_PACKAGES, *names) if (text := _version(name))}


@functools.cache
def git_commit(file: Path) -> tuple[str | None, bool]:
    """Return the commit of the repository of a source file, and whether files differ from it.

    The commit is None if git is missing, or if the file is in no repository or ignored by it.
    """
    commit = _git(file.parent, "rev-parse", "HEAD")
    if commit is None or _git(file.parent, "check-ignore", "-q", str(file)) is not None:
        return None, False
    changes = _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    is_new = _git(file.parent, "ls-files", "--error-unmatch", str(file)) is None
    return commit, bool(changes) or is_new


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None if it failed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def run_identity(request: RunRequest) -> str:
    """Return a hash of the training that a request defines: the same for all attempts on any machine."""
    # storage, observation and evaluations may change between attempts, but not the training
    training_request = dataclasses.replace(
        request,
        attempt=0,
        evaluations=[],
        folder=None,
        checkpoints=None,
        checkpoint_every=None,
        resume=[],
        learns=False,
        memory_share=None,
        observe=False,
        maps=False,
        label=None,
    )
    if request.program.identity is not None:
        # data may have another path on another machine
        blank_program = Program(
            model={},
            data=None,
            trainer={},
            attach=None,
            metric="",
            validate_at="final",
            data_seed=0,
            identity=request.program.identity,
        )
        training_request = dataclasses.replace(training_request, program=blank_program)
    return hashlib.blake2b(encode(training_request), digest_size=16).hexdigest()

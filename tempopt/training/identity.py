"""What attempts at the same run have in common, and the code that it was trained with, as short hashes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import sys
from importlib.metadata import PackageNotFoundError, version

import lightning as L

from tempopt.workers.messages import Program, RunRequest, encode

_PACKAGES = ("tempopt", "torch", "lightning", "torchmetrics", "numpy")


@functools.cache
def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        # defined at a prompt or in a notebook: the name is all there is
        return module


@functools.cache
def _versions() -> str:
    found = []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} from source")
    return ", ".join(found)


def code_identity(module: L.LightningModule, datamodule: L.LightningDataModule | None) -> str:
    """Return a short hash of the modules' source files and the versions of the packages that train them."""
    text = _versions() + _source(type(module).__module__)
    if datamodule is not None:
        text += _source(type(datamodule).__module__)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def run_identity(request: RunRequest) -> str:
    """Return a hash of what a request trains: the same for all attempts at it, wherever they are made."""
    # where it is kept, how it is looked at and what is measured at the end may change between attempts; what
    # is trained may not
    trained = dataclasses.replace(
        request,
        attempt=0,
        evaluations=[],
        folder=None,
        checkpoints=None,
        checkpoint_every=None,
        resume=[],
        learns=False,
    )
    if request.program.identity is not None:
        # the data lie elsewhere on another machine, and are the same
        nothing = Program(
            model={},
            data=None,
            trainer={},
            attach=None,
            metric="",
            validate_at="final",
            data_seed=0,
            identity=request.program.identity,
        )
        trained = dataclasses.replace(trained, program=nothing)
    fields = json.loads(encode(trained))
    # younger than the first checkpoints: where they say nothing, those are still of this run
    for name in ("memory_share", "observe", "label", "learns"):
        del fields[name]
    for name in ("compile", "start"):
        if fields["program"][name] is None:
            del fields["program"][name]
    if (start := fields["program"].get("start")) and start["sha256"] is not None:
        # the same weights, wherever they lie
        del start["path"]
    return hashlib.blake2b(json.dumps(fields).encode(), digest_size=16).hexdigest()

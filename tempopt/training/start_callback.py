"""The callback with which any Trainer, LightningCLI's too, starts from weights as runs of a study do."""

from __future__ import annotations

import contextlib
from pathlib import Path

import lightning as L

from tempopt.errors import SpecError
from tempopt.files import absolute
from tempopt.spec import yaml_source as document
from tempopt.store.checkpoints import is_local, local_path
from tempopt.store.weights import digest_of, downloaded
from tempopt.training.start_weights import load_start


class StartCallback(L.Callback):
    """Load the weights that a training starts from; optimizer, step and random numbers begin as without it.

    ``tempopt export`` writes it for a study with ``study.start_from``, whose keys are its arguments. A
    training that is resumed (``ckpt_path``) goes on from its own checkpoint. Validation alone loads
    nothing.

    Put it before callbacks that set a temperature.

    Args:
        path: A checkpoint of Lightning or a state dict that ``torch.save`` or safetensors wrote, or its URL
            in an object store. ``${NAME}`` is replaced by the environment variable. It is read as data.
        strict: Whether file and module, or its part, have to have the same names of weights. If not, what the
            file lacks begins as initialised, and what the module lacks is left out.
        prefix: Beginning of the names of the part that is loaded; empty: all is loaded.
        sha256: SHA-256 that the file has to have; None: any.

    Raises:
        SpecError: The file is missing, is no data, has another SHA-256, or is of another model.
        UsageError: It cannot be read or fetched.
    """

    def __init__(self, path: str, strict: bool = True, prefix: str = "", sha256: str | None = None) -> None:
        super().__init__()
        self.path, self.strict, self.prefix, self.sha256 = path, strict, prefix, sha256
        self._module: L.LightningModule | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Load the weights before the module is trained, once for each module."""
        if stage != "fit" or self._module is pl_module:
            return
        where = document.resolve(self.path, path="StartCallback: path")
        with contextlib.ExitStack() as stack:
            if is_local(where):
                path = absolute(str(local_path(where)), "The file of weights")
            else:
                path = stack.enter_context(downloaded(where))
            # its content is looked at once: a file of weights may be large
            given = {"strict": self.strict, "prefix": self.prefix, "sha256": None}
            try:
                if self.sha256 is not None:
                    _refuse_other(path, self.sha256)
                load_start(pl_module, {"path": str(path), **given})
            except SpecError as error:
                # no study is at work here
                told = str(error).removeprefix("study.start_from: ")
                raise SpecError(f"StartCallback: {told}") from error
        self._module = pl_module


def _refuse_other(path: Path, digest: str) -> None:
    found = digest_of(path)
    if found != digest:
        raise SpecError(
            f"{path} has another content (SHA-256 {found[:12]}…) than it was given for ({digest[:12]}…). Put "
            "the right file there, or give its own SHA-256, or none."
        )

"""Files that a run keeps while it trains: written whole or not at all, read as data and never as code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch

from tempopt.errors import SpecError

_RUN = "tempopt_run"


class RunCheckpoint:
    """The newest checkpoint of one run.

    Args:
        folder: The run's folder.
        run: Identity of the run; a checkpoint of another one is not used.
    """

    def __init__(self, folder: Path, *, run: str) -> None:
        self.path = folder / "newest.ckpt"
        self._run = run
        self._saving = False

    def save(self, trainer: L.Trainer) -> None:
        """Write the trainer's state, by way of a temporary name."""
        temporary = self.path.with_name(self.path.name + ".writing")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._saving = True
        try:
            trainer.save_checkpoint(temporary)
        finally:
            self._saving = False
        temporary.replace(self.path)

    def mark(self, checkpoint: dict[str, Any]) -> None:
        """Write the run's identity into a checkpoint that is being saved, if it is this one."""
        if not self._saving:
            return
        checkpoint[_RUN] = self._run
        # a run is built from its request; what these hold may be no plain data, and would not load
        for name in ("hyper_parameters", "datamodule_hyper_parameters"):
            checkpoint.pop(name, None)

    def usable(self) -> Path | None:
        """Return the file if it is this run's and whole, else None: the run then begins at its beginning."""
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except FileNotFoundError:
            return None
        except Exception as error:
            print(f"The checkpoint {self.path} cannot be read ({error}). The run begins again.")
            return None
        return self.path if content.get(_RUN) == self._run else None

    def remove(self) -> None:
        """Delete the file, if there is one."""
        self.path.unlink(missing_ok=True)


def load_weights(path: Path) -> dict[str, Any]:
    """Return the state dict that a checkpoint (Lightning's or a plain one) holds.

    Raises:
        SpecError: The file is missing, or it holds more than data.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise SpecError(f"study.evaluate_only names {path}, and there is no such file.") from error
    except Exception as error:
        raise SpecError(
            f"The checkpoint {path} cannot be loaded as data ({type(error).__name__}). "
            "Save it again with Lightning, or as torch.save(module.state_dict(), path)."
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise SpecError(
            f"The checkpoint {path} holds no weights by name. "
            "Save it again with Lightning, or as torch.save(module.state_dict(), path)."
        )
    return state

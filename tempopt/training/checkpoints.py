"""Files that a run keeps while it trains: written whole or not at all, read as data and never as code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch

from tempopt.errors import SpecError

NEWEST = "newest.ckpt"


def save(trainer: L.Trainer, path: Path) -> None:
    """Write the trainer's checkpoint to ``path``, by way of a temporary name."""
    temporary = path.with_name(path.name + ".writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    trainer.save_checkpoint(temporary)
    temporary.replace(path)


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
            f"The checkpoint {path} cannot be loaded as data ({type(error).__name__}: {error}). "
            "Save it again with Lightning, or as torch.save(module.state_dict(), path)."
        ) from error
    state: dict[str, Any] = content.get("state_dict", content)
    return state

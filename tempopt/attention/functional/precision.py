"""The type that attention is computed in: that of its tensors, and float32 where they are narrower."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def wide_type(x: Tensor) -> torch.dtype:
    """Return the tensor's type, or float32 where that is narrower."""
    return torch.promote_types(x.dtype, torch.float32)


def widened(x: Tensor) -> Tensor:
    """Return the tensor in its :func:`wide_type`."""
    return x.to(wide_type(x))


def full_precision(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which autocast leaves types as they are."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()

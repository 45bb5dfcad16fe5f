"""Sums over the weights of a module, by which it is seen that weights have changed since a validation."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn


def weight_sums(module: nn.Module, *, ignored: Collection[Tensor | None] = ()) -> list[float]:
    """Return a sum for each tensor of the state of a module, in double precision.

    Args:
        module: The module.
        ignored: Tensors of it that are left out, as temperatures, which an evaluation sets.
    """
    ignored_ids = {id(tensor) for tensor in ignored}
    sums = [
        (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().sum(dtype=torch.float64)
        for tensor in module.state_dict(keep_vars=True).values()
        if isinstance(tensor, Tensor) and id(tensor) not in ignored_ids
    ]
    return torch.stack(sums).tolist() if sums else []

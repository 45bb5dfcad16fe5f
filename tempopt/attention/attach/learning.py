"""The gradient with respect to temperatures that a model reads from tensors, where they are learned.

A temperature is written into a tensor in place, whichever way it is attached. To learn it that tensor becomes
a leaf of the graph, and its gradient is carried over to ln τ here. What moves ln τ, and how far, is decided
in ``tempopt.training.learned_callback``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def require_gradients(leaves: Iterable[Tensor]) -> None:
    """Have backward passes leave gradients in tensors that temperatures are written into."""
    for leaf in leaves:
        leaf.requires_grad_(True)


def taken_gradient(leaf: Tensor) -> Tensor | None:
    """Return the gradient that backward passes have left in a tensor, and forget it; None: none."""
    gradient, leaf.grad = leaf.grad, None
    return gradient


def by_sums(gradients: Sequence[Sequence[Tensor]], inverse: Sequence[float]) -> list[float] | None:
    """Return the gradient with respect to ln τ of each layer.

    Args:
        gradients: Of each layer the gradients with respect to its 1/τ, scalars that are summed.
        inverse: 1/τ of each layer.

    Returns:
        A number a layer, 0 where there is no gradient; None if there is none at all.
    """
    flat = [each.double() for layer in gradients for each in layer]
    if not flat:
        return None
    # brought over together: each transfer waits for the device
    known = iter(torch.stack([each.to(flat[0].device) for each in flat]).tolist())
    return [-sum(next(known) for _ in layer) * value for layer, value in zip(gradients, inverse, strict=True)]

"""The gradient with respect to temperatures that a model reads from tensors, where they are learned.

A temperature is written into a tensor in place, whichever way it is attached. To learn it that tensor becomes
a leaf of the graph, and its gradient is carried over to ln τ here. What moves ln τ, and how far, is decided
in ``tempopt.training.learned_callback``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tempopt.attention.functional.precision import wide_type


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


class HeadTemperatures:
    """Learned temperatures of the heads of attention layers, as factors on the 1/τ that their layers have.

    The number of heads of a layer is that of its queries, so it is known once the layer has run.

    Args:
        base: τ of each layer, from which its heads start.
    """

    def __init__(self, base: Sequence[float]) -> None:
        self._base = tuple(base)
        self._known: dict[int, list[float]] = {}
        self._leaves: dict[int, Tensor] = {}
        self._complete = False

    @property
    def counts(self) -> list[int]:
        """The number of heads of each layer; 0 where it has not run, and so has no temperature of its own."""
        return [len(self._known.get(layer, ())) for layer in range(len(self._base))]

    @property
    def names(self) -> list[str]:
        """``LAYER.HEAD`` for each temperature, both counted from 0."""
        return [f"{layer}.{head}" for layer, count in enumerate(self.counts) for head in range(count)]

    @property
    def temperatures(self) -> tuple[float, ...]:
        """τ of each head, by layers."""
        return tuple(tau for layer in range(len(self._base)) for tau in self._known.get(layer, ()))

    def begin(self, counts: Sequence[int]) -> None:
        """Fix the number of heads of each layer; one with 0 keeps its temperature from now on."""
        self._complete = True
        for layer, count in enumerate(counts):
            if count and layer not in self._known:
                self._known[layer] = [self._base[layer]] * count

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Set τ of each head, in the order of :attr:`names`."""
        given = iter(temperatures)
        for layer in sorted(self._known):
            self._known[layer] = [next(given) for _ in self._known[layer]]
            leaf = self._leaves.get(layer)
            if leaf is not None:
                with torch.no_grad():
                    leaf.copy_(self._factors(layer))

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each head, and forget it; None: none was left."""
        left = {layer: taken_gradient(leaf) for layer, leaf in self._leaves.items()}
        if all(each is None for each in left.values()):
            return None
        found: list[float] = []
        for layer in sorted(self._known):
            gradient, factors = left.get(layer), self._factors(layer).tolist()
            own = [0.0] * len(factors) if gradient is None else gradient.tolist()
            found += [-each * factor for each, factor in zip(own, factors, strict=True)]
        return found

    def factor(self, layer: int, q_BHQD: Tensor) -> Tensor:
        """Return the factors on a layer's 1/τ, shape (H, 1, 1), through which gradients reach them."""
        leaf = self._leaves.get(layer)
        if leaf is None or leaf.device != q_BHQD.device or leaf.dtype != wide_type(q_BHQD):
            leaf = self._leaf(layer, q_BHQD)
        return leaf[:, None, None]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _leaf(self, layer: int, q_BHQD: Tensor) -> Tensor:
        if layer not in self._known:
            if self._complete:
                return q_BHQD.new_ones(1, dtype=wide_type(q_BHQD))
            self._known[layer] = [self._base[layer]] * q_BHQD.shape[1]
        # a tensor that is born in inference mode could never take part in training
        with torch.inference_mode(False), torch.no_grad():
            leaf = self._factors(layer).to(q_BHQD.device, wide_type(q_BHQD))
        self._leaves[layer] = leaf.requires_grad_(True)
        return leaf

    def _factors(self, layer: int) -> Tensor:
        taus = torch.tensor(self._known[layer], dtype=torch.float64)
        return self._base[layer] / taus

"""Temperatures of heads as tensors, and gradients with respect to temperatures, where they are learned.

A temperature is written into a tensor in place, whichever way it is attached. To learn it that tensor becomes
a leaf of the graph, and its gradient is carried over to ln τ here. What moves ln τ, and how far, is decided
in ``tempopt.training.learned_callback``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tempopt.attention.functional.logits import wide_type
from tempopt.errors import AttachError
from tempopt.temperature import HeadPattern, UniformHeads


class HeadFactors:
    """The factors of a head pattern on 1/τ, for each number of heads that has attended."""

    def __init__(self) -> None:
        self.pattern: HeadPattern = UniformHeads()
        # compiled graphs read them, and serve other patterns: tensors in a dictionary, and nothing around
        self._tensors: dict[int, Tensor] = {}

    @property
    def present(self) -> bool:
        """Whether heads differ."""
        return self.pattern.name != UniformHeads.name

    def use(self, pattern: HeadPattern) -> None:
        """Change to another pattern."""
        self.pattern = pattern
        for count, factors in self._tensors.items():
            self._tensors[count] = self._create_inverse_factors(count, factors.device, factors.dtype)

    def factor(self, q_BHQD: Tensor) -> Tensor:
        """Return the factors on 1/τ of the heads of some queries, shape (H, 1, 1)."""
        factors = self._tensors.get(q_BHQD.shape[1])
        if factors is None or not fits(factors, q_BHQD):
            factors = self._new(q_BHQD)
        return factors[:, None, None]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _new(self, q_BHQD: Tensor) -> Tensor:
        count = q_BHQD.shape[1]
        factors = self._create_inverse_factors(count, q_BHQD.device, wide_type(q_BHQD))
        self._tensors[count] = factors
        return factors

    def _create_inverse_factors(self, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        # a tensor that is made in inference mode could never be trained with
        with torch.inference_mode(False), torch.no_grad():
            inverse = [1.0 / factor for factor in self.pattern.factors(count)]
            return torch.tensor(inverse, device=device, dtype=dtype)


def fits(heads_H: Tensor, q_BHQD: Tensor) -> bool:
    """Return whether numbers of heads are for queries like these: as many, there, and as precise."""
    is_compatible = heads_H.device == q_BHQD.device and heads_H.dtype == wide_type(q_BHQD)
    return is_compatible and heads_H.shape[0] == q_BHQD.shape[1]


def require_gradients(leaves: Iterable[Tensor]) -> None:
    """Have backward passes leave gradients in tensors that temperatures are written into."""
    for leaf in leaves:
        leaf.requires_grad_(True)


def pop_gradient(leaf: Tensor) -> Tensor | None:
    """Return the gradient that backward passes have left in a tensor, and forget it; None: none."""
    gradient, leaf.grad = leaf.grad, None
    return gradient


def sum_log_gradients(gradients: Sequence[Sequence[Tensor]], inverse: Sequence[float]) -> list[float] | None:
    """Return the gradient with respect to ln τ of each layer.

    Args:
        gradients: Of each layer the gradients with respect to its 1/τ, scalars that are summed.
        inverse: 1/τ of each layer.

    Returns:
        A number a layer, 0 where there is no gradient; None if there is none at all.
    """
    flat = [gradient.double() for layer in gradients for gradient in layer]
    if not flat:
        return None
    # brought over together: each transfer waits for the device
    gradient_values = iter(torch.stack([gradient.to(flat[0].device) for gradient in flat]).tolist())
    return [
        -sum(next(gradient_values) for _ in layer) * value
        for layer, value in zip(gradients, inverse, strict=True)
    ]


class PerHeadTemperatures:
    """The temperatures of the heads of one attention layer, as factors on the 1/τ that the layer has.

    Args:
        layer: Depth of the layer.
        base: τ of the layer.
        start: τ of each head at the start.
        leaves: The factors of each layer as tensors, once there are some.
    """

    def __init__(self, layer: int, base: float, start: Sequence[float], leaves: dict[int, Tensor]) -> None:
        self.layer = layer
        self.temperatures: tuple[float, ...] = tuple(start)
        self._base = base
        self._leaves = leaves

    @property
    def names(self) -> list[str]:
        """``LAYER.HEAD`` for each temperature, both counted from 0."""
        return [f"{self.layer}.{head}" for head in range(len(self.temperatures))]

    @property
    def factors(self) -> Tensor:
        """What the layer's 1/τ is multiplied by, shape (H,)."""
        return self._base / torch.tensor(self.temperatures, dtype=torch.float64)

    def set_temperatures(self, temperatures: Sequence[float]) -> None:
        """Set τ of each head."""
        self.temperatures = tuple(temperatures)
        if (leaf := self._leaves.get(self.layer)) is not None:
            with torch.no_grad():
                leaf.copy_(self.factors)

    def log_gradients(self) -> list[float] | None:
        """Return the gradient with respect to ln τ of each head, and forget it; None: none was left."""
        leaf = self._leaves.get(self.layer)
        gradient = None if leaf is None else pop_gradient(leaf)
        if gradient is None:
            return None
        pairs = zip(gradient.tolist(), self.factors.tolist(), strict=True)
        return [-head_gradient * factor for head_gradient, factor in pairs]


class HeadTemperatures:
    """Learned temperatures of the heads of attention layers, each layer from its first queries on.

    Args:
        base: τ of each layer.
        pattern: Factor by head on that, from which heads start; None: they start from τ of the layer.
    """

    def __init__(self, base: Sequence[float], pattern: HeadPattern | None = None) -> None:
        self._pattern = pattern or UniformHeads()
        self._base = tuple(base)
        # compiled graphs read them, and serve other runs: tensors in a dictionary, and nothing around them
        self._leaves: dict[int, Tensor] = {}
        self.layers: dict[int, PerHeadTemperatures] = {}
        """The layers that have attended so far."""

    @property
    def counts(self) -> list[int]:
        """The number of heads of each layer; 0 where it has not attended yet."""
        layers = self.layers
        return [len(layers[layer].temperatures) if layer in layers else 0 for layer in range(len(self._base))]

    def begin(self, layer: int, count: int) -> PerHeadTemperatures:
        """Return the heads of a layer, which have so many."""
        if layer not in self.layers:
            base = self._base[layer]
            start = [base * factor for factor in self._pattern.factors(count)]
            self.layers[layer] = PerHeadTemperatures(layer, base, start, self._leaves)
        return self.layers[layer]

    def factor(self, layer: int, q_BHQD: Tensor) -> Tensor:
        """Return the factors on a layer's 1/τ, shape (H, 1, 1), through which gradients reach them.

        Raises:
            AttachError: The queries have another number of heads than before.
        """
        leaf = self._leaves.get(layer)
        if leaf is None or not fits(leaf, q_BHQD):
            leaf = self._leaf(layer, q_BHQD)
        return leaf[:, None, None]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _leaf(self, layer: int, q_BHQD: Tensor) -> Tensor:
        heads = self.begin(layer, q_BHQD.shape[1])
        if q_BHQD.shape[1] != len(heads.temperatures):
            raise AttachError(
                f"Layer {layer} attends with {q_BHQD.shape[1]} heads, after {len(heads.temperatures)}. Heads "
                "can have temperatures of their own where their number stays; of a study write study: "
                "{learned: true}, so that each layer has one."
            )
        # a tensor that is made in inference mode could never be trained with
        with torch.inference_mode(False), torch.no_grad():
            leaf = heads.factors.to(q_BHQD.device, wide_type(q_BHQD))
        self._leaves[layer] = leaf.requires_grad_(True)
        return leaf


def restore_precision(temperature: Tensor, previous_temperature: Tensor) -> Tensor:
    """Return a temperature where it is now, as precise as it was: no type of the weights makes it another."""
    precise_temperature = previous_temperature.detach().to(
        temperature.device, torch.promote_types(temperature.dtype, torch.float32)
    )
    return precise_temperature.requires_grad_(previous_temperature.requires_grad)

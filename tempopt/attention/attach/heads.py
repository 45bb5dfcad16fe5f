"""A head pattern as attention takes it: factors on 1/τ by head, as tensors where the queries are.

What the factors are is said by ``tempopt.temperature.heads``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tempopt.attention.functional.precision import wide_type
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
            self._tensors[count] = self._create_inverse_factors(count, factors)

    def factor(self, q_BHQD: Tensor) -> Tensor:
        """Return the factors on 1/τ of the heads of some queries, shape (H, 1, 1)."""
        factors = self._tensors.get(q_BHQD.shape[1])
        if factors is None or not fits(factors, q_BHQD):
            factors = self._new(q_BHQD)
        return factors[:, None, None]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _new(self, q_BHQD: Tensor) -> Tensor:
        count = q_BHQD.shape[1]
        like = torch.empty(0, device=q_BHQD.device, dtype=wide_type(q_BHQD))
        self._tensors[count] = self._create_inverse_factors(count, like)
        return self._tensors[count]

    def _create_inverse_factors(self, count: int, like: Tensor) -> Tensor:
        # a tensor that is made in inference mode could never be trained with
        with torch.inference_mode(False), torch.no_grad():
            inverse = [1.0 / factor for factor in self.pattern.factors(count)]
            return torch.tensor(inverse, device=like.device, dtype=like.dtype)


def fits(heads_H: Tensor, q_BHQD: Tensor) -> bool:
    """Return whether numbers of heads are for queries like these: as many, there, and as precise."""
    is_compatible = heads_H.device == q_BHQD.device and heads_H.dtype == wide_type(q_BHQD)
    return is_compatible and heads_H.shape[0] == q_BHQD.shape[1]

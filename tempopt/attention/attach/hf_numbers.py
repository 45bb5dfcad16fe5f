"""The numbers that one attention layer of a model of transformers reads, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Numbers:
    """What one layer reads, as views of one tensor, so that a compiled graph serves all values."""

    inverse_temperature: Tensor
    entropy_weight: Tensor
    entropy_target: Tensor
    length_constant: Tensor
    limit: Tensor
    window: Tensor

    def to(self, device: torch.device) -> Numbers:
        """Return them on the device of a query whose module keeps its parameters elsewhere."""
        return Numbers(
            self.inverse_temperature.to(device),
            self.entropy_weight.to(device),
            self.entropy_target.to(device),
            self.length_constant.to(device),
            self.limit.to(device),
            self.window.to(device),
        )


def place_of(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Return where a layer's numbers lie: where its parameters are, in no less than float32."""
    parameter = next(module.parameters())
    return parameter.device, torch.float64 if parameter.dtype == torch.float64 else torch.float32

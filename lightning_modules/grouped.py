"""One metric for each group of a validation set, such as each length; what is measured is said elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchmetrics import Metric


class Grouped(nn.Module):
    """A metric for each group, made when the group is first seen.

    Args:
        make: Makes the metric of one group.
    """

    def __init__(self, make: Callable[[], Metric]) -> None:
        super().__init__()
        self._make = make
        self._metrics = nn.ModuleDict()

    # a compiled validation step would be compiled anew for each group and each count of its metric
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(self, group: str, *observed: Any) -> None:
        """Add observations to a group's metric.

        Args:
            group: Name of the group.
            *observed: What the metric's own ``update`` takes; the first one is a tensor.
        """
        if group not in self._metrics:
            self._metrics[group] = self._make().to(observed[0].device)
        cast(Metric, self._metrics[group]).update(*observed)

    def compute(self) -> dict[str, Tensor]:
        """Return each group's value, and begin again."""
        values = {}
        for group, module in self._metrics.items():
            metric = cast(Metric, module)
            if metric.update_called:
                values[group] = metric.compute()
                metric.reset()
        return values

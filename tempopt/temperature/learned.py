"""What says in a parameter set that its temperatures are learned, and do not follow their schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

LEARNED = "learned.lr_ratio"
"""Learning rate of ln τ in ratio to that of the weights, > 0; where it is missing nothing is learned."""

PER_HEAD = "learned.per_head"
"""Whether each head of attention learns a temperature of its own; where it is missing each layer does."""

Learns = bool | Literal["per_head"]
"""Whether temperatures are learned; ``per_head``: each head of attention its own, instead of each layer."""

LR_RATIOS = (1.0, 10.0)
"""The ratios that are tried."""


def with_learned_temperatures(
    parameters: Mapping[str, Any], lr_ratio: float, *, learns: Learns = True
) -> dict[str, Any]:
    """Return the parameters with their temperatures learned, from those that they begin with.

    Args:
        parameters: Flat parameters.
        lr_ratio: As of :data:`LEARNED`.
        learns: What is learned, not False.
    """
    return {**parameters, LEARNED: lr_ratio, **({PER_HEAD: True} if learns == "per_head" else {})}


def without_learned_temperatures(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without what says that temperatures are learned."""
    return {name: value for name, value in parameters.items() if name not in (LEARNED, PER_HEAD)}

"""Entries of a parameter set which say that its temperatures are learned instead of following a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

LEARNED = "learned.lr_ratio"
"""Learning rate of ln τ as a ratio to that of the weights, > 0; without it nothing is learned."""

PER_HEAD = "learned.per_head"
"""Whether each attention head learns a temperature; without it each layer learns one."""

Learns = bool | Literal["per_head"]
"""Whether temperatures are learned; ``per_head``: one for each attention head instead of each layer."""

LR_RATIOS = (1.0, 10.0)
"""The ratios that are compared."""


def add_learned_temperatures(
    parameters: Mapping[str, Any], lr_ratio: float, *, learns: Learns = True
) -> dict[str, Any]:
    """Return the parameters with their temperatures learned, which start at the present ones.

    Args:
        parameters: Flat parameters.
        lr_ratio: As :data:`LEARNED`.
        learns: What is learned; not False.
    """
    return {**parameters, LEARNED: lr_ratio, **({PER_HEAD: True} if learns == "per_head" else {})}


def remove_learned_temperatures(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without the entries of learned temperatures."""
    return {name: value for name, value in parameters.items() if name not in (LEARNED, PER_HEAD)}

"""Queries and keys as attention sees them, shown to observers; and temperatures from outside.

What is measured of them is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from tempopt.errors import SpecError
from tempopt.temperature.ranges import check_number


class Observe(Protocol):
    """What is called at each attention of a tempered layer; it changes nothing."""

    def __call__(
        self,
        layer: int,
        q_BHQD: Tensor,
        k_BHKD: Tensor,
        *,
        scale: float | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        valid_BQ: Tensor | None,
    ) -> None:
        """Look at one attention.

        Args:
            layer: Depth of the layer.
            q_BHQD: Queries, tempered already.
            k_BHKD: Keys; of fewer heads than the queries where groups of heads share them.
            scale: Factor on the logits; None is 1 / sqrt(D).
            attn_mask: Boolean or floating mask, or None.
            is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
            valid_BQ: True where a query is not padding; None if none is, or if that is not known.
        """


class Observers:
    """The observers at present."""

    def __init__(self) -> None:
        self._all: list[Observe] = []

    @property
    def present(self) -> bool:
        """Whether there is an observer; compiled code is not observed, and not recompiled for it."""
        return not torch.compiler.is_compiling() and bool(self._all)

    @contextmanager
    def observer_added(self, observe: Observe) -> Iterator[None]:
        """Add an observer for a while, beside others."""
        self._all.append(observe)
        try:
            yield
        finally:
            self._all.remove(observe)

    def show(self, layer: int, q_BHQD: Tensor, k_BHKD: Tensor, **masking: Any) -> None:
        """Show one attention to all of them."""
        for observe in self._all:
            observe(layer, q_BHQD, k_BHKD, **masking)


def check_temperatures(temperatures: Sequence[float], num_layers: int) -> tuple[float, ...]:
    """Return the temperatures of all layers.

    Raises:
        SpecError: if it is not one number a layer, each from 1e-6 to 1e6.
    """
    values = tuple(temperatures)
    if len(values) != num_layers:
        raise SpecError(
            f"Given {len(values)} temperatures, {values!r}, for {num_layers} layers. Give one for each."
        )
    for temperature in values:
        check_number("temperature", temperature)
    return tuple(float(temperature) for temperature in values)

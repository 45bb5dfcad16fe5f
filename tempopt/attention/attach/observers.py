"""Queries and keys as attention sees them, shown to observers; and temperatures from outside.

What is measured of them is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


@contextmanager
def fused_attention_observed(model: nn.Module, names: Sequence[str], observe: Observe) -> Iterator[None]:
    """Show the arguments of ``torch.nn.functional.scaled_dot_product_attention`` in some layers, for a while.

    A call is shown if just one of the projections was used since the attention modules that hold them were
    last left: it is that layer's. What a model computes by matrix products of its own is not seen, nor are
    modules in eval mode, which may go by fast paths that observing would close.

    Args:
        model: What the projections are in.
        names: Names of what makes the queries, one for each layer, first layer first; of a module that
            attends itself, as ``nn.MultiheadAttention`` does, too.
        observe: What is called.
    """
    fused_attention = _FusedAttention(observe)
    layers = fused_attention.layers
    with ExitStack() as stack:
        for layer, name in enumerate(names):
            module = model.get_submodule(name)
            if not module.training:
                continue
            attends = isinstance(module, nn.MultiheadAttention)
            attention_module = module if attends else model.get_submodule(name.rpartition(".")[0])
            enter = module.register_forward_pre_hook(lambda *_, layer=layer: layers.append(layer))
            leave = attention_module.register_forward_hook(lambda *_: layers.clear(), always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        _WATCHED.begin(fused_attention)
        stack.callback(_WATCHED.end, fused_attention)
        yield


class _ObservedForward:
    """The fused attention of PyTorch while it is observed; observers may leave in any order."""

    def __init__(self) -> None:
        self._attention: Any = None
        self._looking: list[_FusedAttention] = []

    def begin(self, fused_attention: _FusedAttention) -> None:
        if not self._looking:
            self._attention = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = self.attend
        self._looking.append(fused_attention)

    def end(self, fused_attention: _FusedAttention) -> None:
        self._looking.remove(fused_attention)
        if not self._looking:
            F.scaled_dot_product_attention = self._attention

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            for fused_attention in self._looking:
                fused_attention.look(*args, **kwargs)
        return self._attention(*args, **kwargs)


_WATCHED = _ObservedForward()


class _FusedAttention:
    """The layers whose projections were used since their attention modules were last left."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self.layers: list[int] = []

    def look(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> None:
        # scale and enable_gqa can be given by name alone
        if len(self.layers) == 1:
            layer, scale = self.layers.pop(), kwargs.get("scale")
            masking: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": is_causal}
            if query.ndim == 4:
                self._observe(layer, query, key, scale=scale, valid_BQ=None, **masking)


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

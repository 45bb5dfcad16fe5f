"""The keys that a query sees, the matrix of logits, and the type in which both are computed.

Shape suffixes as in attention.py; G is the number of heads of the keys, each of which may serve a group of
adjacent query heads. Masks broadcast to BHQK. A boolean mask is True where a query may attend; a floating one
is added to the logits.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tempopt.errors import UsageError

# Below this a value is not a bias but a mask: its exponential is 0 in any type.
_LOWEST_BIAS = -1e8
# A million keys that lie so far below another one have, together, less weight than float32 tells from none.
_HIDING_GAP = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """Options of attention beside queries, keys and values.

    Args:
        attn_mask: Boolean or floating mask, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        dropout_p: Dropout probability of the weights in [0, 1).
        scale: Factor on the logits; None is 1 / sqrt(D).
    """

    attn_mask: Tensor | None = None
    is_causal: bool = False
    dropout_p: float = 0.0
    scale: float | None = None

    @property
    def masking(self) -> dict[str, Any]:
        """Mask and causality as keyword arguments."""
        return {"attn_mask": self.attn_mask, "is_causal": self.is_causal}

    @property
    def keywords(self) -> dict[str, Any]:
        """All options as keyword arguments."""
        return {**self.masking, "dropout_p": self.dropout_p, "scale": self.scale}


def wide_type(x: Tensor) -> torch.dtype:
    """Return the tensor's type, or float32 where that is narrower."""
    return torch.promote_types(x.dtype, torch.float32)


def to_wide_type(x: Tensor) -> Tensor:
    """Return the tensor in its :func:`wide_type`."""
    return x.to(wide_type(x))


def full_precision(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which autocast does not change types."""
    if torch.amp.is_autocast_available(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def visible_keys(
    q_len: int,
    k_len: int,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    device: torch.device | None = None,
) -> Tensor:
    """Return the number of keys that each query sees, as integers that broadcast to (B, H, Q).

    Needs O(Q + K) memory apart from the mask, also for a causal mask combined with one over keys.

    Args:
        q_len: Number of queries.
        k_len: Number of keys.
        attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        device: Device of the counts; that of a mask has precedence.
    """
    if attn_mask is None:
        if is_causal:
            return torch.arange(1, q_len + 1, device=device).clamp(max=k_len)
        return torch.full((1,), k_len, device=device)
    visible_mask = visible(attn_mask)
    visible_mask = visible_mask.expand(*visible_mask.shape[:-1], k_len)
    if not is_causal or k_len == 0:
        return visible_mask.sum(dim=-1)
    if visible_mask.ndim > 1 and visible_mask.shape[-2] > 1:
        return (visible_mask & causal_mask(q_len, k_len, visible_mask.device)).sum(dim=-1)
    # A single mask for all queries: each query sees as many keys as the mask shows up to its own position.
    last_Q = torch.arange(q_len, device=visible_mask.device).clamp(max=k_len - 1)
    counts = visible_mask.cumsum(dim=-1).index_select(-1, last_Q)
    return counts.squeeze(-2) if counts.ndim > 1 else counts


@torch.no_grad()
def visible(attn_mask: Tensor) -> Tensor:
    """Return the mask as a boolean one, True where a query may attend.

    In a floating mask minus infinity hides a key, and so does anything near the lowest number of its type,
    or as low as -1e8. A key is also hidden if its bias lies 30 or more below that of all keys with a larger
    one: -10000, -100 or the lowest number of another type beside 0. A ramp, as of ALiBi, hides none.
    """
    if attn_mask.dtype == torch.bool:
        return attn_mask
    is_above = above_lowest(attn_mask)
    if not attn_mask.ndim or attn_mask.shape[-1] < 2:
        return is_above
    bias = to_wide_type(attn_mask).masked_fill(~is_above, float("-inf"))
    sorted_bias = bias.sort(dim=-1, descending=True).values
    # of two keys that are hidden by minus infinity the difference is NaN, which is no gap
    is_gap = sorted_bias[..., :-1] - sorted_bias[..., 1:] >= _HIDING_GAP
    num_before_gap = (is_gap.cumsum(dim=-1) == 0).sum(dim=-1, keepdim=True)
    return is_above & (bias >= sorted_bias.gather(-1, num_before_gap))


def above_lowest(attn_mask: Tensor) -> Tensor:
    """Return where numbers of a floating mask, each by itself, are large enough to be a bias."""
    return attn_mask > max(torch.finfo(attn_mask.dtype).min / 2, _LOWEST_BIAS)


def visible_pairs(
    q_len: int,
    k_len: int,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    position_Q: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Return which keys each query sees, as a boolean that broadcasts to (B, H, Q, K) with full Q and K.

    Args:
        q_len: Number of queries.
        k_len: Number of keys.
        attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
        is_causal: Whether a query sees the keys up to its own position only, in addition to ``attn_mask``.
        position_Q: Key index of each query; None for 0 to Q - 1. It differs with a cache or a subset of the
            queries.
        device: Device of the result; that of a mask has precedence.
    """
    device = device if attn_mask is None else attn_mask.device
    pairs = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
    if is_causal:
        pairs = causal_mask(q_len, k_len, device, position_Q=position_Q)
    return pairs if attn_mask is None else pairs & visible(attn_mask)


def causal_mask(
    q_len: int, k_len: int, device: torch.device | None, *, position_Q: Tensor | None = None
) -> Tensor:
    """Return a boolean (Q, K) mask, True where the key is at or before the query.

    Queries are counted from the start if no positions are given.
    """
    if position_Q is None:
        return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril()
    return torch.arange(k_len, device=device) <= position_Q.to(device)[:, None]


def restrict_mask(attn_mask: Tensor | None, visible_mask: Tensor, hidden: float = float("-inf")) -> Tensor:
    """Return the mask combined with a boolean one that hides further keys, of the same kind as before.

    Args:
        attn_mask: Boolean or floating mask, or None.
        visible_mask: False where a key is hidden in addition.
        hidden: Value in a floating mask of keys that are hidden in addition.
    """
    if attn_mask is None:
        return visible_mask
    if attn_mask.dtype == torch.bool:
        return attn_mask & visible_mask
    return attn_mask.masked_fill(~visible_mask, hidden)


def check_types(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Refuse queries, keys and values of several types outside of autocast.

    Raises:
        UsageError: Their types differ.
    """
    types = {str(x.dtype).removeprefix("torch.") for x in (q, k, v) if x is not None}
    if len(types) > 1 and not torch.is_autocast_enabled(q.device.type):
        raise UsageError(
            f"Queries, keys and values are of the types {', '.join(sorted(types))}. Give them in one type, "
            "as by key.to(query.dtype), or use torch.autocast."
        )


def repeat_heads(x_BGKD: Tensor, num_heads: int) -> Tensor:
    """Return keys or values with one head per query head; unchanged if they have no head dimension.

    Raises:
        UsageError: Their number of heads does not divide that of the queries.
    """
    num_kv_heads = x_BGKD.shape[1]
    if num_kv_heads == num_heads or x_BGKD.ndim < 4:
        return x_BGKD
    if num_kv_heads == 0 or num_heads % num_kv_heads:
        raise UsageError(
            f"Given queries of {num_heads} heads, and keys or values of {num_kv_heads}. Give keys and values "
            "of as many heads as the queries, or of a number that divides theirs: groups of heads then share "
            "them."
        )
    return x_BGKD.repeat_interleave(num_heads // num_kv_heads, dim=1)


def scaled_products(q_BHQD: Tensor, k_BGKD: Tensor, scale: float | None) -> Tensor:
    """Return Q K^T scale, (B, H, Q, K), in float32 or better; the default scale is 1 / sqrt(D)."""
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale
    dtype = wide_type(q_BHQD)
    k_BHKD = repeat_heads(k_BGKD, q_BHQD.shape[1])
    with full_precision(q_BHQD.device.type):
        return (q_BHQD.to(dtype) * scale) @ k_BHKD.to(dtype).transpose(-2, -1)


def add_bias(logits_BHQK: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Return the logits plus a floating mask where that does not hide a key."""
    if attn_mask is None or not attn_mask.is_floating_point():
        return logits_BHQK
    return logits_BHQK + attn_mask.masked_fill(~visible(attn_mask), 0.0).to(logits_BHQK.dtype)


def biased_logits(
    q_BHQD: Tensor, k_BGKD: Tensor, options: AttentionOptions, *, position_Q: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return Q K^T scale + bias, (B, H, Q, K), finite throughout, where keys are hidden, and empty queries.

    A query that sees no key has no softmax: compute it over all keys, then set it to 0 or leave it out.

    Args:
        q_BHQD: Queries.
        k_BGKD: Keys.
        options: Scale, mask and causality; dropout is left to the caller.
        position_Q: Key index of each query; None for 0 to Q - 1.

    Returns:
        The logits and two booleans that broadcast to BHQK: where keys are hidden, except for queries that see
        no key, and which queries see none, with a last dimension of 1; None if no key is hidden.
    """
    logits_BHQK = add_bias(scaled_products(q_BHQD, k_BGKD, options.scale), options.attn_mask)
    if options.attn_mask is None and not options.is_causal:
        return logits_BHQK, None, None
    q_len, k_len = logits_BHQK.shape[-2:]
    where: dict[str, Any] = {"position_Q": position_Q, "device": q_BHQD.device}
    pairs = visible_pairs(q_len, k_len, options.attn_mask, options.is_causal, **where)
    is_empty = ~pairs.any(dim=-1, keepdim=True)
    return logits_BHQK, ~pairs & ~is_empty, is_empty

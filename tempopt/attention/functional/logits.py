"""Which keys a query sees, the matrix of logits, and the type in which both are computed.

What is made of the logits is not known here. Shape suffixes as in attention.py; G is the heads of the keys,
each of which may serve a group of the queries' heads next to each other. Masks broadcast to BHQK. A boolean
mask is True where a query may attend; a floating one is added to the logits.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tempopt.errors import UsageError

# What adds so little to a logit is no bias any more: e to that is 0 in any type.
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
        """All of them as keyword arguments."""
        return {**self.masking, "dropout_p": self.dropout_p, "scale": self.scale}


def wide_type(x: Tensor) -> torch.dtype:
    """Return the tensor's type, or float32 where that is narrower."""
    return torch.promote_types(x.dtype, torch.float32)


def to_wide_type(x: Tensor) -> Tensor:
    """Return the tensor in its :func:`wide_type`."""
    return x.to(wide_type(x))


def full_precision(device_type: str) -> AbstractContextManager[Any]:
    """Return a context in which autocast leaves types as they are."""
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
    """Return how many keys each query sees, as integers that broadcast to (B, H, Q).

    In O(Q + K) memory but for what the mask takes itself, so also for a causal mask with one over keys.

    Args:
        q_len: Number of queries.
        k_len: Number of keys.
        attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        device: Where the counts are wanted; a mask's own device has precedence.
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
    # One mask for all queries: what each of them sees is the count of keys up to its own.
    last_Q = torch.arange(q_len, device=visible_mask.device).clamp(max=k_len - 1)
    counts = visible_mask.cumsum(dim=-1).index_select(-1, last_Q)
    return counts.squeeze(-2) if counts.ndim > 1 else counts


@torch.no_grad()
def visible(attn_mask: Tensor) -> Tensor:
    """Return the mask as a boolean one, True where a query may attend.

    In a floating mask minus infinity hides a key, and so does anything near the lowest number of its type,
    or as low as -1e8. A key is hidden, too, if its bias lies 30 or more below that of all keys with a larger
    one: -10000, -100 or the lowest number of another type beside 0. A ramp, as of ALiBi, hides none.
    """
    if attn_mask.dtype == torch.bool:
        return attn_mask
    is_above = above_lowest(attn_mask)
    if not attn_mask.ndim or attn_mask.shape[-1] < 2:
        return is_above
    bias = to_wide_type(attn_mask).masked_fill(~is_above, float("-inf"))
    ordered = bias.sort(dim=-1, descending=True).values
    # of two keys that are hidden by minus infinity the difference is NaN, which is no gap
    is_gap = ordered[..., :-1] - ordered[..., 1:] >= _HIDING_GAP
    num_before_gap = (is_gap.cumsum(dim=-1) == 0).sum(dim=-1, keepdim=True)
    return is_above & (bias >= ordered.gather(-1, num_before_gap))


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
    """Return who may see whom, as a boolean that broadcasts to (B, H, Q, K) and has all of Q and K.

    Args:
        q_len: Number of queries.
        k_len: Number of keys.
        attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
        is_causal: Whether a query sees the keys up to its own position only, in addition to ``attn_mask``.
        position_Q: Which key each query is; None for 0 to Q - 1. With a cache or some of the queries only
            they are others.
        device: Where it is wanted; a mask's own device has precedence.
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

    Queries are counted from the start, if it is not said which key each is.
    """
    if position_Q is None:
        return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril()
    return torch.arange(k_len, device=device) <= position_Q.to(device)[:, None]


def restrict_mask(attn_mask: Tensor | None, visible_mask: Tensor, hidden: float = float("-inf")) -> Tensor:
    """Return the mask with what a boolean one hides hidden as well, boolean or floating as it was.

    Args:
        attn_mask: Boolean or floating mask, or None.
        visible_mask: True where a query may attend as far as this is concerned.
        hidden: What a floating mask has where that hides a key.
    """
    if attn_mask is None:
        return visible_mask
    if attn_mask.dtype == torch.bool:
        return attn_mask & visible_mask
    return attn_mask.masked_fill(~visible_mask, hidden)


def check_types(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Raise UsageError if queries, keys and values are of several types, but under autocast."""
    types = {str(x.dtype).removeprefix("torch.") for x in (q, k, v) if x is not None}
    if len(types) > 1 and not torch.is_autocast_enabled(q.device.type):
        raise UsageError(
            f"Queries, keys and values are of the types {', '.join(sorted(types))}. Give them in one type, "
            "as by key.to(query.dtype), or use torch.autocast."
        )


def for_each_head(x_BGKD: Tensor, num_heads: int) -> Tensor:
    """Return keys or values with one head for each of the queries'; as they are where they have no heads.

    Raises:
        UsageError: if the number of their heads does not divide that of the queries.
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
    """Return Q K^T scale, (B, H, Q, K), in float32 or better; without a scale it is 1 / sqrt(D)."""
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale
    dtype = wide_type(q_BHQD)
    k_BHKD = for_each_head(k_BGKD, q_BHQD.shape[1])
    with full_precision(q_BHQD.device.type):
        return (q_BHQD.to(dtype) * scale) @ k_BHKD.to(dtype).transpose(-2, -1)


def with_bias(logits_BHQK: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Return the logits with what a floating mask adds to them where it does not hide a key."""
    if attn_mask is None or not attn_mask.is_floating_point():
        return logits_BHQK
    return logits_BHQK + attn_mask.masked_fill(~visible(attn_mask), 0.0).to(logits_BHQK.dtype)


def biased_logits(
    q_BHQD: Tensor, k_BGKD: Tensor, options: AttentionOptions, *, position_Q: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return Q K^T scale + bias, (B, H, Q, K), finite throughout, where keys are hidden, and empty queries.

    A query that sees no key has no softmax: compute it as if it saw all, then set it to 0 or leave it out.

    Args:
        q_BHQD: Queries.
        k_BGKD: Keys.
        options: Scale, mask and causality; dropout is left to the caller.
        position_Q: Which key each query is; None for 0 to Q - 1.

    Returns:
        The logits and two booleans that broadcast to BHQK: where keys are hidden, but for queries that see
        none, and which queries those are, with a last dimension of 1; None where none is hidden.
    """
    logits_BHQK = with_bias(scaled_products(q_BHQD, k_BGKD, options.scale), options.attn_mask)
    if options.attn_mask is None and not options.is_causal:
        return logits_BHQK, None, None
    q_len, k_len = logits_BHQK.shape[-2:]
    where: dict[str, Any] = {"position_Q": position_Q, "device": q_BHQD.device}
    pairs = visible_pairs(q_len, k_len, options.attn_mask, options.is_causal, **where)
    empty = ~pairs.any(dim=-1, keepdim=True)
    return logits_BHQK, ~pairs & ~empty, empty

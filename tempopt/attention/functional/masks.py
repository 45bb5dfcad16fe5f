"""Which keys a query may attend to; what is then done with them is not known here.

Shape suffixes as in attention.py. Masks broadcast to BHQK. A boolean mask is True where a query may
attend; a floating one is added to the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

# What adds so little to a logit is no bias any more: e to that is 0 in any type.
_LOWEST_BIAS = -1e8


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


def visible(attn_mask: Tensor) -> Tensor:
    """Return the mask as a boolean one, True where a query may attend.

    In a floating mask minus infinity hides a key, and so does anything near the lowest number of its type,
    or as low as -1e9, which many models write instead; a finite bias, as of ALiBi, does not.
    """
    if attn_mask.dtype == torch.bool:
        return attn_mask
    return attn_mask > max(torch.finfo(attn_mask.dtype).min / 2, _LOWEST_BIAS)


def hidden_keys(
    q_len: int,
    k_len: int,
    attn_mask: Tensor | None,
    is_causal: bool,
    *,
    position_Q: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor | None:
    """Return where a key is hidden from a query, None if nowhere; it broadcasts to BHQK.

    Args:
        q_len: Number of queries.
        k_len: Number of keys.
        attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
        is_causal: Whether a query sees the keys up to its own position only, in addition to ``attn_mask``.
        position_Q: Which key each query is; None for 0 to Q - 1. With a cache or some of the queries only
            they are others.
        device: Where it is wanted without a mask.
    """
    hidden_mask = None if attn_mask is None else ~visible(attn_mask)
    if is_causal:
        device = device if attn_mask is None else attn_mask.device
        future_QK = ~causal_mask(q_len, k_len, device, position_Q=position_Q)
        hidden_mask = future_QK if hidden_mask is None else hidden_mask | future_QK
    return hidden_mask


def causal_mask(
    q_len: int, k_len: int, device: torch.device | None, *, position_Q: Tensor | None = None
) -> Tensor:
    """Return a boolean (Q, K) mask, True where the key is at or before the query.

    Queries are counted from the start, if it is not said which key each is.
    """
    if position_Q is None:
        return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril()
    return torch.arange(k_len, device=device) <= position_Q.to(device)[:, None]


def with_causal(attn_mask: Tensor, q_len: int, k_len: int) -> Tensor:
    """Return the mask with what lies after each query hidden as well, boolean or floating as it was."""
    causal_QK = causal_mask(q_len, k_len, attn_mask.device)
    if attn_mask.dtype == torch.bool:
        return attn_mask & causal_QK
    return attn_mask.masked_fill(~causal_QK, float("-inf"))

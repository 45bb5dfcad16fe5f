"""Which keys a query may attend to; what is then done with them is not known here.

Shape suffixes as in functional.py. Masks broadcast to BHQK. A boolean mask is True where a query may
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

    Args:
        q_len: Number of queries.
        k_len: Number of keys.
        attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        device: Where the counts are wanted; a mask's own device has precedence.
    """
    if attn_mask is not None:
        seen = visible(attn_mask)
        if is_causal:
            seen = seen & causal_mask(q_len, k_len, attn_mask.device)
        return seen.expand(*seen.shape[:-1], k_len).sum(dim=-1)
    if is_causal:
        return torch.arange(1, q_len + 1, device=device).clamp(max=k_len)
    return torch.full((1,), k_len, device=device)


def visible(attn_mask: Tensor) -> Tensor:
    """Return the mask as a boolean one, True where a query may attend.

    In a floating mask minus infinity hides a key, and so does anything near the lowest number of its type,
    or as low as -1e9, which many models write instead; a finite bias, as of ALiBi, does not.
    """
    if attn_mask.dtype == torch.bool:
        return attn_mask
    return attn_mask > max(torch.finfo(attn_mask.dtype).min / 2, _LOWEST_BIAS)


def hidden_keys(q_BHQD: Tensor, k_BHKD: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Return where a key is hidden from a query, None if nowhere; it broadcasts to BHQK."""
    unseen = None if attn_mask is None else ~visible(attn_mask)
    if is_causal:
        future_QK = ~causal_mask(q_BHQD.shape[-2], k_BHKD.shape[-2], q_BHQD.device)
        unseen = future_QK if unseen is None else unseen | future_QK
    return unseen


def causal_mask(q_len: int, k_len: int, device: torch.device) -> Tensor:
    """Return a boolean (Q, K) mask, True where the key is at or before the query, counted from the start."""
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril()


def with_causal(attn_mask: Tensor, q_len: int, k_len: int) -> Tensor:
    """Return the mask with what lies after each query hidden as well, boolean or floating as it was."""
    causal_QK = causal_mask(q_len, k_len, attn_mask.device)
    if attn_mask.dtype == torch.bool:
        return attn_mask & causal_QK
    return attn_mask.masked_fill(~causal_QK, float("-inf"))

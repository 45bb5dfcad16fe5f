"""The whole matrix of logits, for what cannot do without it, and heads that share their keys.

What is made of the logits is not known here. Shape suffixes and masks as in attention.py; G is the heads of
the keys, each of which may serve a group of the queries' heads next to each other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tempopt.attention.functional.masks import hidden_keys, visible
from tempopt.attention.functional.precision import full_precision, wide_type
from tempopt.errors import UsageError


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


def hidden_and_empty(
    q_len: int,
    k_len: int,
    attn_mask: Tensor | None,
    is_causal: bool,
    *,
    position_Q: Tensor | None = None,
    device: torch.device | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Return where keys are hidden, but for queries that see none, and which queries those are.

    A query that sees no key has no softmax: compute it as if it saw all, then set it to 0 or leave it out.

    Args:
        q_len: As for :func:`tempopt.attention.functional.masks.hidden_keys`, and the arguments that follow
            too.
        k_len: As there.
        attn_mask: As there.
        is_causal: As there.
        position_Q: As there.
        device: As there.

    Returns:
        Two booleans that broadcast to BHQK, the second with a last dimension of 1; None where none is hidden.
    """
    hidden = hidden_keys(q_len, k_len, attn_mask, is_causal, position_Q=position_Q, device=device)
    if hidden is None:
        return None, None
    # A mask may be one for all keys.
    hidden = hidden.expand(*hidden.shape[:-1], k_len)
    empty = hidden.all(dim=-1, keepdim=True)
    return hidden & ~empty, empty


def biased_logits(
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    *,
    scale: float | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    position_Q: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return Q K^T scale + bias, (B, H, Q, K), finite throughout, and :func:`hidden_and_empty`.

    Args:
        q_BHQD: Queries.
        k_BGKD: Keys.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: Boolean or floating mask, or None.
        is_causal: Whether a query sees the keys up to its own position only, in addition to ``attn_mask``.
        position_Q: Which key each query is; None for 0 to Q - 1.
    """
    logits_BHQK = with_bias(scaled_products(q_BHQD, k_BGKD, scale), attn_mask)
    q_len, k_len = logits_BHQK.shape[-2:]
    hidden, empty = hidden_and_empty(
        q_len, k_len, attn_mask, is_causal, position_Q=position_Q, device=q_BHQD.device
    )
    return logits_BHQK, hidden, empty

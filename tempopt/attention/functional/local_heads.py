"""Attention in which some heads see only the keys near each query; the caller sets the heads and the window.

Cost: without a mask, for sequences of more than a few windows, queries are processed in blocks, each with the
keys near it, in time and memory that grow with Q. With a mask, and under ``torch.compile``, where one graph
serves every window, local heads use a (Q, K) mask and take the time of attention that is not causal.

Shape suffixes and masks as in attention.py; N is the number of blocks, C the queries of a block, W its keys.
Distances count keys, including padding between two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tempopt.attention.functional.attention import is_counting, tempered_attention
from tempopt.attention.functional.logits import causal_mask, repeat_heads, restrict_mask, visible
from tempopt.errors import UsageError
from tempopt.temperature import LocalHeads

# Minimal number of queries in a block, so that kernels are large enough, and of blocks.
_BLOCK, _BLOCKS_FROM = 128, 4


@dataclass(frozen=True, slots=True)
class NearKeys:
    """The heads that see near keys only, and these keys.

    Args:
        num_local: Number of heads, from the first on, that see near keys only.
        window: These heads see keys at most ``window`` - 1 positions away, >= 1; at 1 only the query itself.
        position_Q: Key index of each query, as returned by :func:`query_positions`.
    """

    num_local: int
    window: Tensor | int
    position_Q: Tensor

    def mask(self, k_len: int) -> Tensor:
        """Return a boolean mask, (..., Q, K), True where a key is near."""
        key_K = torch.arange(k_len, device=self.position_Q.device)
        return (key_K - self.position_Q.unsqueeze(-1)).abs() < self.window


def query_positions(
    q_len: int,
    k_len: int,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    last_seen: bool = False,
    device: torch.device | None = None,
) -> Tensor:
    """Return the key index of each query.

    Args:
        q_len: Number of queries.
        k_len: Number of keys.
        attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
        is_causal: Whether query i sees the keys 0 to i only; it is then key i.
        last_seen: Whether a query after cached keys is the last key that the mask lets it see, as under a
            causal mask over a cache with free slots. Otherwise the last query is the last key.
        device: Device of the result; that of a mask has precedence.

    Returns:
        Integers, (Q,), or with a mask broadcasting to (B, H, Q).

    Raises:
        UsageError: There are more queries than keys, so that some queries are not among the keys.
    """
    if attn_mask is not None:
        device = attn_mask.device
    first = torch.arange(q_len, device=device)
    if is_causal or q_len == k_len:
        return first
    if q_len > k_len:
        raise UsageError(
            f"Given {q_len} queries and {k_len} keys: local heads see the keys around each query, which has "
            "to be one of them. Give local_share=0.0 where queries and keys are of different sequences."
        )
    if attn_mask is not None and last_seen:
        return (visible(attn_mask) * torch.arange(k_len, device=device)).amax(dim=-1)
    return first + (k_len - q_len)


def near_keys(
    local: LocalHeads,
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    window: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    last_seen: bool = False,
) -> NearKeys | None:
    """Return the argument of :func:`local_attention` and :func:`local_mask`; None if no head is local.

    Args:
        local: Which heads are local.
        q_BHQD: Queries.
        k_BHKD: Keys.
        window: Window as a tensor, so that one compiled graph serves every window.
        attn_mask: As for :func:`query_positions`, like the following arguments.
        is_causal: As for :func:`query_positions`.
        last_seen: As for :func:`query_positions`.
    """
    num_local = local.count(q_BHQD.shape[1])
    if not num_local:
        return None
    lengths = q_BHQD.shape[-2], k_BHKD.shape[-2]
    position_Q = query_positions(*lengths, attn_mask, is_causal, last_seen=last_seen, device=q_BHQD.device)
    return NearKeys(num_local, window if torch.compiler.is_compiling() else local.window, position_Q)


def local_mask(
    num_heads: int,
    k_len: int,
    *,
    near: NearKeys,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    hidden: float = float("-inf"),
) -> Tensor:
    """Return one mask for all heads, (1 or B, H, Q, K), that combines the given mask, causality and the
    window.

    It has H times the size of the (Q, K) mask that :func:`local_attention` uses.

    Args:
        num_heads: Number of heads H of the queries.
        k_len: Number of keys.
        near: The local heads and their keys.
        attn_mask: Boolean or floating mask, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        hidden: Value in a floating mask where the window hides a key.

    Returns:
        A floating mask if one was given, else a boolean one.
    """
    near_mask = near.mask(k_len)
    is_local_H11 = torch.arange(num_heads, device=near_mask.device)[:, None, None] < near.num_local
    # (1, Q, K), or (B, 1, Q, K) where each example has its own positions
    visible_mask = (near_mask.unsqueeze(-3) if near_mask.ndim == 2 else near_mask) | ~is_local_H11
    if is_causal:
        visible_mask = visible_mask & causal_mask(near_mask.shape[-2], k_len, near_mask.device)
    visible_mask = visible_mask.expand(*(1,) * (4 - visible_mask.ndim), *visible_mask.shape)
    return restrict_mask(attn_mask, visible_mask, hidden)


def local_attention(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    near: NearKeys,
    inverse_temperature: Tensor | float,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Return tempered attention in which the first heads see near keys only.

    The heads are processed in two groups, so that those without a window use the same kernel as without local
    heads, and the mask of the others is (Q, K). A length scaling counts the keys that each head sees.

    Args:
        q_BHQD: Queries.
        k_BHKD: Keys; of as many heads as the queries, or of a number that divides theirs (grouped queries).
        v_BHKD: Values, of the keys' heads.
        near: The local heads and their keys.
        inverse_temperature: As for :func:`tempopt.attention.functional.attention.tempered_attention`.
        attn_mask: Boolean or floating mask, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        **kwargs: Further arguments of that function.

    Returns:
        As for that function.
    """
    num_heads, k_len = q_BHQD.shape[1], k_BHKD.shape[-2]
    qkv = (q_BHQD, repeat_heads(k_BHKD, num_heads), repeat_heads(v_BHKD, num_heads))
    local_slice, global_slice = slice(0, near.num_local), slice(near.num_local, num_heads)
    kwargs["inverse_temperature"] = _select_heads(inverse_temperature, local_slice)
    q, k, v = (tensor[:, local_slice] for tensor in qkv)
    if isinstance(near.window, int) and _should_use_blocks(
        q, k, kwargs["inverse_temperature"], attn_mask, near.window
    ):
        local_BHQD = _attend_in_blocks(q, k, v, window=near.window, is_causal=is_causal, **kwargs)
    else:
        mask = restrict_mask(_select_heads(attn_mask, local_slice), near.mask(k_len))
        if is_causal:
            mask = restrict_mask(mask, causal_mask(q.shape[-2], k_len, mask.device))
        local_BHQD = tempered_attention(q, k, v, attn_mask=mask, **kwargs)
    if near.num_local == num_heads:
        return local_BHQD
    kwargs["inverse_temperature"] = _select_heads(inverse_temperature, global_slice)
    mask = _select_heads(attn_mask, global_slice)
    q, k, v = (tensor[:, global_slice] for tensor in qkv)
    global_BHQD = tempered_attention(q, k, v, attn_mask=mask, is_causal=is_causal, **kwargs)
    return torch.cat([local_BHQD, global_BHQD], dim=1)


def _should_use_blocks(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    inverse_temperature: Tensor | float,
    attn_mask: Tensor | None,
    window: int,
) -> bool:
    """Return whether blocks are possible and need less work than the whole matrix."""
    q_len, k_len = q_BHQD.shape[-2], k_BHKD.shape[-2]
    is_per_query = (
        isinstance(inverse_temperature, Tensor)
        and inverse_temperature.ndim > 1
        and inverse_temperature.shape[-2] > 1
    )
    needs_matrix = attn_mask is not None or is_per_query or q_len != k_len or is_counting()
    return not needs_matrix and k_len >= _BLOCKS_FROM * max(window, _BLOCK)


def _attend_in_blocks(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor, *, window: int, is_causal: bool, **kwargs: Any
) -> Tensor:
    """Return attention to near keys, in blocks of queries with the keys that any of them sees."""
    batch, length = q_BHQD.shape[0], q_BHQD.shape[-2]
    block = max(window, _BLOCK)
    num_blocks = -(-length // block)
    num_before, num_behind = window - 1, 0 if is_causal else window - 1
    num_missing = num_blocks * block - length

    def blocks(x_BHKD: Tensor) -> Tensor:
        padded_BHKD = F.pad(x_BHKD, (0, 0, num_before, num_behind + num_missing))
        x_BHNDW = padded_BHKD.unfold(-2, block + num_before + num_behind, block)
        return x_BHNDW.permute(0, 2, 1, 4, 3).flatten(0, 1)

    q_BHND = F.pad(q_BHQD, (0, 0, 0, num_missing)).unflatten(-2, (num_blocks, block))
    query_NC = torch.arange(num_blocks * block, device=q_BHQD.device).view(num_blocks, block)
    key_NW = (
        query_NC[:, :1] - num_before + torch.arange(block + num_before + num_behind, device=q_BHQD.device)
    )
    distance_NCW = query_NC[..., None] - key_NW[:, None]
    visible_NCW = (distance_NCW.abs() < window) & (key_NW >= 0)[:, None] & (key_NW < length)[:, None]
    if is_causal:
        visible_NCW &= distance_NCW >= 0
    # padding of the last block sees itself, and is cut off below
    visible_NCW |= (distance_NCW == 0) & (query_NC >= length)[..., None]
    mask = visible_NCW[None, :, None].expand(batch, -1, -1, -1, -1).flatten(0, 1)
    out = tempered_attention(
        q_BHND.transpose(1, 2).flatten(0, 1), blocks(k_BHKD), blocks(v_BHKD), attn_mask=mask, **kwargs
    )
    out_BHND = out.unflatten(0, (batch, num_blocks)).transpose(1, 2)
    cut: Tensor = out_BHND.flatten(2, 3)[:, :, :length]
    return cut


def _select_heads(value: Any, heads: slice) -> Any:
    """Return the part of a number or of a mask that broadcasts to BHQK which belongs to some heads."""
    if isinstance(value, Tensor) and value.ndim > 2 and value.shape[-3] > 1:
        return value[..., heads, :, :]
    return value

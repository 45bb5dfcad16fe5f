"""``torch.nn.functional.multi_head_attention_forward``, written out around an attention call of ours.

PyTorch's own is one node to ``torch.compile`` and to function modes, so that nothing inside of it can be
reached. The operations and their order are PyTorch's.

Shape suffixes as in attention.py; L is the queries, S the keys, E the width; N is B * H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tempopt.attention.functional.logits import AttentionOptions
from tempopt.errors import AttachError


class Attend(Protocol):
    """What computes the attention between the projections."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Return attention as ``scaled_dot_product_attention`` does."""

    def attend_with_weights(
        self, q_BHLD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, attn_mask: Tensor | None, dropout_p: float
    ) -> tuple[Tensor, Tensor]:
        """Return attention, and the weights after dropout."""


def multi_head_attention(
    attention: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return output and weights as PyTorch's function does, which documents the arguments.

    Raises:
        AttachError: if keys or values are given as ``static_k`` or ``static_v``.
    """
    if static_k is not None or static_v is not None:
        raise AttachError("A temperature cannot be attached to attention with static_k or static_v.")
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    is_batched = query.ndim == 3
    if not is_batched:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    q_len, batch, width = query.shape
    key_padding_mask = _as_bias(key_padding_mask, query.dtype)
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None
    else:
        is_causal = False
        attn_mask = _as_bias(attn_mask, query.dtype)
    if width != embed_dim_to_check or width % num_heads:
        raise RuntimeError(f"Expected width {embed_dim_to_check} in {num_heads} heads; got {width}.")
    if use_separate_proj_weight:
        weights = q_proj_weight, k_proj_weight, v_proj_weight
        q, k, v = _project((query, key, value), weights, in_proj_bias)
    else:
        assert in_proj_weight is not None
        q, k, v = _project_packed(query, key, value, in_proj_weight, in_proj_bias)
    num_added = 0
    if bias_k is not None and bias_v is not None:
        k = torch.cat([k, bias_k.repeat(1, batch, 1)])
        v = torch.cat([v, bias_v.repeat(1, batch, 1)])
        num_added += 1
    q, k, v = (_split_heads(x, num_heads) for x in (q, k, v))
    if add_zero_attn:
        k, v = (torch.cat([x, torch.zeros_like(x[:, :, :1])], dim=2) for x in (k, v))
        num_added += 1
    mask = _merge_masks(attn_mask, key_padding_mask, batch, num_heads, num_added)
    dropout_p = dropout_p if training else 0.0
    attention_weights: Tensor | None = None
    if need_weights:
        out_BHLD, attention_weights = attention.attend_with_weights(q, k, v, mask, dropout_p)
        if average_attn_weights:
            attention_weights = attention_weights.mean(dim=1)
    else:
        options = AttentionOptions(attn_mask=mask, is_causal=is_causal, dropout_p=dropout_p)
        out_BHLD = attention.attend(q, k, v, options)
    out = out_BHLD.permute(2, 0, 1, 3).reshape(q_len * batch, width)
    out = F.linear(out, out_proj_weight, out_proj_bias)
    out = out.view(q_len, batch, out.shape[1])
    if not is_batched:
        out = out.squeeze(1)
        attention_weights = None if attention_weights is None else attention_weights.squeeze(0)
    return out, attention_weights


def compute_logits(q: Tensor, k: Tensor, attn_mask: Tensor | None) -> Tensor:
    """Return the logits that PyTorch's function makes where weights are wanted, (B, H, L, S)."""
    scaled_NLD = (q * math.sqrt(1.0 / float(q.shape[-1]))).flatten(0, 1)
    k_NDS = k.flatten(0, 1).transpose(-2, -1)
    if attn_mask is None:
        logits_NLS = torch.bmm(scaled_NLD, k_NDS)
    else:
        mask_BHLS = attn_mask.expand(*q.shape[:2], q.shape[2], k.shape[2])
        logits_NLS = torch.baddbmm(mask_BHLS.flatten(0, 1), scaled_NLD, k_NDS)
    return logits_NLS.view(*q.shape[:3], k.shape[2])


def _as_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask as what is added to logits; in a boolean one True hides."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


def _project_packed(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    width = query.shape[-1]
    if key is value and query is key:
        q, k, v = _project_together(query, weight, bias, 3)
        return q, k, v
    if key is value:
        bias_q, bias_kv = (None, None) if bias is None else bias.split([width, 2 * width])
        weight_q, weight_kv = weight.split([width, 2 * width])
        k, v = _project_together(key, weight_kv, bias_kv, 2)
        return F.linear(query, weight_q, bias_q), k, v
    return _project((query, key, value), weight.chunk(3), bias)


def _project(
    qkv: tuple[Tensor, Tensor, Tensor], weights: Sequence[Tensor | None], bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, each by a weight of its own and its part of the bias."""
    biases = (None, None, None) if bias is None else bias.chunk(3)
    parts = zip(qkv, weights, biases, strict=True)
    q, k, v = (F.linear(x, weight, part_bias) for x, weight, part_bias in parts)  # type: ignore[arg-type]
    return q, k, v


def _split_heads(x_SBE: Tensor, num_heads: int) -> Tensor:
    """Return (S, B, E) as (B, H, S, D)."""
    length, batch, width = x_SBE.shape
    x_NSD = x_SBE.view(length, batch * num_heads, width // num_heads).transpose(0, 1)
    return x_NSD.view(batch, num_heads, length, width // num_heads)


def _project_together(x: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> tuple[Tensor, ...]:
    projected = F.linear(x, weight, bias).unflatten(-1, (parts, x.shape[-1]))
    parts_first = projected.unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()
    return tuple(parts_first[part] for part in range(parts))


def _merge_masks(
    attn_mask: Tensor | None, padding_BS: Tensor | None, batch: int, num_heads: int, num_added: int
) -> Tensor | None:
    """Return one mask that broadcasts to (B, H, L, S), in which keys that were added are seen by all."""
    if attn_mask is not None:
        attn_mask = F.pad(attn_mask, (0, num_added)) if num_added else attn_mask
        if attn_mask.ndim == 2:
            attn_mask = attn_mask[None, None]
        else:
            attn_mask = attn_mask.view(batch, num_heads, *attn_mask.shape[-2:])
    if padding_BS is None:
        return attn_mask
    padding_BS = F.pad(padding_BS, (0, num_added)) if num_added else padding_BS
    padding_B11S = padding_BS[:, None, None]
    return padding_B11S.expand(-1, num_heads, -1, -1) if attn_mask is None else attn_mask + padding_B11S

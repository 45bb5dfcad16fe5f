"""What masks say in models of transformers: which key a query is, whether it is padding, what a head sees.

Shape suffixes as in attention.py; G is the heads of the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tempopt.attention.functional.local_heads import local_arguments, local_mask
from tempopt.attention.functional.masks import visible
from tempopt.temperature import LocalHeads

GLOBAL = LocalHeads(window=1, local_share=0.0)
"""No head is local."""

_CROSS = ("cross", "encoder_attn", "encdec")


def is_cross(name: str) -> bool:
    """Return whether a module, by its name, has queries and keys of different sequences."""
    return any(hint in name.lower() for hint in _CROSS)


def local_heads(
    name: str,
    module: nn.Module,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    mask_arguments: Mapping[str, Any],
    *,
    local: LocalHeads,
    window: Tensor,
) -> dict[str, Any]:
    """Return what local heads are given; empty where there are none, as in cross-attention.

    Args:
        name: Name of the module.
        module: The attention module. In a causal one with a cache, a query is the last key that it sees: a
            cache of a fixed size has places behind it.
        q_BHQD: Queries.
        k_BGKD: Keys.
        mask_arguments: ``attn_mask`` and ``is_causal`` of the layer.
        local: Which heads are local.
        window: Their window as a tensor, for compiled graphs, of which one serves every window.
    """
    if is_cross(name):
        return {}
    return local_arguments(
        local,
        q_BHQD,
        k_BGKD,
        window=window,
        attn_mask=mask_arguments["attn_mask"],
        is_causal=mask_arguments["is_causal"],
        last_seen=bool(getattr(module, "is_causal", True)),
    )


def local_heads_mask(
    implementation: str,
    q_BHQD: Tensor,
    k_BGKD: Tensor,
    mask_arguments: Mapping[str, Any],
    local: Mapping[str, Any],
) -> Tensor:
    """Return the mask of all heads as the module's own function takes it: ``eager`` adds it to the logits."""
    attn_mask: Tensor | None = mask_arguments["attn_mask"]
    lowest = torch.finfo(q_BHQD.dtype).min
    if implementation == "eager" and (attn_mask is None or attn_mask.dtype == torch.bool):
        blank = torch.zeros((1, 1, 1, k_BGKD.shape[-2]), dtype=q_BHQD.dtype, device=q_BHQD.device)
        attn_mask = blank if attn_mask is None else blank.masked_fill(~attn_mask, lowest)
    masking = {"attn_mask": attn_mask, "is_causal": mask_arguments["is_causal"]}
    # a row that is minus infinity throughout would be NaN in a softmax that is written out
    return local_mask(q_BHQD.shape[1], k_BGKD.shape[-2], **local, **masking, hidden=lowest)


def is_causal_by_flag(
    module: nn.Module, q_BHQD: Tensor, attention_mask: Tensor | None, is_causal: bool | None
) -> bool:
    """Whether the module's own function hides what comes after each query, without a mask that says so."""
    # The shape first: compiled for all lengths, a length is not a bool.
    if q_BHQD.shape[-2] > 1 and attention_mask is None:
        return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    return False


def valid_queries(name: str, q_BHQD: Tensor, k_BGKD: Tensor, attn_mask: Tensor | None) -> Tensor | None:
    """Return where a query is no padding, (B, Q) or (1, Q): where it sees itself among the keys."""
    q_len, k_len = q_BHQD.shape[-2], k_BGKD.shape[-2]
    if attn_mask is None or q_len > k_len or is_cross(name):
        return None
    seen_BHQK = visible(attn_mask).expand(-1, -1, q_len, k_len)
    return seen_BHQK.diagonal(offset=k_len - q_len, dim1=-2, dim2=-1).any(dim=1)

"""Attention weights with heads that do one thing each, and heads with random weights; nothing is judged here.

V tokens, E dimensions of a token or position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tempopt.attention.analysis.patterns import PATTERNS, pattern_keys

PLANTED = (*PATTERNS, "uniform", "content")
"""What the heads of :func:`planted` do: ``content`` follows the tokens in no way that has a name."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Weights (B, H, Q, K), how they are masked, and the tokens."""

    weights_BHQK: Tensor
    masking: dict[str, Any]
    tokens_BK: Tensor


def planted_heads(
    *,
    length: int,
    inputs: int = 8,
    is_causal: bool = False,
    padded: bool = False,
    size: float = 6.0,
    seed: int,
) -> Heads:
    """Return heads whose logits are normal, and by ``size`` greater on the keys of a pattern.

    Args:
        length: Tokens of the longest input.
        inputs: Inputs of the batch.
        is_causal: Whether a query sees the keys up to its own only.
        padded: Whether inputs are of unlike lengths, filled up at the end.
        size: What a pattern adds to logits.
        seed: Seed of all draws.
    """
    draw = torch.Generator().manual_seed(seed)
    vocabulary = max(8, length // 4)
    tokens_BK = torch.randint(vocabulary, (inputs, length), generator=draw)
    visible, masking = _make_masking(inputs, length, is_causal, padded, draw)
    logits = []
    for name in PLANTED:
        noise = torch.randn(inputs, length, length, generator=draw)
        if name == "uniform":
            logits.append(torch.zeros(inputs, length, length))
        elif name == "content":
            by_token = 2.0 * torch.randn(vocabulary, vocabulary, generator=draw)
            logits.append(by_token[tokens_BK[:, :, None], tokens_BK[:, None, :]])
        else:
            logits.append(noise + size * pattern_keys(name, visible, tokens_BK=tokens_BK)[:, 0])
    return Heads(
        weights_BHQK=_softmax(torch.stack(logits, dim=1), visible), masking=masking, tokens_BK=tokens_BK
    )


def random_heads(
    *,
    heads: int,
    length: int,
    inputs: int,
    spread: float,
    position: float,
    is_causal: bool = False,
    padded: bool = False,
    vocabulary: int = 64,
    dimension: int = 32,
    seed: int,
) -> Heads:
    """Return heads of an untrained layer: bilinear forms with random weights in token and position.

    Args:
        heads: Heads of the layer.
        length: Tokens of the longest input.
        inputs: Inputs of the batch.
        spread: Standard deviation of the logits over random weights.
        position: Share of a representation's variance that is the position's, in [0, 1].
        is_causal: Whether a query sees the keys up to its own only.
        padded: Whether inputs are of unlike lengths.
        vocabulary: Number of tokens.
        dimension: E.
        seed: Seed of all draws.
    """
    draw = torch.Generator().manual_seed(seed)
    tokens_BK = torch.randint(vocabulary, (inputs, length), generator=draw)
    visible, masking = _make_masking(inputs, length, is_causal, padded, draw)
    token_VE = torch.randn(vocabulary, dimension, generator=draw)
    position_KE = torch.randn(length, dimension, generator=draw)
    x_BKE = (1.0 - position) ** 0.5 * token_VE[tokens_BK] + position**0.5 * position_KE
    size = max(dimension // heads, 1)
    q_HED, k_HED = (torch.randn(heads, dimension, size, generator=draw) / dimension**0.5 for _ in range(2))
    q_BHQD, k_BHKD = (torch.einsum("bke,hed->bhkd", x_BKE, weight_HED) for weight_HED in (q_HED, k_HED))
    logits = spread * q_BHQD @ k_BHKD.mT / size**0.5
    return Heads(weights_BHQK=_softmax(logits, visible), masking=masking, tokens_BK=tokens_BK)


def _make_masking(
    inputs: int, length: int, is_causal: bool, padded: bool, draw: torch.Generator
) -> tuple[Tensor, dict[str, Any]]:
    visible = torch.ones(inputs, 1, length, length, dtype=torch.bool)
    masking: dict[str, Any] = {"is_causal": is_causal}
    if is_causal:
        visible = visible.tril()
    if padded:
        lengths = torch.randint(3 * length // 4, length + 1, (inputs, 1), generator=draw)
        masking["valid_BQ"] = torch.arange(length) < lengths
        masking["attn_mask"] = masking["valid_BQ"][:, None, None]
        visible = visible & masking["attn_mask"]
    return visible, masking


def _softmax(logits_BHQK: Tensor, visible_BHQK: Tensor) -> Tensor:
    return logits_BHQK.masked_fill(~visible_BHQK, float("-inf")).softmax(dim=-1).nan_to_num(0.0)

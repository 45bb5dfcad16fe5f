"""Attention with weights other than the softmax of the logits; temperature is handled elsewhere.

Shape suffixes and masks as in attention.py; E is the head dimension of the values.

Cost: softmax is PyTorch's fused attention. The others except ``linear`` compute the (B, H, Q, K) matrices of
logits and weights in float32 and sort their rows; ``linear`` needs O(Q + K) time and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tempopt.attention.functional.logits import (
    AttentionOptions,
    above_lowest,
    biased_logits,
    causal_mask,
    full_precision,
    restrict_mask,
    visible,
    wide_type,
)
from tempopt.errors import UsageError, unknown
from tempopt.temperature.normalisers import NORMALISERS
from tempopt.temperature.ranges import check_number

# Queries per step of causal linear attention: their matrix is then no larger than the sums of outer products
# over all keys before them.
_CHUNK = 64
# Sparsemax and 1.5-entmax give no weight to a logit that is 1, or 2, below the largest.
_BEYOND_SUPPORT = 4.0
_LIMITS = {
    "top_k": 'with normaliser "top_k" the number of keys to keep, as top_k=8',
    "min_weight": 'with normaliser "threshold" the weight below which weights are 0, as min_weight=0.01',
}


Limit = Tensor | float | None
"""``top_k`` or ``min_weight`` of a normaliser; None for a normaliser without a limit."""
Attention = Callable[[Tensor, Tensor, Tensor, AttentionOptions, Limit], Tensor]
"""Queries, keys, values with as many heads, options and limit to attended values, by one normaliser."""
# Logits, True where they are hidden (but never a whole row), and the limit, to weights.
_Weights = Callable[[Tensor, Tensor | None, Limit], Tensor]


def check_limits(normaliser: str, top_k: Tensor | int | None, min_weight: Tensor | float | None) -> Limit:
    """Return the limit of a normaliser, None if it has none.

    Raises:
        UsageError: The normaliser is unknown, its limit is missing or out of range, or the limit of another
            normaliser is given.
    """
    if normaliser not in ATTENTIONS:
        raise UsageError(unknown("normaliser", normaliser, ATTENTIONS))
    limits: dict[str, Limit] = {"top_k": top_k, "min_weight": min_weight}
    limit_name = NORMALISERS[normaliser].limit
    for name, value in limits.items():
        if (value is not None) != (name == limit_name):
            raise UsageError(
                f'{name}={value!r} was given with normaliser "{normaliser}". Give {_LIMITS[name]}, and with '
                "no other normaliser."
            )
    limit = limits[limit_name] if limit_name else None
    if limit_name and not isinstance(limit, Tensor):
        check_number(limit_name, limit)
    return limit


def _fused_softmax(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKE: Tensor, options: AttentionOptions, limit: Limit
) -> Tensor:
    attn_mask, is_causal = options.attn_mask, options.is_causal
    if attn_mask is not None and attn_mask.ndim < 2:
        attn_mask = attn_mask.expand(1, k_BHKD.shape[-2])
    # The kernel takes either a mask or causality; its weights are in float32 already.
    if is_causal and attn_mask is not None:
        causal_QK = causal_mask(q_BHQD.shape[-2], k_BHKD.shape[-2], attn_mask.device)
        attn_mask, is_causal = restrict_mask(attn_mask, causal_QK), False
    return F.scaled_dot_product_attention(
        q_BHQD, k_BHKD, v_BHKE, attn_mask, options.dropout_p, is_causal, scale=options.scale
    )


def _build_dense_attention(weights_of: _Weights) -> Attention:
    """Return attention that computes the matrix of weights by a function of the matrix of logits."""

    def attend(
        q_BHQD: Tensor, k_BHKD: Tensor, v_BHKE: Tensor, options: AttentionOptions, limit: Limit
    ) -> Tensor:
        with full_precision(q_BHQD.device.type):
            logits_BHQK, hidden, is_empty = biased_logits(q_BHQD, k_BHKD, options)
            weights_BHQK = weights_of(logits_BHQK, hidden, limit)
            if is_empty is not None:
                weights_BHQK = weights_BHQK.masked_fill(is_empty, 0.0)
            dropped_BHQK = F.dropout(weights_BHQK, options.dropout_p)
            return (dropped_BHQK @ v_BHKE.to(weights_BHQK.dtype)).to(q_BHQD.dtype)

    return attend


def _top_k_weights(logits_BHQK: Tensor, hidden: Tensor | None, limit: Limit) -> Tensor:
    assert limit is not None
    if hidden is not None:
        logits_BHQK = logits_BHQK.masked_fill(hidden, float("-inf"))
    threshold_BHQ1 = _select_by_rank(logits_BHQK.detach(), limit)
    return logits_BHQK.masked_fill(logits_BHQK < threshold_BHQ1, float("-inf")).softmax(dim=-1)


def _threshold_weights(logits_BHQK: Tensor, hidden: Tensor | None, limit: Limit) -> Tensor:
    assert limit is not None
    if hidden is not None:
        logits_BHQK = logits_BHQK.masked_fill(hidden, float("-inf"))
    weights_BHQK = logits_BHQK.detach().softmax(dim=-1)
    largest_BHQ1 = weights_BHQK.amax(dim=-1, keepdim=True)
    small_BHQK = (weights_BHQK < limit) & (weights_BHQK < largest_BHQ1)
    # a softmax over the remaining keys equals their weights over the sum
    return logits_BHQK.masked_fill(small_BHQK, float("-inf")).softmax(dim=-1)


def _select_by_rank(logits_BHQK: Tensor, rank: Tensor | float) -> Tensor:
    """Return the logit of that rank in each row, counted from 1; the smallest one if there are fewer."""
    k_len = logits_BHQK.shape[-1]
    if not isinstance(rank, Tensor):
        return logits_BHQK.topk(min(int(rank), k_len), dim=-1).values[..., -1:]
    # topk needs the number as an int, and each would be compiled separately.
    ordered_BHQK = logits_BHQK.sort(dim=-1, descending=True).values
    return ordered_BHQK.index_select(-1, rank.to(logits_BHQK.device).long().clamp(1, k_len).reshape(1) - 1)


def _sparse_weights(normalise: Callable[[Tensor], Tensor]) -> _Weights:
    def weights_of(logits_BHQK: Tensor, hidden: Tensor | None, limit: Limit) -> Tensor:
        if hidden is not None:
            # Minus infinity is squared, which would give NaN.
            seen_BHQK = logits_BHQK.detach().masked_fill(hidden, float("-inf"))
            lowest_BHQ1 = seen_BHQK.amax(dim=-1, keepdim=True) - _BEYOND_SUPPORT
            logits_BHQK = torch.where(hidden, lowest_BHQ1, logits_BHQK)
        return normalise(logits_BHQK)

    return weights_of


def _center(logits: Tensor) -> Tensor:
    """Return logits minus the maximum of their row, in float32 or better: bfloat16 counts to 256 only."""
    return (logits - logits.amax(dim=-1, keepdim=True)).to(torch.promote_types(logits.dtype, torch.float32))


def _rank(sorted_logits: Tensor) -> Tensor:
    return torch.arange(
        1, sorted_logits.shape[-1] + 1, dtype=sorted_logits.dtype, device=sorted_logits.device
    )


# torch.compile sees each as one operation, whose gradient `_register` defines.
@torch.library.custom_op("tempopt::sparsemax", mutates_args=())
def _sparsemax(logits: Tensor) -> Tensor:
    """Return max(s - t, 0) with the t at which a row sums to 1 (Martins & Astudillo 2016, algorithm 1)."""
    centred_logits = _center(logits)
    sorted_logits = centred_logits.sort(dim=-1, descending=True).values
    sums = sorted_logits.cumsum(dim=-1)
    support_size = (1 + _rank(sorted_logits) * sorted_logits > sums).sum(dim=-1, keepdim=True)
    threshold = (sums.gather(-1, support_size - 1) - 1) / support_size
    return (centred_logits - threshold).clamp(min=0).to(logits.dtype)


@torch.library.custom_op("tempopt::entmax15", mutates_args=())
def _entmax15(logits: Tensor) -> Tensor:
    """Return max(s/2 - t, 0)² with the t at which a row sums to 1 (Peters et al. 2019, algorithm 2)."""
    centered = _center(logits) / 2
    sorted_logits = centered.sort(dim=-1, descending=True).values
    ranks = _rank(sorted_logits)
    mean = sorted_logits.cumsum(dim=-1) / ranks
    variance = sorted_logits.square().cumsum(dim=-1) / ranks - mean.square()
    # With a support of r logits, t solves r * ((mean - t)² + variance) = 1.
    thresholds = mean - (1 / ranks - variance).clamp(min=0).sqrt()
    support_size = (thresholds <= sorted_logits).sum(dim=-1, keepdim=True)
    threshold = thresholds.gather(-1, support_size - 1)
    return (centered - threshold).clamp(min=0).square().to(logits.dtype)


def _register(op: Any, alpha: float) -> None:
    """Register shape, gradient and batching of alpha-entmax over the last dimension with PyTorch."""

    def keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        weights: Tensor = ctx.saved_tensors[0]
        support = weights > 0
        # Peters et al. 2019, proposition 2; outside of the support the root has no derivative.
        curved = weights.masked_fill(~support, 1.0) ** (2.0 - alpha) * support
        mean = (curved * grad).sum(dim=-1, keepdim=True) / curved.sum(dim=-1, keepdim=True)
        return curved * (grad - mean)

    def vmap_rule(info: Any, dims: tuple[int], logits: Tensor) -> tuple[Tensor, int]:
        return op(logits.movedim(dims[0], 0)), 0

    op.register_fake(torch.empty_like)
    op.register_autograd(backward, setup_context=keep)
    op.register_vmap(vmap_rule)


_register(_sparsemax, alpha=2.0)
_register(_entmax15, alpha=1.5)


def _linear(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKE: Tensor, options: AttentionOptions, limit: Limit
) -> Tensor:
    dtype = wide_type(q_BHQD)
    with full_precision(q_BHQD.device.type):
        q, k, v = F.elu(q_BHQD.to(dtype)) + 1.0, F.elu(k_BHKD.to(dtype)) + 1.0, v_BHKE.to(dtype)
        # The last column is 1, so that the last one of the result is the sum of the weights.
        v = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        factor = None if options.attn_mask is None else _exponential(options.attn_mask, dtype)
        by_query = factor is not None and factor.ndim > 1 and factor.shape[-2] > 1
        if by_query or options.dropout_p > 0:
            return _linear_matrix(q, k, v, factor, options).to(q_BHQD.dtype)
        if factor is not None:
            k = k * factor.reshape(*factor.shape[:-2], factor.shape[-1], 1)
        sums_BHQE = _causal_sums(q, k, v) if options.is_causal else q @ (k.transpose(-2, -1) @ v)
        return _divide_by_last(sums_BHQE).to(q_BHQD.dtype)


def _linear_matrix(
    q: Tensor, k: Tensor, v: Tensor, factor: Tensor | None, options: AttentionOptions
) -> Tensor:
    weights_BHQK = q @ k.transpose(-2, -1)
    if factor is not None:
        weights_BHQK = weights_BHQK * factor
    if options.is_causal:
        weights_BHQK = weights_BHQK.tril()
    total_BHQ1 = weights_BHQK.sum(dim=-1, keepdim=True)
    dropped_BHQE = F.dropout(weights_BHQK, options.dropout_p) @ v[..., :-1]
    return dropped_BHQE / total_BHQ1.masked_fill(total_BHQ1 == 0, 1.0)


def _exponential(attn_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exp(mask), 0 where a key is hidden, up to a constant factor per row."""
    visible_mask = visible(attn_mask)
    if attn_mask.dtype == torch.bool:
        return visible_mask.to(dtype)
    bias = attn_mask.to(dtype).masked_fill(~visible_mask, float("-inf"))
    largest = bias.detach().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(dtype).min)
    return (bias - largest).exp()


def _causal_sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the sum over j <= i of (q_i k_j) v_j for each i, chunk by chunk."""
    length = q.shape[-2]
    # No query sees keys after the last query, and queries after the last key see all keys.
    k, v = (F.pad(tensor[..., :length, :], (0, 0, 0, max(length - tensor.shape[-2], 0))) for tensor in (k, v))
    # N is the number of chunks, C the queries per chunk. There may be one chunk too many, since compiled code
    # cannot round up symbolic lengths.
    chunks = length // _CHUNK + 1
    q_BHNCD, k_BHNCD, v_BHNCE = (
        F.pad(tensor, (0, 0, 0, chunks * _CHUNK - length)).unflatten(-2, (chunks, _CHUNK))
        for tensor in (q, k, v)
    )
    sums_BHNDE = (k_BHNCD.transpose(-2, -1) @ v_BHNCE).cumsum(dim=-3)
    before_BHNDE = F.pad(sums_BHNDE[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    within_BHNCE = (q_BHNCD @ k_BHNCD.transpose(-2, -1)).tril() @ v_BHNCE
    causal_sums_BHQE: Tensor = (q_BHNCD @ before_BHNDE + within_BHNCE).flatten(-3, -2)
    return causal_sums_BHQE[..., :length, :]


def _divide_by_last(sums_BHQE: Tensor) -> Tensor:
    total_BHQ1 = sums_BHQE[..., -1:]
    return sums_BHQE[..., :-1] / total_BHQ1.masked_fill(total_BHQ1 == 0, 1.0)


_WEIGHTS: dict[str, _Weights] = {
    "top_k": _top_k_weights,
    "threshold": _threshold_weights,
    "sparsemax": _sparse_weights(_sparsemax),
    "entmax15": _sparse_weights(_entmax15),
}

ATTENTIONS: dict[str, Attention] = {
    "softmax": _fused_softmax,
    **{name: _build_dense_attention(weights_of) for name, weights_of in _WEIGHTS.items()},
    "linear": _linear,
}


def normalised_weights(normaliser: str, logits: Tensor, limit: Limit) -> Tensor:
    """Return the weights that a normaliser computes from masked logits, in the type of the logits.

    Args:
        normaliser: Name of the normaliser; not ``softmax`` or ``linear``.
        logits: Masked logits, (..., Q, K); a key is hidden where they are as low as a mask makes them.
        limit: ``top_k`` or ``min_weight``, or None.

    Raises:
        UsageError: The normaliser does not compute weights from logits.
    """
    if normaliser not in _WEIGHTS:
        raise UsageError(f'normaliser "{normaliser}" computes no weights. Give {", ".join(_WEIGHTS)}.')
    is_visible = above_lowest(logits)
    is_empty = ~is_visible.any(dim=-1, keepdim=True)
    with full_precision(logits.device.type):
        wide_logits = logits.to(wide_type(logits)).masked_fill(~is_visible, 0.0)
        weights = _WEIGHTS[normaliser](wide_logits, ~is_visible & ~is_empty, limit)
        return weights.masked_fill(is_empty, 0.0).to(logits.dtype)

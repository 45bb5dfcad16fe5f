"""Statistics of attention weights, one value per query, without accumulation or judgement.

Shape suffixes as in attention.py. All are in float32, or in float64 for float64 weights, and meant for
observation: in a loss use :func:`tempopt.attention.functional.entropy.attention_entropy`. Many need the keys
that a query sees (``visible_BHQK``, outside of which the weights are 0) or their number (``num_keys``,
broadcasting to BHQ); None means that it sees all keys. A query that sees fewer than two keys has no choice:
its value is finite, and :class:`Attended` leaves it out of every mean, as it does padded queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tempopt.attention.analysis.patterns import POSITION_PATTERNS, pattern_score
from tempopt.attention.functional.entropy import normalised_entropy
from tempopt.attention.functional.logits import (
    AttentionOptions,
    biased_logits,
    repeat_heads,
    to_wide_type,
    visible_pairs,
    wide_type,
)
from tempopt.errors import UsageError


def attention_weights(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    position_Q: Tensor | None = None,
) -> Tensor:
    """Return the softmax weights (B, H, Q, K), before dropout; 0 for a query that sees no key.

    Args:
        q_BHQD: Queries, tempered already (:func:`tempopt.attention.functional.attention.temper_query`).
        k_BHKD: Keys; of fewer heads than the queries where groups of heads share them.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: As for :func:`~tempopt.attention.functional.logits.visible_pairs`, like the following.
        is_causal: As for ``visible_pairs``.
        position_Q: As for ``visible_pairs``.
    """
    options = AttentionOptions(attn_mask=attn_mask, is_causal=is_causal, scale=scale)
    logits_BHQK, hidden, is_empty = biased_logits(q_BHQD, k_BHKD, options, position_Q=position_Q)
    if hidden is None or is_empty is None:
        return logits_BHQK.softmax(dim=-1)
    return logits_BHQK.masked_fill(hidden, float("-inf")).softmax(dim=-1).masked_fill(is_empty, 0.0)


def weight_entropy(weights_BHQK: Tensor) -> Tensor:
    """Return -sum a ln a in nats, with 0 ln 0 = 0, from 0 to ln of the number of keys.

    Weights are converted to float32 first: log(a + 1e-10) is NaN in float16, where 1e-10 is 0.
    """
    entropy_BHQ: Tensor = torch.special.entr(to_wide_type(weights_BHQK)).sum(dim=-1)
    return entropy_BHQ


def gini(weights_BHQK: Tensor, num_keys: Tensor | None = None) -> Tensor:
    """Return the Gini coefficient over n visible keys: 0 for equal weights, (n - 1) / n for a single key.

    (n + 1 - 2 sum_i i a_[i]) / n with the weights in descending order: half of Gini's mean difference (1912)
    over the mean. Tutorials number that order as if it were ascending, which inverts the sign.
    """
    weights_BHQK = to_wide_type(weights_BHQK)
    # Hidden keys have weight 0, so they come last and do not shift ranks.
    ordered_BHQK = weights_BHQK.sort(dim=-1, descending=True).values
    rank_K = torch.arange(1, weights_BHQK.shape[-1] + 1, device=weights_BHQK.device)
    n_BHQ = _counts(weights_BHQK, num_keys, min_keys=1)
    coefficient_BHQ = (n_BHQ + 1.0 - 2.0 * (ordered_BHQK @ rank_K.to(ordered_BHQK.dtype))) / n_BHQ
    return coefficient_BHQ.clamp(min=0.0, max=1.0)


def max_weight(weights_BHQK: Tensor) -> Tensor:
    """Return the largest weight, from 1 / n to 1."""
    return to_wide_type(weights_BHQK).amax(dim=-1)


def effective_tokens(weights_BHQK: Tensor) -> Tensor:
    """Return 1 / sum a^2, the equivalent number of keys with equal weights, from 1 to n; 0 without weights.

    The inverse participation ratio, in ecology the inverse Simpson index.
    """
    squares_BHQ = to_wide_type(weights_BHQK).square().sum(dim=-1)
    is_empty = squares_BHQ == 0
    return squares_BHQ.masked_fill(is_empty, 1.0).reciprocal().masked_fill(is_empty, 0.0)


def locality(
    weights_BHQK: Tensor, visible_BHQK: Tensor | None = None, *, position_Q: Tensor | None = None
) -> Tensor:
    """Return 1 - d / c: 1 for attention to the query's own position, 0 for uniform attention at any length.

    d is the mean distance |i - j| under the weights, c that under equal weights on the visible keys. Below 0
    attention is farther than by chance. The share of weight in a window, as in tutorials, is .69 for uniform
    attention on 8 keys and .03 on 256, so it measures length more than attention.

    Args:
        weights_BHQK: Weights.
        visible_BHQK: Which keys each query sees.
        position_Q: Key index of each query; None for 0 to Q - 1.
    """
    weights_BHQK = to_wide_type(weights_BHQK)
    q_len, k_len = weights_BHQK.shape[-2:]
    position_Q = _positions(q_len, position_Q, weights_BHQK.device)
    distance_QK = (position_Q[:, None] - torch.arange(k_len, device=weights_BHQK.device)).abs()
    distance_QK = distance_QK.to(weights_BHQK.dtype)
    distance_BHQ = (weights_BHQK * distance_QK).sum(dim=-1)
    if visible_BHQK is None:
        chance_BHQ = distance_QK.mean(dim=-1)
    else:
        num_keys_BHQ = visible_BHQK.sum(dim=-1).clamp(min=1)
        chance_BHQ = (visible_BHQK * distance_QK).sum(dim=-1) / num_keys_BHQ
    nowhere = chance_BHQ == 0
    ratio_BHQ = distance_BHQ / chance_BHQ.masked_fill(nowhere, 1.0)
    return (1.0 - ratio_BHQ).masked_fill(nowhere.expand(ratio_BHQ.shape), 0.0)


def self_attention(
    weights_BHQK: Tensor, visible_BHQK: Tensor | None = None, *, position_Q: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the weight of each query's own key (by chance it is 1 / n), and where there is such a key.

    Args:
        weights_BHQK: Weights.
        visible_BHQK: Which keys each query sees.
        position_Q: Key index of each query; None for 0 to Q - 1.

    Returns:
        (B, H, Q) each; where a query cannot see itself, the weight is 0 and the boolean False.
    """
    weights_BHQK = to_wide_type(weights_BHQK)
    q_len, k_len = weights_BHQK.shape[-2:]
    position_Q = _positions(q_len, position_Q, weights_BHQK.device)
    inside_Q = (position_Q >= 0) & (position_Q < k_len)
    own_Q1 = position_Q.clamp(0, k_len - 1)[:, None]
    pick_BHQ1 = own_Q1.expand(*weights_BHQK.shape[:-1], 1)
    seen_BHQ = inside_Q.expand(weights_BHQK.shape[:-1])
    if visible_BHQK is not None:
        full_BHQK = visible_BHQK.expand(weights_BHQK.shape)
        seen_BHQ = seen_BHQ & full_BHQK.gather(-1, pick_BHQ1).squeeze(-1)
    return weights_BHQK.gather(-1, pick_BHQ1).squeeze(-1).masked_fill(~seen_BHQ, 0.0), seen_BHQ


def head_similarity(weights_BHQK: Tensor, num_keys: Tensor | None = None) -> Tensor:
    """Return each head's mean cosine with the other heads, minus that of independent heads.

    The cosine is computed per query. Two heads that put their weights a and b on unrelated keys among the n
    visible ones have the expected cosine 1 / (n |a| |b|), exactly: the mean over all permutations of one of
    them. Without this correction independent causal heads look half alike, only because weights are positive
    and have the same mask. It is 0 for unrelated heads, 1 - 1/n for the same single key, below 0 for heads
    that avoid each other.

    Raises:
        UsageError: There are fewer than two heads, so that there is nothing to compare.
    """
    weights_BHQK = to_wide_type(weights_BHQK)
    heads = weights_BHQK.shape[1]
    if heads < 2:
        raise UsageError(
            f"Given attention weights of {heads} head; similarity is between heads and needs at least two. "
            "Leave it out for layers with a single head."
        )
    norms_BHQ1 = weights_BHQK.norm(dim=-1, keepdim=True)
    unit_BHQK = weights_BHQK / norms_BHQ1.masked_fill(norms_BHQ1 == 0, 1.0)
    n_BHQ = _counts(weights_BHQK, num_keys, min_keys=1)
    # By chance: the product of the cosines of both heads with an equal weight on every visible key.
    chance_BHQ = unit_BHQK.sum(dim=-1) / n_BHQ.sqrt()
    others_BHQK = unit_BHQK.sum(dim=1, keepdim=True) - unit_BHQK
    others_chance_BHQ = chance_BHQ.sum(dim=1, keepdim=True) - chance_BHQ
    cosine_BHQ = (unit_BHQK * others_BHQK).sum(dim=-1)
    similarity_BHQ: Tensor = (cosine_BHQ - chance_BHQ * others_chance_BHQ) / (heads - 1)
    return similarity_BHQ


def softmax_jacobian_norm(weights_BHQK: Tensor, *, temperature: Tensor | float = 1.0) -> Tensor:
    """Return the Frobenius norm of d a / d s where a = softmax(s / tau): that of (diag a - a a^T) / tau.

    Args:
        weights_BHQK: Weights a.
        temperature: Divisor tau of the logits, > 0; a tensor broadcasts to (B, H, Q). Formulas without it are
            off by the factor tau.
    """
    weights_BHQK = to_wide_type(weights_BHQK)
    # The square is sum_i a_i^2 ((1 - a_i)^2 + sum_{j != i} a_j^2). The largest weight is treated separately,
    # since 1 - a loses the digits of the others when a is near 1. For the others, at most one half, the
    # bracket is 1 - 2 a_i + sum_j a_j^2.
    top_BHQ, place_BHQ = weights_BHQK.max(dim=-1)
    rest_BHQK = weights_BHQK.scatter(-1, place_BHQ.unsqueeze(-1), 0.0)
    first_BHQ = rest_BHQK.sum(dim=-1)
    second_BHQ = rest_BHQK.square().sum(dim=-1)
    third_BHQ = rest_BHQK.pow(3).sum(dim=-1)
    of_top_BHQ = top_BHQ.square() * (first_BHQ.square() + second_BHQ)
    of_rest_BHQ = second_BHQ * (1.0 + top_BHQ.square() + second_BHQ) - 2.0 * third_BHQ
    norm_BHQ: Tensor = (of_top_BHQ + of_rest_BHQ).clamp(min=0.0).sqrt() / temperature
    return norm_BHQ


def gradient_saturation(weights_BHQK: Tensor, num_keys: Tensor | None = None) -> Tensor:
    """Return how much less gradient the softmax passes than at equal weights: 1 for a single key.

    1 - |J| / |J_uniform| with |J_uniform| = sqrt(n - 1) / n, and 0 where J is the larger. The temperature
    divides both and cancels.
    """
    weights_BHQK = to_wide_type(weights_BHQK)
    n_BHQ = _counts(weights_BHQK, num_keys, min_keys=2)
    uniform_BHQ = (n_BHQ - 1.0).sqrt() / n_BHQ
    return (1.0 - softmax_jacobian_norm(weights_BHQK) / uniform_BHQ).clamp(min=0.0)


def query_key_magnitude(
    q_BHQD: Tensor, k_BHKD: Tensor, *, scale: float | None = None, seen_BHK: Tensor | None = None
) -> Tensor:
    """Return |q| times the mean |k|, times the scale, for each query: the largest size of its logits.

    It grows before attention entropy collapses (Zhai et al. 2023, "Stabilizing
    Transformer Training by Preventing Attention Entropy Collapse").

    Args:
        q_BHQD: Queries.
        k_BHKD: Keys; of fewer heads than the queries where groups of heads share them.
        scale: Factor on the logits; None is 1 / sqrt(D).
        seen_BHK: Keys to average over; None for all.
    """
    dtype = wide_type(q_BHQD)
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale
    keys_BHK = repeat_heads(k_BHKD, q_BHQD.shape[1]).to(dtype).norm(dim=-1)
    if seen_BHK is None:
        mean_BH1 = keys_BHK.mean(dim=-1, keepdim=True)
    else:
        seen_BHK = seen_BHK.expand(keys_BHK.shape)
        total_BH1 = keys_BHK.masked_fill(~seen_BHK, 0.0).sum(dim=-1, keepdim=True)
        mean_BH1 = total_BH1 / seen_BHK.sum(dim=-1, keepdim=True).clamp(min=1)
    norm_BHQ: Tensor = q_BHQD.to(dtype).norm(dim=-1) * mean_BH1 * abs(scale)
    return norm_BHQ


@dataclass(frozen=True, slots=True, kw_only=True)
class Attended:
    """Attention weights with the data for their statistics, from :func:`visible_attention`.

    Args:
        weights_BHQK: Weights in float32 or float64, 0 where hidden.
        visible_BHQK: Which keys each query sees.
        num_keys_BHQ: Number of keys that each query sees.
        counts_BHQ: Queries that count: they see two keys or more and are not padding.
        position_Q: Key index of each query.
        temperature: Divisor tau of the logits, a tensor that broadcasts to (B, H, Q).
    """

    weights_BHQK: Tensor
    visible_BHQK: Tensor
    num_keys_BHQ: Tensor
    counts_BHQ: Tensor
    position_Q: Tensor
    temperature: Tensor


def visible_attention(
    weights_BHQK: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    valid_BQ: Tensor | None = None,
    position_Q: Tensor | None = None,
    temperature: Tensor | float = 1.0,
) -> Attended:
    """Return attention weights with the visible pairs under the masks, and the queries that count.

    Args:
        weights_BHQK: Attention weights before dropout, of any floating type.
        attn_mask: Boolean or floating mask of the weights, or None.
        is_causal: Whether queries saw only keys up to their own position.
        valid_BQ: True where a query is not padding; None if there is no padding. A mask over keys cannot
        express it.
        position_Q: Key index of each query; None for 0 to Q - 1.
        temperature: tau, > 0; a tensor broadcasts to (B, H, Q).

    Raises:
        UsageError: The weights do not have four dimensions.
    """
    if weights_BHQK.ndim != 4:
        raise UsageError(
            f"Given attention weights of shape {tuple(weights_BHQK.shape)}; they are (batch, heads, queries, "
            "keys). From nn.MultiheadAttention they come so with average_attn_weights=False."
        )
    device = weights_BHQK.device
    q_len, k_len = weights_BHQK.shape[-2:]
    position_Q = _positions(q_len, position_Q, device)
    pairs = visible_pairs(q_len, k_len, attn_mask, is_causal, position_Q=position_Q, device=device)
    visible_BHQK = pairs.expand(weights_BHQK.shape)
    # counted before expansion over batch and heads, which mostly share a mask
    num_keys_BHQ = pairs.sum(dim=-1).expand(weights_BHQK.shape[:-1])
    counts_BHQ = num_keys_BHQ > 1
    if valid_BQ is not None:
        counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
    weights_BHQK = to_wide_type(weights_BHQK.detach()).masked_fill(~visible_BHQK, 0.0)
    return Attended(
        weights_BHQK=weights_BHQK,
        visible_BHQK=visible_BHQK,
        num_keys_BHQ=num_keys_BHQ,
        counts_BHQ=counts_BHQ,
        position_Q=position_Q,
        temperature=torch.as_tensor(temperature, dtype=weights_BHQK.dtype, device=device),
    )


def check_weights(attention: Attended) -> None:
    """Refuse weights that are negative or do not sum to 1 for each query that counts.

    Raises:
        UsageError: They do; after dropout, for example, they sum to 1 in the mean only.
    """
    sums_BHQ = attention.weights_BHQK.sum(dim=-1)
    # negated, so that NaN is wrong as well
    wrong_BHQ = attention.counts_BHQ & ~((sums_BHQ - 1.0).abs() <= _SUM_TOLERANCE)
    negative_BHQ = (attention.weights_BHQK < 0).any(dim=-1) & attention.counts_BHQ
    for verb, problem_BHQ in (("sum to", wrong_BHQ), ("reach down to", negative_BHQ)):
        if bool(problem_BHQ.any()):
            values_BHQ = sums_BHQ if problem_BHQ is wrong_BHQ else attention.weights_BHQK.amin(dim=-1)
            value = values_BHQ[problem_BHQ][0].item()
            raise UsageError(
                f"Attention weights of a query {verb} {value:.3g}; they are at least 0 and sum to 1 over the "
                "visible keys. Give them before dropout (model.eval()) and with the mask they were made with."
            )


# Weights in bfloat16 have 8 bits: a sum of many stays within this of 1.
_SUM_TOLERANCE = 0.03

Statistic = Callable[[Attended], tuple[Tensor, Tensor]]


def _per_query_statistic(values_of: Callable[[Attended], Tensor]) -> Statistic:
    return lambda attention: (values_of(attention), attention.counts_BHQ)


def _entropy(attention: Attended) -> Tensor:
    return normalised_entropy(weight_entropy(attention.weights_BHQK), attention.num_keys_BHQ)[0]


def _self_attention(attention: Attended) -> tuple[Tensor, Tensor]:
    own_BHQ, seen_BHQ = self_attention(
        attention.weights_BHQK, attention.visible_BHQK, position_Q=attention.position_Q
    )
    return own_BHQ, attention.counts_BHQ & seen_BHQ


def _pattern(pattern: str) -> Statistic:
    def score(attention: Attended) -> tuple[Tensor, Tensor]:
        score_BHQ, seen_BHQ = pattern_score(
            attention.weights_BHQK, pattern, attention.visible_BHQK, position_Q=attention.position_Q
        )
        return score_BHQ, attention.counts_BHQ & seen_BHQ

    return score


STATISTICS: dict[str, Statistic] = {
    "entropy": _per_query_statistic(_entropy),
    "gini": _per_query_statistic(lambda attention: gini(attention.weights_BHQK, attention.num_keys_BHQ)),
    "max_weight": _per_query_statistic(lambda attention: max_weight(attention.weights_BHQK)),
    "effective_tokens": _per_query_statistic(lambda attention: effective_tokens(attention.weights_BHQK)),
    "effective_share": _per_query_statistic(
        lambda attention: effective_tokens(attention.weights_BHQK) / attention.num_keys_BHQ.clamp(min=1)
    ),
    "locality": _per_query_statistic(
        lambda attention: locality(
            attention.weights_BHQK, attention.visible_BHQK, position_Q=attention.position_Q
        )
    ),
    "self_attention": _self_attention,
    "head_similarity": _per_query_statistic(
        lambda attention: head_similarity(attention.weights_BHQK, attention.num_keys_BHQ)
    ),
    "jacobian_norm": _per_query_statistic(
        lambda attention: softmax_jacobian_norm(attention.weights_BHQK, temperature=attention.temperature)
    ),
    "gradient_saturation": _per_query_statistic(
        lambda attention: gradient_saturation(attention.weights_BHQK, attention.num_keys_BHQ)
    ),
    **{pattern: _pattern(pattern) for pattern in POSITION_PATTERNS},
}
"""Name of a statistic to its function, which returns values (B, H, Q) and a boolean of where they count.

``entropy`` is H / ln n, ``effective_share`` the effective tokens over n; the patterns of position are by
:func:`tempopt.attention.analysis.patterns.pattern_score`; the rest are the functions above.
"""


def head_sums(values_BHQ: Tensor, counts_BHQ: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over batch and queries that count, in float64, and their number, both of shape (H,)."""
    counts_BHQ = counts_BHQ.expand(values_BHQ.shape)
    total_H = values_BHQ.double().masked_fill(~counts_BHQ, 0.0).sum(dim=(0, 2))
    return total_H, counts_BHQ.sum(dim=(0, 2))


def _counts(weights_BHQK: Tensor, num_keys: Tensor | None, *, min_keys: int) -> Tensor:
    """Return the number of keys in the weights' own type, at least ``min_keys``."""
    if num_keys is None:
        num_keys = torch.tensor(weights_BHQK.shape[-1], device=weights_BHQK.device)
    return num_keys.clamp(min=min_keys).to(weights_BHQK.dtype)


def _positions(q_len: int, position_Q: Tensor | None, device: torch.device) -> Tensor:
    return torch.arange(q_len, device=device) if position_Q is None else position_Q.to(device)

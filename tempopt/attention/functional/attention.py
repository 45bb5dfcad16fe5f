"""Scaled dot-product attention with a temperature, which the caller provides.

Shape suffixes: B batch, H heads, Q queries, K keys, D head dimension. Masks broadcast to BHQK. A boolean
mask is True where a query may attend; a floating one is added to the logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tempopt.attention.functional.logits import (
    AttentionOptions,
    check_types,
    repeat_heads,
    visible_keys,
    wide_type,
)
from tempopt.attention.functional.normalisers import ATTENTIONS, check_limits
from tempopt.errors import UsageError
from tempopt.temperature.length import MIN_KEYS, LengthScaling, NoLengthScaling

__all__ = ["record_key_counts", "temper_query", "tempered_attention", "visible_keys"]

# the open recordings of record_key_counts
_COUNTS: list[set[int]] = []


@contextmanager
def record_key_counts() -> Iterator[set[int]]:
    """Yield a set to which tempered attention adds the numbers of keys that queries see."""
    counts: set[int] = set()
    _COUNTS.append(counts)
    try:
        yield counts
    finally:
        _COUNTS.remove(counts)


def is_counting() -> bool:
    """Return whether the keys that queries see are being counted."""
    return bool(_COUNTS)


def tempered_attention(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    inverse_temperature: Tensor | float,
    length_scaling: LengthScaling | None = None,
    length_constant: Tensor | None = None,
    normaliser: str = "softmax",
    top_k: Tensor | int | None = None,
    min_weight: Tensor | float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Return normaliser(Q K^T scale / tau + mask) V, with the mask outside the temperature.

    The temperature multiplies the queries, so the same fused kernel as in plain attention is used. Pass it as
    a tensor if it changes: under ``torch.compile`` one graph then serves every value. Each normaliser has its
    own graph, which serves every ``top_k`` or ``min_weight`` passed as a tensor. Weights are computed in
    float32 or better for any type of the queries.

    Args:
        q_BHQD: Queries.
        k_BHKD: Keys; of as many heads as the queries, or of a number that divides theirs (grouped queries).
        v_BHKD: Values, of the keys' heads; the head dimension may differ from D.
        inverse_temperature: 1 / tau, positive; a tensor broadcasts to (B, H, Q, 1), such as 0-d or (H, 1, 1).
        length_scaling: Factor on 1 / tau from the number of keys that each query sees.
        length_constant: The scaling's ``constant`` as a tensor, so that one graph serves every value of it;
            None for the scaling's own.
        normaliser: Name in :data:`tempopt.temperature.NORMALISERS`. For ``linear`` the weights are phi(q)
            phi(k) exp(mask) over their sum with phi = elu + 1, without scale and temperature. With a mask
            that differs between queries, or with dropout, it computes the (B, H, Q, K) matrix.
        top_k: Number of keys that the normaliser ``top_k`` keeps, at least 1; only for this normaliser. A
            query that sees fewer keys keeps all of them, and keys equal to the last are kept as well. Fastest
            as an int, outside of ``torch.compile``.
        min_weight: Softmax weight, between 0 and 1, below which ``threshold`` sets weights to 0; only for
            this normaliser. The largest weight of a query is always kept, and the weights are renormalised.
        attn_mask: Boolean or floating mask, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        dropout_p: Dropout probability of the weights in [0, 1); set it to 0 outside training.
        scale: The model's factor on the logits; None is 1 / sqrt(D).

    Returns:
        Attended values, (B, H, Q, D of the values), zero for a query that sees no key
        (with ``softmax`` unless a floating mask hides them by a finite number).

    Raises:
        UsageError: The normaliser is unknown, ``top_k``, ``min_weight`` or a temperature does not fit it,
            the number of heads of keys or values does not divide that of the queries, or their types differ.
    """
    limit = check_limits(normaliser, top_k, min_weight)
    check_types(q_BHQD, k_BHKD, v_BHKD)
    if normaliser == "linear":
        _check_linear(inverse_temperature, length_scaling)
    q_BHQD = temper_query(
        q_BHQD,
        k_BHKD.shape[-2],
        inverse_temperature=inverse_temperature,
        length_scaling=length_scaling,
        length_constant=length_constant,
        attn_mask=attn_mask,
        is_causal=is_causal,
    )
    k_BHKD, v_BHKD = (repeat_heads(tensor, q_BHQD.shape[1]) for tensor in (k_BHKD, v_BHKD))
    options = AttentionOptions(attn_mask=attn_mask, is_causal=is_causal, dropout_p=dropout_p, scale=scale)
    return ATTENTIONS[normaliser](q_BHQD, k_BHKD, v_BHKD, options, limit)


def _check_linear(inverse_temperature: Tensor | float, length_scaling: LengthScaling | None) -> None:
    """Refuse a temperature with the normaliser ``linear``, whose weights have no temperature.

    The value of a tensor is checked only where that is cheap: on the CPU, outside of ``torch.compile``.

    Raises:
        UsageError: The temperature is not 1, is learned, or depends on the number of keys.
    """
    is_learned = isinstance(inverse_temperature, Tensor) and inverse_temperature.requires_grad
    is_known = not isinstance(inverse_temperature, Tensor) or (
        not torch.compiler.is_compiling() and inverse_temperature.device.type == "cpu"
    )
    is_scaled = length_scaling is not None and not isinstance(length_scaling, NoLengthScaling)
    if is_learned or is_scaled or (is_known and bool((torch.as_tensor(inverse_temperature) != 1).any())):
        raise UsageError(
            f'normaliser "linear" was given inverse_temperature={inverse_temperature!r} and the length '
            f"scaling {length_scaling!r}, but its weights are not an exponential of the logits and have no "
            "temperature. Give 1 that is not learned, and no length scaling, or choose another normaliser."
        )


def temper_query(
    q_BHQD: Tensor,
    k_len: int,
    *,
    inverse_temperature: Tensor | float,
    length_scaling: LengthScaling | None = None,
    length_constant: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Return the queries times 1 / tau, such that plain attention on them is tempered attention.

    Args:
        q_BHQD: Queries.
        k_len: Number of keys.
        inverse_temperature: As for :func:`tempered_attention`, like the following arguments.
        length_scaling: Factor on 1 / tau from the number of keys that each query sees.
        length_constant: As for :func:`tempered_attention`.
        attn_mask: Boolean or floating mask, or None.
        is_causal: Whether query i sees the keys 0 to i only.
    """
    for counts in _COUNTS:
        seen_BHQ = visible_keys(q_BHQD.shape[-2], k_len, attn_mask, is_causal, device=q_BHQD.device)
        counts.update(seen_BHQ.unique().tolist())
    factor = inverse_temperature
    dtype = wide_type(q_BHQD)
    if length_scaling is not None and not isinstance(length_scaling, NoLengthScaling):
        seen_BHQ = visible_keys(q_BHQD.shape[-2], k_len, attn_mask, is_causal, device=q_BHQD.device)
        keys_BHQ1 = seen_BHQ.unsqueeze(-1).clamp(min=MIN_KEYS).to(dtype)
        factor = factor * length_scaling.elementwise_factor(keys_BHQ1, torch.log, length_constant)
    # Rounding the factor to half precision first would shift the temperature of a whole row; CUDA rounds a
    # 0-d factor in this way, since it ignores 0-d tensors in type promotion.
    if isinstance(factor, Tensor) and factor.ndim == 0:
        factor = factor.to(dtype).reshape(1)
    return (q_BHQD * factor).to(q_BHQD.dtype)

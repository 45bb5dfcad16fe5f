"""Entropy of attention, in nats, and the term that rewards or punishes it; nothing is logged here.

Shape suffixes as in functional.py. The entropy is computed from the logits, never as log(weights + eps),
which is NaN in half precision and has no gradient where a key is masked.

Cost: the (B, H, Q, K) matrix of logits is materialised, in float32, so memory grows with Q times K where
fused attention's does not.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tempopt.attention.functional import causal_mask, temper_query, visible, visible_keys
from tempopt.temperature.length import LengthScaling


def attention_entropy(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Return the entropy of each query's attention weights, before dropout, in nats.

    Args:
        q_BHQD: Queries, tempered already (:func:`tempopt.attention.functional.temper_query`).
        k_BHKD: Keys.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: Boolean or floating mask that broadcasts to BHQK, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.

    Returns:
        (B, H, Q), in float32, or in float64 for float64 queries; from 0 to ln of the number of visible
        keys. 0, with gradient 0, for a query that sees no key.
    """
    dtype = torch.promote_types(q_BHQD.dtype, torch.float32)
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale
    with torch.autocast(q_BHQD.device.type, enabled=False):
        logits_BHQK = (q_BHQD.to(dtype) * scale) @ k_BHKD.to(dtype).transpose(-2, -1)
    hidden = _hidden(logits_BHQK, attn_mask, is_causal)
    if hidden is None:
        return _entropy(logits_BHQK)
    if attn_mask is not None and attn_mask.is_floating_point():
        logits_BHQK = logits_BHQK + attn_mask.masked_fill(~visible(attn_mask), 0.0).to(dtype)
    # A row without a visible key has no softmax: it is computed as if it saw all, then set to 0.
    empty = hidden.all(dim=-1, keepdim=True)
    entropy_BHQ = _entropy(logits_BHQK, hidden & ~empty)
    return entropy_BHQ.masked_fill(empty.squeeze(-1), 0.0)


def normalised_entropy(entropy_BHQ: Tensor, num_keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return H / ln n, in [0, 1], and where it is defined.

    Args:
        entropy_BHQ: Entropy in nats.
        num_keys: Number n of visible keys, broadcasting to BHQ
            (:func:`tempopt.attention.functional.visible_keys`).

    Returns:
        The ratio, 0 where n <= 1, and a boolean of the same shape, True where n > 1: a query with one key
        has nothing to choose from and is to be left out of a mean.
    """
    num_keys = num_keys.expand(entropy_BHQ.shape)
    return entropy_BHQ / num_keys.clamp(min=2).to(entropy_BHQ.dtype).log(), num_keys > 1


def entropy_regulariser(
    out_BHQD: Tensor,
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    weight: Tensor | float,
    inverse_temperature: Tensor | float = 1.0,
    length_scaling: LengthScaling | None = None,
    length_constant: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return the attention's output as it is, with the entropy term's gradient attached to it.

    The term is -weight * mean(H / ln n), over the queries that see more than one key and are valid: a
    positive weight rewards entropy, a negative one punishes it. It is worth adding to the loss and is added
    without the loss's knowledge, through :func:`add_to_gradient`.

    Args:
        out_BHQD: What attention returned; it must lead to the loss, or the term has no effect.
        q_BHQD: Queries, not tempered.
        k_BHKD: Keys.
        weight: ``entropy_lambda``; divide it by the number of layers, so that the term does not grow with
            depth, and multiply it with the scale of the loss where a gradient scaler is used.
        inverse_temperature: 1 / tau, as for :func:`tempopt.attention.functional.tempered_attention`.
        length_scaling: As there.
        length_constant: As there.
        attn_mask: As there.
        is_causal: As there.
        scale: As there.
        valid_BQ: True where a query is not padding; None if none is. A mask over keys cannot say it.
    """
    term = entropy_term(
        temper_query(
            q_BHQD,
            k_BHKD.shape[-2],
            inverse_temperature=inverse_temperature,
            length_scaling=length_scaling,
            length_constant=length_constant,
            attn_mask=attn_mask,
            is_causal=is_causal,
        ),
        k_BHKD,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        valid_BQ=valid_BQ,
    )
    return add_to_gradient(out_BHQD, term, weight=weight)


def entropy_term(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return -mean(H / ln n) over the valid queries that see more than one key; 0 if there are none.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: Boolean or floating mask that broadcasts to BHQK, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        valid_BQ: True where a query is not padding; None if none is.
    """
    entropy_BHQ = attention_entropy(q_BHQD, k_BHKD, scale=scale, attn_mask=attn_mask, is_causal=is_causal)
    seen = visible_keys(q_BHQD.shape[-2], k_BHKD.shape[-2], attn_mask, is_causal, device=q_BHQD.device)
    ratio_BHQ, counts_BHQ = normalised_entropy(entropy_BHQ, seen)
    if valid_BQ is not None:
        counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
    total = ratio_BHQ.masked_fill(~counts_BHQ, 0.0).sum()
    return -total / counts_BHQ.sum().clamp(min=1)


def add_to_gradient(x: Tensor, term: Tensor, *, weight: Tensor | float = 1.0) -> Tensor:
    """Return ``x``; when the loss is differentiated through it, ``weight * term`` is differentiated with it.

    So a module deep in a model can add a term to a loss that it never sees. ``x`` is unchanged to the bit,
    and so is its gradient.

    Args:
        x: A tensor that leads to the loss.
        term: The term, a scalar.
        weight: Factor on the term's gradient; it is a constant of the differentiation.
    """
    return _AddToGradient.apply(x, weight * term)  # type: ignore[no-any-return, no-untyped-call]


class _AddToGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, term: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.term_like = inputs[1].detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], torch.ones_like(ctx.term_like)


def _hidden(logits_BHQK: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    hidden = None if attn_mask is None else ~visible(attn_mask)
    if is_causal:
        future = ~causal_mask(logits_BHQK.shape[-2], logits_BHQK.shape[-1], logits_BHQK.device)
        hidden = future if hidden is None else hidden | future
    return None if hidden is None else hidden.expand(logits_BHQK.shape)


def _entropy(logits_BHQK: Tensor, hidden_BHQK: Tensor | None = None) -> Tensor:
    if hidden_BHQK is None:
        log_weights = logits_BHQK.log_softmax(dim=-1)
        return 0.0 - (log_weights.exp() * log_weights).sum(dim=-1)
    log_weights = logits_BHQK.masked_fill(hidden_BHQK, float("-inf")).log_softmax(dim=-1)
    # 0 ln 0 is 0, and its gradient too: minus infinity must not reach the product.
    finite = log_weights.masked_fill(hidden_BHQK, 0.0)
    return 0.0 - (log_weights.exp() * finite).sum(dim=-1)

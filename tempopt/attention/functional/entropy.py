"""Entropy of attention, in nats, and the term that rewards or punishes it; nothing is logged here.

Shape suffixes as in attention.py. The entropy is that of the weights before dropout and is computed from the
logits, never as log(weights + eps), which is NaN in half precision and has no gradient where a key is
masked.

Cost: one pass of fused_entropy.py over tiles of the logits, so memory grows with Q + K. Only where a mask is
learned is the (B, H, Q, K) matrix of logits made.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tempopt.attention.functional.attention import temper_query, tempered_attention
from tempopt.attention.functional.fused_entropy import attention_and_entropy
from tempopt.attention.functional.logits import biased_logits
from tempopt.attention.functional.masks import visible_keys
from tempopt.errors import SpecError, UsageError
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

    Exact and differentiable once, in memory that grows with Q + K; everything is accumulated in float32 or
    better, under autocast too. One compiled graph serves every temperature, since that is in the queries.

    On a CUDA device, without a mask and with head dimensions that are multiples of 8, torch's
    memory-efficient kernel is used, on the keys as values: H = logsumexp - q . E[k] scale, which in half
    precision is as exact as the kernel's output is. That path has been checked with a stand-in for the kernel
    only, and never been timed.

    Args:
        q_BHQD: Queries, tempered already (:func:`tempopt.attention.functional.attention.temper_query`).
        k_BHKD: Keys; of as many heads as the queries, or of a number that divides theirs (grouped queries).
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: Boolean or floating mask that broadcasts to BHQK, or None. One that requires a gradient
            gets it, at the price of the whole matrix of logits.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.

    Returns:
        (B, H, Q), in float32, or in float64 for float64 queries; from 0 to ln of the number of visible
        keys. 0, with gradient 0, for a query that sees no key.

    Raises:
        UsageError: The shapes do not fit, or (in the backward pass) the entropy is differentiated twice.
    """
    check_shapes(q_BHQD, k_BHKD, None, attn_mask)
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale
    if attn_mask is not None and attn_mask.requires_grad:
        return matrix_entropy(q_BHQD, k_BHKD, scale=scale, attn_mask=attn_mask, is_causal=is_causal)
    return attention_and_entropy(q_BHQD, k_BHKD, None, attn_mask, scale, is_causal)[1]


def attention_with_entropy(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return what attention returns and the entropy of its weights, for little more than the former costs.

    The output is that of :func:`torch.nn.functional.scaled_dot_product_attention` but for rounding; that of a
    query that sees no key is 0, also where a floating mask hides by its type's lowest number.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys, as for :func:`attention_entropy`.
        v_BHKD: Values, of the keys' heads; the head dimension may differ from D.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: As for :func:`attention_entropy`.
        is_causal: As there.
        dropout_p: Dropout probability of the weights in [0, 1), which the entropy knows nothing of. With any,
            output and entropy are computed apart, the output as torch computes it.

    Returns:
        The output, (B, H, Q, D of the values), in the queries' type or autocast's, and the entropy as
        :func:`attention_entropy` returns it.

    Raises:
        UsageError: As for :func:`attention_entropy`.
    """
    check_shapes(q_BHQD, k_BHKD, v_BHKD, attn_mask)
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale
    masking: dict[str, Any] = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale}
    if dropout_p > 0.0 or (attn_mask is not None and attn_mask.requires_grad):
        out_BHQD = tempered_attention(
            q_BHQD, k_BHKD, v_BHKD, inverse_temperature=1.0, dropout_p=dropout_p, **masking
        )
        return out_BHQD, attention_entropy(q_BHQD, k_BHKD, **masking)
    out_BHQD, entropy_BHQ = attention_and_entropy(q_BHQD, k_BHKD, v_BHKD, attn_mask, scale, is_causal)
    device = q_BHQD.device.type
    if torch.is_autocast_enabled(device):
        out_BHQD = out_BHQD.to(torch.get_autocast_dtype(device))
    return out_BHQD, entropy_BHQ


def normalised_entropy(entropy_BHQ: Tensor, num_keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return H / ln n, in [0, 1], and where it is defined.

    Args:
        entropy_BHQ: Entropy in nats.
        num_keys: Number n of visible keys, broadcasting to BHQ
            (:func:`tempopt.attention.functional.attention.visible_keys`).

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
    target: Tensor | float | None = None,
    inverse_temperature: Tensor | float = 1.0,
    length_scaling: LengthScaling | None = None,
    length_constant: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return the attention's output as it is, with the entropy term's gradient attached to it.

    The term is that of :func:`entropy_penalty`, -weight * mean(H / ln n) without a target: a positive weight
    rewards entropy, a negative one punishes it. It is worth adding to the loss and is added without the
    loss's knowledge, through :func:`add_to_gradient`. Where attention itself need not be untouched to the
    bit, :func:`regularised_attention` costs less.

    Args:
        out_BHQD: What attention returned; it must lead to the loss, or the term has no effect.
        q_BHQD: Queries, not tempered.
        k_BHKD: Keys.
        weight: ``entropy_lambda``, for all heads or for each; divide it by the number of layers, so that the
            term does not grow with depth, and multiply it with the scale of the loss where a gradient scaler
            is used. A layer has its own weight and target by being given them.
        target: As for :func:`entropy_penalty`.
        inverse_temperature: 1 / tau, as for
            :func:`tempopt.attention.functional.attention.tempered_attention`.
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
        weight=weight,
        target=target,
        attn_mask=attn_mask,
        is_causal=is_causal,
        scale=scale,
        valid_BQ=valid_BQ,
    )
    return add_to_gradient(out_BHQD, term)


def regularised_attention(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    *,
    weight: Tensor | float,
    target: Tensor | float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return attention with the entropy term's gradient attached, both from one pass over the logits.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys, as for :func:`attention_with_entropy`, and the arguments that are not named here.
        v_BHKD: Values.
        weight: As for :func:`entropy_regulariser`.
        target: As for :func:`entropy_penalty`.
        attn_mask: Boolean or floating mask, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        dropout_p: Dropout probability of the weights in [0, 1).
        scale: Factor on the logits; None is 1 / sqrt(D).
        valid_BQ: True where a query is not padding; None if none is. A mask over keys cannot say it.
    """
    out_BHQD, entropy_BHQ = attention_with_entropy(
        q_BHQD,
        k_BHKD,
        v_BHKD,
        scale=scale,
        attn_mask=attn_mask,
        is_causal=is_causal,
        dropout_p=dropout_p,
    )
    num_keys = visible_keys(q_BHQD.shape[-2], k_BHKD.shape[-2], attn_mask, is_causal, device=q_BHQD.device)
    term = entropy_penalty(entropy_BHQ, num_keys, weight=weight, target=target, valid_BQ=valid_BQ)
    return add_to_gradient(out_BHQD, term)


def entropy_term(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    weight: Tensor | float = 1.0,
    target: Tensor | float | None = None,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return :func:`entropy_penalty` of attention's entropy.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys.
        weight: As for :func:`entropy_penalty`.
        target: As there.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: Boolean or floating mask that broadcasts to BHQK, or None.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        valid_BQ: True where a query is not padding; None if none is.
    """
    entropy_BHQ = attention_entropy(q_BHQD, k_BHKD, scale=scale, attn_mask=attn_mask, is_causal=is_causal)
    num_keys = visible_keys(q_BHQD.shape[-2], k_BHKD.shape[-2], attn_mask, is_causal, device=q_BHQD.device)
    return entropy_penalty(entropy_BHQ, num_keys, weight=weight, target=target, valid_BQ=valid_BQ)


def entropy_penalty(
    entropy_BHQ: Tensor,
    num_keys: Tensor,
    *,
    weight: Tensor | float = 1.0,
    target: Tensor | float | None = None,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return what is to be added to a loss for the sake of entropy.

    Without a target -mean(weight * H / ln n): a positive weight rewards entropy, a negative one punishes it.
    With one mean(weight * (H / ln n - target)^2): a positive weight draws entropy towards the target from
    either side (after Jha and Reagen 2025, "Entropy-Guided Attention for Private LLMs", arXiv:2501.03489,
    whose term is a sum over the queries outside of a margin). The mean is over the queries that are valid
    and see more than one key; it is 0 if there are none.

    Args:
        entropy_BHQ: Entropy in nats.
        num_keys: Number n of visible keys, broadcasting to BHQ
            (:func:`tempopt.attention.functional.attention.visible_keys`).
        weight: One for all heads, or a tensor that broadcasts to (H,), one for each. As a tensor it can
            follow a schedule without recompiling.
        target: None, or the share of ln n aimed at, in [0, 1]: a number or a tensor, as ``weight``.
        valid_BQ: True where a query is not padding; None if none is.

    Raises:
        SpecError: ``target`` is a number outside [0, 1]; what is in a tensor is not looked at.
    """
    if target is not None and not isinstance(target, Tensor) and not 0.0 <= target <= 1.0:
        raise SpecError(
            f"The target entropy is {target}; allowed is a share of ln n, the largest entropy of n keys, from"
            " 0 (one key has all the weight) to 1 (all have the same). Divide nats by ln n."
        )
    ratio_BHQ, counts_BHQ = normalised_entropy(entropy_BHQ, num_keys)
    if valid_BQ is not None:
        counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
    each_BHQ = -ratio_BHQ if target is None else (ratio_BHQ - _of_heads(target)).square()
    total = (_of_heads(weight) * each_BHQ).masked_fill(~counts_BHQ, 0.0).sum()
    return total / counts_BHQ.sum().clamp(min=1)


def _of_heads(value: Tensor | float) -> Tensor | float:
    return value.unsqueeze(-1) if isinstance(value, Tensor) and value.ndim > 0 else value


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


def check_shapes(q: Tensor, k: Tensor, v: Tensor | None, attn_mask: Tensor | None) -> None:
    """Raise UsageError if queries, keys, values and mask do not belong together."""
    remedy = ""
    if any(tensor is not None and tensor.ndim != 4 for tensor in (q, k, v)):
        remedy = "give each as (batch, heads, length, head dimension); unsqueeze what has fewer dimensions"
    elif q.shape[0] != k.shape[0] or q.shape[-1] != k.shape[-1]:
        remedy = "queries and keys need the same batch and the same head dimension; expand the batch of one"
    elif k.shape[1] == 0 or q.shape[1] % k.shape[1] != 0:
        remedy = "the queries need as many heads as the keys, or a multiple of theirs"
    elif v is not None and v.shape[:3] != k.shape[:3]:
        remedy = "the values need the batch, heads and length of the keys"
    elif attn_mask is not None and not _broadcasts(attn_mask, (*q.shape[:3], k.shape[2])):
        remedy = "the mask has to broadcast to (batch, heads, queries, keys)"
    if remedy:
        tensors = {"q": q, "k": k, "v": v, "attn_mask": attn_mask}
        shapes = ", ".join(
            f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items() if tensor is not None
        )
        raise UsageError(f"Shapes that do not belong together: {shapes}; {remedy}.")


def _broadcasts(attn_mask: Tensor, shape: tuple[int, ...]) -> bool:
    last_dims = shape[len(shape) - attn_mask.ndim :]
    return attn_mask.ndim <= 4 and all(
        mask_size in (1, size) for mask_size, size in zip(attn_mask.shape, last_dims, strict=True)
    )


def matrix_entropy(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    scale: float,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Return what :func:`attention_entropy` does, from the whole matrix of logits."""
    logits_BHQK, hidden, empty = biased_logits(
        q_BHQD, k_BHKD, scale=scale, attn_mask=attn_mask, is_causal=is_causal
    )
    if hidden is None or empty is None:
        return _entropy(logits_BHQK)
    return _entropy(logits_BHQK, hidden).masked_fill(empty.squeeze(-1), 0.0)


def _entropy(logits_BHQK: Tensor, hidden: Tensor | None = None) -> Tensor:
    if hidden is None:
        log_weights = logits_BHQK.log_softmax(dim=-1)
        return 0.0 - (log_weights.exp() * log_weights).sum(dim=-1)
    log_weights = logits_BHQK.masked_fill(hidden, float("-inf")).log_softmax(dim=-1)
    # 0 ln 0 is 0, and its gradient too: minus infinity must not reach the product.
    finite = log_weights.masked_fill(hidden, 0.0)
    return 0.0 - (log_weights.exp() * finite).sum(dim=-1)

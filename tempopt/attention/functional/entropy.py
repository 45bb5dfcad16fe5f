"""Entropy of attention in nats, and the term that rewards or penalises it; nothing is logged here.

Shape suffixes as in attention.py; S is the number of sequences that queries were sampled from, R the rows of
each. The entropy is that of the weights before dropout. It is computed from the logits, never as log(weights
+ eps), which is NaN in half precision and has no gradient where a key is masked.

Cost: one pass of fused_entropy.py over tiles of the logits, so memory grows with Q + K. Only a mask that
requires a gradient needs the (B, H, Q, K) matrix of logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tempopt.attention.functional.attention import tempered_attention
from tempopt.attention.functional.fused_entropy import attention_and_entropy, largest_logits
from tempopt.attention.functional.logits import (
    AttentionOptions,
    biased_logits,
    check_types,
    restrict_mask,
    to_wide_type,
    visible_keys,
)
from tempopt.errors import SpecError, UsageError


def attention_entropy(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Return the entropy of each query's attention weights, before dropout, in nats.

    Exact and once differentiable, in memory that grows with Q + K; accumulated in float32 or better, also
    under autocast. One compiled graph serves every temperature, since the queries contain it.

    On a CUDA device, without a mask and with head dimensions that are multiples of 8, torch's
    memory-efficient kernel is applied with the keys as values: H = logsumexp - q . E[k] scale. In half
    precision this is as exact as the kernel's output. This path was tested with a stand-in for the kernel
    only, and never timed.

    Args:
        q_BHQD: Queries, tempered already (:func:`tempopt.attention.functional.attention.temper_query`).
        k_BHKD: Keys; of as many heads as the queries, or of a number that divides theirs (grouped queries).
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: Boolean or floating mask that broadcasts to BHQK, or None. If it requires a gradient, it
            gets one at the cost of the whole matrix of logits.
        is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.

    Returns:
        (B, H, Q), in float32, or in float64 for float64 queries; from 0 to ln of the number of visible
        keys. 0, with gradient 0, for a query that sees no key.

    Raises:
        UsageError: The shapes do not fit, or (in the backward pass) a second derivative is requested.
    """
    options = AttentionOptions(attn_mask=attn_mask, is_causal=is_causal, scale=scale)
    return _output_and_entropy(q_BHQD, k_BHKD, None, options)[1]


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
    """Return the output of attention and the entropy of its weights, from one pass over the logits.

    The pass is in float32 or better, so on a CPU with fast bfloat16 products it takes several times as long
    as attention in bfloat16 (benchmarks/README.md).

    The output is that of :func:`torch.nn.functional.scaled_dot_product_attention` up to rounding; it is 0 for
    a query that sees no key, also where a floating mask hides keys by the lowest number of its type.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys, as for :func:`attention_entropy`.
        v_BHKD: Values, of the keys' heads; the head dimension may differ from D.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: As for :func:`attention_entropy`.
        is_causal: As for :func:`attention_entropy`.
        dropout_p: Dropout probability of the weights in [0, 1), which does not affect the entropy. If it is
            not 0, output and entropy are computed separately, the output as by torch.

    Returns:
        The output, (B, H, Q, D of the values), in the queries' type or autocast's, and the entropy as
        :func:`attention_entropy` returns it.

    Raises:
        UsageError: As for :func:`attention_entropy`.
    """
    options = AttentionOptions(attn_mask=attn_mask, is_causal=is_causal, dropout_p=dropout_p, scale=scale)
    return _output_and_entropy(q_BHQD, k_BHKD, v_BHKD, options)


@torch.no_grad()
def max_logits(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Return the largest logit of each query over the keys that it sees, as softmax takes it.

    For monitoring: logits that grow without bound precede the divergence of a training (Dehghani et al. 2023,
    "Scaling Vision Transformers to 22 Billion Parameters"). Exact, in memory that grows with Q + K.

    Args:
        q_BHQD: Queries, tempered already, so that the logits are q·k / (sqrt(D) tau).
        k_BHKD: Keys, as for :func:`attention_entropy`, like the following arguments.
        scale: Factor on the logits; None is 1 / sqrt(D).
        attn_mask: A floating mask is part of the logits.
        is_causal: As for :func:`attention_entropy`.

    Returns:
        (B, H, Q), without gradient, in float32, or in float64 for float64 queries; minus infinity for a query
        that sees no key.

    Raises:
        UsageError: The shapes do not fit.
    """
    check_shapes(q_BHQD, k_BHKD, None, attn_mask)
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale
    return largest_logits(q_BHQD, k_BHKD, attn_mask, scale, is_causal)


def _output_and_entropy(
    q_BHQD: Tensor, k_BHKD: Tensor, v_BHKD: Tensor | None, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """Return output and entropy; without values the output is undefined."""
    attn_mask = options.attn_mask
    check_shapes(q_BHQD, k_BHKD, v_BHKD, attn_mask)
    is_learned = attn_mask is not None and attn_mask.requires_grad
    if v_BHKD is not None and (is_learned or options.dropout_p > 0.0):
        out_BHQD = tempered_attention(q_BHQD, k_BHKD, v_BHKD, inverse_temperature=1.0, **options.keywords)
        return out_BHQD, _output_and_entropy(q_BHQD, k_BHKD, None, options)[1]
    if is_learned:
        return q_BHQD, matrix_entropy(q_BHQD, k_BHKD, options)
    scale = 1.0 / math.sqrt(q_BHQD.shape[-1]) if options.scale is None else options.scale
    arguments = attn_mask, scale, options.is_causal
    out_BHQD, entropy_BHQ = attention_and_entropy(q_BHQD, k_BHKD, v_BHKD, *arguments)
    device = q_BHQD.device.type
    if torch.is_autocast_enabled(device):
        out_BHQD = out_BHQD.to(torch.get_autocast_dtype(device))
    return out_BHQD, entropy_BHQ


def normalised_entropy(entropy_BHQ: Tensor, num_keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return H / ln n, in [0, 1], and a mask of where it is defined.

    Args:
        entropy_BHQ: Entropy in nats.
        num_keys: Number n of visible keys, broadcasting to BHQ
            (:func:`tempopt.attention.functional.attention.visible_keys`).

    The ratio, 0 where n <= 1, and a boolean of the same shape, True where n > 1. A query with a single key
        has no choice and does not belong in a mean.
    """
    num_keys = num_keys.expand(entropy_BHQ.shape)
    return entropy_BHQ / num_keys.clamp(min=2).to(entropy_BHQ.dtype).log(), num_keys > 1


def regularised_attention(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    v_BHKD: Tensor,
    options: AttentionOptions,
    *,
    weight: Tensor | float,
    target: Tensor | float | None = None,
    valid_BQ: Tensor | None = None,
    average: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return attention with the gradient of the entropy term attached, from one pass over the logits.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys, as for :func:`attention_with_entropy`.
        v_BHKD: Values.
        options: Mask, causality, dropout and scale.
        weight: ``entropy_lambda``, one for all heads or one per head. Divide it by the number of layers, so
            that the term does not grow with depth, and multiply it by the scale of the loss if a gradient
            scaler is used.
        target: As for :func:`entropy_penalty`.
        valid_BQ: True where a query is not padding; None if there is no padding. A mask over keys cannot
            express it.
        average: Returns the part of the term in a mean over several calls; None for one call.
    """
    out_BHQD, entropy_BHQ = _output_and_entropy(q_BHQD, k_BHKD, v_BHKD, options)
    num_keys = _num_keys(q_BHQD, k_BHKD, options)
    term = entropy_penalty(entropy_BHQ, num_keys, weight=weight, target=target, valid_BQ=valid_BQ)
    return add_to_gradient(out_BHQD, term if average is None else average(term))


def entropy_term(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    options: AttentionOptions,
    *,
    weight: Tensor | float = 1.0,
    target: Tensor | float | None = None,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return :func:`entropy_penalty` of attention's entropy; arguments as :func:`regularised_attention`."""
    _, entropy_BHQ = _output_and_entropy(q_BHQD, k_BHKD, None, options)
    num_keys = _num_keys(q_BHQD, k_BHKD, options)
    return entropy_penalty(entropy_BHQ, num_keys, weight=weight, target=target, valid_BQ=valid_BQ)


def logits_term(
    logits_BHQK: Tensor,
    visible_BHQK: Tensor,
    *,
    weight: Tensor | float = 1.0,
    target: Tensor | float | None = None,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return :func:`entropy_penalty` of the softmax of logits, given their whole matrix.

    Args:
        logits_BHQK: Masked logits.
        visible_BHQK: True where a query sees a key by that mask.
        weight: As for :func:`regularised_attention`, like the following arguments.
        target: As for :func:`regularised_attention`.
        valid_BQ: As for :func:`regularised_attention`.
    """
    num_keys = visible_BHQK.sum(dim=-1)
    is_empty = (num_keys == 0).unsqueeze(-1)
    entropy_BHQ = _entropy_of_logits(to_wide_type(logits_BHQK), ~visible_BHQK & ~is_empty, is_empty)
    return entropy_penalty(entropy_BHQ, num_keys, weight=weight, target=target, valid_BQ=valid_BQ)


def _num_keys(q_BHQD: Tensor, k_BHKD: Tensor, options: AttentionOptions) -> Tensor:
    masking = options.attn_mask, options.is_causal
    return visible_keys(q_BHQD.shape[-2], k_BHKD.shape[-2], *masking, device=q_BHQD.device)


def entropy_penalty(
    entropy_BHQ: Tensor,
    num_keys: Tensor,
    *,
    weight: Tensor | float = 1.0,
    target: Tensor | float | None = None,
    valid_BQ: Tensor | None = None,
) -> Tensor:
    """Return the entropy term to add to a loss.

    Without a target it is -mean(weight * H / ln n): a positive weight rewards entropy, a negative one
    penalises it. With a target it is mean(weight * (H / ln n - target)^2): a positive weight moves entropy
    towards the target from both sides (after Jha and Reagen 2025, "Entropy-Guided Attention for Private
    LLMs", arXiv:2501.03489, whose term is a sum over the queries outside of a margin). The mean is over the
    valid queries that see more than one key; it is 0 if there are none.

    Args:
        entropy_BHQ: Entropy in nats.
        num_keys: Number n of visible keys, broadcasting to BHQ
            (:func:`tempopt.attention.functional.attention.visible_keys`).
        weight: One for all heads, or a tensor that broadcasts to (H,). A tensor can follow a schedule without
            recompilation.
        target: None, or the target share of ln n in [0, 1]: a number or a tensor, as ``weight``.
        valid_BQ: True where a query is not padding; None if there is no padding.

    Raises:
        SpecError: ``target`` is a number outside [0, 1]; the values of a tensor are not checked.
    """
    if target is not None and not isinstance(target, Tensor) and not 0.0 <= target <= 1.0:
        raise SpecError(
            f"The target entropy is {target}; allowed is a share of ln n, the largest entropy of n keys, from"
            " 0 (one key has all the weight) to 1 (all have the same). Divide nats by ln n."
        )
    ratio_BHQ, counts_BHQ = normalised_entropy(entropy_BHQ, num_keys)
    if valid_BQ is not None:
        counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
    each_BHQ = -ratio_BHQ if target is None else (ratio_BHQ - _align_with_heads(target)).square()
    total = (_align_with_heads(weight) * each_BHQ).masked_fill(~counts_BHQ, 0.0).sum()
    return total / counts_BHQ.sum().clamp(min=1)


def _align_with_heads(value: Tensor | float) -> Tensor | float:
    return value.unsqueeze(-1) if isinstance(value, Tensor) and value.ndim > 0 else value


def add_to_gradient(x: Tensor, term: Tensor, *, weight: Tensor | float = 1.0) -> Tensor:
    """Return ``x`` such that a backward pass through it also differentiates ``weight * term``.

    This lets a module deep in a model add a term to a loss that it has no access to. ``x`` and its gradient
    are unchanged to the bit.

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

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, term: Tensor) -> Any:
        raise UsageError(
            "entropy_lambda is not supported under torch.func.vmap: a term of the loss is that of a whole "
            "batch. Call the model on the batch, or give entropy_lambda=0.0."
        )


def check_shapes(q: Tensor, k: Tensor, v: Tensor | None, attn_mask: Tensor | None) -> None:
    """Refuse queries, keys, values and a mask whose types or shapes do not fit together."""
    check_types(q, k, v)
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


def matrix_entropy(q_BHQD: Tensor, k_BHKD: Tensor, options: AttentionOptions) -> Tensor:
    """Return the result of :func:`attention_entropy`, from the whole matrix of logits."""
    return _entropy_of_logits(*biased_logits(q_BHQD, k_BHKD, options))


def _entropy_of_logits(logits_BHQK: Tensor, hidden: Tensor | None, empty: Tensor | None) -> Tensor:
    """Return the entropy of the softmax of logits; arguments as returned by :func:`biased_logits`."""
    if hidden is None or empty is None:
        log_weights = logits_BHQK.log_softmax(dim=-1)
        return 0.0 - (log_weights.exp() * log_weights).sum(dim=-1)
    log_weights = logits_BHQK.masked_fill(hidden, float("-inf")).log_softmax(dim=-1)
    # 0 ln 0 is 0, and so is its gradient: the product must not contain minus infinity.
    finite_log_weights = log_weights.masked_fill(hidden, 0.0)
    entropy_BHQ = 0.0 - (log_weights.exp() * finite_log_weights).sum(dim=-1)
    return entropy_BHQ.masked_fill(empty.squeeze(-1), 0.0)


@torch.no_grad()
def sampled_entropy(
    q_BHQD: Tensor,
    k_BHKD: Tensor,
    *,
    num_queries: int,
    generator: torch.Generator | None = None,
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    valid_BQ: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each head's mean of H / ln n over a random subset of the queries, and its standard error.

    For monitoring, not for training: it has no gradient. The subset is drawn without replacement from the
    valid queries that see more than one key, over all sequences, and is the same for all heads. The standard
    error has the finite population correction, so it is 0 if every query was drawn.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys, as for :func:`attention_entropy`.
        num_queries: Number of queries to draw, at least 2; all queries if there are fewer.
        generator: Source of randomness on the CPU; None for torch's own.
        scale: As for :func:`attention_entropy`.
        attn_mask: As for :func:`attention_entropy`.
        is_causal: As for :func:`attention_entropy`.
        valid_BQ: True where a query is not padding; None if there is no padding.

    Returns:
        Mean and standard error, (H,) each, in float32, or in float64 for float64 queries. Both are NaN if no
        query counts; the standard error is also NaN if only one query of a head was drawn.

    Raises:
        UsageError: ``num_queries`` is below 2, or the shapes do not fit.
    """
    check_shapes(q_BHQD, k_BHKD, None, attn_mask)
    if num_queries < 2:
        raise UsageError(
            f"num_queries is {num_queries}; a standard error needs at least 2. Draw 64 if in doubt."
        )
    batch, heads, q_len, _ = q_BHQD.shape
    device = q_BHQD.device
    num_keys = visible_keys(q_len, k_BHKD.shape[-2], attn_mask, is_causal, device=device)
    counts_BHQ = (num_keys > 1).expand(batch, heads, q_len)
    if valid_BQ is not None:
        counts_BHQ = counts_BHQ & valid_BQ.unsqueeze(1)
    eligible = counts_BHQ.any(dim=1).flatten().nonzero().squeeze(-1)
    sample = torch.randperm(len(eligible), generator=generator)[:num_queries].sort().values.to(device)
    query_indices = eligible[sample]
    sequences_S, rows_SR, taken_SR = _group_by_sequence(
        query_indices // max(q_len, 1), query_indices % max(q_len, 1)
    )
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*q_BHQD.shape[:3], k_BHKD.shape[-2])
        attn_mask = attn_mask[sequences_S.unsqueeze(1), :, rows_SR].transpose(1, 2)
    if is_causal:
        past_SRK = torch.arange(k_BHKD.shape[-2], device=device) <= rows_SR.unsqueeze(-1)
        attn_mask = restrict_mask(attn_mask, past_SRK.unsqueeze(1))
    entropy_SHR = matrix_entropy(
        q_BHQD[sequences_S.unsqueeze(1), :, rows_SR].transpose(1, 2),
        k_BHKD[sequences_S],
        AttentionOptions(attn_mask=attn_mask, scale=scale),
    )
    num_keys_SHR = num_keys.expand(batch, heads, q_len)[sequences_S.unsqueeze(1), :, rows_SR].transpose(1, 2)
    ratio_SHR, several_SHR = normalised_entropy(entropy_SHR, num_keys_SHR)
    used_SHR = several_SHR & taken_SR.unsqueeze(1)
    return _mean_and_error(ratio_SHR, used_SHR, counts_BHQ.sum(dim=(0, 2)))


def _group_by_sequence(sequence: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sequences with drawn queries, the their rows padded to one length, and the mask of these."""
    sequences_S, counts_S = sequence.unique_consecutive(return_counts=True)
    longest = int(counts_S.max()) if len(counts_S) else 0
    taken_SR = torch.arange(longest, device=row.device) < counts_S.unsqueeze(1)
    rows_SR = torch.zeros(taken_SR.shape, dtype=row.dtype, device=row.device)
    rows_SR[taken_SR] = row
    return sequences_S, rows_SR, taken_SR


def _mean_and_error(ratio_SHR: Tensor, used_SHR: Tensor, population_H: Tensor) -> tuple[Tensor, Tensor]:
    used_H = used_SHR.sum(dim=(0, 2)).to(ratio_SHR.dtype)
    mean_H = ratio_SHR.masked_fill(~used_SHR, 0.0).sum(dim=(0, 2)) / used_H
    squares_SHR = (ratio_SHR - mean_H.unsqueeze(-1)).square().masked_fill(~used_SHR, 0.0)
    left_out_H = 1.0 - used_H / population_H
    error_H = (squares_SHR.sum(dim=(0, 2)) / (used_H - 1.0) / used_H * left_out_H).sqrt()
    return mean_H, torch.where((used_H > 0) & (left_out_H == 0.0), 0.0, error_H)

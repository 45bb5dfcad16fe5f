"""Entropy of attention estimated from a few of its queries, to be watched; nothing is logged here.

Shape suffixes as in attention.py; S is the sequences that queries were drawn from, R those of each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tempopt.attention.functional.entropy import check_shapes, matrix_entropy, normalised_entropy
from tempopt.attention.functional.masks import visible_keys
from tempopt.errors import UsageError


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

    For watching, not for training: it has no gradient. The subset is drawn without replacement from the
    valid queries that see more than one key, of all sequences together, and is the same for all heads; the
    standard error has the finite population correction, so it is 0 where every query was drawn.

    Args:
        q_BHQD: Queries, tempered already.
        k_BHKD: Keys, as for :func:`attention_entropy`.
        num_queries: How many queries are drawn, at least 2; all are where there are fewer.
        generator: Source of randomness on the CPU; None for torch's own.
        scale: As for :func:`attention_entropy`.
        attn_mask: As there.
        is_causal: As there.
        valid_BQ: True where a query is not padding; None if none is.

    Returns:
        Mean and standard error, (H,) each, in float32, or in float64 for float64 queries. Both are NaN where
        no query counts; the standard error is NaN, too, where only one of a head's queries was drawn.

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
    sequences_S, rows_SR, taken_SR = _by_sequence(
        query_indices // max(q_len, 1), query_indices % max(q_len, 1)
    )
    entropy_SHR = matrix_entropy(
        q_BHQD[sequences_S.unsqueeze(1), :, rows_SR].transpose(1, 2),
        k_BHKD[sequences_S],
        scale=1.0 / math.sqrt(q_BHQD.shape[-1]) if scale is None else scale,
        attn_mask=_mask_of(sequences_S, rows_SR, (*q_BHQD.shape[:3], k_BHKD.shape[-2]), attn_mask, is_causal),
    )
    num_keys_SHR = num_keys.expand(batch, heads, q_len)[sequences_S.unsqueeze(1), :, rows_SR].transpose(1, 2)
    ratio_SHR, several_SHR = normalised_entropy(entropy_SHR, num_keys_SHR)
    used_SHR = several_SHR & taken_SR.unsqueeze(1)
    return _mean_and_error(ratio_SHR, used_SHR, counts_BHQ.sum(dim=(0, 2)))


def _by_sequence(sequence: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sequences drawn from, their rows padded to one length, and which of these were drawn."""
    sequences_S, counts_S = sequence.unique_consecutive(return_counts=True)
    longest = int(counts_S.max()) if len(counts_S) else 0
    taken_SR = torch.arange(longest, device=row.device) < counts_S.unsqueeze(1)
    rows_SR = torch.zeros(taken_SR.shape, dtype=row.dtype, device=row.device)
    rows_SR[taken_SR] = row
    return sequences_S, rows_SR, taken_SR


def _mask_of(
    sequences_S: Tensor, rows_SR: Tensor, shape: tuple[int, ...], attn_mask: Tensor | None, is_causal: bool
) -> Tensor | None:
    """Return the mask of the rows drawn, (S, H or 1, R, K), the causal one in it."""
    mask = None
    if attn_mask is not None:
        mask = attn_mask.expand(shape)[sequences_S.unsqueeze(1), :, rows_SR].transpose(1, 2)
    if not is_causal:
        return mask
    past_mask = (torch.arange(shape[-1], device=rows_SR.device) <= rows_SR.unsqueeze(-1)).unsqueeze(1)
    if mask is None:
        return past_mask
    return mask & past_mask if mask.dtype == torch.bool else mask.masked_fill(~past_mask, float("-inf"))


def _mean_and_error(ratio_SHR: Tensor, used_SHR: Tensor, population_H: Tensor) -> tuple[Tensor, Tensor]:
    used_H = used_SHR.sum(dim=(0, 2)).to(ratio_SHR.dtype)
    mean_H = ratio_SHR.masked_fill(~used_SHR, 0.0).sum(dim=(0, 2)) / used_H
    squares_SHR = (ratio_SHR - mean_H.unsqueeze(-1)).square().masked_fill(~used_SHR, 0.0)
    left_out_H = 1.0 - used_H / population_H
    error_H = (squares_SHR.sum(dim=(0, 2)) / (used_H - 1.0) / used_H * left_out_H).sqrt()
    return mean_H, torch.where((used_H > 0) & (left_out_H == 0.0), 0.0, error_H)

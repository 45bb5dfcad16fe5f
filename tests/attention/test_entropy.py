"""Attention entropy against its definition and scipy's; its gradients; the regulariser's sign and weight."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor

from tempopt.attention.functional.attention import temper_query, tempered_attention, visible_keys
from tempopt.attention.functional.entropy import (
    add_to_gradient,
    attention_entropy,
    entropy_term,
    normalised_entropy,
    regularised_attention,
)
from tempopt.attention.functional.logits import AttentionOptions
from tempopt.errors import UsageError
from tempopt.temperature import LogNScaling

B, H, Q, K, D = 2, 2, 5, 5, 4
INF = float("inf")


def qk(dtype: torch.dtype = torch.float64, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(B, H, n, D, generator=generator, dtype=torch.float64) for n in (Q, K))
    return (spread * q).to(dtype), k.to(dtype)


def some_mask() -> Tensor:
    mask = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[..., 0] = True
    return mask


def bias() -> Tensor:
    return torch.randn(Q, K, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": some_mask()},
    "boolean and causal": {"attn_mask": some_mask(), "is_causal": True},
    "bias": {"attn_mask": bias()},
    "bias with minus infinity": {"attn_mask": bias().masked_fill(~some_mask(), -INF)},
    "bias and causal": {"attn_mask": bias(), "is_causal": True},
    "lowest number": {
        "attn_mask": torch.zeros(B, H, Q, K).masked_fill(~some_mask(), torch.finfo(torch.float32).min)
    },
}


def weights(q: Tensor, k: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> np.ndarray:
    logits = np.einsum("bhqd,bhkd->bhqk", q.double().numpy(), k.double().numpy()) / math.sqrt(D)
    if attn_mask is not None and attn_mask.is_floating_point():
        logits = logits + attn_mask.double().numpy()
    elif attn_mask is not None:
        logits = np.where(attn_mask.numpy(), logits, -np.inf)
    if is_causal:
        logits = np.where(np.tril(np.ones((Q, K), dtype=bool)), logits, -np.inf)
    return np.asarray(scipy.special.softmax(logits, axis=-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 100.0, 3000.0])
def test_entropy_is_never_negative_nor_nan_however_sharp(dtype: torch.dtype, spread: float) -> None:
    q, k = (tensor.requires_grad_() for tensor in qk(dtype, spread))
    entropy = attention_entropy(q, k, is_causal=True)
    assert entropy.dtype == torch.float32
    assert bool((entropy >= 0).all())
    entropy.sum().backward()
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())


def test_normalised_entropy_is_a_share_and_leaves_out_queries_without_a_choice() -> None:
    entropy = torch.log(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]))
    ratio, counts = normalised_entropy(entropy, torch.arange(1, 5))
    assert ratio.flatten().tolist() == pytest.approx([0.0, 1.0, 1.0, 1.0])
    assert counts.flatten().tolist() == [False, True, True, True]


def mean_ratio(q: Tensor, k: Tensor, valid: np.ndarray, **masking: Any) -> float:
    """Mean of H / ln n, row by row, over the valid rows with n > 1."""
    all_weights = weights(q, k, **masking)
    ratios = []
    for b, h, i in np.ndindex(B, H, Q):
        row = all_weights[b, h, i]
        row = row[row > 0]
        if len(row) > 1 and valid[b, i]:
            ratios.append(-sum(p * math.log(p) for p in row) / math.log(len(row)))
    return sum(ratios) / len(ratios)


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("padded", [False, True])
def test_the_term_is_minus_the_mean_share_over_valid_queries(padded: bool, masking: dict[str, Any]) -> None:
    q, k = qk()
    valid = torch.ones(B, Q, dtype=torch.bool)
    if padded:
        valid[1, 3:] = False
    term = entropy_term(q, k, AttentionOptions(**masking), valid_BQ=valid if padded else None)
    assert term.item() == pytest.approx(-mean_ratio(q, k, valid.numpy(), **masking), abs=1e-12)


def test_the_term_is_zero_where_no_query_has_a_choice() -> None:
    q, k = (tensor.requires_grad_() for tensor in qk())
    term = entropy_term(q, k, AttentionOptions(attn_mask=torch.eye(Q, dtype=torch.bool)))
    term.backward()
    assert term.item() == 0.0
    assert q.grad is not None
    assert not q.grad.any()


def test_a_term_is_added_to_the_gradient_and_to_nothing_else() -> None:
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    w = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = add_to_gradient(x * 2, w.square().sum(), weight=0.5)
    assert torch.equal(y, x * 2)
    y.square().mean().backward()
    assert x.grad is not None
    assert w.grad is not None
    torch.testing.assert_close(x.grad, 8 * x.detach() / 3)
    torch.testing.assert_close(w.grad, w.detach())


def test_a_term_counts_once_whatever_the_loss_does_with_its_carrier() -> None:
    x = torch.ones(4, requires_grad=True)
    w = torch.tensor(2.0, requires_grad=True)
    (1000 * add_to_gradient(x, 3 * w).sum()).backward()
    assert w.grad is not None
    assert w.grad.item() == 3.0


def regularised_loss(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor | float, target: float | None, masking: dict[str, Any]
) -> Tensor:
    beta = torch.tensor(0.7, dtype=torch.float64)
    hot = temper_query(q, K, inverse_temperature=beta, length_scaling=LogNScaling(n0=3.0), **masking)
    out = regularised_attention(hot, k, v, AttentionOptions(**masking), weight=weight, target=target)
    return out.square().sum()


@pytest.mark.parametrize("masking", [MASKS["none"], MASKS["causal"], MASKS["boolean"]])
@pytest.mark.parametrize(("weight", "target"), [(0.3, None), (-0.3, None), (0.3, 0.5)])
def test_the_regulariser_is_the_term_added_to_the_loss_by_hand(
    weight: float, target: float | None, masking: dict[str, Any]
) -> None:
    inputs = [tensor.requires_grad_() for tensor in (*qk(), qk(spread=2.0)[1] + 1)]
    q, k, v = inputs
    beta = 0.7 * visible_keys(Q, K, **masking).clamp(min=2).float().log() / math.log(3.0)
    hot = q * beta.unsqueeze(-1)
    loss = tempered_attention(hot, k, v, inverse_temperature=1.0, **masking).square().sum()
    term = entropy_term(hot, k, AttentionOptions(**masking), target=target)
    by_hand = torch.autograd.grad(loss + weight * term, inputs)
    for entropy_weight in (weight, torch.tensor(weight, dtype=torch.float64)):
        attached = torch.autograd.grad(regularised_loss(q, k, v, entropy_weight, target, masking), inputs)
        torch.testing.assert_close(attached, by_hand, rtol=1e-5, atol=1e-7)


def test_the_regulariser_survives_activation_checkpointing() -> None:
    inputs = [tensor.requires_grad_() for tensor in (*qk(), qk()[1] + 1)]
    plain = torch.autograd.grad(regularised_loss(*inputs, 0.1, None, MASKS["causal"]), inputs)
    loss = torch.utils.checkpoint.checkpoint(
        regularised_loss, *inputs, 0.1, None, MASKS["causal"], use_reentrant=False
    )
    torch.testing.assert_close(torch.autograd.grad(loss, inputs), plain)


def test_an_entropy_term_is_refused_where_samples_are_batched_by_vmap() -> None:
    with pytest.raises(UsageError, match=r"vmap.*entropy_lambda=0\.0"):
        torch.func.vmap(lambda x: add_to_gradient(x, x.sum()))(torch.ones(2, 3))

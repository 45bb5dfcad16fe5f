"""The term towards a target, by head, on a schedule; and the forms in circulation that ours is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tempopt.attention.functional.entropy import attention_entropy, entropy_term, regularised_attention
from tempopt.attention.functional.logits import AttentionOptions
from tempopt.errors import SpecError

B, H, Q, D = 2, 3, 5, 4
ALL, CAUSAL = AttentionOptions(), AttentionOptions(is_causal=True)


def qkv(spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, H, Q, D, generator=generator, dtype=torch.float64) for _ in range(3))
    return (spread * q).requires_grad_(), k.requires_grad_(), v.requires_grad_()


def by_hand(q: Tensor, k: Tensor, weight: Any, target: Any, valid: np.ndarray) -> float:
    """Return the mean over valid queries with more than one key, causally, row by row."""
    weight, target = (np.broadcast_to(np.asarray(value), (H,)) for value in (weight, target))
    total, count = 0.0, 0
    logits = (q @ k.transpose(-2, -1)).detach().numpy() / math.sqrt(D)
    for b, h, i in np.ndindex(B, H, Q):
        if i == 0 or not valid[b, i]:
            continue
        row = np.exp(logits[b, h, i, : i + 1])
        row = row / row.sum()
        share = -sum(p * math.log(p) for p in row) / math.log(i + 1)
        total += weight[h] * (share - target[h]) ** 2
        count += 1
    return total / count


@pytest.mark.parametrize("weight", [0.3, -2.0, [0.1, 0.0, 3.0]])
@pytest.mark.parametrize("target", [0.0, 0.7, 1.0, [0.2, 0.5, 0.9]])
def test_the_term_is_the_weighted_squared_distance_from_the_target(weight: Any, target: Any) -> None:
    q, k, _ = qkv()
    valid = torch.ones(B, Q, dtype=torch.bool)
    valid[1, 3:] = False
    options: dict[str, Any] = {
        name: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
        for name, value in {"weight": weight, "target": target}.items()
    }
    term = entropy_term(q, k, CAUSAL, valid_BQ=valid, **options)
    assert term.item() == pytest.approx(by_hand(q, k, weight, target, valid.numpy()), abs=1e-14)


@pytest.mark.parametrize("target", [0.4, 0.95])
def test_a_positive_weight_draws_entropy_to_the_target_from_either_side(target: float) -> None:
    q, k, v = qkv(spread=2.0)
    optimizer = torch.optim.Adam([q, k], lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        regularised_attention(q, k, 0 * v, ALL, weight=1.0, target=target).sum().backward()
        optimizer.step()
    share = attention_entropy(q, k).detach() / math.log(Q)
    assert float((share - target).abs().max()) < 0.03


@pytest.mark.parametrize("target", [-0.1, 1.1, 2.0, math.nan])
def test_a_target_in_nats_is_refused(target: float) -> None:
    q, k, _ = qkv()
    with pytest.raises(SpecError, match=r"allowed is a share of ln n.*Divide nats by ln n"):
        entropy_term(q, k, ALL, target=target)


# The compiler itself instantiates torch.autograd.Function while it traces one.

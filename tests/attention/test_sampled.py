"""The sampled entropy against the whole population's mean, and its standard error against its spread."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tempopt.attention.functional.entropy import attention_entropy, normalised_entropy, sampled_entropy
from tempopt.attention.functional.logits import visible_keys
from tempopt.errors import UsageError

B, H, Q, K, D = 3, 4, 10, 12, 5


def qk(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = 2 * torch.randn(B, H, Q, D, generator=generator, dtype=torch.float64)
    return q.to(dtype), torch.randn(B, 2, K, D, generator=generator, dtype=torch.float64).to(dtype)


def some_mask() -> Tensor:
    return torch.rand(B, 1, Q, K, generator=torch.Generator().manual_seed(1)) > 0.7


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": some_mask()},
    "padding and causal": {"attn_mask": some_mask()[:, :, :1], "is_causal": True},
    "bias and causal": {"attn_mask": torch.linspace(-3, 3, K), "is_causal": True},
    "of each head": {"attn_mask": torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(2)) > 0.8},
}


def population(q: Tensor, k: Tensor, valid: Tensor | None = None, **masking: Any) -> list[Tensor]:
    """Return the ratios of the queries that count, head by head."""
    ratio, counts = normalised_entropy(
        attention_entropy(q, k, **masking), visible_keys(Q, K, **masking).expand(B, H, Q)
    )
    counts = counts if valid is None else counts & valid.unsqueeze(1)
    return [ratio[:, head][counts[:, head]] for head in range(H)]


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("padded", [False, True])
def test_all_queries_give_the_mean_itself_without_error(masking: dict[str, Any], padded: bool) -> None:
    q, k = qk()
    valid = torch.arange(Q) < torch.tensor([[10], [4], [0]]) if padded else None
    mean, error = sampled_entropy(q, k, num_queries=1000, valid_BQ=valid, **masking)
    expected = [head_entropies.mean() for head_entropies in population(q, k, valid, **masking)]
    torch.testing.assert_close(mean, torch.stack(expected))
    assert torch.equal(error, torch.zeros(H, dtype=torch.float64))


@pytest.mark.parametrize("masking", [MASKS["none"], MASKS["padding and causal"]])
def test_the_mean_is_unbiased_and_the_standard_error_is_its_spread(masking: dict[str, Any]) -> None:
    q, k = qk()
    generator = torch.Generator().manual_seed(0)
    draws = [sampled_entropy(q, k, num_queries=8, generator=generator, **masking) for _ in range(400)]
    means, errors = (torch.stack(column) for column in zip(*draws, strict=True))
    truth = torch.stack([head_entropies.mean() for head_entropies in population(q, k, **masking)])
    spread = means.std(dim=0)
    assert bool(((means.mean(dim=0) - truth).abs() < 4 * spread / math.sqrt(400)).all())
    torch.testing.assert_close(errors.square().mean(dim=0).sqrt(), spread, rtol=0.15, atol=0)
    # without the correction for a finite population it would be off by this much
    left_out = 1 - 8 / len(population(q, k, **masking)[0])
    assert left_out < 0.8


def test_sampling_follows_its_generator_and_has_no_gradient() -> None:
    q, k = (tensor.requires_grad_() for tensor in qk(torch.bfloat16))
    first, second = (
        sampled_entropy(q, k, num_queries=5, generator=torch.Generator().manual_seed(7)) for _ in range(2)
    )
    assert torch.equal(first[0], second[0])
    assert first[0].dtype == torch.float32
    assert not first[0].requires_grad


def test_where_no_query_has_a_choice_there_is_nothing_to_report() -> None:
    q, k = qk()
    mean, error = sampled_entropy(q, k, num_queries=5, attn_mask=torch.eye(Q, K, dtype=torch.bool))
    assert bool(mean.isnan().all() and error.isnan().all())


def test_one_query_has_no_standard_error_and_is_refused() -> None:
    with pytest.raises(UsageError, match="num_queries is 1; a standard error needs at least 2"):
        sampled_entropy(*qk(), num_queries=1)

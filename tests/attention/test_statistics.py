"""Attention statistics against their definitions in numpy and scipy, with every kind of mask.

Each formula that is wrong in tutorials is here as well, to show that ours differs from it, and why.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tempopt.attention.analysis import statistics
from tempopt.attention.analysis.statistics import (
    STATISTICS,
    attention_weights,
    check_weights,
    head_sums,
    visible_attention,
)
from tempopt.attention.functional.logits import visible_pairs
from tempopt.errors import UsageError

B, H, Q, K, D = 2, 3, 6, 6, 4
INF = float("inf")


def qk(spread: float = 1.5, q_len: int = Q, k_len: int = K) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(B, H, n, D, generator=generator, dtype=torch.float64) for n in (q_len, k_len))
    return spread * q, k


def some_mask() -> Tensor:
    mask = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[0, 0, 2] = False  # sees nothing
    mask[0, 1, 3] = torch.arange(K) == 1  # has no choice
    return mask


def padding() -> Tensor:
    """Keys after the fourth are padding in the second example."""
    mask = torch.ones(B, 1, 1, K, dtype=torch.bool)
    mask[1, :, :, 4:] = False
    return mask


def valid() -> Tensor:
    return padding()[:, 0, 0]


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": some_mask()},
    "boolean over queries and keys": {"attn_mask": some_mask()[1, 1]},
    "minus infinity": {"attn_mask": torch.zeros(B, H, Q, K).masked_fill(~some_mask(), -INF)},
    "lowest number": {
        "attn_mask": torch.zeros(B, H, Q, K).masked_fill(~some_mask(), torch.finfo(torch.float32).min)
    },
    "bias and causal": {"attn_mask": torch.linspace(-1, 1, Q * K).view(Q, K), "is_causal": True},
    "padding and causal": {"attn_mask": padding(), "is_causal": True},
}


def rows(
    q: Tensor, k: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]:
    """By (example, head, query): the keys that are visible and their weights, one query at a time."""
    result = {}
    mask = None if attn_mask is None else attn_mask.expand(B, H, Q, K)
    for b, h, i in itertools.product(range(B), range(H), range(Q)):
        keys, logits = [], []
        for j in range(K):
            entry = True if mask is None else mask[b, h, i, j].item()
            hidden = entry is False or (not isinstance(entry, bool) and entry < -1e30)
            if hidden or (is_causal and j > i):
                continue
            bias = 0.0 if isinstance(entry, bool) else entry
            keys.append(j)
            logits.append(float(q[b, h, i] @ k[b, h, j]) / math.sqrt(D) + bias)
        result[b, h, i] = (np.array(keys, dtype=int), scipy.special.softmax(logits) if keys else np.zeros(0))
    return result


def gini_of(a: np.ndarray) -> float:
    """Mean absolute difference of all pairs over twice the mean."""
    return float(np.abs(a[:, None] - a[None, :]).mean() / (2 * a.mean()))


def jacobian_of(a: np.ndarray) -> np.ndarray:
    return np.asarray(np.diag(a) - np.outer(a, a))


def saturation_of(a: np.ndarray) -> float:
    n = len(a)
    uniform = np.linalg.norm(jacobian_of(np.full(n, 1 / n)))
    return max(0.0, 1 - float(np.linalg.norm(jacobian_of(a)) / uniform))


def locality_of(a: np.ndarray, keys: np.ndarray, i: int) -> float:
    distance = np.abs(keys - i)
    return float(1 - (a * distance).sum() / distance.mean())


# Of weights a on some keys, for query i.
DEFINITIONS: dict[str, Any] = {
    "entropy": lambda a, keys, i: scipy.stats.entropy(a) / math.log(len(a)),
    "gini": lambda a, keys, i: gini_of(a),
    "max_weight": lambda a, keys, i: a.max(),
    "effective_tokens": lambda a, keys, i: 1 / (a**2).sum(),
    "effective_share": lambda a, keys, i: 1 / (a**2).sum() / len(a),
    "locality": lambda a, keys, i: locality_of(a, keys, i),
    "jacobian_norm": lambda a, keys, i: np.linalg.norm(jacobian_of(a)),
    "gradient_saturation": lambda a, keys, i: saturation_of(a),
}


def by_definition(name: str, padded: bool, masking: dict[str, Any]) -> np.ndarray:
    """The mean for each head over the queries that see two keys or more and are no padding."""
    values: list[list[float]] = [[] for _ in range(H)]
    for (b, h, i), (keys, a) in rows(*qk(), **masking).items():
        if len(keys) < 2 or (padded and not valid()[b, i]):
            continue
        if name == "self_attention":
            values[h] += a[keys == i].tolist()
        else:
            values[h].append(DEFINITIONS[name](a, keys, i))
    return np.array([np.mean(head_values) for head_values in values])


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
def test_the_weights_are_the_softmax_over_what_is_visible(masking: dict[str, Any]) -> None:
    q, k = qk()
    weights = attention_weights(q, k, **masking)
    for (b, h, i), (keys, a) in rows(q, k, **masking).items():
        expected = np.zeros(K)
        expected[keys] = a
        np.testing.assert_allclose(weights[b, h, i].numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [*DEFINITIONS, "self_attention"])
def test_a_statistic_is_its_definition(name: str, padded: bool, masking: dict[str, Any]) -> None:
    weights = attention_weights(*qk(), **masking)
    attention = visible_attention(weights, **masking, valid_BQ=valid() if padded else None)
    total_H, count_H = head_sums(*STATISTICS[name](attention))
    np.testing.assert_allclose((total_H / count_H).numpy(), by_definition(name, padded, masking), rtol=1e-9)


def test_what_are_no_weights_is_refused() -> None:
    dropped = nn.functional.dropout(attention_weights(*qk()), 0.3, training=True)
    for weights in (dropped, torch.tensor([[[[1.5, -0.5]]]]), torch.full((1, 1, 1, 2), float("nan"))):
        with pytest.raises(UsageError, match="before dropout"):
            check_weights(visible_attention(weights))
    with pytest.raises(UsageError, match="average_attn_weights=False"):
        visible_attention(dropped[0])


@pytest.mark.parametrize("name", sorted(STATISTICS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_statistics_are_finite_and_in_float32_however_sharp(name: str, dtype: torch.dtype) -> None:
    q, k = qk(spread=300.0)
    weights = attention_weights(q, k, **MASKS["boolean"]).to(dtype)
    values, counts = STATISTICS[name](visible_attention(weights, **MASKS["boolean"]))
    assert values.dtype == torch.float32
    assert bool(values.isfinite().all())
    assert counts.shape == values.shape


def probabilities(min_size: int = 2) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(0.001, 1.0), min_size=min_size, max_size=9)


@given(probabilities())
def test_statistics_stay_within_their_bounds(raw: list[float]) -> None:
    a = torch.tensor(raw, dtype=torch.float64)[None, None, None] / sum(raw)
    n = a.shape[-1]
    value = {name: STATISTICS[name](visible_attention(a))[0].item() for name in DEFINITIONS}
    assert -1e-12 <= value["entropy"] <= 1 + 1e-12
    assert 0 <= value["gini"] <= (n - 1) / n
    assert 1 / n - 1e-12 <= value["max_weight"] <= 1
    assert 1 - 1e-12 <= value["effective_tokens"] <= n + 1e-9
    assert value["locality"] <= 1
    assert 0 <= value["gradient_saturation"] <= 1
    assert value["jacobian_norm"] <= math.sqrt(0.5)


@pytest.mark.parametrize("tau", [0.25, 1.0, 3.0])
def test_the_jacobian_norm_is_autograds_with_the_temperature_that_tutorials_leave_out(tau: float) -> None:
    logits = torch.randn(5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda s: (s / tau).softmax(dim=-1))(logits)
    weights = (logits / tau).softmax(dim=-1)[None, None, None]
    ours = statistics.softmax_jacobian_norm(weights, temperature=tau).item()
    assert ours == pytest.approx(jacobian.norm().item(), rel=1e-12)
    tutorial = (torch.diag(weights[0, 0, 0]) - torch.outer(weights[0, 0, 0], weights[0, 0, 0])).norm()
    assert ours * tau == pytest.approx(tutorial.item())


def test_the_jacobian_norm_is_exact_where_one_weight_is_nearly_all() -> None:
    residual = 1e-6
    a = torch.tensor([1 - residual, residual])[None, None, None]
    assert statistics.softmax_jacobian_norm(a).item() == pytest.approx(2 * residual, rel=1e-5)


def window_share(weights: Tensor, window: int = 2) -> float:
    """Locality as in tutorials: the share of weight within a window."""
    n = weights.shape[-1]
    near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= window
    return (weights * near).sum(dim=-1).mean().item()


def test_uniform_attention_has_no_locality_at_any_length_where_that_of_tutorials_is_about_length() -> None:
    shares = []
    for n in (8, 256):
        uniform = torch.full((1, 1, n, n), 1 / n)
        assert statistics.locality(uniform).abs().max().item() < 1e-5
        causal = attention_weights(torch.zeros(1, 1, n, D), torch.zeros(1, 1, n, D), is_causal=True)
        visible = visible_pairs(n, n, is_causal=True)
        assert statistics.locality(causal, visible).abs().max().item() < 1e-5
        shares.append(window_share(uniform))
    assert shares[0] > 0.5
    assert shares[1] < 0.03


def test_self_attention_leaves_out_queries_that_cannot_see_themselves() -> None:
    weights, visible = statistics.self_attention(torch.full((1, 1, 3, 3), 1 / 3), ~torch.eye(3).bool())
    assert not visible.any()
    assert not weights.any()
    self_weight, visible = statistics.self_attention(
        torch.tensor([[[[0.2, 0.8]]]]), position_Q=torch.tensor([1])
    )
    assert (self_weight.item(), visible.item()) == (pytest.approx(0.8), True)


def test_the_chance_of_similarity_is_the_mean_over_all_orders_of_keys() -> None:
    a, b = (torch.tensor(raw, dtype=torch.float64) for raw in ([0.7, 0.2, 0.1, 0.0], [0.4, 0.3, 0.2, 0.1]))
    cosines = [
        float(a @ b[list(order)] / (a.norm() * b.norm())) for order in itertools.permutations(range(4))
    ]
    similarity = statistics.head_similarity(torch.stack([a, b])[None, :, None])
    expected = float(a @ b / (a.norm() * b.norm())) - float(np.mean(cosines))
    assert similarity.flatten().tolist() == pytest.approx([expected] * 2, rel=1e-12)


def test_similarity_is_the_mean_over_the_other_heads() -> None:
    weights = attention_weights(*qk(), is_causal=True)
    num_visible = torch.arange(1, Q + 1)
    similarities = statistics.head_similarity(weights, num_visible)
    pairs = {
        (h, g): statistics.head_similarity(weights[:, [h, g]], num_visible)[:, 0]
        for h, g in itertools.permutations(range(H), 2)
    }
    for h in range(H):
        mean = torch.stack([pairs[h, g] for g in range(H) if g != h]).mean(dim=0)
        torch.testing.assert_close(similarities[:, h], mean)


def test_one_head_has_no_similarity_and_that_is_said_where_tutorials_return_nan() -> None:
    with pytest.raises(UsageError, match="at least two"):
        statistics.head_similarity(torch.full((1, 1, 2, 2), 0.5))

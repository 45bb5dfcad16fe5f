"""Tempered attention against the softmax written out in float64, with every kind of mask."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from tempopt.attention.functional.attention import temper_query, tempered_attention, visible_keys
from tempopt.attention.functional.entropy import attention_entropy
from tempopt.errors import UsageError
from tempopt.temperature import (
    NORMALISERS,
    ClippedLogNScaling,
    Llama4Scaling,
    LogNPowerScaling,
    LogNScaling,
    NoLengthScaling,
    YarnScaling,
)

B, H, Q, K, D, E = 2, 3, 6, 6, 8, 5
LIMITS: dict[str, Any] = {"top_k": 2, "threshold": 0.2}
INF = float("inf")


def qkv(dtype: torch.dtype = torch.float64, q_len: int = Q, k_len: int = K) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, q_len, D), (B, H, k_len, D), (B, H, k_len, E)]
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def random_mask() -> Tensor:
    mask = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[..., 0] = True
    return mask


def padding_mask() -> Tensor:
    """Keys after the fourth are padding in the second example."""
    mask = torch.ones(B, 1, 1, K, dtype=torch.bool)
    mask[1, :, :, 4:] = False
    return mask


def alibi() -> Tensor:
    distance = torch.arange(Q)[:, None] - torch.arange(K)[None, :]
    return -(2.0 ** -torch.arange(1, H + 1))[:, None, None] * distance.abs()


def additive(mask: Tensor, hidden: float = -INF) -> Tensor:
    return torch.zeros(mask.shape).masked_fill(~mask, hidden)


LOWEST = torch.finfo(torch.float32).min
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": random_mask()},
    "boolean over keys": {"attn_mask": padding_mask()},
    "boolean over queries and keys": {"attn_mask": random_mask()[0, 0]},
    "boolean and causal": {"attn_mask": padding_mask(), "is_causal": True},
    "minus infinity": {"attn_mask": additive(random_mask())},
    "lowest number": {"attn_mask": additive(random_mask(), LOWEST)},
    "bias": {"attn_mask": alibi()},
    "bias and causal": {"attn_mask": alibi(), "is_causal": True},
}


def allowed_keys(attn_mask: Tensor | None = None, is_causal: bool = False) -> np.ndarray:
    """Return which query may see which key, in plain loops."""
    result = np.ones((B, H, Q, K), dtype=bool)
    mask = None if attn_mask is None else attn_mask.expand(B, H, Q, K)
    for b, h, i, j in itertools.product(range(B), range(H), range(Q), range(K)):
        if is_causal and j > i:
            result[b, h, i, j] = False
        elif mask is not None:
            entry = mask[b, h, i, j].item()
            result[b, h, i, j] = entry if isinstance(entry, bool) else entry > -1e30
    return result


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: np.ndarray,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> np.ndarray:
    """softmax(beta q k / sqrt(d) + mask) v in float64, one query at a time; ``beta`` broadcasts to BHQ."""
    visible = allowed_keys(attn_mask, is_causal)
    bias = np.zeros((B, H, Q, K))
    if attn_mask is not None and attn_mask.is_floating_point():
        bias = attn_mask.double().expand(B, H, Q, K).numpy()
    beta = np.broadcast_to(beta, (B, H, Q))
    out = np.zeros((B, H, Q, v.shape[-1]))
    for b, h, i in itertools.product(range(B), range(H), range(Q)):
        keys = [j for j in range(K) if visible[b, h, i, j]]
        logits = [
            beta[b, h, i] * float(q[b, h, i].double() @ k[b, h, j].double()) / math.sqrt(D) + bias[b, h, i, j]
            for j in keys
        ]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        for weight, j in zip(weights, keys, strict=True):
            out[b, h, i] += weight / sum(weights) * v[b, h, j].double().numpy()
    return out


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("tau", [0.25, 1.0, 3.0])
def test_attention_is_the_softmax_of_the_logits_over_tau(tau: float, masking: dict[str, Any]) -> None:
    q, k, v = qkv(torch.float32)
    out = tempered_attention(q, k, v, inverse_temperature=torch.tensor(1 / tau), **masking)
    expected = by_definition(q, k, v, np.array(1 / tau), **masking)
    np.testing.assert_allclose(out.numpy(), expected, atol=2e-5)


def length_factors(name: str, n: np.ndarray) -> np.ndarray:
    """The factors of length scaling as they are written, over the numbers of keys."""
    n = np.maximum(n, 2.0)
    ratio = np.log(n) / np.log(4.0)
    return {
        "clipped_log_n": np.maximum(ratio, 1.0),
        "log_n_power": ratio**0.5,
        "yarn": (1 + 0.3 * np.log(np.maximum(n / 4.0, 1.0))) ** 2,
        "llama4": 1 + 0.3 * np.log(1 + np.floor(n / 4.0)),
    }[name]


SCALINGS = [
    ClippedLogNScaling(n0=4.0),
    LogNPowerScaling(n0=4.0, length_power=0.5),
    YarnScaling(n0=4.0, length_slope=0.3),
    Llama4Scaling(n0=4.0, length_slope=0.3),
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.name)
@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
def test_every_length_scaling_counts_the_keys_that_each_query_sees(
    scaling: Any, is_tensor: bool, masking: dict[str, Any]
) -> None:
    q, k, v = qkv(torch.float32)
    beta = length_factors(scaling.name, allowed_keys(**masking).sum(axis=-1).astype(float))
    constant = torch.tensor(scaling.constant) if is_tensor else None
    out = tempered_attention(
        q, k, v, inverse_temperature=1.0, length_scaling=scaling, length_constant=constant, **masking
    )
    np.testing.assert_allclose(out.numpy(), by_definition(q, k, v, beta, **masking), atol=2e-5)


@settings(max_examples=60)
@given(data=st.data())
def test_a_causal_mask_over_keys_counts_as_the_whole_matrix_does(data: st.DataObject) -> None:
    q_len, k_len = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    shape = data.draw(
        st.sampled_from([(), (1,), (k_len,), (1, k_len), (2, 1, 1, k_len), (2, 3, 1, k_len), (2, 1, 1, 1)])
    )
    seed = data.draw(st.integers(0, 99))
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4
    mask = mask if data.draw(st.booleans()) else additive(mask)
    counts = visible_keys(q_len, k_len, mask, is_causal=True).expand(2, 3, q_len)
    dense = np.tril(np.ones((q_len, k_len), dtype=bool))
    visible = mask.numpy() if mask.dtype == torch.bool else mask.numpy() == 0
    assert counts.tolist() == (np.broadcast_to(visible, (2, 3, q_len, k_len)) & dense).sum(axis=-1).tolist()


def test_a_causal_mask_over_keys_is_counted_without_the_matrix() -> None:
    length = 50_000
    counts = visible_keys(length, length, torch.arange(length) < 40_000, is_causal=True)
    assert counts[[0, 39_999, 40_000, -1]].tolist() == [1, 40_000, 40_000, 40_000]


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_heads_that_share_keys_attend_as_if_each_had_its_own(normaliser: str) -> None:
    q, k, v = qkv()
    q, k, v = q.repeat(1, 2, 1, 1)[:, :4], k[:, :2], v[:, :2]
    how: dict[str, Any] = {
        "normaliser": normaliser,
        **NORMALISERS[normaliser].limited(LIMITS.get(normaliser)),
    }
    shared = tempered_attention(q, k, v, inverse_temperature=1.0, **how)
    k, v = (tensor[:, [0, 0, 1, 1]] for tensor in (k, v))
    assert torch.equal(shared, tempered_attention(q, k, v, inverse_temperature=1.0, **how))


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_heads_of_keys_that_do_not_divide_those_of_queries_are_refused(normaliser: str) -> None:
    q, k, v = qkv()
    limits = NORMALISERS[normaliser].limited(LIMITS.get(normaliser))
    with pytest.raises(UsageError, match="a number that divides theirs"):
        tempered_attention(
            q.repeat(1, 2, 1, 1)[:, :4],
            k[:, :3],
            v[:, :3],
            inverse_temperature=1.0,
            normaliser=normaliser,
            **limits,
        )


@pytest.mark.parametrize("hidden", [-INF, torch.finfo(torch.float16).min])
def test_a_half_precision_mask_hides_by_its_own_lowest_number(hidden: float) -> None:
    mask = torch.tensor([[0.0, hidden, -8.0]], dtype=torch.float16)
    assert visible_keys(1, 3, mask).tolist() == [2]


def test_a_mask_that_was_written_by_hand_hides_and_a_bias_does_not() -> None:
    for hidden in (-INF, LOWEST, -1e9, -1e7, -65504.0, -1e4, -1e3, -100.0):
        assert visible_keys(1, 4, torch.tensor([[0.0, hidden, -20.0, 3.0 + hidden]])).tolist() == [2]
    ramp = -0.7 * torch.arange(4096.0)
    assert visible_keys(1, 4096, ramp).tolist() == 4096
    # a constant in a whole row is nothing to softmax
    assert visible_keys(2, 3, torch.tensor([[-1e4] * 3, [-1e4, 0.0, -1e4]])).tolist() == [3, 1]


@pytest.mark.parametrize("scaling", [None, NoLengthScaling()])
@pytest.mark.parametrize("masking", [{}, {"is_causal": True}, {"attn_mask": random_mask()}])
def test_temperature_one_is_plain_attention_to_the_last_bit(scaling: Any, masking: dict[str, Any]) -> None:
    q, k, v = qkv(torch.float32)
    out = tempered_attention(
        q, k, v, inverse_temperature=torch.tensor(1.0), length_scaling=scaling, **masking
    )
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, v, **masking))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_queries_stay_so_and_keep_their_rows_temperature(dtype: torch.dtype) -> None:
    q = torch.ones(1, 1, Q, D, dtype=dtype)
    beta = torch.tensor([[[1.001]]])
    tempered = temper_query(q, 1000, inverse_temperature=beta, length_scaling=LogNScaling(n0=16.0))
    assert tempered.dtype == dtype
    exact = torch.tensor(1.001 * math.log(1000, 16)).to(dtype)
    assert torch.equal(tempered, exact.expand_as(tempered))


@pytest.mark.parametrize("scaling", [None, LogNScaling(n0=16.0)])
def test_one_graph_serves_every_temperature(scaling: Any) -> None:
    q, k, v = qkv(torch.float32)
    counter = CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def attend(beta: Tensor) -> Tensor:
        return tempered_attention(q, k, v, inverse_temperature=beta, length_scaling=scaling, is_causal=True)

    for tau in (0.5, 1.0, 1.5, 2.0, 4.0):
        beta = torch.tensor(1 / tau)
        eager = tempered_attention(q, k, v, inverse_temperature=beta, length_scaling=scaling, is_causal=True)
        torch.testing.assert_close(attend(beta), eager)
    assert counter.frame_count == 1


@pytest.mark.parametrize("normaliser", ["softmax", "sparsemax"])
def test_a_mask_over_keys_alone_is_that_of_all_queries(normaliser: str) -> None:
    q, k, v = qkv()
    mask = torch.arange(K) < 2
    by_queries = tempered_attention(
        q, k, v, inverse_temperature=0.7, normaliser=normaliser, attn_mask=mask.expand(Q, K)
    )
    alone = tempered_attention(q, k, v, inverse_temperature=0.7, normaliser=normaliser, attn_mask=mask)
    torch.testing.assert_close(alone, by_queries)


def test_queries_and_keys_of_two_types_are_refused_but_under_autocast() -> None:
    q, k, v = qkv(torch.float32)
    for call in (
        lambda: tempered_attention(q, k.bfloat16(), v, inverse_temperature=1.0, normaliser="sparsemax"),
        lambda: attention_entropy(q, k.bfloat16()),
    ):
        with pytest.raises(UsageError, match=r"bfloat16, float32.*key.to\(query.dtype\)"):
            call()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            call()

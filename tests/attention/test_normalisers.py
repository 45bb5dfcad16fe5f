"""Normalisers against their definitions, row by row in float64, with every kind of mask."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from tempopt.attention.functional.attention import tempered_attention
from tempopt.errors import UsageError
from tempopt.temperature import NORMALISERS, LogNScaling
from tests.attention.test_functional import MASKS, B, D, E, H, K, Q, additive, allowed_keys, qkv, random_mask

TOP_K = 3
# of 7 keys: some weights are below it, and in some rows none or all but one
MIN_WEIGHT = 0.12
LIMITS: dict[str, Any] = {"top_k": TOP_K, "threshold": MIN_WEIGHT}
OTHERS = [name for name in NORMALISERS if name != "softmax"]


def attend(q: Tensor, k: Tensor, v: Tensor, normaliser: str, **options: Any) -> Tensor:
    options = {**NORMALISERS[normaliser].limited(LIMITS.get(normaliser)), **options}
    return tempered_attention(q, k, v, inverse_temperature=1.0, normaliser=normaliser, **options)


def softmax_of(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def top_k_of(logits: np.ndarray) -> np.ndarray:
    top_indices = np.argsort(logits)[-TOP_K:]
    weights = np.zeros(len(logits))
    weights[top_indices] = softmax_of(logits[top_indices])
    return weights


def threshold_of(logits: np.ndarray) -> np.ndarray:
    weights = softmax_of(logits)
    kept_weights = np.where(weights < min(MIN_WEIGHT, weights.max()), 0.0, weights)
    return kept_weights / kept_weights.sum()


def paired_power(logits: np.ndarray, power: float) -> np.ndarray:
    """max(logits - threshold, 0)^power, with the threshold at which it sums to 1, found by bisection."""

    def excess(threshold: float) -> float:
        return float((np.maximum(logits - threshold, 0) ** power).sum()) - 1

    threshold = brentq(excess, logits.max() - 1.001, logits.max(), xtol=1e-15)
    return np.maximum(logits - threshold, 0) ** power


WEIGHTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": softmax_of,
    "top_k": top_k_of,
    "threshold": threshold_of,
    "sparsemax": lambda logits: paired_power(logits, 1.0),
    "entmax15": lambda logits: paired_power(logits / 2, 2.0),
    "linear": lambda logits: np.exp(logits) / np.exp(logits).sum(),
}


def similarity(normaliser: str, q_D: Tensor, k_D: Tensor) -> float:
    """A logit; of linear attention the logarithm of what stands for its exponential."""
    if normaliser != "linear":
        return float(q_D @ k_D) / math.sqrt(D)
    feature = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q_D.numpy(), k_D.numpy())]
    return math.log(float(feature[0] @ feature[1]))


def by_definition(
    normaliser: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> np.ndarray:
    q, k, v = q.double(), k.double(), v.double()
    visible = allowed_keys(attn_mask, is_causal)
    bias = np.zeros((B, H, Q, K))
    if attn_mask is not None and attn_mask.is_floating_point():
        bias = attn_mask.double().expand(B, H, Q, K).numpy()
    out = np.zeros((B, H, Q, E))
    for b, h, i in itertools.product(range(B), range(H), range(Q)):
        keys = [j for j in range(K) if visible[b, h, i, j]]
        if keys:
            logits = [similarity(normaliser, q[b, h, i], k[b, h, j]) + bias[b, h, i, j] for j in keys]
            out[b, h, i] = WEIGHTS[normaliser](np.array(logits)) @ v[b, h, keys].numpy()
    return out


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
def test_attention_weighs_by_definition(normaliser: str, masking: dict[str, Any]) -> None:
    q, k, v = qkv(torch.float32)
    q = 3 * q
    out = attend(q, k, v, normaliser, **masking)
    np.testing.assert_allclose(out.numpy(), by_definition(normaliser, q, k, v, **masking), atol=5e-5)


def test_no_weight_that_is_left_is_below_the_threshold() -> None:
    q, k, _ = qkv()
    weights = attend(q, k, torch.eye(K).expand(B, H, K, K).to(q.dtype), "threshold")
    plain = attend(q, k, torch.eye(K).expand(B, H, K, K).to(q.dtype), "softmax")
    assert bool((weights[weights > 0] >= MIN_WEIGHT).all()) and bool((weights == 0).any())
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))
    # those that are left stand to one another as before
    is_kept = (weights > 0) & (weights.amax(dim=-1, keepdim=True) > 0)
    ratio = torch.where(is_kept, plain / weights.masked_fill(~is_kept, 1.0), torch.nan)
    spread = ratio.nan_to_num(0.0).amax(dim=-1) - ratio.nan_to_num(torch.inf).amin(dim=-1)
    torch.testing.assert_close(spread, torch.zeros_like(spread))


@pytest.mark.parametrize("top_k", [1, 2, K, 100])
def test_a_number_of_keys_weighs_the_same_as_a_tensor(top_k: int) -> None:
    q, k, v = qkv(torch.float32)
    tensor_output = attend(q, k, v, "top_k", top_k=torch.tensor(float(top_k)), is_causal=True)
    assert torch.equal(attend(q, k, v, "top_k", top_k=top_k, is_causal=True), tensor_output)


def test_keys_that_tie_with_the_last_are_kept_too() -> None:
    """Whichever of them were dropped, another order of the keys would drop others."""
    q, k, v = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 5, 2), torch.randn(1, 1, 5, 3)
    torch.testing.assert_close(attend(q, k, v, "top_k", top_k=2), v.mean(dim=-2, keepdim=True))


@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("masking", [{}, {"is_causal": True}, {"attn_mask": random_mask()[:1, :1]}])
def test_gradients_are_those_of_finite_differences(normaliser: str, masking: dict[str, Any]) -> None:
    inputs = tuple(tensor[:1, :1].clone().requires_grad_() for tensor in qkv())
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, normaliser, **masking), inputs)


@pytest.mark.parametrize("normaliser", OTHERS)
def test_second_derivatives_are_those_of_finite_differences(normaliser: str) -> None:
    inputs = tuple(tensor[:1, :1].clone().requires_grad_() for tensor in qkv())
    assert torch.autograd.gradgradcheck(lambda q, k, v: attend(q, k, v, normaliser, is_causal=True), inputs)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_a_query_that_sees_no_key_gets_zero_and_finite_gradients(normaliser: str) -> None:
    mask = torch.ones(Q, K, dtype=torch.bool)
    mask[2] = False
    over_keys = torch.ones(B, 1, 1, K, dtype=torch.bool)
    over_keys[1] = False
    masks = [
        mask,
        additive(mask),
        additive(mask, torch.finfo(torch.float32).min),
        over_keys,
        additive(over_keys),
    ]
    for attn_mask, is_causal in itertools.product(masks, (False, True)):
        q, k, v = (tensor.requires_grad_() for tensor in qkv(torch.float32))
        out = attend(q, k, v, normaliser, attn_mask=attn_mask, is_causal=is_causal)
        empty = out[:, :, 2] if attn_mask.shape[0] == Q else out[1]
        if normaliser != "softmax":
            assert torch.equal(empty, torch.zeros_like(empty))
        assert bool(out.isfinite().all())
        out.square().sum().backward()
        assert all(tensor.grad is not None and bool(tensor.grad.isfinite().all()) for tensor in (q, k, v))


@pytest.mark.parametrize("normaliser", OTHERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weighs_in_single(normaliser: str, dtype: torch.dtype) -> None:
    q, k, v = qkv(dtype)
    out = attend(q, k, v, normaliser, is_causal=True)
    assert out.dtype == dtype
    single = attend(q.float(), k.float(), v.float(), normaliser, is_causal=True)
    assert torch.equal(out, single.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend(q, k, v, normaliser, is_causal=True), out)


@pytest.mark.parametrize("normaliser", OTHERS)
@pytest.mark.parametrize("size", [1e4, 1e-6])
def test_large_and_small_logits_leave_weights_that_sum_to_one(normaliser: str, size: float) -> None:
    q, k, _ = qkv(torch.float32)
    ones = torch.ones(B, H, K, 1)
    out = attend(q * size, k, ones, normaliser, attn_mask=random_mask())
    torch.testing.assert_close(out, torch.ones(B, H, Q, 1), atol=1e-4, rtol=0)


@given(st.integers(1, 200), st.integers(1, 200), st.booleans(), st.booleans())
def test_linear_attention_by_running_sums_is_that_by_the_matrix(
    q_len: int, k_len: int, is_causal: bool, masked: bool
) -> None:
    q, k, v = qkv(q_len=q_len, k_len=k_len)
    mask = torch.rand(B, 1, 1, k_len, generator=torch.Generator().manual_seed(2)) > 0.3 if masked else None
    out = attend(q, k, v, "linear", attn_mask=mask, is_causal=is_causal)
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-2, -1)
    if mask is not None:
        weights = weights * mask
    if is_causal:
        weights = weights.tril()
    total = weights.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(out, weights @ v / torch.where(total == 0, 1.0, total))


def test_linear_attention_holds_no_matrix_of_queries_and_keys() -> None:
    """A matrix of so many would not fit into memory."""
    length = 2**17
    q, k, v = (torch.randn(1, 1, length, 2) for _ in range(3))
    for is_causal in (False, True):
        assert attend(q, k, v, "linear", is_causal=is_causal).shape == (1, 1, length, 2)


@pytest.mark.parametrize("normaliser", ["top_k", "threshold", "linear"])
def test_one_graph_serves_every_temperature_and_every_limit(normaliser: str) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(torch.float32))
    counter = CompileCounterWithBackend("aot_eager")

    def attend_at(beta: Tensor, limit: Tensor) -> Tensor:
        return tempered_attention(
            q,
            k,
            v,
            inverse_temperature=beta,
            normaliser=normaliser,
            **NORMALISERS[normaliser].limited(limit),
            is_causal=True,
        )

    compiled = torch.compile(attend_at, backend=counter, fullgraph=True)
    for number in (1, 2, 3, 4, 5):
        beta = torch.tensor(1.0 if normaliser == "linear" else 1 / number)
        results = []
        for function in (compiled, attend_at):
            out = function(beta, torch.tensor(number / 10 if normaliser == "threshold" else float(number)))
            results.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
        torch.testing.assert_close(*results)
    assert counter.frame_count == 1


@pytest.mark.parametrize("normaliser", OTHERS)
def test_a_batch_may_be_mapped_over(normaliser: str) -> None:
    q, k, v = qkv()
    out = torch.func.vmap(lambda q, k, v: attend(q, k, v, normaliser, is_causal=True))(q, k, v)
    torch.testing.assert_close(out, attend(q, k, v, normaliser, is_causal=True))


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("normaliser", OTHERS)
def test_everything_is_made_on_the_device_of_the_queries(normaliser: str, masking: dict[str, Any]) -> None:
    """The meta device refuses to meet tensors of another one, as a GPU does."""
    q, k, v = (tensor.to("meta") for tensor in qkv(torch.float32))
    meta_masking = {
        name: value.to("meta") if isinstance(value, Tensor) else value for name, value in masking.items()
    }
    out = attend(q, k, v, normaliser, **meta_masking)
    assert (out.shape, out.device.type) == ((B, H, Q, E), "meta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normaliser": "sparsmax"}, 'Did you mean "sparsemax"'),
        ({"normaliser": "threshold"}, "min_weight=None"),
        ({"normaliser": "threshold", "min_weight": 1.5}, "min_weight=1.5 is out of range"),
        ({"min_weight": 0.1}, "min_weight=0.1"),
        ({"normaliser": "top_k"}, "top_k=None"),
        ({"normaliser": "top_k", "top_k": 0}, "top_k=0 is out of range"),
        ({"normaliser": "top_k", "top_k": True}, "top_k=True is a bool"),
        ({"normaliser": "top_k", "top_k": 2.5}, "top_k=2.5 is a float"),
        ({"top_k": 4}, "top_k=4"),
        ({"normaliser": "linear", "inverse_temperature": 0.5}, "no temperature"),
        ({"normaliser": "linear", "inverse_temperature": torch.tensor([1.0, 2.0, 1.0])}, "no temperature"),
        (
            {"normaliser": "linear", "inverse_temperature": torch.nn.Parameter(torch.ones(()))},
            "is not learned",
        ),
        ({"normaliser": "linear", "length_scaling": LogNScaling(n0=4.0)}, "LogNScaling"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tempered_attention(*qkv(), **{"inverse_temperature": 1.0, **options})

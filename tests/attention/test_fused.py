"""Tiles against the whole: every size, mask, grouping and type; under compiler and autocast; errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tempopt.attention.functional import fused_entropy
from tempopt.attention.functional.entropy import attention_entropy, attention_with_entropy, max_logits
from tempopt.errors import UsageError

INF = float("inf")


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a few rows and keys make several tiles, of which the last is smaller."""
    monkeypatch.setattr(fused_entropy, "_TILE", 12)
    monkeypatch.setattr(fused_entropy, "_SMALLEST_TILE", 12)
    monkeypatch.setattr(fused_entropy, "_COLUMNS", 4)
    monkeypatch.setattr(fused_entropy, "_CAUSAL_COLUMNS", 3)


def draw(*shapes: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def masks(q_len: int, k_len: int, heads: int, seed: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    some = torch.rand(2, heads, q_len, k_len, generator=generator) > 0.5
    slopes = torch.arange(1, heads + 1).reshape(-1, 1, 1) / 2
    distance = (torch.arange(q_len).unsqueeze(1) - torch.arange(k_len)).abs()
    return {
        "none": None,
        "padding": some[:, :1, :1],
        "boolean": some[0, 0],
        "of each head": some,
        "alibi": -slopes * distance,
        "hidden": torch.zeros(some.shape).masked_fill(~some, -INF),
        "lowest": torch.zeros(q_len, k_len).masked_fill(~some[1, 0], torch.finfo(torch.float32).min),
    }


def logits_by_definition(q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """Return the logits in float64, minus infinity where a key is hidden."""
    k = k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    logits = q.double() @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if attn_mask is not None:
        as_float = attn_mask.dtype != torch.bool
        logits = logits + attn_mask if as_float else logits.masked_fill(~attn_mask, -INF)
    if is_causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -INF)
    return logits.masked_fill(logits < -1e30, -INF)


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Return output and entropy in float64 from softmax(logits) and its logarithm, 0 for an empty row."""
    v = v.double().repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    logits = logits_by_definition(q, k, attn_mask, is_causal)
    hidden = logits == -INF
    logits = logits.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    weights = logits.softmax(-1).masked_fill(hidden, 0.0)
    logarithms = weights.masked_fill(hidden, 1.0).log()
    return weights @ v, -(weights * logarithms).sum(-1)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 9), st.integers(1, 11)),
    group=st.sampled_from([1, 2, 4]),
    masking=st.sampled_from(["none", "padding", "boolean", "of each head", "alibi", "hidden", "lowest"]),
    is_causal=st.booleans(),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 1000),
)
def test_output_entropy_and_gradients_are_those_of_the_definition(
    lengths: tuple[int, int], group: int, masking: str, is_causal: bool, spread: float, seed: int
) -> None:
    q_len, k_len = lengths
    q, k, v = draw((2, 4, q_len, 3), (2, 4 // group, k_len, 3), (2, 4 // group, k_len, 5), seed=seed)
    attn_mask = masks(q_len, k_len, 4, seed)[masking]
    rows = torch.arange(q_len) - 1.5

    def all_of(results: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        loss = results[0].sin().sum() + (rows * results[1]).sum()
        return *results, *torch.autograd.grad(loss, (q, k, v))

    ours = all_of(attention_with_entropy(spread * q, k, v, attn_mask=attn_mask, is_causal=is_causal))
    torch.testing.assert_close(
        ours, all_of(by_definition(spread * q, k, v, attn_mask, is_causal)), rtol=1e-9, atol=1e-11
    )
    assert bool((ours[1] >= 0).all())
    alone = attention_entropy(spread * q, k, attn_mask=attn_mask, is_causal=is_causal)
    torch.testing.assert_close(alone, ours[1], rtol=0, atol=0)
    largest = logits_by_definition(spread * q, k, attn_mask, is_causal).amax(-1)
    torch.testing.assert_close(
        max_logits(spread * q, k, attn_mask=attn_mask, is_causal=is_causal), largest, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_first_derivative_passes_gradcheck(is_causal: bool) -> None:
    q, k, v = draw((1, 2, 5, 3), (1, 1, 6, 3), (1, 1, 6, 2))
    bias = torch.linspace(-2.0, 2.0, 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *inputs: attention_with_entropy(*inputs, attn_mask=bias, is_causal=is_causal), (q, k, v)
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_tiles_and_nothing_else(threads: int) -> None:
    q, k, v = draw((2, 3, 9, 4), (2, 3, 10, 4), (2, 3, 10, 4))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        results = attention_with_entropy(q, k, v, is_causal=True)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(results, by_definition(q, k, v, None, True))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-6), (torch.float16, 3e-6)]
)
def test_whatever_the_type_the_entropy_is_accumulated_in_float32(
    dtype: torch.dtype, tolerance: float
) -> None:
    q, k, v = draw((2, 2, 8, 4), (2, 2, 9, 4), (2, 2, 9, 4), dtype=dtype)
    out, entropy = attention_with_entropy(q, k, v)
    assert (out.dtype, entropy.dtype) == (dtype, torch.float32)
    expected = by_definition(q, k, v, None, False)
    torch.testing.assert_close(entropy.double(), expected[1], rtol=0, atol=tolerance)
    torch.testing.assert_close(out.double(), expected[0], rtol=0, atol=4 * torch.finfo(dtype).eps)
    grads = torch.autograd.grad(entropy.sum(), (q, k))
    for ours, theirs in zip(grads, torch.autograd.grad(expected[1].sum(), (q, k)), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=max(2 * torch.finfo(dtype).eps, 1e-6))


def test_what_torch_would_return_is_returned_beside_the_entropy() -> None:
    q, k, v = draw((2, 4, 8, 4), (2, 2, 9, 4), (2, 2, 9, 6), dtype=torch.float32)
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(attention_with_entropy(q, k, v, scale=0.3)[0], expected)
    with torch.autocast("cpu", torch.bfloat16):
        out, entropy = attention_with_entropy(q, k, v, scale=0.3)
    assert (out.dtype, entropy.dtype) == (torch.bfloat16, torch.float32)


def test_dropout_is_none_of_the_entropys_business() -> None:
    q, k, v = draw((1, 4, 8, 4), (1, 2, 9, 4), (1, 2, 9, 4))
    torch.manual_seed(0)
    out, entropy = attention_with_entropy(q, k, v, dropout_p=0.5)
    torch.manual_seed(0)
    expected = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, enable_gqa=True)
    torch.testing.assert_close(out, expected)
    assert torch.equal(entropy, attention_entropy(q, k))
    # the weights that a model hands out in training are no distribution, and their "entropy" is none
    dropped = F.dropout((q @ k.repeat_interleave(2, 1).transpose(-2, -1) / 2).softmax(-1), 0.5)
    wrong = -torch.special.xlogy(dropped, dropped).sum(-1)
    assert float((wrong - entropy).detach().abs().max()) > 0.1


def test_a_learned_mask_gets_its_gradient() -> None:
    q, k, v, bias = draw((1, 2, 5, 3), (1, 2, 6, 3), (1, 2, 6, 3), (5, 6))
    assert torch.autograd.gradcheck(
        lambda q, k, v, bias: attention_with_entropy(q, k, v, attn_mask=bias, is_causal=True), (q, k, v, bias)
    )


def test_nothing_to_attend_to_is_no_entropy() -> None:
    q, k, v = draw((1, 2, 5, 3), (1, 2, 0, 3), (1, 2, 0, 4))
    out, entropy = attention_with_entropy(q, k, v)
    assert torch.equal(out, torch.zeros(1, 2, 5, 4, dtype=torch.float64))
    assert torch.equal(entropy, torch.zeros(1, 2, 5, dtype=torch.float64))
    assert not torch.autograd.grad(entropy.sum() + out.sum(), q)[0].any()


# The compiler itself instantiates torch.autograd.Function while it traces one.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_one_graph_serves_every_temperature() -> None:
    from torch._dynamo.utils import counters

    q, k, v = draw((1, 2, 5, 3), (1, 2, 6, 3), (1, 2, 6, 3))
    padding = torch.tensor([True, True, False, True, True, False])

    def loss(q: Tensor, beta: Tensor, weight: Tensor) -> Tensor:
        out, entropy = attention_with_entropy(q * beta, k, v, attn_mask=padding)
        return out.sum() + (weight * entropy).sum()

    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for beta in (0.5, 1.0, 3.0):
        scalars = torch.tensor(beta, dtype=torch.float64), torch.tensor(-beta, dtype=torch.float64)
        torch.testing.assert_close(
            torch.autograd.grad(compiled(q, *scalars), (q, k, v)),
            torch.autograd.grad(loss(q, *scalars), (q, k, v)),
        )
    assert counters["stats"]["unique_graphs"] - before == 1


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    q, k = draw((1, 2, 5, 3), (1, 2, 6, 3))
    (grad,) = torch.autograd.grad(attention_entropy(q, k).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.square().sum().backward()


def kernel(q: Tensor, k: Tensor, v: Tensor, scale: float, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Stand in for a fused kernel: output, and the log-sum-exp without a derivative."""
    logits = scale * q @ k.transpose(-2, -1)
    if is_causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -INF)
    return logits.softmax(-1) @ v, logits.logsumexp(-1).detach()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("with_values", [False, True])
def test_keys_as_values_give_the_same_entropy_and_gradients(with_values: bool, is_causal: bool) -> None:
    q, k, v = draw((2, 2, 7, 3), (2, 2, 7, 3), (2, 2, 7, 5))
    values = v if with_values else None

    def all_of(results: tuple[Tensor, Tensor]) -> list[Tensor]:
        loss = (results[0].sin().sum() if with_values else 0.0) + results[1].square().sum()
        return [results[1], *torch.autograd.grad(loss, (q, k, v)[: 3 if with_values else 2])]

    through_values = all_of(fused_entropy._entropy_with_keys_as_values(kernel, q, k, values, 0.4, is_causal))
    in_tiles = all_of(fused_entropy.attention_and_entropy(q, k, values, None, 0.4, is_causal))
    torch.testing.assert_close(through_values, in_tiles)


def test_the_cards_kernel_is_given_dense_aligned_rows_alone() -> None:
    def on_card(width: int = 16, keys: int = 5, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(1, 2, keys, width, device="cuda", dtype=dtype)

    with FakeTensorMode():
        q, k, v = (on_card() for _ in range(3))
        assert fused_entropy._is_kernel_applicable(q, k, v)
        assert fused_entropy._is_kernel_applicable(q, k, None)
        # what transposing leaves behind
        sparse = on_card(width=5, keys=16).transpose(-2, -1)
        assert not fused_entropy._is_kernel_applicable(sparse, k, v)
        assert not fused_entropy._is_kernel_applicable(q, sparse, v)
        assert fused_entropy._is_kernel_applicable(q, k, sparse)
        assert not fused_entropy._is_kernel_applicable(q, k, on_card(dtype=torch.float32))
        assert not fused_entropy._is_kernel_applicable(on_card(width=12), on_card(width=12), v)
        assert not fused_entropy._is_kernel_applicable(q, on_card(keys=0), on_card(keys=0))
    assert not fused_entropy._is_kernel_applicable(*(torch.zeros(1, 2, 5, 16) for _ in range(3)))


@pytest.mark.parametrize(
    ("shapes", "remedy"),
    [
        ({"q": (2, 5, 3)}, "unsqueeze what has fewer dimensions"),
        ({"q": (2, 4, 5, 2)}, "the same head dimension"),
        ({"q": (1, 4, 5, 3)}, "the same batch"),
        ({"q": (2, 3, 5, 3)}, "as many heads as the keys, or a multiple"),
        ({"v": (2, 2, 5, 3)}, "the values need"),
        ({"attn_mask": (6, 5)}, r"attn_mask \(6, 5\); the mask has to broadcast"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_shapes(shapes: dict[str, Any], remedy: str) -> None:
    given_shapes = {"q": (2, 4, 5, 3), "k": (2, 2, 6, 3), "v": (2, 2, 6, 3), "attn_mask": (5, 6), **shapes}
    q, k, v, attn_mask = (torch.zeros(shape) for shape in given_shapes.values())
    with pytest.raises(UsageError, match=remedy):
        attention_with_entropy(q, k, v, attn_mask=attn_mask)

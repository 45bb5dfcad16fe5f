"""Local heads, against softmax written out over the keys that a query may see."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tempopt import TemperedModule
from tempopt.attention.functional import local_heads
from tempopt.attention.functional.attention import record_key_counts
from tempopt.attention.functional.entropy import attention_entropy
from tempopt.attention.functional.local_heads import NearKeys, local_mask, query_positions
from tempopt.errors import UsageError
from tempopt.temperature import LocalHeads

N, WINDOW = 9, 3


class LocalMask(TemperedModule):
    """A layer that does nothing but attend, half of its heads locally."""

    def __init__(self, **temperature: Any) -> None:
        super().__init__(num_layers=1, **{"local_share": 0.5, "window": WINDOW, **temperature})


def draw_qkv(
    num_heads: int = 4, key_heads: int | None = None, q_len: int = N
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(2, num_heads, q_len, 8, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, key_heads or num_heads, N, 8, generator=generator, dtype=torch.float64)
    return q, k, v


def allowed_keys(
    num_heads: int, num_local: int, q_len: int, *, causal: bool, window: int = WINDOW, offset: int = 0
) -> np.ndarray:
    """Return (H, Q, K), True where a query may see a key, one at a time; query i is key i + offset."""
    visible_HQK = np.zeros((num_heads, q_len, N), dtype=bool)
    for h, i, j in np.ndindex(num_heads, q_len, N):
        at = i + offset
        visible_HQK[h, i, j] = (not causal or j <= at) and (h >= num_local or abs(j - at) <= window - 1)
    return visible_HQK


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, seen_BHQK: np.ndarray, *, tau_HQ: Any = 1.0, bias: Any = None
) -> np.ndarray:
    """Return attention over the keys that are seen, one query at a time; 0 where there are none."""
    qs, ks, vs = q.detach().numpy(), k.detach().numpy(), v.detach().numpy()
    batch, num_heads, q_len, d = qs.shape
    group = num_heads // ks.shape[1]
    seen_BHQK = np.broadcast_to(seen_BHQK, (batch, num_heads, q_len, N))
    tau_HQ = np.broadcast_to(tau_HQ, (num_heads, q_len))
    out = np.zeros((batch, num_heads, q_len, vs.shape[-1]))
    for b, h, i in np.ndindex(batch, num_heads, q_len):
        keys = np.flatnonzero(seen_BHQK[b, h, i])
        if len(keys):
            logits = np.array([qs[b, h, i] @ ks[b, h // group, j] for j in keys])
            logits = logits / (math.sqrt(d) * tau_HQ[h, i]) + (0 if bias is None else bias[i, keys])
            exponentials = np.exp(logits - logits.max())
            out[b, h, i] = exponentials @ vs[b, h // group, keys] / exponentials.sum()
    return out


@pytest.mark.parametrize(
    ("share", "num_heads", "count"),
    [(0.0, 8, 0), (1.0, 8, 8), (0.5, 1, 1), (0.5, 3, 2), (0.25, 4, 1), (0.1, 4, 0), (0.13, 4, 1)],
)
def test_the_share_of_local_heads_is_rounded_a_half_up(share: float, num_heads: int, count: int) -> None:
    assert LocalHeads(window=4, local_share=share).count(num_heads) == count


@pytest.mark.parametrize("window", [1, 2, WINDOW, N, 50])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_a_local_head_sees_the_keys_near_each_query(window: int, causal: bool, key_heads: int) -> None:
    q, k, v = draw_qkv(key_heads=key_heads)
    out = LocalMask(window=window, local_share=0.75).double().attend(q, k, v, layer=0, is_causal=causal)
    expected = by_loops(q, k, v, allowed_keys(4, 3, N, causal=causal, window=window))
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [24, 29])
def test_blocks_of_queries_are_the_whole_matrix(length: int, causal: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(local_heads, "_BLOCK", 6)
    generator = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, 2, 4, length, 8, generator=generator, dtype=torch.float64)
    parameters = {"head_pattern": "exp", "head_ratio": 3.0, "length_scaling": "log_n", "n0": 3.0}
    for normaliser in ("softmax", "top_k", "linear"):
        options = {} if normaliser == "linear" else parameters
        module = LocalMask(local_share=0.75, window=4, normaliser=normaliser, top_k=2, **options).double()
        inputs = [tensor.clone().requires_grad_(True) for tensor in (q, k, v)]
        block_output = module.attend(*inputs, layer=0, is_causal=causal)
        # a mask that hides nothing is one that blocks do not take
        everything = torch.ones(length, length, dtype=torch.bool)
        full_output = module.attend(*inputs, layer=0, is_causal=causal, attn_mask=everything)
        torch.testing.assert_close(block_output, full_output)
        weight = torch.randn(full_output.shape, generator=generator, dtype=torch.float64)
        grads, expected_grads = (
            torch.autograd.grad((output * weight).sum(), inputs) for output in (block_output, full_output)
        )
        for grad, expected_grad in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(grad, expected_grad)


def test_padding_and_biases_are_combined_with_the_window() -> None:
    q, k, v = draw_qkv()
    generator = torch.Generator().manual_seed(1)
    padded_B11K = torch.ones(2, 1, 1, N, dtype=torch.bool)
    padded_B11K[1, :, :, :4] = False
    bias_QK = torch.randn(N, N, generator=generator, dtype=torch.float64)
    by_head_HQK = torch.rand(4, N, N, generator=generator) > 0.3
    visible_HQK = allowed_keys(4, 2, N, causal=True)
    for mask, expected_visible, bias in (
        (padded_B11K, visible_HQK & padded_B11K.numpy(), None),
        (bias_QK, visible_HQK, bias_QK.numpy()),
        (by_head_HQK, visible_HQK & by_head_HQK.numpy(), None),
    ):
        # of padded queries and of those that see nothing the output is 0
        out = LocalMask().double().attend(q, k, v, layer=0, attn_mask=mask, is_causal=True)
        np.testing.assert_allclose(
            out.numpy(), by_loops(q, k, v, expected_visible, bias=bias), rtol=1e-7, atol=1e-9
        )


def test_with_a_cache_queries_are_counted_from_the_end() -> None:
    q, k, v = draw_qkv(q_len=2)
    visible_HQK = allowed_keys(4, 2, 2, causal=True, offset=N - 2)
    causal_QK = torch.ones(2, N, dtype=torch.bool).tril(N - 2)
    out = LocalMask().double().attend(q, k, v, layer=0, attn_mask=causal_QK)
    np.testing.assert_allclose(out.numpy(), by_loops(q, k, v, visible_HQK), rtol=1e-7, atol=1e-9)
    last_output = LocalMask().double().attend(q[:, :, 1:], k, v, layer=0)
    torch.testing.assert_close(last_output, out[:, :, 1:])


def test_a_cache_with_free_places_is_told_by_what_a_query_sees_last() -> None:
    mask = torch.zeros(2, 1, 2, N, dtype=torch.bool)
    mask[0, 0, 0, :4] = mask[0, 0, 1, :5] = True
    mask[1, 0, 0, 2:4] = mask[1, 0, 1, 2:5] = True
    assert query_positions(2, N, mask, last_seen=True).tolist() == [[[3, 4]], [[3, 4]]]
    assert query_positions(2, N, mask).tolist() == [N - 2, N - 1]
    assert query_positions(2, N, is_causal=True).tolist() == [0, 1]


def test_more_queries_than_keys_are_refused() -> None:
    q, k, v = draw_qkv()
    with pytest.raises(UsageError, match=r"Given 9 queries and 4 keys.*local_share=0\.0"):
        LocalMask().double().attend(q, k[:, :, :4], v[:, :, :4], layer=0)


def test_length_scaling_follows_the_keys_that_a_head_sees() -> None:
    q, k, v = draw_qkv()
    module = LocalMask(length_scaling="log_n", n0=5.0, head_pattern="exp", head_ratio=4.0).double()
    with record_key_counts() as counts:
        out = module.attend(q, k, v, layer=0, is_causal=True)
    assert counts == set(range(1, N + 1))
    visible_HQK = allowed_keys(4, 2, N, causal=True)
    grown_HQ = np.log(np.maximum(visible_HQK.sum(-1), 2)) / np.log(5.0)
    pattern_H = 4.0 ** (np.arange(4) / 3) / 2.0
    expected = by_loops(q, k, v, visible_HQK, tau_HQ=pattern_H[:, None] / grown_HQ)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_entropy_term_is_over_the_keys_that_a_head_sees() -> None:
    q, k, v = draw_qkv()
    q.requires_grad_(True)
    module = LocalMask(entropy_lambda=0.3).double().train()
    (gradient,) = torch.autograd.grad(module.attend(q, k, v, layer=0, is_causal=True).sum(), q)
    visible_HQK = torch.from_numpy(allowed_keys(4, 2, N, causal=True))
    logits = (q @ k.transpose(-1, -2) / math.sqrt(8)).masked_fill(~visible_HQK, float("-inf"))
    weights = logits.softmax(-1)
    entropy = torch.special.entr(weights[..., 1:, :].clamp(min=1e-300)).sum(-1)
    share = entropy / visible_HQK[:, 1:].sum(-1).double().log()
    (expected,) = torch.autograd.grad((weights @ v).sum() - 0.3 * share.mean(), q)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)


def test_observers_are_told_what_each_head_sees() -> None:
    q, k, v = draw_qkv()
    maskings: list[dict[str, Any]] = []
    module = LocalMask().double()
    with module.observed(lambda layer, q_BHQD, k_BHKD, **masking: maskings.append(masking)):
        out = module.attend(q, k, v, layer=0, is_causal=True)
    assert not maskings[0]["is_causal"]
    assert np.array_equal(maskings[0]["attn_mask"][0].numpy(), allowed_keys(4, 2, N, causal=True))
    assert torch.equal(out, module.attend(q, k, v, layer=0, is_causal=True))
    # a window of 1 leaves nothing to choose
    mask = local_mask(4, N, near=NearKeys(2, 1, torch.arange(N)))
    entropy = attention_entropy(q, k, attn_mask=mask)
    assert entropy[:, :2].abs().max() == 0.0

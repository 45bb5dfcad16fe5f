"""QK-norm: attention by the angle between query and key, by definition in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor

from tempopt.attention.functional.attention import tempered_attention
from tempopt.attention.modules.learned import QueryKeyNorm, qk_norm_init_scale
from tempopt.errors import SpecError

B, H, N, D = 2, 3, 12, 8


def qkv(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(B, H, N, D, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def test_normalised_queries_and_keys_attend_by_their_angle() -> None:
    q, k, v = qkv()
    gains = [1.0, 5.0, 20.0]
    q_hat, k_hat = QueryKeyNorm(H, init_gain=gains).double()(q, k)
    out = tempered_attention(q_hat, k_hat, v, inverse_temperature=1 / 0.7, scale=1.0)
    lengths = [np.linalg.norm(tensor.numpy(), axis=-1) for tensor in (q, k)]
    cosines = np.einsum("bhqd,bhkd->bhqk", q.numpy(), k.numpy()) / (
        lengths[0][..., :, None] * lengths[1][..., None, :]
    )
    weights = scipy.special.softmax(np.array(gains)[:, None, None] * cosines / 0.7, axis=-1)
    np.testing.assert_allclose(out.detach().numpy(), weights @ v.numpy(), rtol=1e-6, atol=1e-8)


def test_a_temperature_cannot_be_absorbed_by_normalised_queries() -> None:
    q, k, v = qkv()
    norm = QueryKeyNorm(H, init_gain=4.0).double()

    def out(tau: float, length: float, normalised: bool) -> Tensor:
        q_hat, k_hat = norm(length * q, k) if normalised else (length * q, k)
        return tempered_attention(
            q_hat, k_hat, v, inverse_temperature=1 / tau, scale=1.0 if normalised else None
        )

    torch.testing.assert_close(out(2.0, 2.0, normalised=False), out(1.0, 1.0, normalised=False))
    torch.testing.assert_close(out(2.0, 2.0, normalised=True), out(2.0, 1.0, normalised=True))
    assert not torch.allclose(out(2.0, 2.0, normalised=True), out(1.0, 1.0, normalised=True), rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_vector_of_zeros_stays_one_with_a_finite_gradient(dtype: torch.dtype) -> None:
    q, k, _ = qkv(dtype)
    q[:, :, 3] = 0.0
    q.requires_grad_()
    q_hat, k_hat = QueryKeyNorm(H, init_gain=4.0)(q, k)
    assert (q_hat.dtype, k_hat.dtype) == (dtype, dtype)
    assert not q_hat[:, :, 3].any()
    q_hat.sum().backward()
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())


def test_the_norm_has_the_gradient_of_its_formula() -> None:
    q, k, _ = (tensor[:1, :, :3].requires_grad_() for tensor in qkv())
    assert torch.autograd.gradcheck(QueryKeyNorm(H, init_gain=4.0).double(), (q, k))


@pytest.mark.parametrize("length", [1, 0, -3, 2.5, True, None])
def test_a_length_without_a_gain_is_refused(length: Any) -> None:
    with pytest.raises(SpecError, match="length=.* at least 2"):
        qk_norm_init_scale(length)

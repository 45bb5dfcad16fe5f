"""Learned temperatures: where they start, what they may see, and their formulas in float64 by definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tempopt.attention.functional.attention import tempered_attention
from tempopt.attention.modules.learned import (
    ConditionalTemperature,
    HeadTemperature,
    LearnedTemperature,
    QueryKeyNorm,
    ScalableSoftmax,
    no_decay_names,
    parameter_groups,
)
from tempopt.errors import SpecError

B, H, N, D, M = 2, 3, 12, 8, 24


def tokens(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(B, N, M, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def qkv(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(B, H, N, D, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def randomise(conditional: ConditionalTemperature) -> ConditionalTemperature:
    """With weights as after some training, so that every token has a temperature of its own."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in conditional.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return conditional


# One temperature per head.


def test_a_head_starts_at_the_plans_temperature_to_the_last_bit() -> None:
    q, k, v = qkv(torch.float32)
    plan = torch.tensor(1 / 0.7)
    factor = plan * HeadTemperature(H)()
    assert factor.shape == (H, 1, 1)
    assert torch.equal(
        tempered_attention(q, k, v, inverse_temperature=factor),
        tempered_attention(q, k, v, inverse_temperature=plan),
    )


def test_a_learned_temperature_has_the_gradient_of_attention() -> None:
    q, k, v = qkv()
    head = HeadTemperature(H, init=[0.5, 1.0, 2.0]).double()

    def attend(log_temperature: Tensor) -> Tensor:
        factor = torch.func.functional_call(head, {"log_temperature": log_temperature}, ())
        return tempered_attention(q, k, v, inverse_temperature=factor, is_causal=True)

    assert torch.autograd.gradcheck(attend, (head.log_temperature,))


# A temperature per token.


@pytest.mark.parametrize("tokens_len", [1, 5, 12, 33])
@pytest.mark.parametrize(("init", "lowest"), [(1.0, 0.1), (1.0, 0.9), (1.0, 1e-6)])
def test_a_token_starts_at_the_plans_temperature_to_the_last_bit(
    init: float, lowest: float, tokens_len: int
) -> None:
    conditional = ConditionalTemperature(M, H, init=init, lowest=lowest)
    inverse = conditional(torch.randn(B, tokens_len, M, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(inverse, torch.ones(B, H, tokens_len, 1))


def test_a_tokens_temperature_follows_its_formula() -> None:
    conditional = randomise(ConditionalTemperature(M, H, init=0.8, lowest=0.2)).double()
    x = tokens(torch.float64)
    hidden, last = conditional.hidden, conditional.last
    before = x.numpy() @ hidden.weight.detach().numpy().T + hidden.bias.detach().numpy()
    gelu = before * 0.5 * (1 + np.vectorize(math.erf)(before / math.sqrt(2)))
    f = gelu @ last.weight.detach().numpy().T + last.bias.detach().numpy()
    tau = 0.2 + np.logaddexp(0.0, f + np.log(np.expm1(0.8 - 0.2)))
    np.testing.assert_allclose(conditional(x).detach().numpy()[..., 0], 1 / tau.swapaxes(1, 2), rtol=1e-12)


def test_no_token_gets_colder_than_the_bound_nor_loses_its_gradient() -> None:
    conditional = ConditionalTemperature(M, H, lowest=0.1)
    for bias in (-1e4, -50.0, 50.0, 1e4):
        nn.init.constant_(conditional.last.bias, bias)
        tau = 1 / conditional(tokens())
        assert bool((tau >= 0.1 * (1 - 1e-6)).all() and tau.isfinite().all())
        conditional.zero_grad()
        tau.sum().backward()
        assert all(bool(param.grad.isfinite().all()) for param in conditional.parameters())  # type: ignore[union-attr]


def test_a_conditional_temperature_has_the_gradient_of_its_formula() -> None:
    conditional = randomise(ConditionalTemperature(4, 2, d_hidden=3)).double()
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert torch.autograd.gradcheck(conditional, (x.requires_grad_(),))


def pooled_temperature(x_BNM: Tensor, w_MH: Tensor) -> Tensor:
    """The tutorial's form: one temperature per head from the mean over tokens, softplus and nothing more."""
    return F.softplus(x_BNM.mean(dim=1) @ w_MH)[:, :, None, None]


def causal_out(inverse: Tensor) -> Tensor:
    return tempered_attention(*qkv(torch.float32), inverse_temperature=inverse, is_causal=True)


def test_a_later_token_moves_no_temperature_before_it_as_the_tutorials_pooling_does() -> None:
    conditional = randomise(ConditionalTemperature(M, H))
    w_MH = torch.randn(M, H, generator=torch.Generator().manual_seed(4))
    changed = tokens()
    changed[:, 9] += 3.0
    ours = [causal_out(conditional(x)) for x in (tokens(), changed)]
    theirs = [causal_out(1 / pooled_temperature(x, w_MH)) for x in (tokens(), changed)]
    assert torch.equal(ours[0][:, :, :9], ours[1][:, :, :9])
    assert not torch.equal(ours[0][:, :, 9], ours[1][:, :, 9])
    assert bool(((theirs[0] - theirs[1])[:, :, 1:9].abs().amax(dim=(0, 1, 3)) > 1e-3).all())


# SSMax.


@pytest.mark.parametrize(
    ("masking", "counts"),
    [
        ({}, np.full((1, 1, N), N)),
        ({"is_causal": True}, np.arange(1, N + 1)[None, None]),
        (
            {"attn_mask": (torch.arange(N) < torch.tensor([5, 9])[:, None])[:, None, None]},
            np.array([5, 9])[:, None, None],
        ),
    ],
    ids=["none", "causal", "padding"],
)
def test_scalable_softmax_is_a_softmax_to_the_base_of_the_visible_keys(
    masking: dict[str, Any], counts: np.ndarray
) -> None:
    """n^(s z) / sum n^(s z), as the paper has it."""
    q, k, v = qkv()
    scales = [0.2, 0.43, 1.0]
    out = tempered_attention(
        q,
        k,
        v,
        inverse_temperature=ScalableSoftmax(H, init_scale=scales).double()(N, N, **masking),
        **masking,
    )
    logits = np.einsum("bhqd,bhkd->bhqk", q.numpy(), k.numpy()) / math.sqrt(D)
    visible = np.ones((B, H, N, N), dtype=bool)
    if "is_causal" in masking:
        visible &= np.tril(np.ones((N, N), dtype=bool))
    if "attn_mask" in masking:
        visible &= masking["attn_mask"].numpy()
    base = np.maximum(np.broadcast_to(counts, (B, H, N)), 2)[..., None].astype(float)
    powers = np.where(visible, base ** (np.array(scales)[:, None, None] * logits), 0.0)
    expected = powers / powers.sum(axis=-1, keepdims=True) @ v.numpy()
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-6, atol=1e-8)


def test_a_query_with_one_key_or_none_has_a_finite_temperature() -> None:
    ssmax = ScalableSoftmax(H, init_scale=0.43)
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    factors = ssmax(3, 2, attn_mask=mask)
    assert factors[..., 0].tolist() == [pytest.approx([0.43 * math.log(2)] * 3)] * H
    assert (ssmax(1, 1) == ssmax(1, 2)).all()


@given(st.lists(st.floats(-5, 5), min_size=2 * H, max_size=2 * H), st.integers(2, 10_000))
def test_scalable_softmax_is_linear_in_ln_n_and_positive_whatever_is_learned(
    learned: list[float], keys: int
) -> None:
    ssmax = ScalableSoftmax(H, init_scale=0.43, bias=True).double()
    assert ssmax.log_level is not None
    with torch.no_grad():
        ssmax.log_scale.copy_(torch.tensor(learned[:H]))
        ssmax.log_level.copy_(torch.tensor(learned[H:]))
    factor = ssmax(1, keys).flatten()
    assert bool((factor > 0).all())
    torch.testing.assert_close(factor, ssmax.scale * math.log(keys) + ssmax.bias)


def test_scalable_softmax_has_the_gradient_of_its_formula() -> None:
    ssmax = ScalableSoftmax(H, init_scale=0.43, bias=True).double()
    names = [name for name, _ in ssmax.named_parameters()]

    def factor(*parameters: Tensor) -> Tensor:
        call: Callable[..., Tensor] = torch.func.functional_call
        return call(ssmax, dict(zip(names, parameters, strict=True)), (5, 5), {"is_causal": True})

    assert torch.autograd.gradcheck(factor, tuple(ssmax.parameters()))


# What holds for all.


class LearnedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(M, M)
        self.head = HeadTemperature(H)
        self.token = ConditionalTemperature(M, H)
        self.length = ScalableSoftmax(H, init_scale=0.43, bias=True)
        self.norm = QueryKeyNorm(H, init_gain=4.0)


def test_weight_decay_is_kept_off_what_is_a_temperature() -> None:
    model = nn.Sequential(LearnedBlock())
    names = no_decay_names(model)
    assert names == {
        "0.head.log_temperature",
        "0.token.hidden.bias",
        "0.token.last.bias",
        "0.length.log_scale",
        "0.length.log_level",
        "0.norm.log_gain",
    }
    base_group, learned_group = parameter_groups(model, weight_decay=0.05, temperature_lr=1e-2)
    by_name = dict(model.named_parameters())
    assert {id(param) for param in learned_group["params"]} == {id(by_name[name]) for name in names}
    assert len(base_group["params"]) + len(learned_group["params"]) == len(by_name)
    assert (base_group["weight_decay"], learned_group["weight_decay"], learned_group["lr"]) == (
        0.05,
        0.0,
        1e-2,
    )
    optimizer = torch.optim.AdamW([base_group, learned_group], lr=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.clone() for name, parameter in by_name.items()}
    optimizer.step()
    assert all(torch.equal(by_name[name], before[name]) for name in names)
    assert not torch.equal(by_name["0.project.weight"], before["0.project.weight"])


def inverse_of(module: LearnedTemperature) -> Tensor:
    if isinstance(module, ConditionalTemperature):
        return module(tokens(next(module.parameters()).dtype))  # type: ignore[no-any-return]
    return module(N, N) if isinstance(module, ScalableSoftmax) else module()  # type: ignore[no-any-return]


MODULES: list[Callable[[], LearnedTemperature]] = [
    lambda: HeadTemperature(H),
    lambda: ConditionalTemperature(M, H),
    lambda: ScalableSoftmax(H, init_scale=0.43),
    lambda: ScalableSoftmax(H, init_scale=0.43, bias=True),
]


@pytest.mark.parametrize("make", MODULES)
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_a_temperature_is_not_rounded_to_half_precision(
    make: Callable[[], LearnedTemperature], dtype: torch.dtype, expected: torch.dtype
) -> None:
    inverse = inverse_of(make().to(dtype))
    assert inverse.dtype == expected
    torch.broadcast_shapes(inverse.shape, (B, H, N, 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HeadTemperature(0), r"num_heads=0 is out of range.*at least 1"),
        (lambda: HeadTemperature(H, init=0.0), r"init=0\.0 is out of range.*1e-06 to 1e\+06"),
        (lambda: HeadTemperature(H, init=[1.0, 2.0]), "init has 2 numbers for 3 heads"),
        (lambda: HeadTemperature(H, init=True), "init=True"),
        (lambda: ConditionalTemperature(M, H, lowest=1.0), r"lowest=1\.0 is not below init=1\.0"),
        (lambda: ConditionalTemperature(M, H, lowest=0.0), r"lowest=0\.0 is out of range"),
        (lambda: ConditionalTemperature(M, H, d_hidden=0), "d_hidden=0"),
        (lambda: ScalableSoftmax(H, init_scale=-0.43), r"init_scale=-0\.43"),
        (lambda: QueryKeyNorm(H, init_gain=math.nan), "init_gain=nan"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()

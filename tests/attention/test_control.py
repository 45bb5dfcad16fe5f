"""Feedback on entropy: that it finds its goal, from both sides, on attention whose entropy is known."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tempopt.attention.functional.attention import temper_query
from tempopt.attention.functional.entropy import attention_entropy, normalised_entropy
from tempopt.attention.functional.logits import visible_keys
from tempopt.attention.modules.entropy_controller import (
    EntropyController,
    EntropyTarget,
    curriculum,
    entropy_slope,
)
from tempopt.errors import SpecError, UsageError
from tempopt.temperature import Constant

LAYERS, ROWS, KEYS = 3, 16, 64
# Wide logits in the first layer, narrow ones in the last.
SPREADS = (4.0, 2.0, 1.0)


def still(level: float) -> EntropyTarget:
    return EntropyTarget(level=Constant(temperature_init=level))


class ControlledAttention:
    """Logits that stand still, whose entropy and slope at a temperature are known by definition."""

    def __init__(self, noise: float = 0.0) -> None:
        generator = np.random.default_rng(0)
        self.logits = [spread * generator.standard_normal((ROWS, KEYS)) for spread in SPREADS]
        self.noise = noise
        self.generator = np.random.default_rng(1)

    def entropies(self, temperatures: Sequence[float]) -> list[float]:
        shares = []
        for logits, tau in zip(self.logits, temperatures, strict=True):
            weights = scipy.special.softmax(logits / tau, axis=-1)
            shares.append(float(scipy.special.entr(weights).sum(axis=-1).mean() / math.log(KEYS)))
        return [
            float(np.clip(share + self.noise * self.generator.standard_normal(), 0, 1)) for share in shares
        ]

    def slopes(self, temperatures: Sequence[float]) -> list[float]:
        slopes = []
        for logits, tau in zip(self.logits, temperatures, strict=True):
            weights = scipy.special.softmax(logits / tau, axis=-1)
            mean = (weights * logits / tau).sum(axis=-1, keepdims=True)
            variance = (weights * (logits / tau - mean) ** 2).sum(axis=-1)
            slopes.append(float(variance.mean() / math.log(KEYS)))
        return slopes


def closed_loop(
    controller: EntropyController,
    attention: ControlledAttention,
    *,
    calls: int,
    progress: Callable[[int], float] = lambda call: 1.0,
) -> list[list[float]]:
    """The entropies at each call."""
    path = []
    for call in range(calls):
        entropies = attention.entropies(controller.temperatures)
        slopes = attention.slopes(controller.temperatures) if controller.newton else None
        controller.update(entropies, progress=progress(call), slopes=slopes)
        path.append(entropies)
    return path


# The slope.


B, H, Q, K, D = 2, 2, 6, 6, 4
BIAS = torch.randn(Q, K, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
MASK = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(1)) > 0.4
MASK[0, 0, 2] = False
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": MASK},
    "boolean and causal": {"attn_mask": MASK, "is_causal": True},
    "bias": {"attn_mask": BIAS},
    "bias with minus infinity": {"attn_mask": BIAS.masked_fill(~MASK, -math.inf)},
}


def share(q: Tensor, k: Tensor, tau: float, valid: Tensor, masking: dict[str, Any]) -> float:
    """Mean of H / ln n over the valid rows that see more than one key, row by row."""
    logits = np.einsum("bhqd,bhkd->bhqk", q.numpy(), k.numpy()) / math.sqrt(D) / tau
    visible = np.ones(logits.shape, dtype=bool)
    mask = masking.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool:
        visible &= mask.numpy()
    elif mask is not None:
        logits, visible = logits + mask.numpy(), visible & np.isfinite(mask.numpy())
    if "is_causal" in masking:
        visible &= np.tril(np.ones((Q, K), dtype=bool))
    shares = []
    for b, h, i in np.ndindex(B, H, Q):
        row = logits[b, h, i][visible[b, h, i]]
        if len(row) > 1 and valid[b, i]:
            shares.append(scipy.special.entr(scipy.special.softmax(row)).sum() / math.log(len(row)))
    return float(np.mean(shares))


@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("padded", [False, True])
def test_the_slope_is_what_entropy_gains_by_heating(padded: bool, masking: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (2 * torch.randn(B, H, n, D, generator=generator, dtype=torch.float64) for n in (Q, K))
    valid = torch.ones(B, Q, dtype=torch.bool)
    if padded:
        valid[1, 4:] = False
    step = 1e-5
    colder, hotter = (share(q, k, math.exp(d), valid, masking) for d in (-step, step))
    slope = entropy_slope(q, k, valid_BQ=valid if padded else None, **masking)
    assert slope.item() == pytest.approx((hotter - colder) / (2 * step), rel=1e-6)


def test_the_slope_of_a_tempered_query_is_that_at_its_temperature() -> None:
    attention = ControlledAttention()
    for layer, tau in itertools.product(range(LAYERS), (0.5, 2.0)):
        q = torch.from_numpy(attention.logits[layer] / tau)[None, None]
        slope = entropy_slope(q, torch.eye(KEYS, dtype=torch.float64)[None, None], scale=1.0)
        assert slope.item() == pytest.approx(attention.slopes([tau] * LAYERS)[layer], rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_slope_is_accumulated_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = ((5 * torch.randn(B, H, Q, D, generator=generator)).to(dtype) for _ in range(2))
    slope = entropy_slope(q, k, is_causal=True)
    assert slope.dtype == torch.float32
    assert slope.item() == pytest.approx(
        entropy_slope(q.double(), k.double(), is_causal=True).item(), rel=1e-4
    )


def test_keys_may_serve_several_heads() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(B, 4, Q, D, generator=generator) for _ in range(2))
    shared = k[:, :2].repeat_interleave(2, dim=1)
    assert entropy_slope(q, k[:, :2]).item() == entropy_slope(q, shared).item()


def test_a_layer_without_a_choice_has_no_slope() -> None:
    q = torch.ones(1, 1, Q, D)
    assert entropy_slope(q, q, attn_mask=torch.eye(Q, dtype=torch.bool)).item() == 0.0


# The loop.


@pytest.mark.parametrize("start", [0.1, 5.0])
@pytest.mark.parametrize("level", [0.3, 0.9])
def test_the_loop_finds_its_target_from_both_sides_without_going_past_it(level: float, start: float) -> None:
    controller = EntropyController(LAYERS, target=still(level), initial=start, lowest=1e-2, highest=1e2)
    path = closed_loop(controller, ControlledAttention(), calls=3000)
    for layer in range(LAYERS):
        errors = [entropies[layer] - level for entropies in path]
        side = math.copysign(1.0, errors[0])
        assert abs(errors[-1]) < 1e-2
        assert max(-side * error for error in errors) < 1e-3


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_newtons_step_takes_every_layer_there_at_once_whatever_its_slope(start: float) -> None:
    target = still(0.6)
    options: dict[str, Any] = {"target": target, "initial": start, "lowest": 1e-2, "highest": 1e2}
    newton = EntropyController(LAYERS, newton=True, rate=1.0, decay=0.0, max_step=1.0, **options)
    path = closed_loop(newton, ControlledAttention(), calls=15)
    assert path[-1] == pytest.approx([0.6] * LAYERS, abs=1e-9)
    slow = closed_loop(EntropyController(LAYERS, **options), ControlledAttention(), calls=15)
    assert min(abs(entropy - 0.6) for entropy in slow[-1]) > 0.05


def test_newtons_step_is_bounded_where_the_slope_vanishes() -> None:
    for slope in (0.0, 1e-300, -1.0):
        controller = EntropyController(2, target=still(0.5), newton=True, rate=1.0, max_step=0.3)
        moved = controller.update([0.0, 1.0], progress=0.0, slopes=[slope, slope])
        assert moved == pytest.approx((math.exp(0.3), math.exp(-0.3)))
    controller = EntropyController(1, target=still(0.5), newton=True)
    assert controller.update([0.5], progress=0.0, slopes=[0.0]) == (1.0,)


def test_the_loop_closes_over_attention_as_it_is_computed() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (3 * torch.randn(2, 2, 24, 16, generator=generator) for _ in range(2))
    num_visible = visible_keys(24, 24, is_causal=True)
    controller = EntropyController(1, target=still(0.6), newton=True, rate=1.0, decay=0.0, max_step=1.0)
    for _ in range(15):
        tempered = temper_query(q, 24, inverse_temperature=1 / controller.temperatures[0])
        shares, counts = normalised_entropy(attention_entropy(tempered, k, is_causal=True), num_visible)
        measured = shares[counts].mean().reshape(1)
        slope = entropy_slope(tempered, k, is_causal=True).reshape(1)
        controller.update(measured, progress=0.0, slopes=slope)
    assert measured.item() == pytest.approx(0.6, abs=1e-5)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=30),
    st.floats(1e-3, 1.0),
    st.floats(1.0, 1e3),
    st.floats(1e-3, 1e2),
)
def test_a_temperature_stays_between_its_bounds(
    entropies: list[float], lowest: float, highest: float, rate: float
) -> None:
    controller = EntropyController(1, target=still(0.5), lowest=lowest, highest=highest, rate=rate)
    for entropy in entropies:
        (tau,) = controller.update([entropy], progress=0.5)
        assert lowest <= tau <= highest


def test_one_step_is_the_formula() -> None:
    controller = EntropyController(2, target=still(0.5), initial=[1.0, 2.0], rate=0.1, decay=0.75)
    first = controller.update([0.2, 0.9], progress=0.0)
    assert first == pytest.approx((math.exp(0.1 * 0.3), 2 * math.exp(-0.1 * 0.4)), rel=1e-14)
    second = controller.update(torch.tensor([0.6, 0.1], dtype=torch.float64), progress=0.0)
    averages = [0.75 * 0.2 + 0.25 * 0.6, 0.75 * 0.9 + 0.25 * 0.1]
    expected = [tau * math.exp(0.1 * (0.5 - average)) for tau, average in zip(first, averages, strict=True)]
    assert second == pytest.approx(expected, rel=1e-14)


def test_only_every_so_many_calls_are_heeded_and_need_to_be_measured() -> None:
    controller = EntropyController(1, target=still(0.5), every=3)
    dues, temperatures = [], []
    for _ in range(7):
        dues.append(controller.due)
        temperatures.append(controller.update([0.1] if controller.due else None, progress=0.0)[0])
    assert dues == [True, False, False, True, False, False, True]
    assert temperatures[0] == temperatures[2] < temperatures[3] == temperatures[5] < temperatures[6]


@pytest.mark.parametrize("newton", [False, True])
@pytest.mark.parametrize("at", [0, 1, 5, 7])
def test_a_loop_that_was_interrupted_goes_on_to_the_last_bit(at: int, newton: bool) -> None:
    def make() -> EntropyController:
        return EntropyController(LAYERS, target=curriculum(), every=2, newton=newton, rate=0.05)

    def go(controller: EntropyController, attention: ControlledAttention, calls: range) -> None:
        closed_loop(controller, attention, calls=len(calls), progress=lambda call: calls[call] / 20)

    reference_controller = make()
    go(reference_controller, ControlledAttention(), range(20))
    interrupted_controller, resumed_controller = make(), make()
    go(interrupted_controller, ControlledAttention(), range(at))
    file = io.BytesIO()
    torch.save(interrupted_controller.state_dict(), file)
    file.seek(0)
    resumed_controller.load_state_dict(torch.load(file, weights_only=True))
    go(resumed_controller, ControlledAttention(), range(at, 20))
    assert resumed_controller.state_dict() == reference_controller.state_dict()


def test_all_processes_have_the_temperatures_of_their_mean() -> None:
    shards = [[0.2, 0.8], [0.4, 0.5]]
    mean = [0.3, 0.65]
    joint_controller = EntropyController(2, target=still(0.5))
    controllers = [EntropyController(2, target=still(0.5), reduce=lambda values: mean) for _ in shards]
    for _ in range(3):
        expected = joint_controller.update(mean, progress=0.0)
        assert [
            controller.update(shard, progress=0.0)
            for controller, shard in zip(controllers, shards, strict=True)
        ] == [expected] * 2


# Refusals.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EntropyController(0, target=curriculum()), "num_layers=0"),
        (lambda: EntropyController(2, target=curriculum(), every=0), "every=0"),
        (lambda: EntropyController(2, target=curriculum(), decay=1.0), r"decay=1\.0 is out of range"),
        (lambda: EntropyController(2, target=curriculum(), rate=-0.1), r"rate=-0\.1"),
        (lambda: EntropyController(2, target=curriculum(), max_step=0.0), r"max_step=0\.0"),
        (lambda: EntropyController(2, target=curriculum(), initial=[1.0]), "one for each of 2 layers"),
        (lambda: EntropyController(2, target=curriculum(), initial=0.05), r"initial=0\.05"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


@pytest.mark.parametrize(
    ("entropies", "slopes", "message"),
    [
        (None, None, "entropies are missing"),
        ([0.5], None, "Given 1 entropies for 2 layers"),
        ([0.5, 3.2], None, r"3\.2.*share of ln n"),
        ([math.nan, 0.5], None, "nan"),
        ([0.5, 0.5], [1.0, 1.0], "slopes are given"),
    ],
)
def test_entropies_that_are_none_are_refused_and_change_nothing(
    entropies: Any, slopes: Any, message: str
) -> None:
    controller = EntropyController(2, target=still(0.6))
    controller.update([0.3, 0.4], progress=0.0)
    before = controller.state_dict()
    with pytest.raises(UsageError, match=message):
        controller.update(entropies, progress=0.0, slopes=slopes)
    assert controller.state_dict() == before


def test_a_share_that_half_precision_puts_a_little_outside_is_taken() -> None:
    controller = EntropyController(2, target=still(0.6))
    controller.update([-0.005, 1.005], progress=0.0)


def test_the_state_of_another_controller_is_refused() -> None:
    one_layer_controller, two_layer_controller = (EntropyController(n, target=still(0.6)) for n in (1, 2))
    with pytest.raises(UsageError, match="of 1 layers"):
        two_layer_controller.load_state_dict(one_layer_controller.state_dict())
    newton = EntropyController(2, target=still(0.6), newton=True)
    newton.update([0.5, 0.5], progress=0.0, slopes=[1.0, 1.0])
    with pytest.raises(UsageError, match="4 averages"):
        two_layer_controller.load_state_dict(newton.state_dict())

"""Length scaling: the logarithm of the number of keys, and what happens where it would vanish."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.temperature.length import (
    LENGTH_SCALINGS,
    ClippedLogNScaling,
    LengthScaling,
    Llama4Scaling,
    LogNPowerScaling,
    LogNScaling,
    NoLengthScaling,
    YarnScaling,
)

numbers_of_keys = st.floats(0, 1e9)
bases = st.floats(1.001, 1e6)
PARAMETERS: dict[str, st.SearchStrategy[float]] = {
    "n0": bases,
    "length_power": st.floats(0, 4),
    "length_slope": st.floats(0, 1e6),
}


@st.composite
def scalings(draw: st.DrawFn) -> LengthScaling:
    kind = draw(st.sampled_from(list(LENGTH_SCALINGS.values())))
    return kind(**{name: draw(PARAMETERS[name]) for name in inspect.signature(kind).parameters})


def test_the_registry_names_each_scaling_once() -> None:
    assert list(LENGTH_SCALINGS) == ["none", "log_n", "clipped_log_n", "log_n_power", "yarn", "llama4"]
    assert all(kind.name == name for name, kind in LENGTH_SCALINGS.items())


@given(numbers_of_keys)
def test_none_changes_nothing(num_keys: float) -> None:
    assert NoLengthScaling().factor(num_keys) == 1.0


@given(bases, st.floats(2, 1e9))
def test_log_n_is_the_logarithm_to_its_base(n0: float, num_keys: float) -> None:
    assert LogNScaling(n0=n0).factor(num_keys) == pytest.approx(math.log(num_keys, n0), rel=1e-9)


def test_log_n_changes_nothing_at_its_base() -> None:
    assert LogNScaling(n0=512.0).factor(512) == 1.0
    assert LogNScaling(n0=16.0).factor(256) == pytest.approx(2.0)


@given(scalings(), numbers_of_keys)
def test_the_factor_is_positive_and_finite_for_any_number_of_keys(
    scaling: LengthScaling, num_keys: float
) -> None:
    assert 0.0 < scaling.factor(num_keys) < math.inf


@given(scalings(), numbers_of_keys, numbers_of_keys)
def test_more_keys_never_soften_attention(
    scaling: LengthScaling, num_keys: float, other_num_keys: float
) -> None:
    assert scaling.factor(min(num_keys, other_num_keys)) <= scaling.factor(max(num_keys, other_num_keys))


@given(scalings(), st.lists(st.floats(2, 1e9), min_size=1, max_size=5))
def test_the_formula_is_the_same_over_an_array_and_with_its_constant_held(
    scaling: LengthScaling, num_keys: list[float]
) -> None:
    expected = [scaling.factor(n) for n in num_keys]
    for constant in (None, np.array(scaling.constant)):
        factors = scaling.elementwise_factor(np.array(num_keys), np.log, constant) * np.ones(len(num_keys))
        assert factors == pytest.approx(expected, rel=1e-12)


@given(bases, numbers_of_keys)
def test_a_clipped_logarithm_never_softens_and_else_is_the_logarithm(n0: float, num_keys: float) -> None:
    factor = ClippedLogNScaling(n0=n0).factor(num_keys)
    assert factor == max(1.0, LogNScaling(n0=n0).factor(num_keys))
    assert factor == 1.0 or num_keys > n0 or n0 < 2


@given(bases, numbers_of_keys)
def test_a_power_of_the_logarithm_has_none_and_log_n_at_its_ends(n0: float, num_keys: float) -> None:
    assert LogNPowerScaling(n0=n0, length_power=0.0).factor(num_keys) == 1.0
    logarithm = LogNScaling(n0=n0).factor(num_keys)
    assert LogNPowerScaling(n0=n0, length_power=1.0).factor(num_keys) == logarithm
    root = LogNPowerScaling(n0=n0, length_power=0.5).factor(num_keys)
    assert root * root == pytest.approx(logarithm, rel=1e-12)


def test_the_root_of_the_logarithm_keeps_the_entropy_of_random_keys_a_share_of_ln_n() -> None:
    """With logits of unit variance at n0; the logarithm itself, as of a sharp head, makes them sharper."""

    def share(scaling: LengthScaling, num_keys: int) -> float:
        logits = np.random.default_rng(0).standard_normal((200, num_keys)) * scaling.factor(num_keys)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return float(-(weights * np.log(weights)).sum(axis=1).mean()) / math.log(num_keys)

    root_scaling, log_scaling = LogNPowerScaling(n0=64.0, length_power=0.5), LogNScaling(n0=64.0)
    assert share(root_scaling, 4096) == pytest.approx(share(root_scaling, 64), abs=0.01)
    assert share(log_scaling, 4096) < share(log_scaling, 64) - 0.03


def test_yarn_squares_what_its_source_multiplies_cosine_and_sine_with() -> None:
    """A logit is a product of two rotated vectors; the factor without the square is a known mistake."""
    n0, num_keys = 512.0, 16 * 512
    mscale = 0.1 * math.log(16) + 1.0
    rng = np.random.default_rng(0)
    q, k, angle = rng.standard_normal(2), rng.standard_normal(2), rng.standard_normal()
    turned = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    by_source = float((mscale * turned @ q) @ (mscale * k))
    factor = YarnScaling(n0=n0, length_slope=0.1).factor(num_keys)
    assert factor * float((turned @ q) @ k) == pytest.approx(by_source)
    assert factor == pytest.approx(1.6313, abs=1e-4) != mscale


@pytest.mark.parametrize("num_keys", [1, 2, 100, 511, 512])
def test_yarn_changes_nothing_up_to_its_base(num_keys: int) -> None:
    assert YarnScaling(n0=512.0, length_slope=0.1).factor(num_keys) == 1.0


@pytest.mark.parametrize("position", [0, 1, 8190, 8191, 8192, 16382, 16383, 100_000])
def test_llama4_is_what_its_source_multiplies_the_query_at_a_position_with(position: int) -> None:
    by_source = np.log(np.floor((position + 1.0) / 8192) + 1.0) * 0.1 + 1.0
    assert Llama4Scaling(n0=8192.0, length_slope=0.1).factor(position + 1) == pytest.approx(by_source)


@pytest.mark.parametrize("n0", [1.0, 0.0, -3.0, math.nan, math.inf, True, "16"])
def test_an_impossible_base_is_refused(n0: float) -> None:
    with pytest.raises(SpecError, match=r"n0=.*above 1"):
        LogNScaling(n0=n0)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (
            LogNPowerScaling,
            {"length_power": -0.5},
            "length_power=-0.5 is out of range. Give a number from 0 to 4",
        ),
        (LogNPowerScaling, {"length_power": math.nan}, "length_power=nan"),
        (YarnScaling, {"length_slope": -0.1}, "length_slope=-0.1 is out of range. Give a number from 0"),
        (Llama4Scaling, {"length_slope": math.inf}, "length_slope=inf"),
    ],
)
def test_an_impossible_growth_is_refused(kind: Any, wrong: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        kind(n0=16.0, **wrong)

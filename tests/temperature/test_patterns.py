"""Patterns over layers and heads: normalisation, the ratio that was asked for, and the shapes by hand."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.temperature import (
    HEAD_PATTERNS,
    LAYER_PATTERNS,
    TemperatureParameters,
    active_groups,
    drop_unused_params,
    remove_part,
    same_training,
)
from tempopt.temperature.factors import Pattern
from tempopt.temperature.heads import AlternatingHeads, ExponentialHeads, LinearHeads, UniformHeads
from tempopt.temperature.layers import (
    CosineLayers,
    ExponentialLayers,
    InverseLayers,
    LinearLayers,
    ULayers,
    UniformLayers,
)

KINDS: list[Any] = [*LAYER_PATTERNS.values(), *HEAD_PATTERNS.values()]
# those whose last factor is the ratio of the first
TO_THE_LAST = [LinearLayers, ExponentialLayers, CosineLayers, LinearHeads, ExponentialHeads]
ratios = st.floats(1e-6, 1e6)
counts = st.integers(1, 200)


def make(kind: Any, ratio: float) -> Pattern:
    """Return a pattern with a ratio, if it has one."""
    pattern: Pattern = kind(**dict.fromkeys(inspect.signature(kind).parameters, ratio))
    return pattern


def geometric(shape: np.ndarray) -> list[float]:
    return list(shape / np.prod(shape) ** (1 / len(shape)))


def test_the_registries_name_each_pattern_once() -> None:
    for registry in (LAYER_PATTERNS, HEAD_PATTERNS):
        assert all(kind.name == name for name, kind in registry.items())


@given(st.sampled_from(KINDS), ratios, counts)
def test_factors_are_positive_with_geometric_mean_one(kind: Any, ratio: float, count: int) -> None:
    factors = make(kind, ratio).factors(count)
    assert len(factors) == count
    assert all(0.0 < factor < math.inf for factor in factors)
    assert math.fsum(map(math.log, factors)) / count == pytest.approx(0.0, abs=1e-12)
    assert make(kind, ratio).factors(1) == (1.0,)


@given(st.sampled_from(TO_THE_LAST), ratios, st.integers(2, 200))
def test_a_line_a_curve_and_a_power_have_the_ratio_from_first_to_last(
    kind: Any, ratio: float, count: int
) -> None:
    factors = make(kind, ratio).factors(count)
    assert factors[-1] / factors[0] == pytest.approx(ratio, rel=1e-9)
    assert max(factors) / min(factors) == pytest.approx(max(ratio, 1.0 / ratio), rel=1e-9)


@given(ratios, st.integers(1, 100))
def test_u_has_the_ratio_from_its_ends_to_its_middle(ratio: float, half: int) -> None:
    factors = ULayers(layer_ratio=ratio).factors(2 * half + 1)
    assert factors[0] / factors[half] == pytest.approx(ratio, rel=1e-9)
    assert factors == pytest.approx(factors[::-1], rel=1e-9)


@given(st.sampled_from([kind for kind in KINDS if kind is not InverseLayers]), counts)
def test_a_ratio_of_one_is_exactly_uniform(kind: Any, count: int) -> None:
    assert make(kind, 1.0).factors(count) == UniformLayers().factors(count) == (1.0,) * count


def test_the_shapes_are_those_written_by_hand() -> None:
    r = np.arange(9) / 8
    alpha = (1 - 3) / (1 + 3)
    by_turns = np.array([1.0, 3.0] * 4 + [1.0])
    shapes: dict[Any, np.ndarray] = {
        LinearLayers: 1 + 2 * r,
        LinearHeads: 1 + 2 * r,
        ExponentialLayers: 3.0**r,
        ExponentialHeads: 3.0**r,
        ULayers: 1 + 2 * np.abs(2 * r - 1),
        CosineLayers: 1 + alpha * np.cos(np.pi * r),
        AlternatingHeads: by_turns,
    }
    for kind, shape in shapes.items():
        assert make(kind, 3.0).factors(9) == pytest.approx(geometric(shape)), kind


def test_inverse_layer_divides_the_logits_by_the_number_of_the_layer() -> None:
    factors = np.array(InverseLayers().factors(12))
    # GPT-2 with scale_attn_by_inverse_layer_idx divides them by layer_idx + 1
    assert factors / factors[0] == pytest.approx(np.arange(12) + 1)
    assert factors == pytest.approx(geometric(np.arange(12) + 1.0))


@pytest.mark.parametrize("kind", [LinearHeads, ExponentialHeads, AlternatingHeads])
def test_heads_of_a_ratio_and_of_its_inverse_are_the_same_in_another_order(kind: Any) -> None:
    factors, inverse_factors = (make(kind, ratio).factors(8) for ratio in (5.0, 0.2))
    assert sorted(factors) == pytest.approx(sorted(inverse_factors))
    assert factors != pytest.approx(inverse_factors)


def test_a_head_pattern_is_a_part_of_its_own() -> None:
    parameters = {"temperature_init": 0.5, "head_pattern": "exp", "head_ratio": 4.0}
    assert active_groups(parameters) == ("level", "heads")
    assert drop_unused_params(remove_part(parameters, "heads")) == {
        "temperature_init": 0.5,
        "head_pattern": "uniform",
    }
    flat = {"temperature_init": 0.5, "head_pattern": "alternate", "head_ratio": 1.0}
    assert same_training(flat, {"temperature_init": 0.5})
    assert same_training({**flat, "head_pattern": "uniform", "head_ratio": 7.0}, flat)
    assert not same_training(parameters, flat)


@pytest.mark.parametrize("ratio", [0.0, -2.0, math.nan, math.inf, True, "2"])
@pytest.mark.parametrize("kind", [ULayers, ExponentialHeads])
def test_an_impossible_ratio_is_refused(kind: Any, ratio: float) -> None:
    with pytest.raises(SpecError, match="_ratio="):
        make(kind, ratio)


def test_linear_attention_has_no_temperature_that_heads_could_differ_in() -> None:
    with pytest.raises(SpecError, match="head_pattern='exp' has no effect"):
        TemperatureParameters(normaliser="linear", head_pattern="exp", head_ratio=2.0)
    flat = TemperatureParameters(normaliser="linear", head_pattern="exp", head_ratio=1.0)
    assert flat.plan(2).heads == UniformHeads()

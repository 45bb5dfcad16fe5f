"""Layer patterns: normalisation, the ratio that was asked for, and the shapes by hand."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.temperature.layers import (
    LAYER_PATTERNS,
    CosineLayers,
    ExponentialLayers,
    InverseLayers,
    LayerPattern,
    LinearLayers,
    ULayers,
    UniformLayers,
)

ratios = st.floats(1e-6, 1e6)
depths = st.integers(1, 200)


@st.composite
def patterns(draw: st.DrawFn) -> LayerPattern:
    kind = draw(st.sampled_from(list(LAYER_PATTERNS.values())))
    return kind(**{name: draw(ratios) for name in inspect.signature(kind).parameters})


def geometric(shape: np.ndarray) -> list[float]:
    return list(shape / np.prod(shape) ** (1 / len(shape)))


def test_the_registry_names_each_pattern_once() -> None:
    assert list(LAYER_PATTERNS) == ["uniform", "linear", "u", "exp", "cosine", "inverse_layer"]
    assert all(kind.name == name for name, kind in LAYER_PATTERNS.items())


@given(patterns(), depths)
def test_factors_are_positive_with_geometric_mean_one(pattern: LayerPattern, num_layers: int) -> None:
    factors = pattern.factors(num_layers)
    assert len(factors) == num_layers
    assert all(0.0 < factor < math.inf for factor in factors)
    assert math.fsum(math.log(factor) for factor in factors) / num_layers == pytest.approx(0.0, abs=1e-12)


@given(patterns())
def test_a_single_layer_is_left_alone(pattern: LayerPattern) -> None:
    assert pattern.factors(1) == (1.0,)


@given(ratios, st.integers(2, 200))
def test_a_line_a_curve_and_a_power_have_the_ratio_from_first_to_last(ratio: float, num_layers: int) -> None:
    for kind in (LinearLayers, ExponentialLayers, CosineLayers):
        factors = kind(layer_ratio=ratio).factors(num_layers)
        assert factors[-1] / factors[0] == pytest.approx(ratio, rel=1e-9)


@given(ratios, st.integers(1, 100).map(lambda half: 2 * half + 1))
def test_u_has_the_ratio_from_its_ends_to_its_middle(ratio: float, num_layers: int) -> None:
    factors = ULayers(layer_ratio=ratio).factors(num_layers)
    assert factors[0] / factors[num_layers // 2] == pytest.approx(ratio, rel=1e-9)
    assert factors == pytest.approx(factors[::-1], rel=1e-9)


@given(depths)
def test_a_ratio_of_one_is_exactly_uniform(num_layers: int) -> None:
    uniform = UniformLayers().factors(num_layers)
    assert uniform == (1.0,) * num_layers
    for kind in (LinearLayers, ULayers, ExponentialLayers, CosineLayers):
        assert kind(layer_ratio=1.0).factors(num_layers) == uniform


def test_the_shapes_are_those_written_by_hand() -> None:
    r = np.arange(9) / 8
    assert LinearLayers(layer_ratio=3.0).factors(9) == pytest.approx(geometric(1 + 2 * r))
    assert ExponentialLayers(layer_ratio=3.0).factors(9) == pytest.approx(geometric(3.0**r))
    assert ULayers(layer_ratio=3.0).factors(9) == pytest.approx(geometric(1 + 2 * np.abs(2 * r - 1)))
    alpha = (1 - 3) / (1 + 3)
    assert CosineLayers(layer_ratio=3.0).factors(9) == pytest.approx(geometric(1 + alpha * np.cos(np.pi * r)))


def test_inverse_layer_divides_the_logits_by_the_number_of_the_layer() -> None:
    factors = np.array(InverseLayers().factors(12))
    # GPT-2 with scale_attn_by_inverse_layer_idx divides them by layer_idx + 1
    assert factors / factors[0] == pytest.approx(np.arange(12) + 1)
    assert factors == pytest.approx(geometric(np.arange(12) + 1.0))


def test_u_reaches_its_low_where_the_form_of_the_tutorials_never_does() -> None:
    """That form, for nine layers between 0.5 and 1, is a hat from 0.75 to 1 and back."""
    low, high, num_layers = 0.5, 1.0, 9
    middle = num_layers // 2
    tutorial = [high - (high - low) * abs(layer - middle) / (2 * middle) for layer in range(num_layers)]
    assert min(tutorial) == 0.75

    factors = np.array(ULayers(layer_ratio=high / low).factors(num_layers))
    ours = factors / factors.max()
    assert ours[middle] == pytest.approx(low)
    assert ours[0] == ours[-1] == 1.0


def test_u_over_two_layers_is_flat() -> None:
    assert ULayers(layer_ratio=5.0).factors(2) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("ratio", [0.0, -2.0, math.nan, math.inf, True, "2"])
def test_an_impossible_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(SpecError, match="layer_ratio="):
        ULayers(layer_ratio=ratio)

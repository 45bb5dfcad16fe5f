"""Head patterns: normalisation, the ratio that was asked for, and the shapes by hand."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.temperature import (
    HEAD_PATTERNS,
    AlternatingHeads,
    ExponentialHeads,
    HeadPattern,
    LinearHeads,
    TemperatureParameters,
    UniformHeads,
    active_groups,
    drop_unused_params,
    remove_part,
    same_training,
)

ratios = st.floats(1e-6, 1e6)
counts = st.integers(1, 128)


@st.composite
def patterns(draw: st.DrawFn) -> HeadPattern:
    kind = draw(st.sampled_from(list(HEAD_PATTERNS.values())))
    return kind(**{name: draw(ratios) for name in inspect.signature(kind).parameters})


def geometric(shape: np.ndarray) -> list[float]:
    return list(shape / np.prod(shape) ** (1 / len(shape)))


def test_the_registry_names_each_pattern_once() -> None:
    assert list(HEAD_PATTERNS) == ["uniform", "linear", "exp", "alternate"]
    assert all(kind.name == name for name, kind in HEAD_PATTERNS.items())


@given(patterns(), counts)
def test_factors_are_positive_with_geometric_mean_one(pattern: HeadPattern, num_heads: int) -> None:
    factors = pattern.factors(num_heads)
    assert len(factors) == num_heads
    assert all(0.0 < factor < math.inf for factor in factors)
    assert math.fsum(map(math.log, factors)) / num_heads == pytest.approx(0.0, abs=1e-12)


@given(patterns())
def test_a_single_head_is_left_alone(pattern: HeadPattern) -> None:
    assert pattern.factors(1) == (1.0,)


@given(ratios, st.integers(2, 128))
def test_the_spread_between_sharpest_and_softest_is_the_ratio(ratio: float, num_heads: int) -> None:
    for kind in (LinearHeads, ExponentialHeads, AlternatingHeads):
        factors = kind(head_ratio=ratio).factors(num_heads)
        last = factors[-1] if kind is not AlternatingHeads else factors[1]
        assert last / factors[0] == pytest.approx(ratio, rel=1e-9)
        assert max(factors) / min(factors) == pytest.approx(max(ratio, 1.0 / ratio), rel=1e-9)


@given(counts)
def test_a_ratio_of_one_is_exactly_uniform(num_heads: int) -> None:
    uniform = UniformHeads().factors(num_heads)
    assert uniform == (1.0,) * num_heads
    for kind in (LinearHeads, ExponentialHeads, AlternatingHeads):
        assert kind(head_ratio=1.0).factors(num_heads) == uniform


def test_the_shapes_are_those_written_by_hand() -> None:
    r = np.arange(6) / 5
    assert LinearHeads(head_ratio=3.0).factors(6) == pytest.approx(geometric(1 + 2 * r))
    assert ExponentialHeads(head_ratio=3.0).factors(6) == pytest.approx(geometric(3.0**r))
    by_turns = np.array([1.0, 3.0, 1.0, 3.0, 1.0])
    assert AlternatingHeads(head_ratio=3.0).factors(5) == pytest.approx(geometric(by_turns))


def test_heads_of_a_ratio_and_of_its_inverse_are_the_same_in_another_order() -> None:
    for kind in (LinearHeads, ExponentialHeads, AlternatingHeads):
        factors, inverse_factors = (kind(head_ratio=ratio).factors(8) for ratio in (5.0, 0.2))
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
def test_an_impossible_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(SpecError, match="head_ratio="):
        ExponentialHeads(head_ratio=ratio)


def test_linear_attention_has_no_temperature_that_heads_could_differ_in() -> None:
    with pytest.raises(SpecError, match=r"head_pattern='exp' has no effect.*Leave head_pattern out"):
        TemperatureParameters(normaliser="linear", head_pattern="exp", head_ratio=2.0)
    flat = TemperatureParameters(normaliser="linear", head_pattern="exp", head_ratio=1.0)
    assert flat.plan(2).heads == UniformHeads()

"""Length scaling: the logarithm of the number of keys, and what happens where it would vanish."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.temperature.length import LENGTH_SCALINGS, LogNScaling, NoLengthScaling

numbers_of_keys = st.floats(0, 1e9)
bases = st.floats(1.001, 1e6)


def test_the_registry_names_each_scaling_once() -> None:
    assert list(LENGTH_SCALINGS) == ["none", "log_n"]
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


@given(bases, numbers_of_keys)
def test_the_factor_is_positive_and_finite_for_any_number_of_keys(n0: float, num_keys: float) -> None:
    assert 0.0 < LogNScaling(n0=n0).factor(num_keys) < math.inf


@given(bases, numbers_of_keys, numbers_of_keys)
def test_more_keys_never_soften_attention(n0: float, one: float, other: float) -> None:
    scaling = LogNScaling(n0=n0)
    assert scaling.factor(min(one, other)) <= scaling.factor(max(one, other))


def test_the_formula_is_the_same_over_an_array() -> None:
    keys = np.array([2.0, 16.0, 1000.0])
    scaling = LogNScaling(n0=16.0)
    assert scaling.factor_of(keys, np.log) == pytest.approx([scaling.factor(n) for n in keys])


@pytest.mark.parametrize("n0", [1.0, 0.0, -3.0, math.nan, math.inf, True, "16"])
def test_an_impossible_base_is_refused(n0: float) -> None:
    with pytest.raises(SpecError, match=r"n0=.*above 1"):
        LogNScaling(n0=n0)

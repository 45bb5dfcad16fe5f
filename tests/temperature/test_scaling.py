"""How a temperature moves with size: the rules against attention itself, and what a shift leaves alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import UsageError
from tempopt.temperature import (
    LR_RATIOS,
    LogNScaling,
    TemperatureParameters,
    head_dim_shift,
    learning,
    length_shift,
    scales_with_length,
    shifted,
)

DIMS = st.integers(1, 512)
LENGTHS = st.integers(2, 10**6)
SHIFTS = st.floats(-3, 3)


def _softmax(logits_N: np.ndarray) -> np.ndarray:
    weights_N = np.exp(logits_N - logits_N.max())
    return weights_N / weights_N.sum()


@given(small=DIMS, large=DIMS, tau=st.floats(0.1, 10))
def test_heads_of_another_dimension_attend_as_under_one_over_d(small: int, large: int, tau: float) -> None:
    # muP: logits divided by d, with the constant at which the small model is what it was under 1 / √d
    dot_N = np.random.default_rng(0).normal(size=5)
    mup = _softmax(dot_N * math.sqrt(small) / (large * tau))
    moved = tau * math.exp(head_dim_shift(small, large))
    assert _softmax(dot_N / (math.sqrt(large) * moved)) == pytest.approx(mup, abs=1e-12)


@given(small=LENGTHS, large=LENGTHS)
def test_another_length_is_what_log_n_makes_of_it(small: int, large: int) -> None:
    grown = LogNScaling(n0=small).factor(large)
    assert math.exp(-length_shift(small, large)) == pytest.approx(grown)


def test_sizes_that_are_none_are_refused() -> None:
    with pytest.raises(UsageError, match="dimensions 0 and 8"):
        head_dim_shift(0, 8)
    with pytest.raises(UsageError, match="lengths 64 and 1"):
        length_shift(64, 1)


@given(shift=SHIFTS, first=st.floats(0.2, 5), last=st.floats(0.2, 5))
def test_a_schedule_keeps_its_shape(shift: float, first: float, last: float) -> None:
    plan = {"temperature_init": first, "temperature_final": last, "schedule": "cosine", "lr": 0.1}
    moved = shifted(plan, shift)
    own, other = (TemperatureParameters.from_mapping(each).plan(2) for each in (plan, moved))
    for progress in (0.0, 0.3, 1.0):
        expected = [math.exp(shift) * each for each in own.temperatures(progress)]
        if first == last == 1.0:
            expected = [1.0, 1.0]
        assert other.temperatures(progress) == pytest.approx(expected)
    assert moved["lr"] == 0.1 and moved["schedule"] == "cosine"


def test_the_start_of_a_warm_up_moves_and_its_length_does_not() -> None:
    plan = {"temperature_init": 2.0, "schedule": "warmup_anneal", "warmup_start": 1.0, "warmup_fraction": 0.3}
    assert shifted(plan, math.log(2)) == pytest.approx(
        {"temperature_init": 4.0, "warmup_start": 2.0, "warmup_fraction": 0.3}
        | {"schedule": plan["schedule"]}
    )


@pytest.mark.parametrize(
    "at_one",
    [
        {"temperature_init": 1.0, "schedule": "constant", "lr": 0.1},
        {"temperature_init": 1.0, "temperature_final": 1.0, "schedule": "linear"},
        {"lr": 0.1},
        learning({"temperature_init": 1.0}, LR_RATIOS[0]),
    ],
)
def test_the_baseline_stays_where_it_is(at_one: dict[str, object]) -> None:
    assert shifted(at_one, 0.7) == at_one


def test_one_that_has_no_final_temperature_gets_none() -> None:
    assert shifted({"temperature_init": 2.0, "temperature_final": None}, 1.0)["temperature_final"] is None


def test_only_the_temperature_that_is_named_moves() -> None:
    plan = {"contrast.as_found": 0.5, "contrast.temperature_init": 0.2, "temperature_init": 2.0}
    assert shifted(plan, math.log(2), "contrast") == {**plan, "contrast.temperature_init": 0.4}
    assert shifted(plan, math.log(2)) == {**plan, "temperature_init": 4.0}
    found = {"contrast.as_found": 0.5, "contrast.temperature_init": 0.5}
    assert shifted(found, 1.0, "contrast") == found


def test_what_has_a_length_scaling_says_so() -> None:
    assert scales_with_length({"length_scaling": "log_n"})
    assert not scales_with_length({"length_scaling": "none"}) and not scales_with_length({})

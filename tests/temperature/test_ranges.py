"""Messages about numbers: they name what was given, what is allowed and what to do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.temperature.ranges import RANGES, check_number


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "temperature_init",
            0.0,
            r"temperature_init=0.0 is out of range. Give a number from 1e-06 to 1e\+06.",
        ),
        ("temperature_init", math.nan, "temperature_init=nan is out of range."),
        ("temperature_init", True, "temperature_init=True is a bool. Give a number"),
        ("temperature_init", None, "temperature_init=None is not set. Give a number"),
        ("temperature_init", "1e-3", "is a str.* write it without quotes, and in YAML with a dot"),
        ("layer_ratio", [1], r"layer_ratio=\[1\] is a list"),
        ("cycles", 2, r"cycles=2 is out of range. Give an odd number of half cycles \(0.5, 1.5"),
        ("cycles", math.inf, "cycles=inf"),
        ("num_steps", 4.0, "num_steps=4.0 is a float. Give a whole number of at least 2"),
        ("num_steps", 1, "num_steps=1 is out of range"),
        ("n0", 1, "n0=1 is out of range. Give a finite number above 1"),
        ("warmup_fraction", 1.0, "warmup_fraction=1.0 is out of range"),
        ("warmup_fraction", 0, "warmup_fraction=0 is out of range"),
        ("length_power", 4.1, "length_power=4.1 is out of range. Give a number from 0 to 4"),
        ("hold_fraction", 1, "hold_fraction=1 is out of range. Give a share of training from 0, and less"),
        ("num_knots", 5, "num_knots=5 is out of range. Give a whole number from 1 to 4"),
        ("temperature_knot_4", 0.0, "temperature_knot_4=0.0 is out of range. Give a number from 1e-06"),
        ("curvature", 0.0, "curvature=0.0 is out of range"),
        ("top_k", 0, "top_k=0 is out of range. Give a whole number of at least 1"),
        ("top_k", 2.0, "top_k=2.0 is a float. Give a whole number of at least 1"),
        (
            "sampling_temperature",
            -0.5,
            "is out of range. Give 0, which takes the most likely token, or a num",
        ),
        ("sampling_temperature", 1e-9, "sampling_temperature=1e-09 is out of range"),
        ("top_p", 0.0, "top_p=0.0 is out of range. Give a number above 0, and at most 1"),
        ("top_p", 1.01, "top_p=1.01 is out of range"),
        ("top_k_tokens", -1, "top_k_tokens=-1 is out of range. Give a whole number of at least 1, or 0 for"),
        ("top_k_tokens", 5.0, "top_k_tokens=5.0 is a float"),
        ("min_p", 1.0, "min_p=1.0 is out of range. Give a number from 0, and less than 1"),
        ("min_p", -0.1, "min_p=-0.1 is out of range"),
        ("min_p", math.nan, "min_p=nan is out of range"),
        ("entropy_lambda", math.inf, "entropy_lambda=inf is out of range. Give a finite number"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_its_range(name: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_number(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature_init", 2),
        ("temperature_final", 1e-6),
        ("layer_ratio", 1e6),
        ("n0", 1.5),
        ("warmup_fraction", 0.999),
        ("cycles", 0.5),
        ("power", 0.5),
        ("num_steps", 2),
        ("num_layers", 1),
        ("entropy_lambda", -0.01),
        ("length_power", 0),
        ("length_power", 4),
        ("length_slope", 0.0),
        ("curvature", 1e6),
        ("hold_fraction", 0),
        ("num_knots", 4),
        ("top_k", 1),
        ("output_temperature", 0.5),
    ],
)
def test_a_number_within_its_range_passes(name: str, value: float) -> None:
    check_number(name, value)


def test_a_text_that_is_no_number_gets_no_advice_on_writing_numbers() -> None:
    with pytest.raises(SpecError) as excinfo:
        check_number("power", "high")
    assert "quotes" not in str(excinfo.value)


def test_every_range_says_what_it_allows() -> None:
    assert all(value_range.allowed for value_range in RANGES.values())

"""Numbers that parameters may be, and what is said of others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.temperature.ranges import RANGES, check_number

WRONG: dict[str, list[Any]] = {
    "temperature_init": [0.0, 1e-7, 1e7, math.nan, True, None, "1e-3"],
    "temperature_knot_4": [0.0],
    "layer_ratio": [[1]],
    "cycles": [2, 0.0, math.inf],
    "num_steps": [4.0, 1],
    "n0": [1, math.inf],
    "warmup_fraction": [1.0, 0],
    "min_weight": [1.0, 0],
    "length_power": [4.1, -0.1],
    "length_slope": [-0.1, 1e7],
    "hold_fraction": [1, -0.1],
    "num_knots": [5, 0, 2.0],
    "curvature": [0.0],
    "top_k": [0, 2.0],
    "window": [0],
    "local_share": [-0.1, 1.1],
    "sampling_temperature": [-0.5, 1e-9],
    "top_p": [0.0, 1.01],
    "top_k_tokens": [-1, 5.0],
    "min_p": [1.0, -0.1, math.nan],
    "entropy_lambda": [math.inf],
    "entropy_target": [-0.1, 1.1],
    "control_level": [0.0, 1.0],
}
RIGHT: dict[str, list[float]] = {
    "temperature_init": [2, 1e-6, 1e6],
    "n0": [1.5],
    "warmup_fraction": [0.999],
    "cycles": [0.5, 2.5],
    "num_steps": [2],
    "num_layers": [1],
    "entropy_lambda": [-0.01],
    "length_power": [0, 4],
    "length_slope": [0.0, 1e6],
    "hold_fraction": [0],
    "num_knots": [1, 4],
    "top_k": [1],
    "local_share": [0, 1],
    "sampling_temperature": [0, 1e-6],
    "top_p": [1],
    "top_k_tokens": [0],
    "min_p": [0.0],
    "entropy_target": [0, 1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_number_that_cannot_be_is_refused_with_its_range(name: str, value: Any) -> None:
    with pytest.raises(SpecError) as error:
        check_number(name, value)
    message = str(error.value)
    assert message.startswith(f"{name}={value!r} is ") and f"Give {RANGES[name].allowed}." in message


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in RIGHT for value in RIGHT[name]])
def test_a_number_within_its_range_passes(name: str, value: float) -> None:
    check_number(name, value)


@pytest.mark.parametrize(("text", "is_number"), [("1e-3", True), ("high", False)])
def test_a_number_in_quotes_gets_advice_and_another_text_none(text: str, is_number: bool) -> None:
    with pytest.raises(SpecError) as error:
        check_number("power", text)
    assert ("without quotes" in str(error.value)) == is_number

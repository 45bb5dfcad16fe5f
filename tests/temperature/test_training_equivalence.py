"""Whether two parameter sets are one training, against the temperatures and weights of every single step."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.temperature import (
    LAYER_PATTERNS,
    SCHEDULES,
    EntropyParameters,
    TemperatureParameters,
    progress,
    same_training,
)

HOLD_ANNEAL = {
    "temperature_init": 2.0,
    "temperature_final": 1.0,
    "schedule": "hold_anneal",
    "hold_fraction": 0.5,
}
LAYERS = 3
levels = st.sampled_from([0.5, 1.0, 2.0])
shares = st.sampled_from([0.1, 0.3, 0.5, 0.7])


@st.composite
def parameter_sets(draw: st.DrawFn) -> dict[str, Any]:
    """Some temperature parameters of a run; few values, so that two of them are often alike for a while."""
    schedule = draw(st.sampled_from(["constant", "hold_anneal", "step", "piecewise", *sorted(SCHEDULES)]))
    parameters: dict[str, Any] = {"temperature_init": draw(levels), "schedule": schedule}
    if schedule != "constant":
        parameters["temperature_final"] = draw(levels)
    for name, values in {
        "hold_fraction": shares,
        "warmup_fraction": shares,
        "warmup_start": levels,
        "num_steps": st.sampled_from([2, 3, 4]),
        "num_knots": st.sampled_from([1, 2]),
        "temperature_knot_1": levels,
        "temperature_knot_2": levels,
        "cycles": st.sampled_from([0.5, 1.5]),
        "layer_pattern": st.sampled_from(sorted(LAYER_PATTERNS)[:2]),
        "layer_ratio": st.sampled_from([1.0, 2.0]),
        "head_pattern": st.sampled_from(["uniform", "exp"]),
        "head_ratio": st.sampled_from([1.0, 2.0]),
        "local_share": st.sampled_from([0.0, 0.5]),
        "window": st.sampled_from([4, 8]),
        "entropy_target": st.sampled_from([None, 0.5]),
    }.items():
        if draw(st.booleans()):
            parameters[name] = draw(values)
    if draw(st.booleans()):
        parameters["entropy_lambda"] = draw(st.sampled_from([0.0, -0.0, 0.25]))
        parameters["entropy_schedule"] = draw(st.sampled_from(["constant", "hold_anneal", "linear"]))
        if parameters["entropy_schedule"] != "constant":
            parameters["entropy_lambda_final"] = draw(st.sampled_from([0.0, 0.25, 0.5]))
    return parameters


def bits(values: tuple[float, ...]) -> bytes:
    return struct.pack(f"{len(values)}d", *values)


def course(parameters: dict[str, Any], total: int) -> list[tuple[bytes, Any]]:
    """What is in force at each step: each layer's temperature, the term, and its weight."""
    plan = TemperatureParameters.from_mapping(parameters).plan(LAYERS)
    entropy = EntropyParameters.from_mapping(parameters)
    target = entropy.entropy_target if entropy.has_term else None
    local = plan.local if plan.local.local_share else None
    return [
        (
            bits((*plan.temperatures(at), entropy.weight(at))),
            (entropy.has_term, target, plan.heads.factors(4), plan.length_scaling, plan.normaliser, local),
        )
        for at in (progress(step, total) for step in range(total))
    ]


@given(params=parameter_sets(), other_params=parameter_sets())
def test_what_is_the_same_training_is_the_same_at_each_step(
    params: dict[str, Any], other_params: dict[str, Any]
) -> None:
    assert same_training(params, params)
    if same_training(params, other_params):
        assert course(params, 24) == course(other_params, 24)


@pytest.mark.parametrize(
    ("other_params", "is_same"),
    [
        (HOLD_ANNEAL, True),
        ({**HOLD_ANNEAL, "power": 7.0}, True),
        ({**HOLD_ANNEAL, "temperature_final": 0.5}, False),
        ({**HOLD_ANNEAL, "hold_fraction": 0.25}, False),
        ({"temperature_init": 2.0, "schedule": "constant"}, False),
        ({"temperature_init": 2.0}, False),
        ({**HOLD_ANNEAL, "temperature_init": 2.0 + 2**-50}, False),
        ({**HOLD_ANNEAL, "length_scaling": "log_n"}, False),
        ({**HOLD_ANNEAL, "normaliser": "sparsemax"}, False),
        ({**HOLD_ANNEAL, "output_temperature": 2.0}, False),
        ({**HOLD_ANNEAL, "lr": 0.1}, False),
        ({**HOLD_ANNEAL, "entropy_lambda": 0.1}, False),
        ({**HOLD_ANNEAL, "entropy_lambda_final": 0.1, "entropy_schedule": "hold_anneal"}, False),
    ],
)
def test_what_counts_as_alike(other_params: dict[str, Any], is_same: bool) -> None:
    assert same_training(HOLD_ANNEAL, other_params) == is_same


@pytest.mark.parametrize(
    "generation_params", [{"sampling_temperature": 0.5}, {"top_p": 0.9}, {"top_k_tokens": 5}, {"min_p": 0.1}]
)
def test_what_generation_alone_tells_apart_is_another_training(generation_params: dict[str, Any]) -> None:
    assert not same_training(HOLD_ANNEAL, {**HOLD_ANNEAL, **generation_params})
    # of greedy decoding nothing else is read
    greedy = {**HOLD_ANNEAL, "sampling_temperature": 0.0}
    assert same_training(greedy, {**greedy, **generation_params}) == (
        "sampling_temperature" not in generation_params
    )


def test_values_of_other_parameters_are_the_same_only_if_they_are_written_the_same() -> None:
    for value, other_value in ((1, 1.0), (True, 1), (0.0, -0.0), ("1", 1)):
        assert not same_training({"lr": value}, {"lr": other_value})


def test_an_argument_inside_another_of_a_schedules_name_is_none_of_the_schedules() -> None:
    params = {"temperature_init": 2.0, "power.alpha": 0.1}
    assert not same_training(params, {**params, "power.alpha": 0.2})

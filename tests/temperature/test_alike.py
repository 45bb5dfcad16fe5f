"""How far two parameter sets train alike, against the temperatures and weights of every single step."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.temperature import (
    LAYER_PATTERNS,
    NEUTRAL,
    SCHEDULES,
    EntropyParameters,
    TemperatureParameters,
    effective,
    end_alike,
    progress,
    same_training,
    steps_alike,
    steps_held,
)

HELD = {"temperature_init": 2.0, "temperature_final": 1.0, "schedule": "hold_anneal", "hold_fraction": 0.5}
LAYERS = 3
levels = st.sampled_from([0.5, 1.0, 2.0])
shares = st.sampled_from([0.1, 0.3, 0.5, 0.7])


@st.composite
def drawn(draw: st.DrawFn) -> dict[str, Any]:
    """Some temperature parameters of a run; few values, so that two of them are often alike for a while."""
    schedule = draw(st.sampled_from(["constant", "hold_anneal", "step", "piecewise", *sorted(SCHEDULES)]))
    given: dict[str, Any] = {"temperature_init": draw(levels), "schedule": schedule}
    if schedule != "constant":
        given["temperature_final"] = draw(levels)
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
            given[name] = draw(values)
    if draw(st.booleans()):
        given["entropy_lambda"] = draw(st.sampled_from([0.0, -0.0, 0.25]))
        given["entropy_schedule"] = draw(st.sampled_from(["constant", "hold_anneal", "linear"]))
        if given["entropy_schedule"] != "constant":
            given["entropy_lambda_final"] = draw(st.sampled_from([0.0, 0.25, 0.5]))
    return given


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


@given(one=drawn(), other=drawn(), total=st.sampled_from([1, 2, 7, 24, 100]), share=st.floats(0.0, 1.0))
def test_never_more_steps_are_alike_than_a_comparison_of_each_of_them_finds(
    one: dict[str, Any], other: dict[str, Any], total: int, share: float
) -> None:
    first, second = course(one, total), course(other, total)
    brute = next((step for step in range(total) if first[step] != second[step]), total)
    at_most = round(share * total)
    found = steps_alike(one, other, at_most=at_most, total_steps=total)
    assert found == steps_alike(other, one, at_most=at_most, total_steps=total)
    layers = ("layer_pattern", "layer_ratio", "length_scaling", "normaliser", "entropy_target")
    wholes = [effective({**NEUTRAL, **each}) for each in (one, other)]
    if all(wholes[0].get(name) == wholes[1].get(name) for name in layers):
        # nothing is lost either: all of what is alike is found
        assert found == min(brute, at_most)
    assert found <= brute


@given(one=drawn(), other=drawn())
def test_what_ends_alike_has_the_same_temperatures_at_the_end(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    plans = [TemperatureParameters.from_mapping(each).plan(LAYERS) for each in (one, other)]
    if end_alike(one, other):
        assert bits(plans[0].temperatures(1.0)) == bits(plans[1].temperatures(1.0))
    assert end_alike(one, one) and same_training(one, one)
    if same_training(one, other):
        assert course(one, 24) == course(other, 24)


@given(parameters=drawn(), total=st.sampled_from([0, 1, 2, 24, 100]))
def test_a_schedule_holds_until_it_first_moves(parameters: dict[str, Any], total: int) -> None:
    found = steps_held(parameters, total)
    assert 0 <= found <= total
    steps = course(parameters, total)
    if parameters["schedule"] in (
        *("constant", "hold_anneal", "step", "linear", "cosine", "exponential"),
        "piecewise",
    ):
        assert found == next((step for step in range(total) if steps[step] != steps[0]), total)


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (HELD, 24),
        ({**HELD, "power": 7.0}, 24),
        ({**HELD, "temperature_final": 0.5}, 12),
        ({**HELD, "hold_fraction": 0.25}, 6),
        ({"temperature_init": 2.0, "schedule": "constant"}, 12),
        ({"temperature_init": 2.0}, 12),
        ({**HELD, "temperature_init": 2.0 + 2**-50}, 0),
        ({**HELD, "length_scaling": "log_n"}, 0),
        ({**HELD, "normaliser": "sparsemax"}, 0),
        ({**HELD, "output_temperature": 2.0}, 0),
        ({**HELD, "lr": 0.1}, 0),
        ({**HELD, "entropy_lambda": 0.1}, 0),
        # the term is there from the first step on, if only with weight 0
        ({**HELD, "entropy_lambda_final": 0.1, "entropy_schedule": "hold_anneal"}, 0),
    ],
)
def test_what_counts_as_alike(other: dict[str, Any], alike: int) -> None:
    assert steps_alike(HELD, other, at_most=24, total_steps=24) == alike
    assert same_training(HELD, other) == (alike == 24)


@pytest.mark.parametrize(
    "drawn", [{"sampling_temperature": 0.5}, {"top_p": 0.9}, {"top_k_tokens": 5}, {"min_p": 0.1}]
)
def test_what_generation_alone_tells_apart_trains_alike_and_is_evaluated_otherwise(
    drawn: dict[str, Any],
) -> None:
    other = {**HELD, **drawn}
    assert steps_alike(HELD, other, at_most=24, total_steps=24) == 24
    assert not same_training(HELD, other) and not end_alike(HELD, other)
    # of greedy decoding nothing else is read
    greedy = {**HELD, "sampling_temperature": 0.0}
    assert same_training(greedy, {**greedy, **drawn}) == ("sampling_temperature" not in drawn)


def test_values_of_other_parameters_are_the_same_only_if_they_are_written_the_same() -> None:
    for one, other in ((1, 1.0), (True, 1), (0.0, -0.0), ("1", 1)):
        assert steps_alike({"lr": one}, {"lr": other}, at_most=24, total_steps=24) == 0


def test_an_argument_inside_another_of_a_schedules_name_is_none_of_the_schedules() -> None:
    one = {"temperature_init": 2.0, "power.alpha": 0.1}
    assert steps_alike(one, {**one, "power.alpha": 0.2}, at_most=10, total_steps=10) == 0

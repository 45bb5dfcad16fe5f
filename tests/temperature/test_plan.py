"""Plans: how schedule, depth and length combine, and which parameters count."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt import temperature
from tempopt.errors import SpecError
from tempopt.temperature import (
    CONTROL_PARAMETERS,
    ENTROPY_PARAMETERS,
    GENERATION,
    HEAD_PATTERNS,
    LAYER_PATTERNS,
    LENGTH_SCALINGS,
    NEUTRAL,
    NORMALISERS,
    SCHEDULES,
    TEMPERATURE_PARAMETERS,
    TemperatureParameters,
    check_parameter,
    drop_unused_params,
    progress,
)
from tests.temperature.schedule_strategies import INNER

levels = st.sampled_from([0.25, 1.0, 1.7, 4.0])


@st.composite
def flat(draw: st.DrawFn) -> dict[str, Any]:
    """A complete flat parameter set, as a search may draw it."""
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    final = st.none() if schedule == "constant" else st.none() | levels
    normaliser = draw(st.sampled_from(sorted(NORMALISERS)))
    if normaliser == "linear":
        return {"normaliser": normaliser, "top_k": 4, "local_share": 0.5, "window": 4}
    return {
        "temperature_init": draw(levels),
        "temperature_final": draw(final),
        "schedule": schedule,
        "layer_pattern": draw(st.sampled_from(sorted(LAYER_PATTERNS))),
        "layer_ratio": draw(st.sampled_from([0.5, 1.0, 3.0])),
        "head_pattern": draw(st.sampled_from(sorted(HEAD_PATTERNS))),
        "head_ratio": draw(st.sampled_from([0.5, 1.0, 3.0])),
        "length_scaling": draw(st.sampled_from(sorted(LENGTH_SCALINGS))),
        "n0": draw(st.sampled_from([16.0, 64.0])),
        "warmup_start": draw(levels),
        "warmup_fraction": draw(st.sampled_from([0.1, 0.3])),
        "cycles": draw(st.sampled_from([0.5, 1.5])),
        "power": draw(st.sampled_from([0.5, 2.0])),
        "num_steps": draw(st.sampled_from([2, 4])),
        "length_power": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "length_slope": draw(st.sampled_from([0.0, 0.1])),
        "curvature": draw(st.sampled_from([1.0, 10.0])),
        "hold_fraction": draw(st.sampled_from([None, 0.2, 0.5])),
        "num_knots": draw(st.sampled_from([None, 1, 3])),
        **{name: draw(st.none() | levels) for name in INNER},
        "normaliser": normaliser,
        "top_k": draw(st.sampled_from([4, 8])),
        "local_share": draw(st.sampled_from([0.0, 0.5])),
        "window": draw(st.sampled_from([4, 64])),
    }


GRID = [k / 20 for k in range(21)]


def behaviour(parameters: dict[str, Any]) -> tuple[Any, ...]:
    plan = TemperatureParameters.from_mapping(parameters).plan(5)
    return (
        [plan.temperatures(t) for t in GRID],
        plan.heads.factors(6),
        [plan.length_scaling.factor(n) for n in (1, 2, 16, 1000)],
        plan.normaliser,
        plan.local if plan.local.local_share else None,
    )


def test_the_neutral_parameters_are_temperature_one_to_the_last_bit() -> None:
    plan = TemperatureParameters().plan(3)
    assert {plan.temperatures(t) for t in GRID} == {(1.0, 1.0, 1.0)}
    assert plan.length_scaling.factor(1000) == 1.0
    assert plan.normaliser.name == "softmax"


def test_every_parameter_has_a_neutral_value_that_it_may_have() -> None:
    assert tuple(NEUTRAL) == TEMPERATURE_PARAMETERS
    plan = {field.name for field in fields(TemperatureParameters)}
    beside = {*ENTROPY_PARAMETERS, *CONTROL_PARAMETERS, *GENERATION, "output_temperature"}
    assert set(TEMPERATURE_PARAMETERS) == plan | beside
    for name, value in NEUTRAL.items():
        check_parameter(name, value)


def test_a_temperature_is_the_schedule_times_the_layers_factor() -> None:
    plan = TemperatureParameters(
        temperature_init=4.0,
        temperature_final=1.0,
        schedule="exponential",
        layer_pattern="exp",
        layer_ratio=4.0,
    ).plan(3)
    assert plan.temperatures(0.0) == pytest.approx((2.0, 4.0, 8.0))
    assert plan.temperatures(0.5) == pytest.approx((1.0, 2.0, 4.0))
    assert plan.temperatures(1.0) == pytest.approx((0.5, 1.0, 2.0))


@given(flat(), st.integers(1, 20), st.sampled_from(GRID))
def test_every_plan_is_positive_and_its_level_is_the_schedules(
    parameters: dict[str, Any], num_layers: int, at: float
) -> None:
    plan = TemperatureParameters.from_mapping(parameters).plan(num_layers)
    temperatures = plan.temperatures(at)
    assert len(temperatures) == num_layers
    assert all(0.0 < tau < math.inf for tau in temperatures)
    level = math.exp(math.fsum(math.log(tau) for tau in temperatures) / num_layers)
    assert level == pytest.approx(plan.schedule(at), rel=1e-9)


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"constant"}))
def test_no_final_temperature_means_the_initial_one(schedule: str) -> None:
    plan = TemperatureParameters(temperature_init=2.0, schedule=schedule, warmup_start=2.0).plan(1)
    assert {plan.temperatures(t) for t in GRID} == {(2.0,)}


def test_a_constant_schedule_refuses_a_final_temperature_it_would_never_reach() -> None:
    with pytest.raises(SpecError, match=r"temperature_final=2.0 has no effect.*Leave .* out, or choose"):
        TemperatureParameters(temperature_final=2.0)
    assert TemperatureParameters(temperature_init=2.0, temperature_final=2.0).plan(1).temperatures(1.0) == (
        2.0,
    )


@pytest.mark.parametrize(
    "plan_params",
    [
        {"temperature_init": 2.0},
        {"schedule": "linear", "temperature_final": 2.0},
        {"schedule": "warmup_anneal", "warmup_start": 2.0},
        {"layer_pattern": "u", "layer_ratio": 2.0},
        {"length_scaling": "log_n"},
    ],
)
def test_linear_attention_refuses_a_temperature_that_would_do_nothing(plan_params: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r'no effect: normaliser "linear".*Leave .* out, or choose another'):
        TemperatureParameters(normaliser="linear", **plan_params)
    TemperatureParameters(**drop_unused_params({"normaliser": "linear", **plan_params}))


def test_linear_attention_takes_what_is_temperature_one_by_another_name() -> None:
    parameters = {
        "schedule": "cosine",
        "layer_pattern": "u",
        "length_scaling": "log_n_power",
        "length_power": 0.0,
    }
    plan = TemperatureParameters(normaliser="linear", **parameters).plan(3)
    assert plan.temperatures(0.5) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("plan_params", "message"),
    [
        ({"schedule": "cosin"}, 'Unknown schedule "cosin". Did you mean "cosine"\\? Known: constant, linear'),
        ({"layer_pattern": "uniforn"}, 'Unknown layer_pattern "uniforn". Did you mean "uniform"'),
        ({"length_scaling": "logn"}, 'Unknown length_scaling "logn". Did you mean "log_n"'),
        ({"normaliser": "topk"}, 'Unknown normaliser "topk". Did you mean "top_k"'),
        ({"top_k": 0}, "top_k=0 is out of range"),
        ({"schedule": None}, 'Unknown schedule "None"'),
        ({"schedule": ["linear"]}, "Unknown schedule"),
        ({"temperature_init": None}, "temperature_init=None is not set"),
        ({"layer_ratio": -1.0}, "layer_ratio=-1.0 is out of range"),
        ({"num_steps": True}, "num_steps=True is a bool"),
    ],
)
def test_a_wrong_parameter_is_refused_even_where_it_would_not_be_read(
    plan_params: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        TemperatureParameters(**plan_params)


@pytest.mark.parametrize("num_layers", [0, -1, 2.0, True])
def test_a_plan_needs_a_layer(num_layers: Any) -> None:
    with pytest.raises(SpecError, match="num_layers="):
        TemperatureParameters().plan(num_layers)


def test_parameters_are_picked_out_of_a_flat_mapping() -> None:
    parameters = TemperatureParameters.from_mapping(
        {"temperature_init": 2.0, "lr": 0.1, "data.x": 3, "entropy_lambda": 0.1, "output_temperature": 2.0}
    )
    assert parameters == TemperatureParameters(temperature_init=2.0)


ENDS = {"temperature_init": 2.0, "temperature_final": 2.0}


@pytest.mark.parametrize(
    ("choice", "name", "plain_name", "numbers", "counted_names"),
    [
        ("schedule", "constant", "constant", {"temperature_init": 2.0, "power": 2.0}, "temperature_init"),
        ("schedule", "constant", "constant", {**ENDS, "temperature_final": 3.0}, "temperature_init"),
        ("schedule", "cyclic", "cyclic", {"cycles": 1.5, "power": 2.0, "num_steps": 4}, "cycles"),
        ("schedule", "warmup_anneal", "warmup_anneal", {"warmup_start": 1.0, "cycles": 0.5}, "warmup_start"),
        ("schedule", "linear", "constant", ENDS, "temperature_init"),
        ("schedule", "warmup_anneal", "constant", {**ENDS, "warmup_start": 2.0}, "temperature_init"),
        ("layer_pattern", "uniform", "uniform", {"layer_ratio": 3.0}, ""),
        ("layer_pattern", "u", "u", {"layer_ratio": 3.0}, "layer_ratio"),
        ("layer_pattern", "u", "uniform", {"layer_ratio": 1.0}, ""),
        ("layer_pattern", "inverse_layer", "inverse_layer", {"layer_ratio": 1.0}, ""),
        ("length_scaling", "none", "none", {"n0": 16.0}, ""),
        ("length_scaling", "log_n", "log_n", {"n0": 16.0, "length_slope": 0.1}, "n0"),
        ("length_scaling", "log_n_power", "log_n_power", {"length_power": 0.5, "n0": 8.0}, "length_power n0"),
        ("length_scaling", "log_n_power", "none", {"n0": 8.0, "length_power": 0.0}, ""),
        ("length_scaling", "log_n_power", "log_n", {"n0": 8.0, "length_power": 1.0}, "n0"),
        ("length_scaling", "yarn", "none", {"n0": 8.0, "length_slope": 0.0}, ""),
        ("length_scaling", "llama4", "llama4", {"length_slope": 0.2, "length_power": 2.0}, "length_slope"),
        ("normaliser", "softmax", "softmax", {"top_k": 4, "entropy_lambda": 0.1}, "entropy_lambda"),
        ("normaliser", "top_k", "top_k", {"top_k": 4, "entropy_lambda": 0.1}, "top_k"),
        ("normaliser", "sparsemax", "sparsemax", {"top_k": 4, "n0": 8.0}, "n0"),
        ("normaliser", "linear", "linear", {"temperature_init": 2.0, "layer_ratio": 2.0, "lr": 0.1}, "lr"),
        ("normaliser", "linear", "linear", {"output_temperature": 2.0, "n0": 8.0}, "output_temperature"),
        ("data.x", "1", "1", {"lr": 0.1, "entropy_lambda": 0.0}, "lr entropy_lambda"),
    ],
)
def test_what_has_no_effect_is_dropped(
    choice: str, name: str, plain_name: str, numbers: dict[str, float], counted_names: str
) -> None:
    expected = {choice: plain_name, **{number: numbers[number] for number in counted_names.split()}}
    assert drop_unused_params({choice: name, **numbers}) == expected


def test_a_parameter_is_kept_where_its_strategy_is_not_known() -> None:
    parameters = {"temperature_init": 1.0, "temperature_final": 4.0, "layer_ratio": 1.0, "n0": 8.0}
    assert drop_unused_params(parameters) == parameters
    assert drop_unused_params({"schedule": "cosine", "temperature_init": 1.0})["schedule"] == "cosine"


def test_an_unknown_strategy_is_not_passed_on() -> None:
    with pytest.raises(SpecError, match='Unknown schedule "cosin"'):
        drop_unused_params({"schedule": "cosin", "temperature_init": 1.0})


@given(flat())
def test_dropping_what_has_no_effect_changes_nothing(parameters: dict[str, Any]) -> None:
    effective_params = drop_unused_params(parameters)
    assert behaviour(effective_params) == behaviour(parameters)
    assert drop_unused_params(effective_params) == effective_params


@pytest.mark.parametrize(
    ("step", "total_steps", "expected"),
    [(0, 500, 0.0), (499, 500, 1.0), (500, 500, 1.0), (250, 501, 0.5), (0, 1, 0.0), (7, 1, 0.0), (0, 0, 0.0)],
)
def test_progress_reaches_one_at_the_last_step(step: int, total_steps: int, expected: float) -> None:
    assert progress(step, total_steps) == expected


@given(st.integers(-5, 10**9), st.integers(-5, 10**9))
def test_progress_is_never_outside_training(step: int, total_steps: int) -> None:
    assert 0.0 <= progress(step, total_steps) <= 1.0


def test_the_public_names_are_sorted_and_there() -> None:
    assert temperature.__all__ == sorted(temperature.__all__, key=lambda name: (not name.isupper(), name))
    assert all(getattr(temperature, name) is not None for name in temperature.__all__)

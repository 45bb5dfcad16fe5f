"""Named temperatures: each is attention's in ratio to the temperature as found, and none acts on another."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.temperature import (
    CREDITED,
    SCHEDULES,
    TEMPERATURE_PARAMETERS,
    TemperatureParameters,
    active_groups,
    check_parameter,
    drop_unused_params,
    group_by_temperature,
    initial_named_temperatures,
    is_neutral,
    is_scheduled,
    join_name,
    list_temperatures,
    make_constant,
    mean_level,
    neutral_values,
    parameters_of_temperature,
    remove_part,
    same_training,
    split_name,
    to_neutral,
    training_key,
)
from tempopt.temperature.parameters import is_float_param
from tempopt.temperature.plan_parts import part_parameters, possible_parts
from tests.temperature.schedule_strategies import LEVELS, OTHERS, SHAPES, schedule_params

FIELDS = sorted({*LEVELS, *SHAPES, "schedule", "schedule_args.knee"})
AS_FOUND_TAUS = st.sampled_from([0.05, 0.5, 1.0, 7.0])


@st.composite
def partial_params(draw: st.DrawFn) -> dict[str, Any]:
    """The parameters of a schedule; some are as where they begin, and some left out."""
    parameters = draw(schedule_params())
    for name in LEVELS:
        if name in parameters and draw(st.integers(0, 3)) == 0:
            parameters[name] = draw(st.sampled_from([1.0, parameters["temperature_init"]]))
    names = sorted(parameters.keys() - {"schedule"})
    left_out = draw(st.sets(st.sampled_from(names), max_size=2)) if draw(st.booleans()) else set()
    return {name: value for name, value in parameters.items() if name not in left_out}


def to_named_params(parameters: dict[str, Any], initial_tau: float, name: str = "contrast") -> dict[str, Any]:
    """Return parameters of attention as those of a named temperature: the same in ratio to the one found."""
    scaled = {
        key: value * initial_tau if key in LEVELS and value is not None else value
        for key, value in parameters.items()
    }
    return {f"{name}.as_found": initial_tau} | {f"{name}.{key}": value for key, value in scaled.items()}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("contrast.temperature_init", ("contrast", "temperature_init")),
        ("contrast.as_found", ("contrast", "as_found")),
        ("contrast.schedule_args.knee", ("contrast", "schedule_args.knee")),
        ("schedule", ("", "schedule")),
        ("schedule_args.knee", ("", "schedule_args.knee")),
        # a number of one's own schedule may be called as one of tempopt's
        ("schedule_args.power", ("", "schedule_args.power")),
        ("as_found", ("", "as_found")),
        ("lr", ("", "lr")),
        ("model.power", ("", "model.power")),
        ("data.cycles", ("", "data.cycles")),
        ("trainer.schedule", ("", "trainer.schedule")),
        # attention alone has layers, lengths, an entropy term and a normaliser
        ("contrast.layer_ratio", ("", "contrast.layer_ratio")),
        ("contrast.length_scaling", ("", "contrast.length_scaling")),
        ("contrast.entropy_lambda", ("", "contrast.entropy_lambda")),
        ("contrast.normaliser", ("", "contrast.normaliser")),
        ("encoder.width", ("", "encoder.width")),
    ],
)
def test_a_name_belongs_to_one_temperature_or_to_none(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts
    assert join_name(*parts) == name


def test_named_parameters_are_temperature_parameters_whose_gain_is_the_temperatures() -> None:
    for bare in (*FIELDS, "as_found"):
        assert f"contrast.{bare}" in TEMPERATURE_PARAMETERS
        assert f"contrast.{bare}" in CREDITED
        assert split_name(f"contrast.{bare}") == ("contrast", bare)
    for name in ("contrast.layer_ratio", "contrast.normaliser", "model.temperature_init", "contrast"):
        assert name not in TEMPERATURE_PARAMETERS
    assert is_float_param("contrast.temperature_init")
    assert not is_float_param("contrast.num_steps") and not is_float_param("contrast.schedule")


def test_a_parameter_set_says_which_temperatures_it_has_and_where_they_began() -> None:
    parameters = {
        "contrast.as_found": 0.5,
        "contrast.temperature_init": 0.1,
        "lr": 1,
        "temperature_init": 2.0,
    }
    assert group_by_temperature(parameters) == {
        "": {"lr": 1, "temperature_init": 2.0},
        "contrast": {"as_found": 0.5, "temperature_init": 0.1},
    }
    assert initial_named_temperatures(parameters) == {"contrast": 0.5}
    assert initial_named_temperatures({"gate.schedule": "linear", "lr": 1}) == {"gate": 1.0}
    assert parameters_of_temperature(parameters, "contrast") == {"temperature_init": 0.1, "warmup_start": 0.5}
    assert parameters_of_temperature(parameters, "") == {"lr": 1, "temperature_init": 2.0}
    assert list_temperatures(parameters) == ("", "contrast")
    assert list_temperatures({"contrast.as_found": 0.5, "lr": 1}) == ("contrast",)
    assert list_temperatures({"lr": 1}) == ("",)
    assert possible_parts({"lr": 1}) == possible_parts(parameters)[:-2]
    assert possible_parts(parameters)[-2:] == ("contrast.schedule", "contrast.level")
    assert part_parameters("contrast.level") == {
        f"contrast.{name}" for name in (*LEVELS, "temperature_knots")
    }


def test_values_that_it_cannot_have_are_refused() -> None:
    check_parameter("contrast.as_found", 0.07)
    check_parameter("contrast.num_steps", 3)
    for name, value in (
        ("contrast.as_found", 0.0),
        ("contrast.temperature_init", -1.0),
        ("contrast.warmup_fraction", 1.0),
        ("contrast.schedule", "cosin"),
    ):
        with pytest.raises(SpecError):
            check_parameter(name, value)


@given(partial_params(), AS_FOUND_TAUS)
def test_a_named_temperature_is_that_of_attention_times_the_one_found(
    parameters: dict[str, Any], initial_tau: float
) -> None:
    named_params = to_named_params(parameters, initial_tau)
    bare_schedule = TemperatureParameters.from_mapping(parameters).plan(1).schedule
    named_schedule = (
        TemperatureParameters.from_mapping(parameters_of_temperature(named_params, "contrast"))
        .plan(1)
        .schedule
    )
    for step in range(7):
        assert named_schedule(step / 6) == pytest.approx(initial_tau * bare_schedule(step / 6), rel=1e-9)


@given(partial_params(), AS_FOUND_TAUS)
def test_the_baseline_is_at_the_temperature_as_found(parameters: dict[str, Any], initial_tau: float) -> None:
    named_params = to_named_params(drop_unused_params(parameters), initial_tau) | OTHERS
    at_found = to_neutral(named_params)
    assert mean_level(at_found, "contrast") == initial_tau
    assert at_found["contrast.as_found"] == initial_tau
    assert {name: at_found[name] for name in OTHERS} == OTHERS
    assert is_neutral(at_found) and active_groups(at_found) == ()
    assert training_key(at_found) == training_key(OTHERS)
    assert is_neutral(named_params) == is_neutral(drop_unused_params(parameters))
    assert to_neutral(at_found) == at_found


@given(AS_FOUND_TAUS, st.sampled_from(sorted(SCHEDULES)))
def test_a_temperature_that_stays_as_found_is_none(initial_tau: float, kind: str) -> None:
    for params in (
        {"contrast.as_found": initial_tau},
        {"contrast.as_found": initial_tau, "contrast.temperature_init": initial_tau},
        {
            "contrast.as_found": initial_tau,
            "contrast.schedule": kind,
            "contrast.temperature_final": initial_tau,
        },
        {"contrast.as_found": initial_tau, "contrast.schedule": kind},
    ):
        assert training_key(params) == training_key({})
        assert training_key(params | OTHERS) == training_key(OTHERS)
        assert is_neutral(params) and active_groups(params) == () and not is_scheduled(params)
    # and where it is not said, it is 1
    assert same_training({"contrast.temperature_init": 1.0}, {})
    assert not same_training({"contrast.temperature_init": initial_tau / 3}, {})
    off = {"contrast.as_found": initial_tau, "contrast.temperature_init": math.nextafter(initial_tau, 0)}
    assert not same_training(off, {})


def test_neutral_values_of_a_named_temperature_are_those_found() -> None:
    values = neutral_values({"contrast.as_found": 0.5})
    assert {values[f"contrast.{name}"] for name in ("temperature_init", "warmup_start", "as_found")} == {0.5}
    assert values["contrast.temperature_final"] is None
    assert values["contrast.schedule"] == "constant"
    assert values["contrast.schedule_args.knee"] is None
    assert values["temperature_init"] == values["warmup_start"] == 1.0


@settings(max_examples=20)
@given(partial_params(), partial_params(), partial_params(), AS_FOUND_TAUS, AS_FOUND_TAUS)
def test_no_temperature_acts_on_another(
    attention: dict[str, Any],
    contrast: dict[str, Any],
    gate: dict[str, Any],
    contrast_tau: float,
    gate_tau: float,
) -> None:
    alone = (
        drop_unused_params(to_named_params(contrast, contrast_tau)),
        drop_unused_params(to_named_params(gate, gate_tau, "gate")),
        drop_unused_params(attention),
    )
    joint_params = alone[0] | alone[1] | alone[2] | OTHERS
    assert drop_unused_params(joint_params) == joint_params
    for name, parameters in zip(("contrast", "gate", ""), alone, strict=True):
        assert mean_level(joint_params, name) == mean_level(parameters, name)
        for group in ("schedule", "level"):
            part = join_name(name, group)
            reduced_params = remove_part(joint_params, part)
            other_params = {key: v for key, v in joint_params.items() if key not in parameters}
            assert {key: reduced_params[key] for key in other_params} == other_params
            assert {key: v for key, v in reduced_params.items() if key not in other_params} == remove_part(
                parameters, part
            )
    assert active_groups(joint_params) == tuple(
        part
        for part in possible_parts(joint_params)
        if part in (*active_groups(alone[0]), *active_groups(alone[1]), *active_groups(alone[2]))
    )
    same = training_key(joint_params) == training_key(joint_params | to_neutral(alone[1]))
    assert same or not is_neutral(alone[1])


def test_own_schedules_go_with_their_numbers_and_leave_those_of_others() -> None:
    parameters = {
        "contrast.as_found": 0.5,
        "contrast.schedule": "package.module:Knee",
        "contrast.schedule_args.knee": 0.3,
        "contrast.temperature_final": 0.1,
        "schedule_args.knee": 0.7,
    }
    constant_params = make_constant(parameters, 0.2, "contrast")
    assert constant_params == {
        "contrast.as_found": 0.5,
        "contrast.schedule": "constant",
        "contrast.temperature_init": 0.2,
        "schedule_args.knee": 0.7,
    }


HOLD_ANNEAL = {
    "temperature_init": 2.0,
    "temperature_final": 1.0,
    "schedule": "hold_anneal",
    "hold_fraction": 0.5,
}
NAMED = to_named_params({"temperature_init": 0.5, "temperature_final": 2.0, "schedule": "linear"}, 0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"contrast.temperature_final": 0.3},
        {"contrast.schedule": "cosine"},
        {"contrast.as_found": 0.2},
        {"contrast.warmup_start": 0.3, "contrast.schedule": "warmup_anneal"},
        {"gate.as_found": 1.0, "gate.temperature_init": 0.5},
    ],
)
def test_a_training_is_another_one_where_a_named_temperature_differs(change: dict[str, Any]) -> None:
    parameters = HOLD_ANNEAL | NAMED
    assert not same_training(parameters, parameters | change)

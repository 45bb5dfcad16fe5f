"""What is measured at the end of a run, and under which temperatures."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tempopt.verdict.run_evaluations import (
    INFERENCE_ARMS,
    InferenceConstant,
    evaluations,
    inference_constants,
    inference_plans,
    metric_name_for_kind,
)
from tests.specs import make

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
WINNER = {"temperature_init": 2.0, "lr": 0.1}


def test_runs_are_measured_where_they_are_judged(make_spec: Any) -> None:
    spec = make_spec()
    for kind, arm, loader in (
        ("search", "search", "validate"),
        ("baseline", "baseline", "validate"),
        ("choose", "search", "validate"),
        ("confirm", "constant", "test"),
        ("confirm", "constant_twin", "test"),
        ("ablation", "without_level", "test"),
    ):
        plans = evaluations(kind, (arm,), spec, WINNER, WINNER)  # type: ignore[arg-type]
        assert [(e.name, e.on, e.at, e.temperature) for e in plans] == [
            (loader, loader, "final", None),
            (f"{loader}_current", loader, "current", None),
        ]
        assert metric_name_for_kind(kind, spec) == loader  # type: ignore[arg-type]
    assert metric_name_for_kind("ablation", make_spec(validate_at="current")) == "test_current"
    assert metric_name_for_kind("confirm", make_spec(confirm_on="validate")) == "validate"
    assert metric_name_for_kind("baseline", make_spec(validate_at="current")) == "validate_current"


@pytest.mark.parametrize(
    "arms", [("search",), ("baseline",), ("twin",), ("baseline", "twin"), ("constant", "search")]
)
@pytest.mark.parametrize(
    ("confirm_on", "loaders"), [("test", ["validate", "test"]), ("validate", ["validate"])]
)
def test_winner_baseline_and_twin_are_measured_under_the_same_plans(
    make_spec: Any, confirm_on: str, loaders: list[str], arms: tuple[str, ...]
) -> None:
    spec = make_spec(confirm_on=confirm_on)
    all_plans = evaluations("confirm", arms, spec, WINNER, WINNER)
    plans_by_name = {e.name: e for e in all_plans}
    assert len(plans_by_name) == len(all_plans)
    assert plans_by_name[f"{confirm_on}:winner"].temperature == {"temperature_init": 2.0}
    plans = inference_plans(spec, WINNER)
    assert set(plans_by_name) == {
        *loaders,
        f"{confirm_on}_current",
        *(f"{loader}:{plan}" for loader in loaders for plan in plans),
    }
    for loader in loaders:
        assert plans_by_name[loader].temperature is None
        for tau in inference_constants(spec):
            constant = plans_by_name[f"{loader}:constant={tau:.4g}"]
            assert (constant.on, constant.at) == (loader, "final")
            assert constant.temperature == {"temperature_init": tau}
    assert {e.on for e in all_plans} == set(loaders)
    assert INFERENCE_ARMS == ("search", "baseline", "twin")
    # a model that was trained at 1 is measured there as trained, and not once more
    at_one = evaluations("confirm", arms, spec, WINNER, {"temperature_init": 1.0})
    assert {e.name for e in at_one} == set(plans_by_name) - {f"{loader}:constant=1" for loader in loaders}


def test_the_default_constants_are_half_octaves_from_a_quarter_of_the_lowest_to_four_times_the_highest(
    make_spec: Any,
) -> None:
    expected = [2 ** (power / 2) for power in range(-8, 9) if power]
    assert inference_constants(make_spec()) == pytest.approx(expected)
    # where no temperature itself is searched there is a range of the house
    space = {"search": {"length_scaling": ["none", "log_n"]}}
    assert inference_constants(make_spec(space)) == pytest.approx(expected)


@given(
    low=st.floats(1e-3, 20.0),
    ratio=st.floats(1.1, 2.0**13),
    names=st.sampled_from([("temperature_init",), ("temperature_init", "temperature_final")]),
)
def test_the_constants_are_as_wide_as_the_search_and_wider(
    make_spec: Any, low: float, ratio: float, names: tuple[str, ...]
) -> None:
    # a range of five decades has them farther apart than half octaves, and one beyond that than octaves
    assume(max(1.0, 4 * low * ratio) / min(1.0, low / 4) < 2**16)
    search: dict[str, Any] = {name: {"low": low, "high": low * ratio} for name in names}
    if len(names) > 1:
        search |= {"schedule": ["linear"], "temperature_init": {"low": low, "high": low * 1.05}}
    constants = inference_constants(make_spec({"search": search}))
    assert constants == sorted(set(constants)) and 1.0 not in constants and 0 < len(constants) <= 17
    assert len({f"{tau:.4g}" for tau in constants}) == len(constants)
    assert constants[0] >= min(1.0, low / 4) * (1 - 1e-6)
    assert constants[-1] <= max(1.0, low * ratio * 4) * (1 + 1e-6)
    # temperature one is measured anyway, as the models were trained
    grid = sorted([*constants, 1.0])
    assert grid[0] <= low * (1 + 1e-6) and grid[-1] >= low * ratio * (1 - 1e-6)
    assert grid[0] <= 1 <= grid[-1]
    assert all(b / a <= 2 + 1e-9 for a, b in itertools.pairwise(grid))


def test_temperatures_that_are_choices_span_the_constants_too(make_spec: Any) -> None:
    constants = inference_constants(make_spec({"search": {"temperature_init": [8.0, 16.0]}}))
    assert constants[-1] == 64 and constants[0] == pytest.approx(2**0.5)


def test_the_winners_length_scaling_is_tried_at_inference_with_every_constant(make_spec: Any) -> None:
    spec = make_spec({"search": {**TAU, "length_scaling": ["none", "log_n", "yarn"]}})
    winner = {"temperature_init": 2.0, "length_scaling": "yarn", "length_slope": 0.2, "lr": 0.3}
    plans = inference_plans(spec, winner)
    plain = {name for name in plans if "length_scaling" not in name} - {"winner"}
    scaled_plans = {name for name in plans if name.endswith(",length_scaling=yarn")}
    assert plans.keys() == {"winner"} | plain | scaled_plans
    # without the scaling temperature one is what the baseline was trained at, with it it is not
    grid = sorted([1.0, *inference_constants(spec)])
    temperatures = [plans[name]["temperature_init"] for name in scaled_plans]
    assert 1.0 in temperatures and sorted(temperatures) in (grid[::2], grid[1::2])
    assert plans["constant=2,length_scaling=yarn"] == {
        "temperature_init": 2.0,
        "length_scaling": "yarn",
        "length_slope": 0.2,
    }
    assert plans["winner"] == {name: value for name, value in winner.items() if name != "lr"}


def test_where_the_winner_has_none_a_plain_length_scaling_that_was_searched_is_tried(make_spec: Any) -> None:
    spec = make_spec({"search": {**TAU, "length_scaling": ["none", "clipped_log_n", "log_n", "yarn"]}})
    names = inference_plans(spec, {"temperature_init": 2.0, "length_scaling": "none"})
    labels = {name.partition(",")[2] for name in names}
    assert labels == {"", "length_scaling=log_n"}
    assert {name.partition(",")[2] for name in inference_plans(make_spec(), WINNER)} == {""}


@pytest.mark.parametrize("normaliser", [{}, {"normaliser": "softmax"}, {"normaliser": "top_k", "top_k": 3}])
def test_the_normaliser_of_a_run_stays_at_inference(make_spec: Any, normaliser: dict[str, Any]) -> None:
    baseline_params = {"temperature_init": 1.0, "lr": 0.1, **normaliser}
    winner = {"temperature_init": 2.0, "normaliser": "sparsemax"}
    for plan in evaluations("confirm", ("baseline",), make_spec(), winner, baseline_params):
        if plan.temperature is not None:
            normaliser_params = {n: v for n, v in plan.temperature.items() if n in ("normaliser", "top_k")}
            assert normaliser_params == normaliser
            assert "lr" not in plan.temperature


def test_a_named_temperature_that_evaluation_reads_is_tried_about_what_was_found() -> None:
    named_temperature = {"value": "gate.tau", "as_found": 0.5}
    space = {"gate.temperature_init": {"low": 0.125, "high": 0.5}, "lr": {"low": 0.1, "high": 1.0}}
    read = {"temperatures": {"gate": {**named_temperature, "evaluated": True}}, "search": space}
    spec = make(**read)
    assert spec.evaluated == ["gate"]
    constants = inference_constants(spec, "gate")
    # from a quarter of the lowest to four times the highest, as found left out
    assert constants[0] == 2**-5 and constants[-1] == 2.0 and 0.5 not in constants
    assert constants == pytest.approx([2 ** (power / 2) for power in range(-10, 3) if power != -2])
    winner = {
        "gate.as_found": 0.5,
        "gate.schedule": "linear",
        "gate.temperature_init": 0.2,
        "gate.temperature_final": 0.3,
        "lr": 0.2,
    }
    plans = inference_plans(spec, winner)
    assert plans.pop("winner") == {n: v for n, v in winner.items() if n not in ("lr", "gate.as_found")}
    assert plans == {f"gate.constant={tau:.4g}": {"gate.temperature_init": tau} for tau in constants}
    at_found = {**winner, "gate.schedule": "constant", "gate.temperature_init": 0.5}
    assert inference_plans(spec, at_found)["winner"] == {"gate.temperature_init": 0.5}
    plan_names = {plan.name for plan in evaluations("confirm", ("baseline",), spec, winner, at_found)}
    assert {f"test:{plan}" for plan in plans} < plan_names
    unread = make(**{**read, "temperatures": {"gate": {**named_temperature, "evaluated": False}}})
    assert unread.evaluated == []
    plan_names = {plan.name for plan in evaluations("confirm", ("baseline",), unread, winner, at_found)}
    assert plan_names == {"test", "test_current"}


def test_plans_of_attention_leave_a_named_temperature_as_trained_and_the_other_way_round() -> None:
    spec = make(
        attach={"layers": "auto"},
        temperatures={"gate": {"value": "gate.tau", "as_found": 1.0, "evaluated": True}},
        search={
            "gate.temperature_init": {"low": 0.5, "high": 2.0},
            "temperature_init": {"low": 0.5, "high": 2},
        },
    )
    winner = {"gate.as_found": 1.0, "gate.temperature_init": 0.7, "temperature_init": 1.5}
    plans = inference_plans(spec, winner)
    assert plans["winner"] == {"temperature_init": 1.5, "gate.temperature_init": 0.7}
    assert plans["constant=0.5"] == {"temperature_init": 0.5}
    assert plans["gate.constant=0.5"] == {"gate.temperature_init": 0.5}
    all_plans = evaluations("confirm", ("search",), spec, winner, {**winner, "normaliser": "sparsemax"})
    temperatures = {plan.name: plan.temperature for plan in all_plans}
    assert temperatures["test:constant=0.5"] == {"temperature_init": 0.5, "normaliser": "sparsemax"}
    # the attention of the run is not touched, its normaliser neither
    assert temperatures["test:gate.constant=0.5"] == {"gate.temperature_init": 0.5}


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ("constant=0.5", ("", 0.5, "none")),
        ("constant=2,length_scaling=log_n", ("", 2.0, "log_n")),
        ("gate.constant=0.01414", ("gate", 0.01414, "none")),
        ("constant.constant=3", ("constant", 3.0, "none")),
        ("winner", None),
        ("as trained", None),
    ],
)
def test_a_plan_of_a_constant_is_read_from_its_name(plan: str, expected: Any) -> None:
    constant_plan = InferenceConstant.of(plan)
    assert (constant_plan and dataclasses.astuple(constant_plan)) == expected

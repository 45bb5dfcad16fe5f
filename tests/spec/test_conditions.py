"""A parameter with when: counts only under the given values of others."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.conditions import active_params
from tempopt.spec.search_space import params_key
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError

SEARCH: dict[str, Any] = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "optimizer": ["sgd", "adam", "lion"],
    "momentum": {"low": 0.0, "high": 0.99, "when": {"optimizer": "sgd"}},
    "nesterov": {"choices": [True, False], "when": {"warm": 1}},
    "warm": {"low": 0, "high": 3, "when": {"optimizer": ["sgd", "lion"]}},
}
VALUES = {"temperature_init": 2.0, "optimizer": "sgd", "momentum": 0.9, "nesterov": True, "warm": 1}


@pytest.fixture
def spec(make_spec: Any) -> StudySpec:
    return make_spec({"search": SEARCH})


@pytest.mark.parametrize(
    ("changes", "dropped_names"),
    [
        ({}, set()),
        ({"warm": 2}, {"nesterov"}),
        ({"optimizer": "lion"}, {"momentum"}),
        ({"optimizer": "adam"}, {"momentum", "warm", "nesterov"}),
        ({"warm": True}, {"nesterov"}),
    ],
)
def test_what_does_not_count_is_no_part_of_what_is_trained(
    spec: StudySpec, changes: dict[str, Any], dropped_names: set[str]
) -> None:
    values = {**VALUES, **changes}
    assert VALUES.keys() - active_params(spec.search, values).keys() == dropped_names
    assert VALUES.keys() - spec.parameters("search", values).keys() == dropped_names
    other_values = {name: value for name, value in values.items() if name != "temperature_init"}
    assert VALUES.keys() - spec.parameters("baseline", other_values).keys() == dropped_names


def test_plans_that_differ_in_what_does_not_count_are_one(spec: StudySpec) -> None:
    adam_plan, other_adam_plan, third = (
        params_key(spec.parameters("search", {**VALUES, "optimizer": optimizer, "momentum": momentum}))
        for optimizer, momentum in (("adam", 0.1), ("adam", 0.9), ("sgd", 0.9))
    )
    assert adam_plan == other_adam_plan != third


CHOICES = {"choices": [1, 2]}


@pytest.mark.parametrize(
    ("name", "domain", "path"),
    [
        ("x", {**CHOICES, "when": "sgd"}, "search.x"),
        ("x", {**CHOICES, "when": {"optimizer": []}}, "search.x"),
        ("x", {**CHOICES, "wen": {"optimizer": "sgd"}}, "search.x"),
        ("x", {**CHOICES, "when": {"optimiser": "sgd"}}, "search.x.when"),
        ("x", {**CHOICES, "when": {"optimizer": "sdg"}}, "search.x.when"),
        ("x", {**CHOICES, "when": {"x": 1}}, "search.x.when"),
        ("x", {**CHOICES, "when": {"momentum": 0.5}}, "search.x.when"),
        ("x", {**CHOICES, "when": {"temperature_init": 1.0}}, "search.x.when"),
        ("x", {**CHOICES, "baseline": 1, "when": {"optimizer": "sgd"}}, "search.x.when"),
        ("temperature_init", {"low": 1.0, "high": 2.0, "when": {"warm": 1}}, "search.temperature_init.when"),
        ("optimizer", {"choices": ["sgd", "lion"], "when": {"warm": 1}}, "search.optimizer.when"),
    ],
)
def test_a_condition_that_cannot_hold_is_refused(name: str, domain: Any, path: str, make_spec: Any) -> None:
    with pytest.raises(FaultySpecError) as error:
        make_spec({"search": {**SEARCH, name: domain}})
    [(fault_path, _)] = error.value.lines
    assert fault_path == path or "circle" in str(error.value)


def test_a_set_to_be_tried_first_has_nothing_that_does_not_count(make_spec: Any) -> None:
    make_spec({"search": SEARCH}, enqueue=[{"optimizer": "sgd", "momentum": 0.5}, {"momentum": 0.5}])
    with pytest.raises(SpecError, match=r'enqueue.0.momentum.*only when optimizer is "sgd".*has "adam"'):
        make_spec({"search": SEARCH}, enqueue=[{"optimizer": "adam", "momentum": 0.5}])

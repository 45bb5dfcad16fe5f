"""A parameter with when: counts only under the given values of others."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.conditions import active_params
from tempopt.spec.search_space import params_key
from tempopt.spec.study_spec import StudySpec

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


def test_a_stored_spec_has_the_conditions(spec: StudySpec) -> None:
    assert StudySpec.from_json(spec.to_json()).search == spec.search
    plain = spec.with_overrides(["search.momentum={low: 0.0, high: 0.99}"])
    assert spec.identity() != plain.identity()


WHEN: dict[str, Any] = {"optimizer": "sgd"}


@pytest.mark.parametrize(
    ("name", "domain", "message"),
    [
        ("x", {"choices": [1, 2], "when": "sgd"}, "search.x.*given when: 'sgd'. Give names with values"),
        ("x", {"choices": [1, 2], "when": {"optimizer": []}}, "no value of optimizer. Give at least one"),
        ("x", {"choices": [1, 2], "when": {"optimiser": "sgd"}}, 'Unknown .*"optimiser". Did you mean'),
        ("x", {"choices": [1, 2], "when": {"optimizer": "sdg"}}, "optimizer: given 'sdg'. Give one of"),
        ("x", {"choices": [1, 2], "when": {"x": 1}}, "x cannot depend on itself"),
        ("x", {"choices": [1, 2], "when": {"momentum": 0.5}}, "any number of a range.*one with choices"),
        ("x", {"choices": [1, 2], "wen": WHEN}, 'Unknown key "wen". Did you mean "when"'),
        ("x", {"choices": [1, 2], "when": {"temperature_init": 1.0}}, "temperature_init is held at τ = 1"),
        ("x", {"choices": [1, 2], "baseline": 1, "when": WHEN}, "given beside a baseline"),
        ("temperature_final", {"low": 1.0, "high": 2.0, "when": WHEN}, "takes no condition"),
        ("optimizer", {"choices": ["sgd", "lion"], "when": {"warm": 1}}, "in a circle, .*optimizer.* -> "),
    ],
)
def test_a_condition_that_cannot_hold_is_refused(
    name: str, domain: Any, message: str, make_spec: Any
) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec({"search": {**SEARCH, name: domain}})


def test_a_set_to_be_tried_first_has_nothing_that_does_not_count(make_spec: Any) -> None:
    make_spec({"search": SEARCH}, enqueue=[{"optimizer": "sgd", "momentum": 0.5}, {"momentum": 0.5}])
    with pytest.raises(SpecError, match=r'enqueue.0.momentum.*only when optimizer is "sgd".*has "adam"'):
        make_spec({"search": SEARCH}, enqueue=[{"optimizer": "adam", "momentum": 0.5}])

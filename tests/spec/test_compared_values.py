"""``study.compare``: what can be compared by its values, and what is said of what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.compared_values import MOST_VALUES
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.study_spec import StudySpec
from tests.specs import changed, make

HEADS = {"num_heads": [1, 2, 4, 8], "lr": {"low": 0.001, "high": 0.1}}


def compared(name: str = "num_heads", **settings: Any) -> StudySpec:
    return make(**{"search": HEADS, "study__compare": name, "study__seeds": {"confirm": 12}, **settings})


def test_numbers_are_compared_from_the_smallest_on_and_words_as_they_are_listed() -> None:
    spec = compared(search={**HEADS, "num_heads": [8, 1, 2.5]})
    assert [(each.name, each.value) for each in spec.compared_values] == [
        ("num_heads=1", 1),
        ("num_heads=2.5", 2.5),
        ("num_heads=8", 8),
    ]
    spec = compared("norm", search={"norm": ["rms", "layer", None], "lr": {"low": 0.1, "high": 1}})
    assert [each.value for each in spec.compared_values] == ["rms", "layer", None]
    assert [each.name for each in spec.compared_values] == ["norm=rms", "norm=layer", "norm=null"]
    flags = compared("bias", search={"bias": [True, False], "lr": {"low": 0.1, "high": 1}})
    assert [each.value for each in flags.compared_values] == [True, False]


def test_whole_numbers_of_a_range_are_compared_in_its_steps() -> None:
    depth = {"low": 2, "high": 8, "step": 3}
    spec = compared("depth", search={"depth": depth, "lr": {"low": 0.1, "high": 1}})
    assert [each.value for each in spec.compared_values] == [2, 5, 8]


@pytest.mark.parametrize("written", ["num_heads", "model.num_heads"])
def test_an_argument_of_the_model_may_be_written_in_either_way(written: str) -> None:
    spec = compared(written)
    assert spec.compared_name == "num_heads"
    assert [each.name for each in spec.compared_values][:2] == ["num_heads=1", "num_heads=2"]


def test_an_argument_inside_of_another_is_called_by_its_last_name() -> None:
    spec = compared("model.encoder.depth", search={"model.encoder.depth": [1, 2], "lr": [0.1, 0.2, 0.3]})
    assert [each.name for each in spec.compared_values] == ["depth=1", "depth=2"]


def test_names_of_values_are_fit_for_arms_and_differ() -> None:
    long = ["a+b", "a b", "a-b", "x" * 60 + "1", "x" * 60 + "2"]
    spec = compared("kind", search={"kind": long, "lr": {"low": 0.1, "high": 1}})
    names = [each.name for each in spec.compared_values]
    assert len(set(names)) == len(long)
    assert all(len(name) <= 40 and "+" not in name for name in names)


def test_a_temperature_need_not_be_searched() -> None:
    with pytest.raises(SpecError, match="none is a temperature"):
        make(search=HEADS)
    assert not compared().about_temperature
    assert not compared().bakes and not compared().learns


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        ({"study__compare": "heads"}, "compare", 'Unknown searched name "heads". Did you mean "num_heads"?'),
        (
            {"study__compare": "temperature_init", "search": {**HEADS, "temperature_init": [1.0, 2.0]}},
            "compare",
            "a temperature parameter",
        ),
        ({"study__compare": "lr"}, "compare", "a range of numbers from 0.001 to 0.1"),
        ({"search": {**HEADS, "num_heads": [4]}}, "compare", "has 1 value in search"),
        (
            {"search": {**HEADS, "num_heads": list(range(1, MOST_VALUES + 2))}},
            "compare",
            f"has {MOST_VALUES + 1} values in search",
        ),
        ({"search": {"num_heads": [1, 2]}}, "compare", "tempopt compare SPEC SET SET"),
        (
            {
                "search": {
                    **HEADS,
                    "num_heads": {"choices": [1, 2], "when": {"kind": ["a"]}},
                    "kind": ["a", "b"],
                }
            },
            "compare",
            "Take its when: out",
        ),
        ({"study__trials": 11}, "trials", "Give at least 3 each: 12."),
        ({"study__seeds": {"confirm": 8}, "study__test": "sign_flip"}, "seeds.confirm", "give at least 9"),
        ({"study__evaluate_only": "model.ckpt"}, "evaluate_only", "of a trained model no value is trained"),
        ({"study__arms": {"baseline": 4}}, "arms", "nothing is trained at τ = 1"),
        ({"study__ablation": "full"}, "ablation", "no winner is taken apart"),
        ({"study__failure": 0.5}, "failure", "nothing is trained at τ = 1"),
        ({"study__guards": {"val_loss": "no worse than 1%"}}, "guards", "nothing is trained at τ = 1"),
        ({"study__enqueue": [{"lr": 0.01}]}, "enqueue", "each value searches by itself"),
        ({"study__warm_start": ["first"]}, "warm_start", "each value searches by itself"),
        (
            {"study__limits": {"standard_errors": 1.0}},
            "limits.standard_errors",
            "each value searches by itself",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_in_words(settings: Any, path: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        compared(**settings)
    lines = [line for line in str(caught.value).splitlines() if f"study.{path}: " in line]
    assert any(message in line for line in lines), str(caught.value)


def test_given_sets_and_values_of_a_search_are_not_compared_at_once() -> None:
    data = changed(study__compare="num_heads", search=HEADS)
    sets = [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"lr": 0.1}}]
    with pytest.raises(SpecError, match=r"study.compare: given num_heads together with a section compare:"):
        StudySpec.parse({**data, "compare": sets}, source="the test")
    # who gives sets on the command line asks about them, whatever the spec searches
    spec = comparison_spec(data, [{}, {"lr": 0.1}])
    assert spec.compare is not None and spec.study.compare is None and not spec.compared_values


def test_a_stored_spec_compares_the_same_values() -> None:
    spec = compared()
    assert StudySpec.from_json(spec.to_json()).compared_values == spec.compared_values
    assert compared().identity() != make(search={**HEADS, "temperature_init": [1.0, 2.0]}).identity()

"""A refusal of a model says each thing once, and how a spec gives what it advises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.training.build import prepare, suggest_attach_method


def test_a_refusal_names_another_way_in_the_words_of_a_spec_and_never_the_one_that_failed() -> None:
    rows, interface = "query_rows", "attention_interface"
    advised = 'Its query is normalised. Or attach with method="attention_interface".'
    assert suggest_attach_method(advised, rows) == " (In a study: attach: {method: attention_interface}.)"
    assert (
        suggest_attach_method(advised, interface)
        == suggest_attach_method("No attention was found.", rows)
        == ""
    )
    suggestion = suggest_attach_method('Give method="query_rows".', interface)
    assert suggestion == " (In a study: attach: {method: query_rows}.)"


def test_a_module_that_both_model_and_data_are_of_is_missed_once(request_for: Any) -> None:
    missing = {"model": {"class_path": "not_there.Model"}, "data": {"class_path": "not_there.Data"}}
    with pytest.raises(SpecError) as refused:
        prepare(replace(request_for().program, **missing))
    assert str(refused.value).startswith("model.class_path: ")
    assert str(refused.value).count('"not_there"') == 1

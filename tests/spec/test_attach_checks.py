"""What the section ``attach:`` cannot set is refused from the text of a spec alone."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.spec.validation_errors import FaultySpecError
from tests.specs import make

TEMPERATURE = {"temperature_init": {"low": 0.25, "high": 4.0}}
ROWS = {"attach__method": "query_rows"}
INTERFACE = {"attach__method": "attention_interface"}
BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"entropy_lambda": {"low": 0.0, "high": 0.1}}, "entropy_lambda"),
    ({"length_scaling": ["none", "log_n"]}, "length_scaling"),
    ({"head_pattern": ["uniform", "linear"], "head_ratio": [0.5, 2.0]}, "head_pattern"),
    ({"normaliser": ["softmax", "sparsemax"]}, "normaliser"),
    ({"local_share": [0.0, 0.5], "window": [4, 8]}, "local_share"),
]


def fault_path(**settings: Any) -> str:
    with pytest.raises(FaultySpecError) as error:
        make(**settings)
    [(path, _)] = error.value.lines
    return path


@pytest.mark.parametrize(("search_params", "name"), BEYOND)
def test_what_query_rows_cannot_set_is_refused_and_the_interface_takes_it(
    search_params: dict[str, Any], name: str
) -> None:
    assert fault_path(search={**TEMPERATURE, **search_params}, **ROWS) == f"search.{name}"
    assert make(search={**TEMPERATURE, **search_params}, **INTERFACE).attach is not None
    assert make(search={**TEMPERATURE, **search_params}).attach is None


def test_a_neutral_value_is_no_fault() -> None:
    sets = [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"length_scaling": "none"}}]
    assert make(search=None, compare=sets, **ROWS).compare is not None


def test_a_compared_value_is_refused_at_its_set() -> None:
    sets = [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"length_scaling": "log_n"}}]
    assert fault_path(search=None, compare=sets, **ROWS) == "compare.B.length_scaling"


def test_an_entropy_term_of_the_module_is_its_own_argument() -> None:
    search_params = {**TEMPERATURE, "entropy_lambda": [0.0, 0.1]}
    assert fault_path(search=search_params, **ROWS) == "search.entropy_lambda"
    assert make(search=search_params, model__init_args={"entropy_lambda": 0.0}, **ROWS).attach is not None


def test_a_name_that_attach_and_the_module_have_is_refused() -> None:
    assert fault_path(model__init_args={"temperature_init": 2.0}, **ROWS) == "search.temperature_init"

"""What the section ``attach:`` cannot set is refused from the text of a spec alone."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
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


def refusal(**settings: Any) -> str:
    with pytest.raises(SpecError) as error:
        make(**settings)
    return str(error.value)


@pytest.mark.parametrize(("search_params", "name"), BEYOND)
def test_what_query_rows_cannot_set_is_refused_and_the_interface_takes_it(
    search_params: dict[str, Any], name: str
) -> None:
    message = refusal(search={**TEMPERATURE, **search_params}, **ROWS)
    assert f"search.{name}: given " in message
    assert "attach: {method: query_rows} cannot set it" in message
    assert "attach: {method: attention_interface} if my_module.MyModule is a model of transformers" in message
    assert make(search={**TEMPERATURE, **search_params}, **INTERFACE).attach is not None
    assert make(search={**TEMPERATURE, **search_params}).attach is None


def test_a_neutral_value_is_no_fault() -> None:
    sets = [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"length_scaling": "none"}}]
    assert make(search=None, compare=sets, **ROWS).compare is not None


def test_a_compared_value_is_refused_at_its_set() -> None:
    sets = [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"length_scaling": "log_n"}}]
    assert "compare.B.length_scaling: given 'log_n', but" in refusal(search=None, compare=sets, **ROWS)


def test_an_entropy_term_of_the_module_is_its_own_argument() -> None:
    search_params = {**TEMPERATURE, "entropy_lambda": [0.0, 0.1]}
    assert "write it under model.init_args if my_module.MyModule has" in refusal(search=search_params, **ROWS)
    assert make(search=search_params, model__init_args={"entropy_lambda": 0.0}, **ROWS).attach is not None


def test_a_name_that_attach_and_the_module_have_is_refused() -> None:
    message = refusal(model__init_args={"temperature_init": 2.0}, **ROWS)
    assert "temperature_init could mean what attach: sets, or the argument temperature_init of" in message


def test_an_argument_of_data_that_the_spec_does_not_have_is_refused() -> None:
    search_params = {**TEMPERATURE, "data.batch_size": [4, 8]}
    message = refusal(data=None, search=search_params)
    assert "search.data.batch_size: data.batch_size is given, but the spec has no data: section." in message

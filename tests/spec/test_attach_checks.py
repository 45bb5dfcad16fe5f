"""What the section ``attach:`` cannot set is refused from the text of a spec alone."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.spec.validation_errors import FaultySpecError
from tests.specs import make

TEMPERATURE = {"temperature_init": {"low": 0.25, "high": 4.0}}
ATTACH = {"attach__layers": "auto"}


def fault_path(**settings: Any) -> str:
    with pytest.raises(FaultySpecError) as error:
        make(**settings)
    [(path, _)] = error.value.lines
    return path


@pytest.mark.parametrize("name", ["temperature_init", "entropy_lambda"])
def test_a_name_that_attach_and_the_module_have_is_refused(name: str) -> None:
    search_params = {**TEMPERATURE, name: {"low": 0.25, "high": 4.0}}
    assert fault_path(search=search_params, model__init_args={name: 2.0}, **ATTACH) == f"search.{name}"

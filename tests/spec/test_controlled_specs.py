"""Which specs may search the control of the entropy."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tests.spec.test_study_spec import make


def test_the_entropy_of_a_compiled_model_is_not_controlled() -> None:
    control: dict[str, Any] = {
        "search__entropy_control": ["none", "contrast"],
        "search__control_level": {"low": 0.2, "high": 0.9},
        "search__control_spread": {"low": 0.1, "high": 10.0},
    }
    spec = make(**control)
    assert spec.space()["control_spread"].log and not spec.space()["control_level"].log  # type: ignore[attr-defined]
    message = r"search\.entropy_control: the entropy of attention cannot be controlled in a compiled model"
    with pytest.raises(SpecError, match=message):
        make(**control, study__compile=True)
    with pytest.raises(SpecError, match=r"search\.control_level: it changes nothing"):
        make(search__control_level={"low": 0.2, "high": 0.9})
    with pytest.raises(SpecError, match=r"search\.entropy_control: given a range, but a entropy_control has"):
        make(search__entropy_control={"low": 0.2, "high": 0.9})

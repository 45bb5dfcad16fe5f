"""Numbers that a spec may hold: those that JSON and every database hold."""

from __future__ import annotations

import math

import pytest

from tempopt.errors import SpecError
from tests.specs import make


@pytest.mark.parametrize(
    ("value", "value_text"),
    [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (10**400, "an integer beyond")],
)
def test_numbers_that_json_does_not_hold_are_refused_where_they_are(value: float, value_text: str) -> None:
    with pytest.raises(SpecError, match=rf"model\.init_args\.deep\[0\]\.x: given {value_text}"):
        make(model__init_args={"plain": 1.5, "deep": [{"x": value}]})

"""What is said of learned temperatures: where they ended, and the winner against them."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.records.rows import TicketRow
from tempopt.results.learned_text import ends_text
from tempopt.results.findings import verdict_lines
from tests.results.test_verdict_text import shifted


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ({"0": (0.5, 0.4, 0.6)}, "τ of layer 0 = 0.5 (0.4 to 0.6)"),
        (
            {"1.3": (0.5, 0.4, 0.6), "contrast": (0.1, 0.1, 0.2)},
            "contrast = 0.1 (0.1 to 0.2), τ of layer 1, head 3",
        ),
        (
            {f"{layer}.{head}": (1.0 + 2 * layer + head, 1.0, 9.0) for layer in (0, 1) for head in (0, 1, 2)},
            "at the end of training τ from 1 in layer 0, head 0 to 5 in layer 1, head 2",
        ),
    ],
)
def test_where_learned_temperatures_ended_is_told_by_layer_and_head(
    ends: dict[str, tuple[float, float, float]], said: str
) -> None:
    assert said in ends_text(ends)


def test_a_winner_that_is_worse_than_learned_temperatures_is_said_to_be(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    better = shifted(whole_study, "learned", [0.3 + 0.01 * (number % 3) for number in range(8)])
    (line,) = [
        each for each in verdict_lines(result_of(make_spec(), better)) if "winner against them" in each
    ]
    assert line.endswith("; the winner is worse.")

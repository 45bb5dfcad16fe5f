"""What is to be expected, in words that people plan with."""

from __future__ import annotations

import pytest

from tempopt.storage.rows import Kind
from tempopt.verdict.forecast_text import format_duration, runs_text
from tempopt.verdict.planned_runs import PlannedRuns, Span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (42, "42 s"),
        (720, "12 min"),
        (5.5 * 3600, "5.5 h"),
        (30 * 3600, "30 h"),
        (9 * 86400, "9 days"),
    ],
)
def test_a_duration_has_the_unit_that_people_plan_with(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def span_of(typical: float, *, spread: float = 0.0) -> dict[Kind, Span]:
    return {"confirm": Span(min=typical - spread, typical=typical, max=typical + spread)}


def test_a_number_of_runs_is_said_with_and_without_a_gain_and_at_most() -> None:
    runs = PlannedRuns(no_gain=span_of(38.4, spread=48), gain=span_of(33.6, spread=40))
    assert runs_text(runs) == "about 34 runs with a gain of 2 sd, 38 without a gain; at most 86"

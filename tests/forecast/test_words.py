"""What is to be expected, in words that people plan with."""

from __future__ import annotations

import pytest

from tempopt.forecast.runs import Span
from tempopt.forecast.words import begun_text, lasting, on, runs_text


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
    assert lasting(seconds) == text


@pytest.mark.parametrize(
    ("workers", "gpus", "text"),
    [
        (1, 0.0, "1 worker"),
        (2, 0.0, "2 workers"),
        (1, 1.0, "one GPU"),
        (2, 0.5, "one GPU"),
        (4, 2.0, "8 GPUs"),
        (1, 0.25, "0.25 of a GPU"),
    ],
)
def test_a_place_is_named_by_its_gpus_where_it_has_some(workers: int, gpus: float, text: str) -> None:
    assert on(workers, gpus) == text


def test_a_number_of_runs_is_a_range_only_where_it_is_one() -> None:
    wide = Span(min=83, typical=140.4, max=189)
    assert runs_text(wide) == "189 runs at most (140 expected)"
    assert begun_text(wide) == "to the verdict: at most 189 trainings, 140 expected"
    sure = Span(min=7, typical=7, max=7)
    assert runs_text(sure) == "7 runs"
    assert begun_text(sure) == "to the verdict: 7 trainings"

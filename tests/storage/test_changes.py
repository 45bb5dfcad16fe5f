"""What agents tell of runs: values and times as they count."""

from __future__ import annotations

import math

import pytest

from tempopt.storage.changes import MOST_SECONDS, MetricReported, RunOutcome, counted_seconds
from tempopt.storage.rows import LARGEST_VALUE, Measurement, is_finite
from tests.storage.scenes import assert_fields

BEYOND = [math.nextafter(LARGEST_VALUE, math.inf), -1e160, 1.7e308]


@pytest.mark.parametrize("value", [*BEYOND, math.inf, -math.inf, math.nan])
def test_a_value_beyond_the_largest_counts_as_none(value: float) -> None:
    assert not is_finite(value)
    assert math.isnan(MetricReported(ticket_id=1, attempt=1, step=1, value=value).value)
    assert math.isnan(Measurement(ticket_id=1, step=1, name="validate", value=value).value)


@pytest.mark.parametrize("value", [0.0, 3.4e38, -LARGEST_VALUE, LARGEST_VALUE])
def test_a_value_up_to_the_largest_stays_as_it_is(value: float) -> None:
    assert is_finite(value)
    assert MetricReported(ticket_id=1, attempt=1, step=1, value=value).value == value
    assert Measurement(ticket_id=1, step=1, name="validate", value=value).value == value
    assert RunOutcome(outcome="complete", value=value, steps=9, seconds=1.0).value == value


@pytest.mark.parametrize("value", BEYOND)
def test_a_complete_run_whose_value_is_beyond_the_largest_has_diverged(value: float) -> None:
    outcomes = RunOutcome(outcome="complete", value=value, steps=9, seconds=1.0)
    assert (outcomes.outcome, outcomes.value, outcomes.diverged_at) == ("diverged", None, 9)
    pruned_outcomes = RunOutcome(outcome="pruned", value=value, steps=9, seconds=1.0)
    assert_fields(pruned_outcomes, outcome="pruned", value=None, diverged_at=None)


@pytest.mark.parametrize(
    ("stored_seconds", "counts"),
    [
        (-1.0, 0.0),
        (0.0, 0.0),
        (7.5, 7.5),
        (MOST_SECONDS, MOST_SECONDS),
        (1e300, MOST_SECONDS),
        (math.inf, MOST_SECONDS),
        (-math.inf, 0.0),
        (math.nan, MOST_SECONDS),
    ],
)
def test_seconds_count_from_none_to_the_most(stored_seconds: float, counts: float) -> None:
    assert counted_seconds(stored_seconds) == counts

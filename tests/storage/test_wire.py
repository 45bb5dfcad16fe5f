"""What agents and servers say to each other, written and read; what no run can have done is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import UsageError
from tempopt.storage.changes import MAX_SECONDS, MetricReported, RunEnded, RunOutcome, clamp_seconds
from tempopt.storage.http.wire import change_from_plain, change_to_plain, changes_from_plain
from tempopt.storage.rows import MAX_VALUE, Measurement, is_finite
from tests.rows import HEAD_MAP, MAPS
from tests.storage.scenes import assert_fields

SEEDS = st.integers(0, 2**63 - 1)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | SEEDS


@given(st.dictionaries(st.text(min_size=1, max_size=20), NUMBERS, max_size=4), SEEDS)
def test_an_end_is_read_as_it_was_written_whatever_its_seed(
    attributes: dict[str, int | float], seed: int
) -> None:
    outcomes = RunOutcome(
        outcome="complete", value=0.5, steps=9, seconds=1.0, attributes={**attributes, "seed": seed}
    )
    change = RunEnded(ticket_id=1, attempt=1, outcomes=outcomes)
    assert change_from_plain(json.loads(json.dumps(change_to_plain(change)))) == change


def test_a_metric_that_is_not_finite_is_null_on_the_wire() -> None:
    plain = change_to_plain(MetricReported(ticket_id=1, attempt=1, step=8, value=math.inf))
    assert plain["value"] is None
    change = change_from_plain(plain)
    assert isinstance(change, MetricReported) and math.isnan(change.value)


OUTCOMES: dict[str, Any] = {"outcome": "complete", "value": 0.5, "steps": 24, "seconds": 1.0}
MEASURED: dict[str, Any] = {"ticket_id": 1, "step": 24, "name": "validate", "value": 1.0}
SAVED: dict[str, Any] = {
    "step": 8,
    "url": "tempopt://toy/baseline-0000/step-8-1.ckpt",
    "digest": "d",
    "size": 5,
}
BEGAN: dict[str, Any] = {"type": "RunStarted", "total_steps": 24, "code": "code"}
REPORTED: dict[str, Any] = {"type": "MetricReported", "step": 4, "value": 0.5}
LOST: dict[str, Any] = {"type": "AttemptLost", "error": "it fell", "max_attempts": 3}


def run_ended(**outcomes: Any) -> dict[str, Any]:
    return {"type": "RunEnded", "outcomes": OUTCOMES | outcomes}


def measured(**fields: Any) -> dict[str, Any]:
    return run_ended(measurements=[MEASURED | fields])


def saved(**fields: Any) -> dict[str, Any]:
    return {"type": "CheckpointRecorded", "checkpoint": SAVED | fields}


def returned(**fields: Any) -> dict[str, Any]:
    return {"type": "AttemptReleased"} | fields


UNFIT: list[dict[str, Any]] = [
    {},
    {"type": "Dropped"},
    {"type": ["RunStarted"]},
    *(BEGAN | {"ticket_id": id} for id in (-1, 10**400, "1; DROP TABLE tempopt_ticket")),
    *(BEGAN | {"attempt": attempt} for attempt in (0, 2**31, None)),
    *(BEGAN | {"total_steps": steps} for steps in (-1, 2**53, 10**30)),
    *(BEGAN | {"code": code} for code in ("c" * 5000, "\0", "\ud800")),
    BEGAN | {"of_another_version": 1},
    *(REPORTED | {"step": step} for step in (-5, 2**53, True)),
    *(REPORTED | {"value": value} for value in (True, [[[]]], math.inf, math.nan)),
    *(
        run_ended(**{name: value})
        for name in ("seconds", "gpu_seconds")
        for value in (-1.0, 1.7e308, True, "1")
    ),
    run_ended(checkpoint_seconds=MAX_SECONDS * 1.01),
    run_ended(seconds=math.nan),
    *(run_ended(steps=steps) for steps in (-1, 2**53)),
    *(run_ended(**{name: -1}) for name in ("diverged_at", "peak_memory")),
    *(run_ended(value=value) for value in (True, None)),
    run_ended(outcome="won"),
    *(run_ended(attributes={"seed": seed}) for seed in (2**63, 10**400)),
    *(
        run_ended(maps=maps)
        for maps in ({"cells": [1.0]}, MAPS | {"moments": {}}, MAPS | {"notes": [math.inf]})
    ),
    *(
        run_ended(
            maps={"moments": {"end": {"step": 1, "heads": [HEAD_MAP | part], "measures": []}}, "notes": []}
        )
        for part in ({"rows": 3}, {"cells": "?"}, {"most": math.nan}, {"layer": -1}, {"more": 1})
    ),
    *(run_ended(measurements=measurements) for measurements in (5, [None])),
    *(measured(step=step) for step in (-1, 2**53)),
    *(measured(name=name) for name in ("n" * 256, "a\0b")),
    *(measured(value=value) for value in (True, "1")),
    measured(ticket_id=2),
    {"type": "RunEnded", "outcomes": None},
    run_ended() | {"checkpoints": [SAVED]},
    *(LOST | fields for fields in ({"seconds": -1.0}, {"gpu_seconds": 1.7e308}, {"max_attempts": 0})),
    *(returned(**{name: -1.0}) for name in ("seconds", "gpu_seconds", "peak_memory")),
    *(saved(**fields) for fields in ({"step": -8}, {"size": -1}, {"digest": "\0"}, {"url": "u" * 5000})),
]


@pytest.mark.parametrize("change", UNFIT)
def test_what_no_run_can_have_done_is_refused_in_words(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        change_from_plain({"ticket_id": 1, "attempt": 1} | change)
    assert 0 < len(str(error.value)) < 1000


@pytest.mark.parametrize("changes", [[LOST, REPORTED], [run_ended(), run_ended()]])
def test_nothing_happens_after_the_end_of_an_attempt(changes: list[dict[str, Any]]) -> None:
    plain = [{"ticket_id": 1, "attempt": 1} | change for change in changes]
    assert changes_from_plain(plain[:1])
    with pytest.raises(UsageError, match="after the end of its attempt"):
        changes_from_plain(plain)


# ---- values and times as they count


BEYOND = [math.nextafter(MAX_VALUE, math.inf), -1e160, 1.7e308]


@pytest.mark.parametrize("value", [*BEYOND, math.inf, -math.inf, math.nan])
def test_a_value_beyond_the_largest_counts_as_none(value: float) -> None:
    assert not is_finite(value)
    assert math.isnan(MetricReported(ticket_id=1, attempt=1, step=1, value=value).value)
    assert math.isnan(Measurement(ticket_id=1, step=1, name="validate", value=value).value)


@pytest.mark.parametrize("value", [0.0, 3.4e38, -MAX_VALUE, MAX_VALUE])
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
        (MAX_SECONDS, MAX_SECONDS),
        (1e300, MAX_SECONDS),
        (math.inf, MAX_SECONDS),
        (-math.inf, 0.0),
        (math.nan, MAX_SECONDS),
    ],
)
def test_seconds_count_from_none_to_the_most(stored_seconds: float, counts: float) -> None:
    assert clamp_seconds(stored_seconds) == counts

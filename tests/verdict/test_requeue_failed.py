"""What failed for good is asked for again while something depends on it, and verdicts stay as counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tempopt.storage.rows import TicketRow
from tempopt.verdict.stages import failed_runs_to_requeue
from tests.simulated import SPACE, SimulatedStudy


def worth(row: TicketRow) -> float:
    temperature = (row.parameters or {}).get("temperature_init", 1.0)
    return 1.0 + 0.1 * temperature + 0.001 * (row.seed % 97)


@pytest.fixture
def study(make_spec: Any) -> SimulatedStudy:
    spec = make_spec({"search": SPACE}, direction="maximize", trials=4, seeds={"choose": 1, "confirm": 8})
    return SimulatedStudy(spec, worth)


def fail(study: SimulatedStudy, kind: str, arm: str | None = None) -> TicketRow:
    """Have the last run of a kind fail for good."""
    row_index = max(n for n, row in enumerate(study.rows) if row.kind == kind and arm in (None, row.arm))
    failed_fields = {"state": "failed", "outcome": "failed", "value": None, "failures": 3}
    study.rows[row_index] = dataclasses.replace(study.rows[row_index], **failed_fields)
    return study.rows[row_index]


def test_what_the_winner_is_still_to_be_chosen_on_is_trained_again(study: SimulatedStudy) -> None:
    study.search()
    study.run_until("choose")
    failed_rows = [fail(study, kind) for kind in ("baseline", "search", "choose")]
    retried_rows, fresh = failed_runs_to_requeue(study.rows, study.spec)
    assert sorted(row.id for row in retried_rows) == sorted(row.id for row in failed_rows)
    assert fresh == []


def test_what_was_chosen_stays_chosen_and_the_searchs_runs_are_for_rounds_to_come(
    study: SimulatedStudy,
) -> None:
    study.search()
    study.run_until("confirm")
    failed_rows = [fail(study, kind) for kind in ("search", "choose", "confirm")]
    # the confirmation goes on
    confirm_index = next(n for n, row in enumerate(study.rows) if row.kind == "confirm")
    study.rows[confirm_index] = dataclasses.replace(study.rows[confirm_index], state="waiting")
    retried_rows, fresh = failed_runs_to_requeue(study.rows, study.spec)
    assert {row.id for row in retried_rows} == {failed_rows[0].id, failed_rows[2].id}
    assert fresh == []


def test_pairs_that_a_verdict_lacks_are_replaced_by_others_in_a_round_of_their_own(
    study: SimulatedStudy,
) -> None:
    study.search()
    study.run()
    assert failed_runs_to_requeue(study.rows, study.spec) == ([], [])
    fail(study, "confirm", "search")
    retried_rows, fresh = failed_runs_to_requeue(study.rows, study.spec)
    assert retried_rows == []
    assert {ticket.round for ticket in fresh} == {1} and {ticket.pair for ticket in fresh} == {0, 1}
    old_seeds = {row.seed for row in study.rows}
    assert not old_seeds & {ticket.seed for ticket in fresh}
    study.do(fresh)
    assert failed_runs_to_requeue(study.rows, study.spec) == ([], [])

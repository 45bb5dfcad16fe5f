"""What failed for good is asked for again while something depends on it, and verdicts stay as counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tempopt.confirmation.retrying import retried
from tempopt.records.rows import TicketRow
from tests.simulated import SPACE, Simulated


def worth(row: TicketRow) -> float:
    at = (row.parameters or {}).get("temperature_init", 1.0)
    return 1.0 + 0.1 * at + 0.001 * (row.seed % 97)


@pytest.fixture
def study(make_spec: Any) -> Simulated:
    spec = make_spec({"search": SPACE}, direction="maximize", trials=4, seeds={"choose": 1, "confirm": 8})
    return Simulated(spec, worth)


def fail(study: Simulated, kind: str, arm: str | None = None) -> TicketRow:
    """Have the last run of a kind fail for good."""
    place = max(n for n, row in enumerate(study.rows) if row.kind == kind and arm in (None, row.arm))
    lost = {"state": "failed", "outcome": "failed", "value": None, "failures": 3}
    study.rows[place] = dataclasses.replace(study.rows[place], **lost)
    return study.rows[place]


def test_what_the_winner_is_still_to_be_chosen_on_is_trained_again(study: Simulated) -> None:
    study.search()
    study.until("choose")
    lost = [fail(study, kind) for kind in ("baseline", "search", "choose")]
    again, fresh = retried(study.rows, study.spec)
    assert sorted(row.id for row in again) == sorted(row.id for row in lost)
    assert fresh == []


def test_what_was_chosen_stays_chosen_and_the_searchs_runs_are_for_rounds_to_come(study: Simulated) -> None:
    study.search()
    study.until("confirm")
    lost = [fail(study, kind) for kind in ("search", "choose", "confirm")]
    # the confirmation goes on
    place = next(n for n, row in enumerate(study.rows) if row.kind == "confirm")
    study.rows[place] = dataclasses.replace(study.rows[place], state="waiting")
    again, fresh = retried(study.rows, study.spec)
    assert {row.id for row in again} == {lost[0].id, lost[2].id}
    assert fresh == []


def test_pairs_that_a_verdict_lacks_are_replaced_by_others_in_a_round_of_their_own(study: Simulated) -> None:
    study.search()
    study.run()
    assert retried(study.rows, study.spec) == ([], [])
    fail(study, "confirm", "search")
    again, fresh = retried(study.rows, study.spec)
    assert again == []
    assert {each.round for each in fresh} == {1} and {each.pair for each in fresh} == {0, 1}
    used = {row.seed for row in study.rows}
    assert not used & {each.seed for each in fresh}
    study.do(fresh)
    assert retried(study.rows, study.spec) == ([], [])

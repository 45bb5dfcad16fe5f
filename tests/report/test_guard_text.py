"""What is said of guards: which state they are in, by how much, and that a winner is not recommended."""

from __future__ import annotations

import json
from typing import Any

from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of

GUARDS = {"val_loss": "no worse than 5%"}
NOISE = [0.01, -0.01, 0.02, 0.0, -0.02, 0.01, -0.01, 0.0]


def result(make_spec: Any, result_of: Any, tickets: list[TicketRow], loss: float) -> StudyResult:
    measurements = [
        Measurement(ticket_id=t.id, step=10, name="test/guard:val_loss", value=value + NOISE[t.pair])
        for t in tickets
        if t.kind == "confirm" and t.pair is not None
        for arm, value in (("search", loss), ("baseline", 2.0))
        if arm in arms_of(t)
    ]
    study_result: StudyResult = result_of(make_spec(guards=GUARDS), tickets, measurements, state="done")
    return study_result


def test_programs_get_the_guards_as_plain_data(
    make_spec: Any, result_of: Any, whole_study: list[TicketRow]
) -> None:
    verdict = json.loads(json.dumps(result(make_spec, result_of, whole_study, 2.4).to_json()))["verdict"]
    (loss,) = verdict["guards"]
    assert (loss["name"], loss["state"], loss["headroom"]["n_pairs"]) == ("val_loss", "broken", 4)
    assert loss["low"] < loss["change"] < loss["high"]
    assert verdict["guards_kept"] is False

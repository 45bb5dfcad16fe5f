"""What is said of guards: which state they are in, by how much, and that a winner is not recommended."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tempopt.report.guard_text import guard_line
from tempopt.report.recommendation_text import HEAD
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tests.report.full_text import full_lines

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


def guard_lines_of(study_result: StudyResult) -> list[str]:
    return [line.strip() for line in full_lines(study_result)[1:] if "guard" in line and HEAD not in line]


def test_a_guard_that_is_kept_is_told_with_its_interval(
    make_spec: Any, result_of: Any, whole_study: list[TicketRow]
) -> None:
    (guard_line,) = guard_lines_of(result(make_spec, result_of, whole_study, 2.02))
    assert guard_line == (
        "guard on val_loss (limit +5 %): kept: +1.00 % (95 % interval +0.89 to +1.11 %; 4 seeds)."
    )


def test_programs_get_the_guards_as_plain_data(
    make_spec: Any, result_of: Any, whole_study: list[TicketRow]
) -> None:
    verdict = json.loads(json.dumps(result(make_spec, result_of, whole_study, 2.4).to_json()))["verdict"]
    (loss,) = verdict["guards"]
    assert (loss["name"], loss["state"], loss["headroom"]["n_pairs"]) == ("val_loss", "broken", 4)
    assert loss["low"] < loss["change"] < loss["high"]
    assert verdict["guards_kept"] is False


def test_absolute_guards_are_told_in_their_unit(
    make_spec: Any, result_of: Any, whole_study: list[TicketRow]
) -> None:
    verdict = result(make_spec, result_of, whole_study, 2.02).verdict
    assert verdict is not None
    guard = dataclasses.replace(
        verdict.guards[0],
        text="<= +0.01",
        margin=0.01,
        change=0.0123,
        low=-0.001,
        high=0.02,
    )
    assert guard_line(guard) == (
        "guard on val_loss (limit +0.01): kept: +0.0123 (95 % interval −0.001 to +0.02; 4 seeds)."
    )

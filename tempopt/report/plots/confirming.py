"""Which confirming runs a plot is about: those of all rounds that the verdict rests on."""

from __future__ import annotations

from tempopt.records.rows import TicketRow
from tempopt.records.tickets import of_kind, pairs_of, rounds_behind
from tempopt.results.study_result import StudyResult


def confirming(result: StudyResult, arm: str | None = None) -> list[TicketRow]:
    """Return the confirming runs (of an arm) that the verdict rests on, or else the newest, by number."""
    return [
        run for of_round in before(result) for run in of_kind(result.runs, "confirm", arm, of_round=of_round)
    ]


def before(result: StudyResult) -> dict[int, int]:
    """Return by round that the verdict rests on how many pairs the rounds before it have, oldest first."""
    of_round = result.round if result.verdict is None else result.verdict.round
    found: dict[int, int] = {}
    pairs = 0
    for each in rounds_behind(result.runs, of_round):
        found[each] = pairs
        pairs += pairs_of(of_kind(result.runs, "confirm", of_round=each))
    return found


def seeds(result: StudyResult) -> dict[int, int]:
    """Return by id of a confirming run which fresh seed it has, counted from 0 over the rounds."""
    places = before(result)
    return {run.id: places[run.round] + (run.pair or 0) for run in confirming(result)}

"""What an agent shows of a study: its tickets, its own trainers, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence

from tempopt.store.rows import KINDS
from tempopt.study.assignment import Assignment
from tempopt.study.board import Board
from tempopt.study.confirm import usable
from tempopt.study.progress import Snapshot
from tempopt.study.spec import StudySpec


def snapshot(board: Board, spec: StudySpec, work: Sequence[Assignment], elapsed: float) -> Snapshot:
    """Return the study as one agent sees it.

    Args:
        board: The tickets.
        spec: The study's spec.
        work: The agent's trainers.
        elapsed: Seconds since the agent began.
    """
    best = board.arms.best()
    units = [t.value for t in board.of_kind("unit") if usable(t) and t.value is not None]
    return Snapshot(
        study=spec.study.name,
        metric=spec.study.metric,
        direction=spec.study.direction,
        stage=next((each.ticket.kind for each in work if each.ticket is not None), None),
        done={kind: board.done[kind] for kind in KINDS},
        asked=board.asked(),
        best=best.value if best is not None else None,
        best_params=dict(best.parameters or {}) if best is not None else {},
        baseline_mean=sum(units) / len(units) if units else None,
        trainers=[each.view() for each in work],
        elapsed=elapsed,
        remaining=_remaining(board, len(work)),
    )


def _remaining(board: Board, trainers: int) -> float | None:
    if not board.complete:
        return None
    asked = board.asked()
    left = sum(asked[kind] - board.done[kind] for kind in KINDS) + board.to_come()
    return left * board.complete_seconds / board.complete / trainers

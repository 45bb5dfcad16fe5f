"""What an agent shows of a study: its tickets, its own trainers, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence

from tempopt.store.rows import KINDS
from tempopt.study.board import Board
from tempopt.study.progress import Snapshot, TrainerView
from tempopt.study.spec import StudySpec


def snapshot(board: Board, spec: StudySpec, trainers: Sequence[TrainerView], elapsed: float) -> Snapshot:
    """Return the study as one agent sees it, or somebody who looks at the store alone.

    Args:
        board: The tickets.
        spec: The study's spec.
        trainers: What each trainer that is known of does, those of other agents included.
        elapsed: Seconds since the agent, or whoever looks, began.
    """
    best = board.arms.best()
    return Snapshot(
        study=spec.study.name,
        metric=spec.study.metric,
        direction=spec.study.direction,
        stage=next((each.kind for each in trainers if each.kind is not None), None),
        done={kind: board.done[kind] for kind in KINDS},
        asked=board.asked(),
        best=best.value if best is not None else None,
        best_params=dict(best.parameters or {}) if best is not None else {},
        baseline_mean=board.baseline(),
        trainers=list(trainers),
        elapsed=elapsed,
        remaining=_remaining(board, sum(not each.silent for each in trainers)),
    )


def _remaining(board: Board, trainers: int) -> float | None:
    if not board.complete or not trainers:
        return None
    asked = board.asked()
    left = sum(asked[kind] - board.done[kind] for kind in KINDS) + board.to_come()
    return left * board.complete_seconds / board.complete / trainers

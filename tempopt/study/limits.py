"""When a study has used up what it was allowed: the search then ends, in time for what proves it."""

from __future__ import annotations

from datetime import UTC, datetime

from tempopt.store.rows import SEARCHING, StudyRow
from tempopt.study.board import Board
from tempopt.study.spec import StudySpec
from tempopt.study.stages import reserve, spent

_HOUR = 3600.0


def ended_by(spec: StudySpec, study: StudyRow, board: Board, *, trainers: int) -> str | None:
    """Return in words the limit that ends the search now, None if it goes on or is over already.

    Choosing and confirming still have to fit into the limit, as far as their cost can be foreseen. What
    counts for ``gpu_hours`` is the time of cards, and where runs train on none their training time.

    Args:
        spec: The study's spec, with ``study.limits``.
        study: The study's row.
        board: Its tickets.
        trainers: Trainers that will share what is left to do, >= 1.
    """
    limits = spec.study.limits
    if limits.hours is None and limits.gpu_hours is None:
        return None
    if not any(row.state == "waiting" for kind in SEARCHING for row in board.of_kind(kind)):
        return None
    tickets = list(board.tickets.values())
    needed, needed_of_cards = reserve(tickets, spec), reserve(tickets, spec, spent)
    hours = (datetime.now(UTC) - study.created).total_seconds() / _HOUR
    allowances = (
        ("hours", hours, needed / trainers / _HOUR, limits.hours),
        ("gpu_hours", board.spent / _HOUR, needed_of_cards / _HOUR, limits.gpu_hours),
    )
    for name, used, more, limit in allowances:
        if limit is not None and used + more >= limit:
            return (
                f"study.limits.{name} allows {limit:g}; {used:.3g} are used and confirming takes about "
                f"{more:.3g} more. The search ends here; what it has found is confirmed."
            )
    return None

"""The totals of all runs of each study, asked of the database in one statement for all studies."""

from __future__ import annotations

from sqlalchemy import Connection, and_, case, func, select

from tempopt.storage.models import TICKET
from tempopt.storage.queries import clamp_seconds
from tempopt.storage.rows import StudyTotals


def read(connection: Connection) -> dict[int, StudyTotals]:
    """Return the totals by id of the study; a study without tickets is not among them."""
    counts = and_(TICKET.c.kind == "search", TICKET.c.state == "done", TICKET.c.outcome == "complete")
    value = case((counts, TICKET.c.value))
    rows = connection.execute(
        select(
            TICKET.c.study_id,
            func.min(value).label("lowest"),
            func.max(value).label("highest"),
            func.sum(clamp_seconds(TICKET.c.seconds)).label("seconds"),
            func.sum(clamp_seconds(TICKET.c.gpu_seconds)).label("gpu_seconds"),
        ).group_by(TICKET.c.study_id)
    )
    return {
        row.study_id: StudyTotals(
            lowest=row.lowest,
            highest=row.highest,
            seconds=float(row.seconds),
            gpu_seconds=float(row.gpu_seconds),
        )
        for row in rows
    }

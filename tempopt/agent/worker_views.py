"""Views of the runs in progress of a study, read from the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tempopt.agent.observer import WorkerView
from tempopt.storage.liveness import is_dead, short_agent_name
from tempopt.storage.rows import TicketRow
from tempopt.storage.store import Store


def to_worker_views(store: Store, tickets: Iterable[TicketRow]) -> list[WorkerView]:
    """Return a view of each run in progress.

    Args:
        store: The database, for the reports of these runs.
        tickets: Tickets in any state.
    """
    rows = [row for row in tickets if row.state == "running" and row.agent]
    rows.sort(key=lambda row: (row.agent or "", row.kind, row.number))
    if not rows:
        return []
    reports: dict[int, dict[int, float]] = {row.id: {} for row in rows}
    for report in store.measurements(rows[0].study_id, list(reports), names=["report"]):
        reports[report.ticket_id][report.step] = report.value
    return [_to_worker_view(slot, row, reports[row.id]) for slot, row in enumerate(rows)]


def _to_worker_view(slot: int, row: TicketRow, reports: dict[int, float]) -> WorkerView:
    assert row.agent is not None
    steps = [step for step in (row.steps, *reports) if step is not None]
    return WorkerView(
        slot=slot,
        kind=row.kind,
        number=row.number,
        step=max(steps, default=None),
        total_steps=row.total_steps,
        value=reports[max(reports)] if reports else None,
        agent=short_agent_name(row.agent),
        machine=row.machine,
        device=row.device,
        silent=(row.lease or 0.0) <= 0 or is_dead(row.agent),
    )


def to_json(store: Store, tickets: Iterable[TicketRow]) -> list[dict[str, Any]]:
    """Return the agents at work as documented for ``tempopt show --json``, one entry per run."""
    return [
        {
            "agent": view.agent,
            "machine": view.machine,
            "device": view.device,
            "run": f"{view.kind}-{view.number}",
            "step": view.step,
            "total_steps": view.total_steps,
            "value": view.value,
        }
        for view in to_worker_views(store, tickets)
        if not view.silent
    ]

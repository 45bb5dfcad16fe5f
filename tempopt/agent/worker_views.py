"""Who is at work on a study, run by run, as the store tells it; changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tempopt.agent.observer import WorkerView
from tempopt.storage.liveness import is_dead, short_agent_name
from tempopt.storage.rows import TicketRow

if TYPE_CHECKING:
    from tempopt.agent.study_cache import StudyCache
    from tempopt.storage.store import Store


def running_worker_views(
    cache: StudyCache, store: Store, *, exclude_agent: str | None = None
) -> list[WorkerView]:
    """Return a view of each run in progress that a cache knows of, those of one agent together.

    One question is asked of the store, however many runs there are: what those in progress have reported.

    Args:
        exclude_agent: Name of an agent whose runs are left out.
    """
    rows = [row for row in cache.tickets.values() if row.state == "running" and row.agent != exclude_agent]
    return to_worker_views(rows, _reports(store, rows))


def to_worker_views(
    rows: Iterable[TicketRow], reports: Mapping[int, Mapping[int, float]]
) -> list[WorkerView]:
    """Return a view of each run that is running.

    Args:
        rows: Tickets, which may be in any state.
        reports: Ticket id to value by optimizer step, in the order of the steps.
    """
    running = [row for row in rows if row.state == "running" and row.agent]
    running.sort(key=lambda row: (row.agent or "", row.kind, row.number))
    return [_view(slot, row, reports.get(row.id, {})) for slot, row in enumerate(running)]


def _view(slot: int, row: TicketRow, reports: Mapping[int, float]) -> WorkerView:
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
    """Return the documented data of ``tempopt show --json`` about the agents at work, one entry a run."""
    rows = [row for row in tickets if row.state == "running"]
    run_views = to_worker_views(rows, _reports(store, rows))
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
        for view in run_views
        if not view.silent
    ]


def _reports(store: Store, rows: Sequence[TicketRow]) -> dict[int, dict[int, float]]:
    if not rows:
        return {}
    reports: dict[int, dict[int, float]] = {}
    measurements = store.measurements(rows[0].study_id, [row.id for row in rows], names=["report"])
    for report in sorted(measurements, key=lambda report: report.step):
        reports.setdefault(report.ticket_id, {})[report.step] = report.value
    return reports

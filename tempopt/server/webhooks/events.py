"""What happened to studies and budgets, found in the store's rows; each event has a key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tempopt.errors import StudyNotFound, masked
from tempopt.records.pool import Quota
from tempopt.records.rows import StudyRow
from tempopt.records.webhooks import Marks, RunMark, StudyMark
from tempopt.results.answer import study_answer
from tempopt.results.study_result import StudyResult, load
from tempopt.scheduling.limits import RESUMED_BELOW
from tempopt.server.webhooks.endpoints import Endpoint, EventType
from tempopt.store.store import Store

_MOST_TEXT = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetMark:
    """A quota whose budget is used up.

    Args:
        quota: The quota.
        used: GPU-hours that are used of it.
    """

    quota: Quota
    used: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that an endpoint may be told.

    Args:
        type: What happened.
        key: Which time it was: no other event of any type has the same.
        study: Name of the study; empty for a budget.
        about: What it happened to.
    """

    type: EventType
    key: str
    study: str
    about: StudyMark | RunMark | BudgetMark

    def concerns(self, endpoint: Endpoint) -> bool:
        """Return whether an endpoint is told of it; of a budget only one that is told of all studies."""
        return self.type in endpoint.events and self.study.startswith(endpoint.studies)


def happened(marks: Marks, spent: Iterable[BudgetMark]) -> list[Event]:
    """Return the events that have happened and still hold: of runs, of studies, of budgets."""
    events = []
    # a study ends after its runs
    for run in marks.failed:
        key = f"run.failed:{run.study_id}:{run.ticket_id}:{run.attempt}"
        events.append(Event(type="run.failed", key=key, study=run.study, about=run))
    for mark in marks.done:
        for kind in ("study.done", "study.verdict"):
            key = f"{kind}:{mark.study_id}:{mark.version}"
            events.append(Event(type=kind, key=key, study=mark.name, about=mark))
    for each in spent:
        events.append(Event(type="budget.spent", key=budget_key(each.quota), study="", about=each))
    return events


def budget_key(quota: Quota) -> str:
    """Return the key of a budget that is used up; a quota that is set anew has another."""
    identity = json.dumps([quota.queue, quota.user, quota.gpu_hours, quota.days])
    return f"budget.spent:{hashlib.sha256(identity.encode()).hexdigest()[:32]}"


def used_up(budgets: Sequence[tuple[Quota, float]]) -> tuple[list[BudgetMark], set[str]]:
    """Return the budgets that are used up, and the keys of those whose event is not over yet.

    It is over once a part of the budget is free again: hours fall out of its days one by one.
    """
    spent, held = [], set()
    for quota, hours in budgets:
        # nothing can be used up of a budget of nothing
        if not quota.gpu_hours:
            continue
        if hours >= quota.gpu_hours:
            spent.append(BudgetMark(quota=quota, used=hours))
        if hours >= RESUMED_BELOW * quota.gpu_hours:
            held.add(budget_key(quota))
    return spent, held


def body(store: Store, event: Event) -> str | None:
    """Return the message that tells of an event, as JSON text; None: there is nothing to tell.

    Raises:
        StudyNotFound: The study was deleted meanwhile.
    """
    data = _data(store, event)
    if data is None:
        return None
    return text(event.type, data)


def text(type: str, data: dict[str, Any]) -> str:
    """Return a message as JSON text, as of now."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"type": type, "timestamp": now, "data": data}, allow_nan=False)


def _data(store: Store, event: Event) -> dict[str, Any] | None:
    about = event.about
    if isinstance(about, BudgetMark):
        return {**asdict(about.quota), "used": about.used}
    if isinstance(about, RunMark):
        return _of_run(store, about)
    row = store.load_study(about.name)
    if row.id != about.study_id:
        raise StudyNotFound(f'The study "{about.name}" was deleted, and another one of that name begun.')
    result = load(store, about.name)
    return _of_study(row, result) if event.type == "study.done" else _of_verdict(result)


def _of_study(row: StudyRow, result: StudyResult) -> dict[str, Any]:
    counts = result.tickets.values()
    found = study_answer(result)
    return {
        "study": result.name,
        "owner": row.owner,
        "queue": row.queue,
        "labels": list(row.labels),
        "metric": result.metric,
        "direction": result.direction,
        "runs": {
            "done": sum(each.done for each in counts),
            "failed": sum(each.failed for each in counts),
            "withdrawn": sum(each.withdrawn for each in counts),
        },
        "best": None if result.best is None else asdict(result.best),
        "train_seconds": result.cost.train_seconds,
        "gpu_seconds": result.cost.gpu_seconds,
        "answer": found.answer,
        "headline": found.headline,
    }


def _of_verdict(result: StudyResult) -> dict[str, Any] | None:
    found = study_answer(result)
    if found.answer in ("none_yet", "no_verdict"):
        return None
    return {
        "study": result.name,
        "answer": found.answer,
        "headline": found.headline,
        "recommendation": found.recommendation,
        "action": found.action,
        "params": found.params,
        "not_shown": found.not_shown,
    }


def _of_run(store: Store, mark: RunMark) -> dict[str, Any] | None:
    found = store.run(mark.ticket_id)
    if found is None:
        raise StudyNotFound(f'The study "{mark.study}" was deleted.')
    row = found.ticket
    if row.state != "failed":
        return None
    return {
        "study": mark.study,
        "run": row.name,
        "kind": row.kind,
        "arm": row.arm,
        "parameters": row.parameters,
        "attempts": row.attempt,
        "machine": row.machine,
        "error": masked(row.error or "")[:_MOST_TEXT],
    }

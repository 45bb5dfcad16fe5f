"""How all studies stand, for a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tempopt.records.liveness import is_dead, study_standing
from tempopt.records.rows import KINDS, Kind, StudyStanding, StudySummary, StudyTotals, TicketState
from tempopt.server.pages.findings import Finding, Findings, may_have_found
from tempopt.store.store import Store
from tempopt.study.progress import LABELS

STATES: tuple[StudyStanding, ...] = ("running", "waiting", "paused", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One study of the list.

    Args:
        over: Runs that ended, well or not.
        asked: Runs that are planned so far, those included.
        failed: Runs of which every attempt was lost.
        stage: What it is at, in words; empty if nothing is left to do.
        best: Value of its best complete trial; None before the first.
        answer: What it found, in a few words.
        gain: Whether that is a gain.
        todo: What to do, in a few words; empty before a verdict.
        hours: GPU-hours, or hours of training where no GPU was used.
        on_gpu: Which of them.
        age: Seconds since it was begun.
    """

    id: int
    name: str
    owner: str
    queue: str
    priority: int
    labels: tuple[str, ...]
    state: StudyStanding
    agents: int
    metric: str
    direction: str
    over: int
    asked: int
    failed: int
    stage: str
    best: float | None
    answer: str
    gain: bool
    todo: str
    hours: float
    on_gpu: bool
    created: datetime
    age: float


_SORTS: Mapping[str, Callable[[Line], Any]] = {
    "state": lambda each: STATES.index(each.state),
    "name": lambda each: each.name.lower(),
    "owner": lambda each: each.owner.lower(),
    "queue": lambda each: (each.queue, -each.priority),
    "priority": lambda each: each.priority,
    "progress": lambda each: each.over / max(each.asked, 1),
    "verdict": lambda each: (not each.gain, each.answer),
    "hours": lambda each: each.hours,
    "age": lambda each: each.age,
}
SORTS = tuple(_SORTS)


def sorted_by(lines: list[Line], key: str, *, descending: bool) -> list[Line]:
    """Return lines by one of SORTS; those that are the same in it stay in their order."""
    return sorted(lines, key=_SORTS[key], reverse=descending)


def look(store: Store, findings: Findings) -> list[Line]:
    """Return a line for each study, the newest first; the store is asked for all of them at a time."""
    summaries, totals = store.list_studies(), store.totals()
    found = findings.of(summaries)
    nothing = StudyTotals(lowest=None, highest=None, seconds=0.0, gpu_seconds=0.0)
    return [
        _line(each, totals.get(each.study.id, nothing), found.get(each.study.id))
        for each in reversed(summaries)
    ]


def _line(summary: StudySummary, totals: StudyTotals, found: Finding | None) -> Line:
    row = summary.study
    agents = sum(not is_dead(each) for each in summary.agents)
    asked, over, failed = (_count(summary, *states) for states in (_ASKED, _OVER, ("failed",)))
    state = study_standing(row.state, agents)
    maximize = row.spec["study"]["direction"] == "maximize"
    best = totals.highest if maximize else totals.lowest
    unread = "reading …" if may_have_found(summary) else "No verdict yet"
    return Line(
        id=row.id,
        name=row.name,
        owner=row.owner,
        queue=row.queue,
        priority=row.priority,
        labels=row.labels,
        state=state,
        agents=agents,
        metric=row.spec["study"]["metric"],
        direction=row.spec["study"]["direction"],
        over=over,
        asked=asked,
        failed=failed,
        stage="" if state == "done" else _stage(summary),
        best=best if found is None else found.best,
        answer=unread if found is None else found.answer,
        gain=found is not None and found.gain,
        todo="" if found is None else found.todo,
        hours=(totals.gpu_seconds or totals.seconds) / 3600,
        on_gpu=totals.gpu_seconds > 0,
        created=row.created,
        age=row.age,
    )


_ASKED: tuple[TicketState, ...] = ("waiting", "running", "done", "failed")
_OVER: tuple[TicketState, ...] = ("done", "failed")


def _count(summary: StudySummary, *states: TicketState) -> int:
    return sum(each.get(state, 0) for each in summary.tickets.values() for state in states)


def _stage(summary: StudySummary) -> str:
    """Return the stage of the first run that is not over."""
    kinds: list[Kind] = [
        kind
        for kind in KINDS
        if (states := summary.tickets.get(kind)) and (states.get("running", 0) or states.get("waiting", 0))
    ]
    return LABELS[kinds[0]] if kinds else ""

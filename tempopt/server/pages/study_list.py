"""The rows of the list of studies, read once in a few seconds for all clients."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fastapi import Request

from tempopt.errors import StudyNotFound, TempoptError
from tempopt.report import headline
from tempopt.report.findings import GAIN
from tempopt.report.study_result import load
from tempopt.storage.liveness import display_state, is_dead
from tempopt.storage.rows import KINDS, StudyStanding, StudySummary, StudyTotals, TicketState
from tempopt.storage.store import Store

PER_PAGE = 100
FRESH_SECONDS = 2.0
"""Rows that were read are shown for so long before they are read again."""
_MAX_ANSWERS = 1000
_ORDER: tuple[StudyStanding, ...] = ("running", "waiting", "paused", "done")
_PLANNED: tuple[TicketState, ...] = ("waiting", "running", "done", "failed")
_FINISHED_STATES: tuple[TicketState, ...] = ("done", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One study of the list.

    Args:
        id: Its id.
        version: Version of its tickets.
        name: Its name.
        owner: Who has begun it.
        state: ``running`` with agents at work, ``waiting`` without one, ``paused`` or ``done``.
        num_agents: Agents at work.
        stage: Stage of its next runs; empty if there are none.
        num_ended: Runs that have ended, failed ones included.
        num_planned: Runs that are planned so far.
        num_failed: Runs of which every attempt has failed.
        metric: Its metric.
        direction: ``maximize`` or ``minimize``.
        best: Best value of a complete trial; None before the first.
        answer: The verdict in a few words; empty while the study is not done.
        hours: Hours of GPUs, or of training where no run used one.
        is_on_gpu: Whether they are hours of GPUs.
        created: When it was begun.
        age: Seconds since then.
    """

    id: int
    version: int
    name: str
    owner: str
    state: StudyStanding
    num_agents: int
    stage: str
    num_ended: int
    num_planned: int
    num_failed: int
    metric: str
    direction: str
    best: float | None
    answer: str = ""
    hours: float
    is_on_gpu: bool
    created: datetime
    age: float

    @property
    def is_gain(self) -> bool:
        """Whether a gain is shown."""
        return self.answer.startswith(GAIN)

    def matches(self, query: str) -> bool:
        """Return whether each word of a query is in the name, the owner, the metric or the state."""
        text = f"{self.name} {self.owner} {self.metric} {self.state}".lower()
        return all(word in text for word in query.lower().split())


class StudyList:
    """The rows of all studies; threads may share it.

    Args:
        store: The store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._read_at = 0.0
        self._answers: OrderedDict[tuple[int, int], str] = OrderedDict()

    def rows(self) -> list[Row]:
        """Return all studies, those at work first, then the newest."""
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at >= FRESH_SECONDS:
                totals = self._store.totals()
                rows = [_row(summary, totals) for summary in reversed(self._store.list_studies())]
                self._rows = sorted(rows, key=lambda row: _ORDER.index(row.state))
                self._read_at = time.monotonic()
            return self._rows

    def with_answers(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with the verdicts of those that are done, which are read once."""
        return [replace(row, answer=self._answer(row)) if row.state == "done" else row for row in rows]

    def _answer(self, row: Row) -> str:
        key = (row.id, row.version)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        try:
            text = headline.outcome_label(load(self._store, row.name))
        except StudyNotFound:
            return "deleted"
        except TempoptError:
            return "cannot be read"
        with self._lock:
            self._answers[key] = text
            while len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        return text


async def list_of(request: Request) -> StudyList:
    """Return the list of the server; a dependency."""
    studies: StudyList = request.app.state.study_list
    return studies


def _row(summary: StudySummary, totals: dict[int, StudyTotals]) -> Row:
    study = summary.study
    total = totals.get(study.id, StudyTotals(lowest=None, highest=None, seconds=0.0, gpu_seconds=0.0))
    num_agents = sum(not is_dead(agent) for agent in summary.agents)
    section = study.spec["study"]
    return Row(
        id=study.id,
        version=study.version,
        name=study.name,
        owner=study.owner,
        state=display_state(study.state, num_agents),
        num_agents=num_agents,
        stage="" if study.state == "done" else _next_stage(summary),
        num_ended=_count(summary, _FINISHED_STATES),
        num_planned=_count(summary, _PLANNED),
        num_failed=_count(summary, ("failed",)),
        metric=section["metric"],
        direction=section["direction"],
        best=total.highest if section["direction"] == "maximize" else total.lowest,
        hours=(total.gpu_seconds or total.seconds) / 3600,
        is_on_gpu=total.gpu_seconds > 0,
        created=study.created,
        age=study.age,
    )


def _count(summary: StudySummary, states: Sequence[TicketState]) -> int:
    return sum(counts.get(state, 0) for counts in summary.tickets.values() for state in states)


def _next_stage(summary: StudySummary) -> str:
    for kind in KINDS:
        counts = summary.tickets.get(kind, {})
        if counts.get("running", 0) or counts.get("waiting", 0):
            return kind
    return ""

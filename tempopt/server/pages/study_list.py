"""The rows of the list of studies, read once every few seconds for all clients."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tempopt.errors import StudyNotFound, TempoptError
from tempopt.report.study_lines import outcome_label
from tempopt.report.study_result import load
from tempopt.report.study_summary import answer_kind
from tempopt.storage.liveness import summary_state
from tempopt.storage.rows import (
    KINDS,
    STANDINGS,
    StudyRow,
    StudyStanding,
    StudySummary,
    StudyTotals,
    TicketState,
)
from tempopt.storage.store import Store

PER_PAGE = 100
FRESH_SECONDS = 2.0
"""Seconds for which rows are cached."""
_MAX_ANSWERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One study of the list.

    Args:
        study: Its row.
        state: ``running`` with agents at work, ``waiting`` without agents, ``paused`` or ``done``.
        num_agents: Agents at work.
        stage: Stage of its next runs; empty if there are none.
        counts: Its runs by state.
        best: Best value of a complete trial; None before the first.
        hours: GPU hours, or training hours if no run used a GPU.
        is_on_gpu: Whether they are GPU hours.
        answer: The verdict in a few words; empty while the study is not done.
        is_gain: Whether a gain is shown.
    """

    study: StudyRow
    state: StudyStanding
    num_agents: int
    stage: str
    counts: Mapping[TicketState, int]
    best: float | None
    hours: float
    is_on_gpu: bool
    answer: str = ""
    is_gain: bool = False

    @property
    def metric(self) -> str:
        """Its metric."""
        return str(self.study.spec["study"]["metric"])

    def matches(self, query: str) -> bool:
        """Return whether each word of a query is in the name, the owner, the metric or the state."""
        text = f"{self.study.name} {self.study.owner} {self.metric} {self.state}".lower()
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
        self._answers: OrderedDict[tuple[int, int], tuple[str, bool]] = OrderedDict()

    def rows(self) -> list[Row]:
        """Return all studies, those at work first, then the newest."""
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at >= FRESH_SECONDS:
                totals = self._store.totals()
                rows = [_build_row(summary, totals) for summary in reversed(self._store.list_studies())]
                self._rows = sorted(rows, key=lambda row: STANDINGS.index(row.state))
                self._read_at = time.monotonic()
            return self._rows

    def with_answers(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with the verdicts of finished studies, which are read once."""
        return [self._add_answer(row) if row.state == "done" else row for row in rows]

    def _add_answer(self, row: Row) -> Row:
        key = (row.study.id, row.study.version)
        with self._lock:
            answer = self._answers.get(key)
        if answer is None:
            try:
                result = load(self._store, row.study.name)
            except StudyNotFound:
                return replace(row, answer="deleted")
            except TempoptError:
                return replace(row, answer="cannot be read")
            answer = outcome_label(result), answer_kind(result) == "gain_shown"
            with self._lock:
                self._answers[key] = answer
                while len(self._answers) > _MAX_ANSWERS:
                    self._answers.popitem(last=False)
        return replace(row, answer=answer[0], is_gain=answer[1])


def _build_row(summary: StudySummary, totals: dict[int, StudyTotals]) -> Row:
    study = summary.study
    total = totals.get(study.id, StudyTotals(lowest=None, highest=None, seconds=0.0, gpu_seconds=0.0))
    state, num_agents = summary_state(summary)
    return Row(
        study=study,
        state=state,
        num_agents=num_agents,
        stage="" if study.state == "done" else _find_next_stage(summary),
        counts=summary.counts,
        best=total.highest if study.spec["study"]["direction"] == "maximize" else total.lowest,
        hours=total.hours,
        is_on_gpu=total.gpu_seconds > 0,
    )


def _find_next_stage(summary: StudySummary) -> str:
    open_states = {"running", "waiting"}
    return next((kind for kind in KINDS if open_states & summary.tickets.get(kind, {}).keys()), "")

"""An agent's copy of a study's tickets: which are over, which may begin, which stage comes next.

Read completely once, and then only where something may have changed.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from tempopt.agent.observer import Snapshot, WorkerView
from tempopt.agent.worker_views import to_worker_views
from tempopt.sampling.arms import SearchArms, guard_values_by_ticket, reports_by_ticket
from tempopt.spec.sections import KNOWLEDGE_GRADIENT
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.liveness import is_dead
from tempopt.storage.rows import KINDS, SEARCH_KINDS, TERMINAL_STATES, Kind, StudyRow, StudyState, TicketRow
from tempopt.storage.store import Store
from tempopt.storage.ticket_queries import gpu_seconds_of, is_usable, to_maximize
from tempopt.verdict.pairs import find_winner
from tempopt.verdict.stages import count_tickets_to_come


class StudyCache:
    """The tickets of one study, as known to this agent.

    Args:
        spec: The study's spec.
        study: The study's row.
        store: The database with the tickets; methods that read it raise StorageError if that fails.
    """

    def __init__(self, spec: StudySpec, study: StudyRow, store: Store) -> None:
        self.spec = spec
        self.study = study
        self.store = store
        self._warm_start_runs = store.warm_start(study.id) if spec.study.warm_start else []
        self.read()

    def read(self) -> None:
        """Read all tickets and reports again."""
        study = self.store.load_study(self.study.name)
        self.state: StudyState = study.state
        self.version = study.version
        self.set_age(study.age)
        rows = self.store.tickets(self.study.id)
        names = ["report", *self.spec.study.measured_guards]
        reports = self.store.measurements(self.study.id, names=names)
        self.arms = SearchArms(self.spec, rows, reports, earlier=self._warm_start_runs)
        self.tickets = {row.id: row for row in rows}
        self.codes = {row.code for row in rows if row.code is not None}
        self._ids_by_kind = {kind: [row.id for row in rows if row.kind == kind] for kind in KINDS}
        self._first_open_positions: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._num_to_come: int | None = None
        self.done = Counter(row.kind for row in rows if row.state in TERMINAL_STATES)
        self.gpu_seconds = sum(gpu_seconds_of(row) for row in rows)
        self._num_complete, self._complete_seconds = 0, 0.0
        for row in rows:
            self._count_complete(row)

    def refresh(self) -> None:
        """Read the changes that other agents have made."""
        news = self.store.news(
            self.study.id, {kind: self._first_open_number(kind) for kind in self._unfinished_kinds()}
        )
        self.state = news.state
        self.set_age(news.age)
        if news.version != self.version or any(row.id not in self.tickets for row in news.tickets):
            self.read()
            return
        reports = reports_by_ticket(report for report in news.reports if report.name == "report")
        guards = guard_values_by_ticket(news.reports, self.spec)
        for row in news.tickets:
            self.apply_ticket(row, reports.get(row.id, {}), guards.get(row.id, {}))
        begun_ids = {row.id for row in news.tickets}
        for row in list(self.open_tickets()):
            if row.state == "running" and row.id not in begun_ids:
                # released or lost: news does not list waiting tickets
                self.patch_ticket(row.id, state="waiting", agent=None, lease=None)

    def apply_ticket(
        self, row: TicketRow, reports: Mapping[int, float], guards: Mapping[str, float] | None = None
    ) -> None:
        """Apply the new state of a ticket.

        Its reports (step to value) and its guarded metrics by name count once it is over. A state of an
        earlier attempt is ignored: a run that another agent has taken over may end here before the store
        refuses it.
        """
        before = self.tickets[row.id]
        if before.state in TERMINAL_STATES or before.attempt > row.attempt:
            return
        self.tickets[row.id] = row
        self.gpu_seconds += gpu_seconds_of(row) - gpu_seconds_of(before)
        if row.code is not None:
            self.codes.add(row.code)
        if row.parameters is not None:
            self.arms.register_asked(row)
        if row.state in TERMINAL_STATES:
            self._num_to_come = None
            self.done[row.kind] += 1
            self._count_complete(row)
            self.arms.tell(row, reports, guards)

    def _count_complete(self, row: TicketRow) -> None:
        """Count the seconds of a run if it is complete."""
        if row.outcome == "complete":
            self._num_complete += 1
            self._complete_seconds += row.seconds

    def set_age(self, age: float) -> None:
        """Set the seconds since the study was created, by the database's clock."""
        self._age, self._age_read_at = age, time.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the study was created; does not compare the clocks of two machines."""
        return self._age + time.monotonic() - self._age_read_at

    def baseline(self) -> float | None:
        """Return the mean of the complete baseline runs that are known, None if there is none."""
        values = [t.value for t in self.tickets_of_kind("baseline") if is_usable(t) and t.value is not None]
        return fmean(values) if values else None

    def gain(self, value: float | None) -> float | None:
        """Return the gain of a value over the baseline, > 0 being better; None if it may still change."""
        baseline = self.baseline()
        if value is None or baseline is None or not self._is_baseline_over():
            return None
        return to_maximize(value - baseline, self.spec.study.direction)

    def constraints(self, guards: Mapping[str, float]) -> dict[str, float]:
        """Return by how much a run exceeds the limit of each guard; empty while a limit may still change.

        Args:
            guards: The guarded metrics that the run measured, by name.
        """
        return self.arms.constraints(guards) if guards and self._is_baseline_over() else {}

    def _is_baseline_over(self) -> bool:
        return self.done["baseline"] == len(self._ids_by_kind["baseline"])

    def patch_ticket(self, ticket_id: int, **fields: Any) -> None:
        """Change fields of a ticket that is not over."""
        self.tickets[ticket_id] = dataclasses.replace(self.tickets[ticket_id], **fields)

    def requested_counts(self) -> dict[Kind, int]:
        """Return the number of tickets of each kind."""
        return {kind: len(ids) for kind, ids in self._ids_by_kind.items()}

    def worker_views(self, *, exclude_agent: str | None = None) -> list[WorkerView]:
        """Return a view of each known run in progress, those of one agent together.

        Makes one query, for the reports of the runs in progress.

        Args:
            exclude_agent: Name of an agent whose runs are left out.
        """
        rows = [row for row in self.tickets.values() if row.state == "running" and row.agent != exclude_agent]
        return to_worker_views(self.store, rows)

    def snapshot(
        self, workers: Sequence[WorkerView], elapsed: float, *, at_work: int | None = None
    ) -> Snapshot:
        """Return the state of the study, for an agent or a process that only reads the store.

        Args:
            workers: A view of each known worker, those of other agents included.
            elapsed: Seconds since the agent or the reading process began.
            at_work: Number of workers that share the remaining runs; None: those that are not silent.
        """
        best = self.arms.best()
        if at_work is None:
            at_work = sum(not view.silent for view in workers)
        seconds = self.seconds_left() if at_work else None
        return Snapshot(
            study=self.spec.study.name,
            metric=self.spec.study.metric,
            direction=self.spec.study.direction,
            stage=next((view.kind for view in workers if view.kind is not None), None),
            done={kind: self.done[kind] for kind in KINDS},
            requested=self.requested_counts(),
            best=best.value if best is not None else None,
            best_params=dict(best.parameters or {}) if best is not None else {},
            baseline_mean=self.baseline(),
            workers=list(workers),
            elapsed=elapsed,
            remaining=None if seconds is None else seconds / at_work,
            confirms_on=self.spec.study.confirm_on,
        )

    def seconds_left(self) -> float | None:
        """Return an estimate of the training seconds of all remaining runs; None before a run is complete."""
        if not self._num_complete:
            return None
        if self._num_to_come is None:
            self._num_to_come = count_tickets_to_come(list(self.tickets.values()), self.spec)
        num_left = sum(count - self.done[kind] for kind, count in self.requested_counts().items())
        return (self._num_to_come + num_left) * self._complete_seconds / self._num_complete

    def tickets_of_kind(self, kind: Kind) -> list[TicketRow]:
        """Return the tickets of a kind by number."""
        return [self.tickets[id] for id in self._ids_by_kind[kind]]

    def is_finished(self) -> bool:
        """Return whether all known tickets are over."""
        return not self._unfinished_kinds()

    def max_number_by_kind(self) -> dict[Kind, int | None]:
        """Return the kinds whose tickets may begin, with the highest number that may; None: any number."""
        bounds: dict[Kind, int | None] = {}
        for kind in self._unfinished_kinds():
            # sampled tickets may begin up to study.parallel ahead of the first open one of their kind
            num_ahead = self.spec.study.parallel - 1
            bounds[kind] = self._first_open_number(kind) + num_ahead if kind in SEARCH_KINDS else None
        if self.spec.study.sampler.name == KNOWLEDGE_GRADIENT and {"baseline", "constant"} & bounds.keys():
            # the search begins after its first design, so that it does not depend on the order of ends
            bounds.pop("search", None)
        return bounds

    def has_startable_ticket(self) -> bool:
        """Return whether a known ticket waits that may begin."""
        return any(row.state == "waiting" for row in self.open_tickets())

    def dead_agents(self) -> set[str]:
        """Return the agents that hold tickets and are known to have died."""
        holders = {row.agent for row in self.open_tickets() if row.state == "running"}
        return {agent for agent in holders if agent and is_dead(agent)}

    def winner(self, of_round: int) -> Mapping[str, Any]:
        """Return the parameters of the winner of the search arm in a round, empty while there is none."""
        return find_winner(list(self.tickets.values()), self.spec, of_round=of_round) or {}

    def open_tickets(self) -> Iterator[TicketRow]:
        """Yield the tickets from the first that is not over to the last that may begin."""
        for kind, limit in self.max_number_by_kind().items():
            for id in self._ids_by_kind[kind][self._first_open_positions[kind] :]:
                if limit is not None and self.tickets[id].number > limit:
                    break
                yield self.tickets[id]

    def _first_open_number(self, kind: Kind) -> int:
        """Return the number of the first ticket of a kind that is not over."""
        return self.tickets[self._ids_by_kind[kind][self._first_open_positions[kind]]].number

    def _unfinished_kinds(self) -> list[Kind]:
        return [kind for kind in KINDS if self._advance(kind) < len(self._ids_by_kind[kind])]

    def _advance(self, kind: Kind) -> int:
        ids, position = self._ids_by_kind[kind], self._first_open_positions[kind]
        while position < len(ids) and self.tickets[ids[position]].state in TERMINAL_STATES:
            position += 1
        self._first_open_positions[kind] = position
        return position

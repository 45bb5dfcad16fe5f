"""One study behind a server: validates and writes the changes of its agents, and claims tickets for them.

Decisions are made by the code of an agent (:mod:`tempopt.agent.local_client`), with one cache of the study
for all agents of this server. All persistent state is in the store: a server can be killed at any time, and
several servers can serve one study.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tempopt.agent.local_client import LocalStudyClient
from tempopt.agent.observer import NullObserver, Snapshot
from tempopt.agent.store_connection import StoreRetryPolicy
from tempopt.agent.study_cache import StudyCache
from tempopt.agent.study_client import THOROUGH_SECONDS, RunFolders
from tempopt.agent.ticket_transitions import apply_attempt_lost, apply_run_ended, to_pruned_outcome
from tempopt.agent.worker_slot import initial_lease_seconds
from tempopt.agent.write_queue import WriteQueue
from tempopt.errors import StudyNotFound, UsageError
from tempopt.sampling.arms import reports_by_ticket
from tempopt.server.errors import ApiError
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    Change,
    CheckpointRecorded,
    ClaimRequest,
    MetricReported,
    RunEnded,
    RunStarted,
    WriteResult,
)
from tempopt.storage.checkpoints import belongs_to_run, join, run_name
from tempopt.storage.http.protocol import RunReports, SyncRequest, SyncResponse, TakeResponse
from tempopt.storage.http.wire import changes_from_plain, serialize
from tempopt.storage.rows import TERMINAL_STATES, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.training.messages import RunRequest, encode

T = TypeVar("T")
Spending = TypeVar("Spending", RunEnded, AttemptLost, AttemptReleased)
LOGGER = logging.getLogger("tempopt.server")
# Seconds that agents have after a server's start to renew leases that they could not renew before.
_GRACE_SECONDS = 30.0
_MAX_GONE_SESSIONS = 4096
_MAX_SESSIONS = 64
# Tolerance of the reported training time over the time since the claim, since the clocks of two servers may
# differ.
_SLACK_SECONDS = 300.0


@dataclasses.dataclass(slots=True)
class _PruningState:
    """The pruner's decisions on the reports of an attempt.

    Args:
        agent: The agent that holds it.
        attempt: Its number.
        last_checked_step: Step of the last report that was checked.
        end: Step of the report at which it is pruned; None: it continues.
        value: Value of that report.
    """

    agent: str
    attempt: int
    last_checked_step: int = -1
    end: int | None = None
    value: float = math.nan


class StudySession:
    """One study, for all agents behind this server; threads may share it.

    Args:
        store: The database.
        study: Its row.
        checkpoints: URL of the folder for checkpoints.
        started: Start of the server, on the monotonic clock.
    """

    def __init__(self, store: Store, study: StudyRow, *, checkpoints: str, started: float) -> None:
        self._store = store
        self.study = study
        self.spec = StudySpec.from_json(study.spec)
        self._root = checkpoints
        self._started = started
        self._lock = threading.RLock()
        self.cache = StudyCache(self.spec, study, store)
        self._clients: dict[str, LocalStudyClient] = {}
        self._sessions: dict[str, str] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._pruning_states: dict[int, _PruningState] = {}
        self._stale = False
        self._thorough = -math.inf
        self.listeners: set[Callable[[], None]] = set()
        """Called, from any thread, when more tickets may begin than before."""

    # ---- agents

    def snapshot(self) -> dict[str, Any]:
        """Return a Snapshot as JSON, without the fields that clients add: workers and time."""
        with self._lock:
            return self._build_snapshot_fields()

    def _build_snapshot_fields(self) -> dict[str, Any]:
        at_work = sum(row.state == "running" for row in self.cache.open_tickets())
        now: Snapshot = self.cache.snapshot([], 0.0, at_work=at_work)
        return {key: value for key, value in serialize(now).items() if key not in ("workers", "elapsed")}

    def register_agent(self, agent: str, session: str) -> None:
        """Register an agent.

        Raises:
            ApiError: Another agent of that name is at work.
        """
        with self._lock:
            if self._sessions.setdefault(agent, session) != session:
                raise ApiError(
                    409,
                    "agent_name_taken",
                    f'Another agent named "{agent}" works on this study. Names of agents are unique: '
                    "restart this agent, which gives it a new name.",
                )

    def release_agent(self, agent: str, session: str = "") -> int:
        """Release the tickets that an agent holds, and return their number.

        Args:
            session: Its session, which gets no further tickets, also by a request in progress.
        """
        with self._lock:
            self._clients.pop(agent, None)
            self._sessions.pop(agent, None)
            self._gone[session] = None
            while len(self._gone) > _MAX_GONE_SESSIONS:
                self._gone.popitem(last=False)
            released = self._store.release(self.study.id, [agent])
            if released:
                self.cache.refresh()
        self._notify()
        return released

    # ---- what agents say

    def sync(self, agent: str, request: SyncRequest, *, is_long_poll: bool = False) -> SyncResponse | None:
        """Write the changes of an agent, and claim a ticket if it requests one.

        Args:
            agent: Name of the agent, including the name of its token.
            request: The request.
            is_long_poll: Whether its changes are already written and it only waits. The store is then read
                only if a ticket is known to wait, and from time to time for lost tickets.

        Returns:
            The answer; None if the agent only waits, and there is nothing new.

        Raises:
            StudyNotFound: The study was deleted.
            StoreUnreachable: The database cannot be reached; repeat the request.
            UsageError: A change is invalid.
        """
        changes = [] if is_long_poll else changes_from_plain(request.changes)
        with self._lock:
            if is_long_poll and (request.session in self._gone or not self._should_look()):
                return None
            refused_ids: list[int] = []
            client = self._make_client(agent, request.workers)
            client.listeners.abandon = refused_ids.extend
            try:
                if self._stale:
                    self.cache.read()
                    self._stale = False
                wants_ticket = request.take is not None and request.session not in self._gone
                taking = wants_ticket and not request.dead
                pruned_steps = (
                    {}
                    if is_long_poll
                    else self._write_changes(client, agent, request, changes, taking=taking)
                )
                ticket, is_over = self._claim_ticket(client, request) if taking else (None, False)
            except BaseException:
                # the cache may have changes that are not in the store
                self._stale = True
                raise
            answer = SyncResponse(
                refused=refused_ids,
                pruned=pruned_steps,
                state=self.cache.state,
                version=self.cache.version,
                age=self.cache.age,
                over=is_over,
                claim=self._build_claim_response(client, ticket),
                snapshot=self._build_snapshot_fields(),
            )
        if (
            any(isinstance(change, RunEnded | AttemptLost | AttemptReleased) for change in changes)
            or refused_ids
        ):
            self._notify()
        return answer

    def _make_client(self, agent: str, workers: int) -> LocalStudyClient:
        """Return the client of an agent for the store, without state that has to persist."""
        if agent not in self._clients:
            line = _NoRetryPolicy(self._started)
            self._clients[agent] = LocalStudyClient(
                cache=self.cache,
                folders=RunFolders(logs=Path(), checkpoints=join(self._root, self.study.name)),
                workers=workers,
                observer=_LogObserver(self.study.name),
                outbox=_Outbox(
                    store=self._store,
                    agent=agent,
                    connection=line,
                    study_id=self.study.id,
                    lease=self.spec.study.lease,
                    folder=Path(),
                ),
            )
        return self._clients[agent]

    def _write_changes(
        self,
        client: LocalStudyClient,
        agent: str,
        request: SyncRequest,
        changes: list[Change],
        *,
        taking: bool,
    ) -> dict[int, int]:
        """Write the agent's changes, unless a claim does so; return the steps at which runs are pruned."""
        changes_by_ticket: dict[int, list[Change]] = {}
        for change in changes:
            changes_by_ticket.setdefault(change.ticket_id, []).append(change)
        attempts = {
            id: max(change.attempt for change in ticket_changes)
            for id, ticket_changes in changes_by_ticket.items()
        }
        self._refresh_newer_tickets(attempts)
        unknown = changes_by_ticket.keys() - self.cache.tickets.keys()
        client.listeners.abandon(sorted(unknown))
        counted_reports: dict[int, dict[int, float]] = {}
        for id in changes_by_ticket.keys() - unknown:
            if (row := self._find_held_ticket(agent, id, attempts[id])) is not None:
                counted_reports[id] = self._find_counted_reports(
                    client, agent, row, request.runs.get(id), changes_by_ticket[id]
                )
        pruned_steps = {
            id: end for id in counted_reports if (end := self._pruning_states[id].end) is not None
        }
        for change in changes:
            if change.ticket_id not in unknown:
                self._apply_change(client, agent, change, counted_reports.get(change.ticket_id), request)
        patience = initial_lease_seconds(self.spec.study.lease)
        for id, renewal in request.renew.items():
            client.outbox.renew(id, renewal.attempt, min(request.lease, patience), step=renewal.step)
        if not (client.has_unreported_end and taking):
            client.flush()
        return pruned_steps

    def _refresh_newer_tickets(self, attempts: Mapping[int, int]) -> None:
        """Refresh the cached tickets from the store if an agent refers to newer ones."""
        rows = {id: self.cache.tickets.get(id) for id in attempts}
        if None in rows.values():
            self.cache.read()
        elif any(
            row is not None
            and (row.attempt < attempts[id] or (row.state not in TERMINAL_STATES and row.parameters is None))
            for id, row in rows.items()
        ):
            self.cache.refresh()

    def _find_held_ticket(self, agent: str, id: int, attempt: int) -> TicketRow | None:
        """Return a ticket whose attempt an agent holds or may readopt; None if it is not this agent's.

        Changes of other agents' tickets are refused by the store, and not applied to the cache.
        """
        row = self.cache.tickets.get(id)
        if row is None or (row.agent, row.attempt) != (agent, attempt) or row.state in TERMINAL_STATES:
            return None
        return row

    def _find_counted_reports(
        self,
        client: LocalStudyClient,
        agent: str,
        row: TicketRow,
        run: RunReports | None,
        changes: Iterable[Change],
    ) -> dict[int, float]:
        """Return a run's reports that count, and record at which of them it is pruned, if any."""
        if run is not None and run.attempt == row.attempt:
            reports = {step: math.nan if value is None else value for step, value in run.reports}
        else:
            reports = self._load_reports(row)
        reports |= {change.step: change.value for change in changes if isinstance(change, MetricReported)}
        reports = dict(sorted(reports.items()))
        pruning = self._pruning_states.get(row.id)
        if pruning is None or (pruning.agent, pruning.attempt) != (agent, row.attempt):
            pruning = self._pruning_states[row.id] = _PruningState(agent, row.attempt)
        if pruning.end is None and reports and max(reports) > pruning.last_checked_step:
            pruning.end = client.find_pruning_step(
                row, reports, _find_total_steps(row, run), after=pruning.last_checked_step
            )
            pruning.last_checked_step = max(reports)
            if pruning.end is not None:
                pruning.value = reports[pruning.end]
        if pruning.end is not None:
            reports = {step: value for step, value in reports.items() if step <= pruning.end}
        return reports

    def _load_reports(self, row: TicketRow) -> dict[int, float]:
        measurements = self._store.measurements(self.study.id, [row.id], names=["report"])
        return reports_by_ticket(measurements).get(row.id, {})

    def _apply_change(
        self,
        client: LocalStudyClient,
        agent: str,
        change: Change,
        reports: dict[int, float] | None,
        request: SyncRequest,
    ) -> None:
        if isinstance(change, CheckpointRecorded):
            change = self._replace_checkpoint_url(change)
        row = self._find_held_ticket(agent, change.ticket_id, change.attempt)
        if row is None or reports is None:
            # the store decides whether the change is stale or was written before
            client.outbox.add(change)
            return
        pruning = self._pruning_states[row.id]
        match change:
            case RunStarted():
                client.report_run_started(change, {})
                self.cache.codes.add(change.code)
            case MetricReported():
                if pruning.end is None or change.step <= pruning.end:
                    client.outbox.add(change)
            case CheckpointRecorded():
                client.record_checkpoint(row, change.checkpoint, trained_seconds=0.0)
            case RunEnded():
                change = self._cap_spent_time(change, row)
                outcomes = change.outcomes
                if pruning.end is not None:
                    value = pruning.value if math.isfinite(pruning.value) else None
                    outcomes = to_pruned_outcome(outcomes, value)
                total = _find_total_steps(row, request.runs.get(row.id))
                change = dataclasses.replace(change, outcomes=outcomes)
                client.report_run_ended(change, row, apply_run_ended(row, outcomes, total), reports)
            case AttemptLost():
                change = self._cap_spent_time(change, row)
                client.report_attempt_lost(change, row, apply_attempt_lost(row, change), reports)
            case AttemptReleased():
                client.report_attempt_released(self._cap_spent_time(change, row))
        if isinstance(change, RunEnded | AttemptLost | AttemptReleased):
            del self._pruning_states[row.id]

    def _cap_spent_time(self, change: Spending, row: TicketRow) -> Spending:
        """Return the end of an attempt with its training time limited to the time since the claim."""
        elapsed = 0.0 if row.started is None else datetime.now(UTC).timestamp() - row.started.timestamp()
        max_seconds = max(elapsed, 0.0) + _SLACK_SECONDS
        cards = max(self.spec.resource_need(gpus=True).gpus, float(self.spec.ranks))
        if isinstance(change, RunEnded):
            reported_outcomes = change.outcomes
            outcomes = dataclasses.replace(
                reported_outcomes,
                seconds=min(reported_outcomes.seconds, max_seconds),
                checkpoint_seconds=min(reported_outcomes.checkpoint_seconds, max_seconds),
                gpu_seconds=min(reported_outcomes.gpu_seconds, max_seconds * cards),
            )
            return dataclasses.replace(change, outcomes=outcomes)
        seconds, gpu_seconds = min(change.seconds, max_seconds), min(change.gpu_seconds, max_seconds * cards)
        return dataclasses.replace(change, seconds=seconds, gpu_seconds=gpu_seconds)

    def _replace_checkpoint_url(self, change: CheckpointRecorded) -> CheckpointRecorded:
        """Return a change of a checkpoint with the URL in the server's storage."""
        row = self.cache.tickets[change.ticket_id]
        url = to_real(change, self.study.name, run_name(row.kind, row.number), self._root)
        return dataclasses.replace(change, checkpoint=dataclasses.replace(change.checkpoint, url=url))

    # ---- tickets for agents

    def _should_look(self) -> bool:
        now = time.monotonic()
        news = self.cache.has_startable_ticket() or self.cache.is_finished() or self.cache.state != "running"
        if not news and now - self._thorough < THOROUGH_SECONDS:
            return False
        self._thorough = now
        return True

    def _claim_ticket(self, client: LocalStudyClient, request: SyncRequest) -> tuple[TicketRow | None, bool]:
        assert request.take is not None
        held_ids = list(request.take.held_ticket_ids)
        client.claim_number = request.take.number
        ticket = client.next_ticket(held_ids)
        if ticket is None and self.cache.state == "running" and client.is_finished():
            return None, True
        if ticket is None and self.cache.has_startable_ticket():
            # a stage was opened
            ticket = client.next_ticket(held_ids)
        return ticket, ticket is None and self.cache.state == "done"

    def _build_claim_response(
        self, client: LocalStudyClient, ticket: TicketRow | None
    ) -> TakeResponse | None:
        if ticket is None:
            return None
        reports = client.reports(ticket)
        request = client.build_request(ticket, None)
        plain: dict[str, Any] = json.loads(encode(dataclasses.replace(request, folder=None)))
        name, run = self.study.name, run_name(ticket.kind, ticket.number)
        plain["program"] = None
        if isinstance(request, RunRequest):
            if request.checkpoints is not None:
                plain["checkpoints"] = f"tempopt://{name}/{run}"
            resume = ((checkpoint, to_agent(checkpoint["url"], name, run)) for checkpoint in plain["resume"])
            plain["resume"] = [{**checkpoint, "url": url} for checkpoint, url in resume if url is not None]
        report_pairs = [
            (step, value if math.isfinite(value) else None) for step, value in sorted(reports.items())
        ]
        return TakeResponse(
            ticket=serialize(ticket),
            request=plain,
            reports=report_pairs,
            pruned=client.was_pruned_earlier(ticket, reports),
        )

    def _notify(self) -> None:
        for listener in list(self.listeners):
            listener()


def to_agent(url: str, study: str, run: str) -> str | None:
    """Return the URL of a checkpoint for agents; None if it is not a checkpoint of that run.

    Args:
        url: Its URL in the server's storage.
        study: Name of the study.
        run: Name of the run's folder.
    """
    if not belongs_to_run(url, study=study, run=run):
        return None
    return f"tempopt://{study}/{run}/{url.rpartition('/')[2]}"


def to_real(change: CheckpointRecorded, study: str, run: str, root: str) -> str:
    """Return the URL in the server's storage of a checkpoint that an agent has uploaded.

    Args:
        change: The agent's change.
        study: Name of the study.
        run: Name of the run's folder.
        root: URL of the server's folder for checkpoints.

    Raises:
        UsageError: It is not a checkpoint of that run, attempt and step.
    """
    file = f"step-{change.checkpoint.step}-{change.attempt}.ckpt"
    expected_url = f"tempopt://{study}/{run}/{file}"
    if change.checkpoint.url != expected_url:
        raise UsageError(
            f'"{change.checkpoint.url[:200]}" is not a checkpoint of the run {run} of the study "{study}". '
            f"That of step {change.checkpoint.step} of attempt {change.attempt} is named {expected_url}."
        )
    return join(root, study, run, file)


def _find_total_steps(row: TicketRow, run: RunReports | None) -> int | None:
    """Return the steps of the complete run, from its agent or the store."""
    return run.total_steps if run is not None and run.total_steps is not None else row.total_steps


class _NoRetryPolicy(StoreRetryPolicy):
    """A server's calls of its store: errors are raised to the caller, which repeats the request."""

    def __init__(self, started: float) -> None:
        super().__init__(timeout=math.inf, note=LOGGER.warning)
        self._since = started

    def call(self, work: Callable[[], T], *, reads: bool = False) -> T:
        """Call a function."""
        return work()

    @property
    def is_recovered(self) -> bool:
        """Whether agents that could not reach the server have had time to renew their leases."""
        return time.monotonic() - self._since > _GRACE_SECONDS


class _Outbox(WriteQueue):
    """The changes of one request: written at once, or not at all and then sent again by the agent."""

    def is_due(self) -> bool:
        """Return whether there are changes."""
        return bool(len(self) or self._renewals)

    def flush(self, take: ClaimRequest | None = None, *, version: int | None = None) -> WriteResult:
        """Write all changes in one transaction."""
        try:
            return super().flush(take, version=version)
        finally:
            self._changes, self._renewals = [], {}


class _LogObserver(NullObserver):
    """Observer that writes the notes of a study into the server's log."""

    def __init__(self, study: str) -> None:
        self._study = study

    def note(self, text: str) -> None:
        """Write a line."""
        LOGGER.info("%s: %s", self._study, text)


class StudySessionRegistry:
    """The sessions of all studies with agents; threads may share it.

    Args:
        store: The database.
        checkpoints: URL of the folder for checkpoints.
    """

    def __init__(self, store: Store, *, checkpoints: str) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._study_sessions: OrderedDict[str, StudySession] = OrderedDict()
        self._opening = threading.Lock()

    def get(self, name: str, *, id: int | None = None) -> StudySession:
        """Return the session of a study.

        Args:
            id: Id of the study; None: any.

        Raises:
            StudyNotFound: There is no study of that name, or a different one by now.
        """
        session = self._study_sessions.get(name)
        if session is None:
            # a study is read once, even if many agents request it at the same time
            with self._opening:
                session = self._study_sessions.get(name) or self._open_session(name)
        with self._lock:
            if name in self._study_sessions:
                self._study_sessions.move_to_end(name)
        if id is not None and session.study.id != id:
            raise StudyNotFound(f'The study "{name}" was deleted, and a different one of that name created.')
        return session

    def _open_session(self, name: str) -> StudySession:
        study = self._store.load_study(name)
        session = StudySession(self._store, study, checkpoints=self._checkpoints, started=self._started)
        with self._lock:
            self._study_sessions[name] = session
            while len(self._study_sessions) > _MAX_SESSIONS:
                self._study_sessions.popitem(last=False)
        return session

    def close(self, name: str) -> None:
        """Remove the session of a study; it is read again at the next request."""
        with self._lock:
            self._study_sessions.pop(name, None)

    def run_with_reload(self, name: str, do: Callable[[StudySession], T], *, id: int | None = None) -> T:
        """Call a function with the session of a study, again after reading the study if it has changed.

        Raises:
            StudyNotFound: The study no longer exists.
        """
        session = self.get(name, id=id)
        try:
            return do(session)
        except StudyNotFound:
            self.close(name)
            raise

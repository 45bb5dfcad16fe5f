"""An agent's client of a server: sends reports over HTTP and receives decisions.

Training continues while the server cannot be reached; changes are kept, on disk too, and delivered in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tempopt.agent.observer import Observer, Snapshot, WorkerView
from tempopt.agent.store_connection import StoreRetryPolicy, StoreUnavailableError
from tempopt.agent.study_client import RunFolders, StudyClient
from tempopt.agent.write_queue import WriteQueue
from tempopt.errors import AccessDenied, StorageError, StoreBusy, StoreUnreachable, StudyFailed, TempoptError
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    Change,
    ClaimRequest,
    RunEnded,
    RunStarted,
    WriteResult,
)
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.protocol import (
    MAX_WAIT_SECONDS,
    JoinRequest,
    JoinResponse,
    Leave,
    Renewal,
    RunReports,
    SyncRequest,
    SyncResponse,
    TakeRequest,
)
from tempopt.storage.http.wire import change_to_plain, deserialize
from tempopt.storage.liveness import agent_name, mark_agent_left
from tempopt.storage.rows import StudyRow, StudyState, TicketRow
from tempopt.training.messages import AnyRequest, ProgramRequest, RunRequest, decode

_RETRY_SECONDS = (0.2, 1.0, 3.0)
# added to the time for which the server may hold back an answer
_SLACK_SECONDS = 30.0
_WAIT_SECONDS = 20.0
# an agent of several studies has to learn soon that this study has no run to begin
_SHORT_WAIT_SECONDS = 1.0
_MAX_REQUEST_BYTES = 4 * 1024 * 1024


class AgentRpcClient:
    """The requests of one agent to its server, and the agent's name there.

    Args:
        connection: The server.
        study: Name of the study.
        workers: Number of the agent's workers.
    """

    def __init__(self, connection: ServerConnection, study: str, workers: int) -> None:
        self._connection = connection
        self._study = study
        self._workers = workers
        # processes in separate containers may have the same name
        self.agent = f"{agent_name()}-{secrets.token_hex(3)}"
        self._session = secrets.token_hex(8)

    def join(self) -> JoinResponse:
        """Join the study, and return its state.

        Raises:
            StudyNotFound: There is no study of that name.
            UsageError: The study was paused, or the server does not serve this agent.
        """
        request = JoinRequest(
            study=self._study, agent=self.agent, session=self._session, workers=self._workers
        )
        pauses = [*_RETRY_SECONDS]
        while True:
            try:
                answer = self._connection.post("/api/agents/join", request.model_dump(mode="json"))
                return JoinResponse.model_validate(answer)
            except StoreUnreachable as error:
                # the reply was lost, or the server is restarting
                if isinstance(error, StoreBusy) or not pauses:
                    raise
                time.sleep(pauses.pop(0))

    def sync(
        self,
        study_id: int,
        changes: Sequence[Change] = (),
        *,
        renew: Mapping[int, Renewal] | None = None,
        lease: float = 60.0,
        runs: Mapping[int, RunReports] | None = None,
        take: TakeRequest | None = None,
        dead: str | None = None,
    ) -> SyncResponse:
        """Send changes and return the server's answer; arguments as in :class:`.SyncRequest`.

        Raises:
            StoreUnreachable: The server cannot be reached, or no longer accepts the token.
            StudyNotFound: The study was deleted.
        """
        request = SyncRequest(
            study=self._study,
            study_id=study_id,
            agent=dead or self.agent,
            session=self._session,
            workers=self._workers,
            changes=[change_to_plain(change) for change in changes],
            renew=dict(renew or {}),
            lease=lease,
            runs=dict(runs or {}),
            take=take,
            dead=dead is not None,
        )
        timeout = _SLACK_SECONDS + (0.0 if take is None else take.wait)
        body = request.model_dump(mode="json", exclude_defaults=True)
        try:
            answer = self._connection.post("/api/agents/sync", body, timeout=timeout)
        except AccessDenied as error:
            # tokens are replaced while agents work: the changes are sent again with the new token
            raise StoreUnreachable(f"{error} Put a valid token in its place.") from error
        return SyncResponse.model_validate(answer)

    def leave(self, study_id: int) -> None:
        """Release the tickets that were claimed and not begun."""
        request = Leave(study=self._study, study_id=study_id, agent=self.agent, session=self._session)
        self._connection.post("/api/agents/leave", request.model_dump(mode="json"), timeout=10.0)


class _ServerQueue(WriteQueue):
    """Changes on their way to a server, sent less often: a request costs more than a transaction."""

    file_prefix = "undelivered-server-"
    min_delay_seconds = 3.0
    """Reports wait this long for others to be sent with them, and so does the server's pruning decision."""
    share_of_age = 0.35


@dataclass(slots=True, kw_only=True)
class _RunState:
    """State of a run that the server needs for its pruning decisions.

    Args:
        attempt: Number of the attempt.
        total_steps: Steps of the whole run, once it has begun.
        reports: The reports that count, step to value.
    """

    attempt: int
    total_steps: int | None = None
    reports: dict[int, float] = field(default_factory=dict)


class RemoteStudyClient(StudyClient):
    """A study behind a server, for one agent.

    Args:
        spec: The study's spec.
        joined: The server's answer when the agent joined.
        rpc_client: Client for the requests.
        folders: Where runs are written.
        observer: Receives notes for the user.
        stays: Whether the agent stays while no run can begin, so that the server may answer late.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        joined: JoinResponse,
        rpc_client: AgentRpcClient,
        folders: RunFolders,
        observer: Observer,
        stays: bool = True,
    ) -> None:
        study = to_study_row(joined)
        outbox = _ServerQueue(
            store=self,
            agent=rpc_client.agent,
            connection=StoreRetryPolicy(timeout=spec.study.store_timeout, note=observer.note),
            study_id=study.id,
            lease=spec.study.lease,
            folder=folders.logs,
        )
        super().__init__(spec=spec, study=study, folders=folders, observer=observer, outbox=outbox)
        self._stays = stays
        self._rpc_client = rpc_client
        self._codes = set(joined.codes)
        self._state: StudyState = study.state
        self._is_over = False
        self._snapshot_fields = joined.snapshot
        self._program = spec.build_program()
        self._tickets: dict[int, TicketRow] = {}
        self._requests: dict[int, dict[str, Any]] = {}
        self._runs: dict[int, _RunState] = {}
        self._ids_pruned_earlier: set[int] = set()
        self._poll: _Poll | None = None
        self._claim_number = 1
        self._wake, self._ring = socket.socketpair()
        self._ring.setblocking(False)
        self._deliver_for_dead_agents()

    @property
    def state(self) -> StudyState:
        """State of the study in the server's last answer."""
        return self._state

    @property
    def codes(self) -> set[str]:
        """Identities of the code that is known here to have trained runs of the study."""
        return self._codes

    # ---- changes to report

    def write(
        self,
        study_id: int,
        changes: Sequence[Change],
        *,
        agent: str,
        renew: Mapping[int, int],
        steps: Mapping[int, int],
        lease: float,
        take: ClaimRequest | None,
        version: int | None,
    ) -> WriteResult:
        """Send the outbox to the server, in parts if an outage has made it long."""
        *first, last = _split_changes(changes)
        refused_ids: list[int] = []
        pruned_steps: dict[int, int] = {}
        for part in first:
            answer = self._sync_changes(study_id, part)
            refused_ids += answer.refused
            pruned_steps |= answer.pruned
        answer = self._sync_changes(
            study_id,
            last,
            renew={id: Renewal(attempt=attempt, step=steps.get(id)) for id, attempt in renew.items()},
            lease=lease,
            take=None if take is None else self._build_take_request(list(take.held_ticket_ids)),
        )
        answer.refused += refused_ids
        answer.pruned = pruned_steps | answer.pruned
        self._answer = answer
        return WriteResult(
            refused=dict.fromkeys(answer.refused, "It is another agent's by now."),
            state=answer.state,
            version=answer.version,
            age=answer.age,
        )

    def _sync_changes(self, study_id: int, changes: Sequence[Change], **more: Any) -> SyncResponse:
        ticket_ids = {change.ticket_id for change in changes} & self._runs.keys()
        runs = {id: _build_run_reports(self._runs[id]) for id in ticket_ids}
        return self._rpc_client.sync(study_id, changes, runs=runs, **more)

    def _build_take_request(self, held_ids: list[int], wait: float = 0.0) -> TakeRequest:
        return TakeRequest(number=self._claim_number, held_ticket_ids=held_ids, wait=wait)

    def _deliver_as(self, agent: str, changes: Sequence[Change]) -> None:
        self._rpc_client.sync(self._study.id, changes, dead=agent)

    def _deliver(self, held_ids: list[int] | None = None) -> TicketRow | None:
        """Deliver all changes, and return the ticket that was claimed with them."""
        take = None
        if held_ids is not None:
            take = ClaimRequest(
                max_number_by_kind={}, lease=self._spec.study.lease, max_attempts=1, held_ticket_ids=held_ids
            )
        self.outbox.flush(take)
        self._claim_number += take is not None
        return self._apply_answer(self._answer)

    def _apply_answer(self, answer: SyncResponse) -> TicketRow | None:
        """Apply the server's answer, and return the ticket in it, if any."""
        self._state, self._is_over = answer.state, answer.over
        self._snapshot_fields = answer.snapshot or self._snapshot_fields
        if answer.refused:
            self.listeners.abandon(answer.refused)
        for id in answer.pruned:
            if (run := self._runs.get(id)) is not None:
                self.listeners.prune(id, run.attempt)
        if answer.claim is None:
            return None
        assignment = answer.claim
        ticket: TicketRow = deserialize(TicketRow, assignment.ticket)
        reports = {step: math.nan if value is None else value for step, value in assignment.reports}
        self._tickets[ticket.id], self._requests[ticket.id] = ticket, assignment.request
        self._runs[ticket.id] = _RunState(
            attempt=ticket.attempt, total_steps=ticket.total_steps, reports=reports
        )
        if assignment.pruned:
            self._ids_pruned_earlier.add(ticket.id)
        return ticket

    def report_run_started(self, change: RunStarted, history: Mapping[int, float]) -> None:
        """Report that a run has begun to train."""
        run = self._runs[change.ticket_id]
        run.total_steps, run.reports = change.total_steps, dict(history)
        self.outbox.add(change)

    def report_metric(
        self,
        ticket: TicketRow,
        step: int,
        reports: Mapping[int, float],
        *,
        total_steps: int | None,
        trained_seconds: float,
    ) -> bool:
        """Report a value of the metric; the server decides later whether it prunes the run."""
        self._runs[ticket.id].reports = dict(reports)
        return super().report_metric(
            ticket, step, reports, total_steps=total_steps, trained_seconds=trained_seconds
        )

    def report_run_ended(
        self, change: RunEnded, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Report the end of a run; the server adds the values that depend on the whole study."""
        self._runs[row.id].reports = dict(reports)
        self.outbox.add(change)
        self._tickets[row.id] = row

    def report_attempt_lost(
        self, change: AttemptLost, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Report that an attempt was lost."""
        self.outbox.add(change)
        self._tickets[row.id] = row

    def report_attempt_released(self, change: AttemptReleased) -> None:
        """Report that an attempt was released."""
        self.outbox.add(change)
        ticket = self._tickets[change.ticket_id]
        self._tickets[change.ticket_id] = dataclasses.replace(ticket, state="waiting", agent=None)

    @property
    def has_unreported_end(self) -> bool:
        """Whether the end of a run is still to be reported."""
        # while a request for a ticket is open, no further ticket is claimed
        return self.outbox.has_unreported_end and self._poll is None

    # ---- next work

    def wakeup_sockets(self) -> Sequence[socket.socket]:
        """Return the socket that becomes readable when the server has answered a request for a ticket."""
        return (self._wake,)

    def next_ticket(self, held_ids: list[int]) -> TicketRow | None:
        """Return a ticket to train; if there is none now, request one of the server and return None."""
        if self._poll is not None:
            return self._poll_ticket()
        if self.outbox.has_unreported_end:
            started_at = time.monotonic()
            ticket = self._deliver(held_ids)
            if ticket is not None or self._is_over:
                return ticket
            self._record_empty_poll(started_at)
        if self._state == "paused" or self._is_over:
            return None
        self._connection.check()
        wait = _WAIT_SECONDS if held_ids or self._stays else _SHORT_WAIT_SECONDS
        take = self._build_take_request(held_ids, min(wait, MAX_WAIT_SECONDS))
        self._poll = _Poll(self._rpc_client, self._study.id, take, self._ring)
        return None

    def _record_empty_poll(self, started_at: float) -> None:
        if self._state == "running" and not self._is_over:
            self.last_empty_poll_at = started_at

    def _poll_ticket(self) -> TicketRow | None:
        """Return the ticket that the server has answered with, None if no answer has come yet."""
        poll = self._poll
        assert poll is not None
        if not poll.answer.done():
            return None
        self._poll = None
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096, socket.MSG_DONTWAIT)
        answer = self._connection.call(poll.answer.result, reads=True)
        self._claim_number += 1
        ticket = self._apply_answer(answer)
        if ticket is None:
            self._record_empty_poll(poll.started_at)
        return ticket

    def is_finished(self) -> bool:
        """Return whether nothing is left to do, now and later."""
        return self._is_over and not len(self.outbox)

    def build_request(self, ticket: TicketRow, memory_share: float | None) -> AnyRequest:
        """Return the request to a worker to train a ticket."""
        fields = dict(self._requests[ticket.id])
        fields |= {"program": dataclasses.asdict(self._program), "folder": str(self.folder(ticket))}
        request = decode(json.dumps(fields).encode())
        if isinstance(request, RunRequest):
            return dataclasses.replace(request, memory_share=memory_share)
        assert isinstance(request, ProgramRequest)
        return request

    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return the reports of earlier attempts of a ticket, step to value."""
        return dict(self._runs[ticket.id].reports)

    def was_pruned_earlier(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner ends a run by the reports of earlier attempts."""
        was_pruned = ticket.id in self._ids_pruned_earlier
        self._ids_pruned_earlier.discard(ticket.id)
        return was_pruned

    def has_finished_run(self) -> bool:
        """Return whether a run of the study is complete."""
        return any(self._snapshot_fields.get("done", {}).values()) or any(
            ticket.state == "done" for ticket in self._tickets.values()
        )

    def tickets(self) -> Mapping[int, TicketRow]:
        """Return the tickets that this agent has claimed, by id."""
        return self._tickets

    def snapshot(self, own_views: Sequence[WorkerView], elapsed: float) -> Snapshot:
        """Return the study as in the server's last answer, with the agent's own workers."""
        stage = next((view.kind for view in own_views if view.kind is not None), None)
        return Snapshot(
            **{**self._snapshot_fields, "stage": stage, "workers": list(own_views), "elapsed": elapsed}
        )

    def close(self) -> None:
        """Deliver the changes if possible; else they stay on disk for the next agent on this machine."""
        with contextlib.suppress(StoreUnavailableError, StudyFailed, StorageError, TempoptError):
            self._deliver()
        with contextlib.suppress(TempoptError):
            self._rpc_client.leave(self._study.id)
        mark_agent_left(self._rpc_client.agent)
        if self._poll is not None:
            self._poll.release_ticket()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the sockets on which the server's answers are announced."""
        self._wake.close()
        if self._poll is None or self._poll.answer.done():
            # else the thread of the request still writes to it, and holds the last reference
            self._ring.close()


class _Poll:
    """One request for a ticket, in its own thread: the server answers when a ticket may begin."""

    def __init__(
        self, rpc_client: AgentRpcClient, study_id: int, take: TakeRequest, ring: socket.socket
    ) -> None:
        self.started_at = time.monotonic()
        self.answer: Future[SyncResponse] = Future()
        self._rpc_client, self._study_id = rpc_client, study_id

        def ask() -> None:
            try:
                self.answer.set_result(rpc_client.sync(study_id, take=take))
            except Exception as error:
                self.answer.set_exception(error)
            with contextlib.suppress(OSError):
                ring.send(b"!")

        threading.Thread(target=ask, name="tempopt-take", daemon=True).start()

    def release_ticket(self) -> None:
        """Release the ticket that the answer has, or will have: the agent has left."""
        self.answer.add_done_callback(self._release)

    def _release(self, answer: Future[SyncResponse]) -> None:
        if answer.exception() is None and answer.result().claim is not None:
            # if the server cannot be reached, the ticket is released when its lease expires
            with contextlib.suppress(TempoptError):
                self._rpc_client.leave(self._study_id)


def to_study_row(joined: JoinResponse) -> StudyRow:
    """Return the row of the study that an agent has joined."""
    row: dict[str, Any] = joined.study
    study: StudyRow = deserialize(StudyRow, row)
    return study


def _split_changes(changes: Sequence[Change]) -> list[list[Change]]:
    """Split changes, in order, into parts that a server accepts; one empty part if there are no changes."""
    parts: list[list[Change]] = [[]]
    size = 0
    for change in changes:
        length = len(json.dumps(change_to_plain(change)))
        if parts[-1] and size + length > _MAX_REQUEST_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += length
    return parts


def _build_run_reports(run: _RunState) -> RunReports:
    reports = [(step, value if math.isfinite(value) else None) for step, value in sorted(run.reports.items())]
    return RunReports(attempt=run.attempt, total_steps=run.total_steps, reports=reports)

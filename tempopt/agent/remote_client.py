"""A study behind a server as one agent sees it: reports go over HTTP, decisions come back.

While the server is away training continues; what happens is kept, on disk too, and delivered in its order.
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
    LONGEST_WAIT,
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

_AGAIN_SECONDS = (0.2, 1.0, 3.0)
# beyond the time that an answer may be held back
_SLACK_SECONDS = 30.0
_WAIT_SECONDS = 20.0
# who leaves a study that has no run to begin is to know soon that it has none
_SHORT_WAIT_SECONDS = 1.0
_MOST_BYTES = 4 * 1024 * 1024


class AgentRpcClient:
    """What one agent says to its server, and how it is called there.

    Args:
        connection: The server.
        study: Name of the study.
        workers: Number of the agent's workers.
    """

    def __init__(self, connection: ServerConnection, study: str, workers: int) -> None:
        self._connection = connection
        self._study = study
        self._workers = workers
        # the name of a process may repeat in containers that share nothing
        self.agent = f"{agent_name()}-{secrets.token_hex(3)}"
        self._session = secrets.token_hex(8)

    def join(self) -> JoinResponse:
        """Return what there is to know of the study.

        Raises:
            StudyNotFound: There is none of that name.
            UsageError: It was paused, or the server does not serve this agent.
        """
        request = JoinRequest(
            study=self._study, agent=self.agent, session=self._session, workers=self._workers
        )
        pauses = [*_AGAIN_SECONDS]
        while True:
            try:
                answer = self._connection.post("/api/agents/join", request.model_dump(mode="json"))
                return JoinResponse.model_validate(answer)
            except StoreUnreachable as error:
                # a reply that was lost, or a server that is started anew at this moment
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
        """Report what happened and return the server's answer; arguments as in :class:`.SyncRequest`.

        Raises:
            StoreUnreachable: The server cannot be reached, or does not know the token any more.
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
        patience = _SLACK_SECONDS + (0.0 if take is None else take.wait)
        body = request.model_dump(mode="json", exclude_defaults=True)
        try:
            answer = self._connection.post("/api/agents/sync", body, timeout=patience)
        except AccessDenied as error:
            # a token is replaced while agents are at work: nothing is lost if it comes a little later
            raise StoreUnreachable(f"{error} Put a valid token in its place.") from error
        return SyncResponse.model_validate(answer)

    def leave(self, study_id: int) -> None:
        """Release the tickets that were received and not begun."""
        request = Leave(study=self._study, study_id=study_id, agent=self.agent, session=self._session)
        self._connection.post("/api/agents/leave", request.model_dump(mode="json"), timeout=10.0)


class _ServerQueue(WriteQueue):
    """Changes on their way to a server, which a request costs more than a transaction costs a database."""

    file_prefix = "undelivered-server-"
    soonest_seconds = 3.0
    """A run is pruned so late at most, or by the share of its age."""
    share_of_age = 0.35


@dataclass(slots=True, kw_only=True)
class _Run:
    """What the server has to know of a run to judge it.

    Args:
        attempt: Number of the attempt.
        total_steps: Steps of the whole run, once it has begun.
        reports: What counts of its reports, step to value.
    """

    attempt: int
    total_steps: int | None = None
    reports: dict[int, float] = field(default_factory=dict)


class RemoteStudyClient(StudyClient):
    """A study behind a server as one agent sees it.

    Args:
        spec: The study's spec.
        joined: What the server told when the agent joined.
        line: How the server is spoken to.
        folders: Where runs are written.
        observer: Receives what a person should read.
        stays: Whether the agent stays when there is no run to begin, and the server may take its time.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        joined: JoinResponse,
        line: AgentRpcClient,
        folders: RunFolders,
        observer: Observer,
        stays: bool = True,
    ) -> None:
        study = to_study_row(joined)
        outbox = _ServerQueue(
            store=self,
            agent=line.agent,
            connection=StoreRetryPolicy(timeout=spec.study.store_timeout, note=observer.note),
            study_id=study.id,
            lease=spec.study.lease,
            folder=folders.logs,
        )
        super().__init__(spec=spec, study=study, folders=folders, observer=observer, outbox=outbox)
        self._stays = stays
        self._line = line
        self._codes = set(joined.codes)
        self._state: StudyState = study.state
        self._over = False
        self._snapshot_fields = joined.snapshot
        self._program = spec.build_program()
        self._tickets: dict[int, TicketRow] = {}
        self._requests: dict[int, dict[str, Any]] = {}
        self._runs: dict[int, _Run] = {}
        self._pruned_before: set[int] = set()
        self._poll: _Poll | None = None
        self._wake, self._ring = socket.socketpair()
        self._ring.setblocking(False)
        self._deliver_for_the_dead()

    @property
    def state(self) -> StudyState:
        """State of the study in the server's last answer."""
        return self._state

    @property
    def codes(self) -> set[str]:
        """Identities of the code that has trained runs of the study, as far as is known here."""
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
        """Send the outbox to the server: at once, but in parts where an outage has made it long."""
        *first, last = _parts(changes)
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
            take=None if take is None else TakeRequest(held_ticket_ids=list(take.held_ticket_ids)),
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
        runs = {id: _run_reports(self._runs[id]) for id in ticket_ids}
        return self._line.sync(study_id, changes, runs=runs, **more)

    def _deliver_as(self, agent: str, changes: Sequence[Change]) -> None:
        self._line.sync(self._study.id, changes, dead=agent)

    def _deliver(self, held_ids: list[int] | None = None) -> TicketRow | None:
        """Deliver everything, and return the ticket that was taken with it."""
        take = None
        if held_ids is not None:
            take = ClaimRequest(
                max_number_by_kind={}, lease=self._spec.study.lease, max_attempts=1, held_ticket_ids=held_ids
            )
        self.outbox.flush(take)
        return self._absorb(self._answer)

    def _absorb(self, answer: SyncResponse) -> TicketRow | None:
        """Apply the server's answer and return the ticket in it."""
        self._state, self._over = answer.state, answer.over
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
        self._runs[ticket.id] = _Run(attempt=ticket.attempt, total_steps=ticket.total_steps, reports=reports)
        if assignment.pruned:
            self._pruned_before.add(ticket.id)
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
        """Report the end of a run; the server adds what follows from the whole study."""
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
        """Report that an attempt was returned."""
        self.outbox.add(change)
        ticket = self._tickets[change.ticket_id]
        self._tickets[change.ticket_id] = dataclasses.replace(ticket, state="waiting", agent=None)

    @property
    def urgent(self) -> bool:
        """Whether the end of a run is still to be reported."""
        # while a ticket is waited for, no other is asked for in passing
        return self.outbox.urgent and self._poll is None

    # ---- what is to be done

    def wakeup_sockets(self) -> Sequence[socket.socket]:
        """Return what becomes readable when the server has answered a request for a ticket."""
        return (self._wake,)

    def next_ticket(self, held_ids: list[int]) -> TicketRow | None:
        """Return a ticket to do, None if there is none just now; the server is asked to say when there is."""
        if self._poll is not None:
            return self._poll_ticket()
        if self.outbox.urgent:
            began = time.monotonic()
            ticket = self._deliver(held_ids)
            if ticket is not None or self._over:
                return ticket
            self._had_nothing(began)
        if self._state == "paused" or self._over:
            return None
        self._connection.check()
        wait = _WAIT_SECONDS if held_ids or self._stays else _SHORT_WAIT_SECONDS
        take = TakeRequest(held_ticket_ids=held_ids, wait=min(wait, LONGEST_WAIT))
        self._poll = _Poll(self._line, self._study.id, take, self._ring)
        return None

    def _had_nothing(self, began: float) -> None:
        if self._state == "running" and not self._over:
            self.last_empty_poll_at = began

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
        ticket = self._absorb(answer)
        if ticket is None:
            self._had_nothing(poll.began)
        return ticket

    def is_finished(self) -> bool:
        """Return whether nothing is left to do, now and later."""
        return self._over and not len(self.outbox)

    def request(self, ticket: TicketRow, memory_share: float | None) -> AnyRequest:
        """Return what a worker is to do with a ticket."""
        plain = dict(self._requests[ticket.id])
        plain |= {"program": dataclasses.asdict(self._program), "folder": str(self.folder(ticket))}
        request = decode(json.dumps(plain).encode())
        if isinstance(request, RunRequest):
            return dataclasses.replace(request, memory_share=memory_share)
        assert isinstance(request, ProgramRequest)
        return request

    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return what earlier attempts at a ticket have reported, step to value."""
        return dict(self._runs[ticket.id].reports)

    def was_pruned_earlier(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner ends a run by what earlier attempts have reported."""
        was_pruned = ticket.id in self._pruned_before
        self._pruned_before.discard(ticket.id)
        return was_pruned

    def has_finished_run(self) -> bool:
        """Return whether a run of the study is complete."""
        return any(self._snapshot_fields.get("done", {}).values()) or any(
            ticket.state == "done" for ticket in self._tickets.values()
        )

    def tickets(self) -> Mapping[int, TicketRow]:
        """Return the tickets that this agent has had."""
        return self._tickets

    def snapshot(self, own_views: Sequence[WorkerView], elapsed: float) -> Snapshot:
        """Return the study in the server's last answer, with what the agent's own workers do."""
        stage = next((view.kind for view in own_views if view.kind is not None), None)
        return Snapshot(
            **{**self._snapshot_fields, "stage": stage, "workers": list(own_views), "elapsed": elapsed}
        )

    def close(self) -> None:
        """Deliver what can be delivered; the rest is on disk for the next agent on this machine."""
        with contextlib.suppress(StoreUnavailableError, StudyFailed, StorageError, TempoptError):
            self._deliver()
        with contextlib.suppress(TempoptError):
            self._line.leave(self._study.id)
        mark_agent_left(self._line.agent)
        if self._poll is not None:
            self._poll.give_back()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections through which news of the study arrives."""
        self._wake.close()
        if self._poll is None or self._poll.answer.done():
            # else its thread rings once more, and is the last to hold it
            self._ring.close()


class _Poll:
    """One request for a ticket, in a thread of its own: the server answers when there is one."""

    def __init__(self, line: AgentRpcClient, study_id: int, take: TakeRequest, ring: socket.socket) -> None:
        self.began = time.monotonic()
        self.answer: Future[SyncResponse] = Future()
        self._line, self._study_id = line, study_id

        def ask() -> None:
            try:
                self.answer.set_result(line.sync(study_id, take=take))
            except Exception as error:
                self.answer.set_exception(error)
            with contextlib.suppress(OSError):
                ring.send(b"!")

        threading.Thread(target=ask, name="tempopt-take", daemon=True).start()

    def give_back(self) -> None:
        """Release a ticket that the answer has, or will have, since the agent has left."""
        self.answer.add_done_callback(self._release)

    def _release(self, answer: Future[SyncResponse]) -> None:
        if answer.exception() is None and answer.result().claim is not None:
            # who cannot say so leaves the ticket to its lease
            with contextlib.suppress(TempoptError):
                self._line.leave(self._study_id)


def to_study_row(joined: JoinResponse) -> StudyRow:
    """Return the row of the study that an agent has joined."""
    row: dict[str, Any] = joined.study
    study: StudyRow = deserialize(StudyRow, row)
    return study


def _parts(changes: Sequence[Change]) -> list[list[Change]]:
    """Return changes in their order, in parts that a server reads: one part, empty, if there are none."""
    parts: list[list[Change]] = [[]]
    size = 0
    for change in changes:
        length = len(json.dumps(change_to_plain(change)))
        if parts[-1] and size + length > _MOST_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += length
    return parts


def _run_reports(run: _Run) -> RunReports:
    reports = [(step, value if math.isfinite(value) else None) for step, value in sorted(run.reports.items())]
    return RunReports(attempt=run.attempt, total_steps=run.total_steps, reports=reports)

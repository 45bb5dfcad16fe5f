"""The interface between an agent and its study, in a database or behind a server."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket

from tempopt.agent.observer import Observer, Snapshot, WorkerView
from tempopt.agent.write_queue import WriteQueue, iter_orphaned_queues
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    Change,
    CheckpointRecorded,
    MetricReported,
    RunEnded,
    RunStarted,
)
from tempopt.storage.checkpoints import run_name
from tempopt.storage.rows import Checkpoint, StudyRow, StudyState, TicketRow, checkpoints_to_resume
from tempopt.training.messages import AnyRequest

THOROUGH_SECONDS = 2.0
"""While no ticket is known to wait, lost tickets of other agents are looked for at most this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolders:
    """Folders of a study, with a subfolder for each run.

    Args:
        logs: Local folder for logs and for changes that cannot be delivered.
        checkpoints: URL of the folder for checkpoints, or of the server that stores them.
    """

    logs: Path
    checkpoints: str


@dataclass(slots=True, kw_only=True)
class AgentCallbacks:
    """Callbacks of an agent for answers of the store.

    Args:
        abandon: Called with the ids of tickets that other agents hold by now, before all else.
        prune: Called with the id and the attempt of a ticket whose run has to end as pruned.
    """

    abandon: Callable[[Collection[int]], None] = lambda ids: None
    prune: Callable[[int, int], None] = lambda id, attempt: None


class StudyClient(abc.ABC):
    """A study, for one agent. Requests raise StoreUnavailableError and can be repeated.

    Args:
        spec: The study's spec.
        study: The study's row.
        folders: Where its runs are written.
        observer: Receives notes for the user.
        outbox: Queue of changes that are not delivered yet.

    Attributes:
        outbox: Queue of changes that are not delivered yet.
        listeners: Callbacks of the agent.
        last_empty_poll_at: Time, on the monotonic clock, of the last request for a ticket to which the store
            answered that none may begin; minus infinity: there was no such request.
    """

    def __init__(
        self, *, spec: StudySpec, study: StudyRow, folders: RunFolders, observer: Observer, outbox: WriteQueue
    ) -> None:
        self._spec = spec
        self._study = study
        self._folders = folders
        self._observer = observer
        self.outbox = outbox
        self._connection = outbox.connection
        self.listeners = AgentCallbacks()
        self.last_empty_poll_at = -math.inf

    @property
    @abc.abstractmethod
    def codes(self) -> set[str]:
        """Identities of the code that is known to have trained runs of the study; a mutable set."""

    @property
    @abc.abstractmethod
    def state(self) -> StudyState:
        """State of the study when it was last read."""

    def wakeup_sockets(self) -> Sequence[Connection | socket]:
        """Return the sockets that become readable when an answer of the store has arrived."""
        return ()

    # ---- changes to report

    @property
    def has_unreported_end(self) -> bool:
        """Whether the end of a run is not reported yet; claiming the next ticket reports it, too."""
        return self.outbox.has_unreported_end

    def flush(self) -> None:
        """Deliver the queued changes if it is time."""
        if self.outbox.is_due():
            self._deliver()

    @abc.abstractmethod
    def _deliver(self) -> object:
        """Deliver all queued changes."""

    @abc.abstractmethod
    def _deliver_as(self, agent: str, changes: Sequence[Change]) -> None:
        """Deliver changes of an agent that has died."""

    def _deliver_for_dead_agents(self) -> bool:
        """Deliver the changes of agents on this machine that died before; return whether there were any."""
        has_delivered = False
        for path, agent, changes in iter_orphaned_queues(self._folders.logs, self.outbox.file_prefix):
            self._deliver_as(agent, changes)
            self._observer.note(
                "The changes that an agent on this machine could not deliver before it died were delivered."
            )
            has_delivered = True
            # if the file cannot be removed, its changes are delivered again, which has no effect
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return has_delivered

    def heartbeat(self, ticket: TicketRow, seconds: float, *, step: int | None = None) -> None:
        """Renew the lease of a run that has made progress, with the next delivery.

        Args:
            seconds: Length of the lease.
            step: Optimizer steps that the run has done; None: not known yet.
        """
        self.outbox.renew(ticket.id, ticket.attempt, seconds, step=step)

    def stop_renewing(self, ticket: TicketRow) -> None:
        """Stop renewing a lease."""
        self.outbox.forget_lease(ticket.id)

    @abc.abstractmethod
    def report_run_started(self, change: RunStarted, history: Mapping[int, float]) -> None:
        """Report that a run has begun to train.

        Args:
            history: The reports of earlier attempts that count, step to value.
        """

    def report_metric(
        self,
        ticket: TicketRow,
        step: int,
        reports: Mapping[int, float],
        *,
        total_steps: int | None,
        trained_seconds: float,
    ) -> bool:
        """Report a value of the metric, and return whether the pruner ends the run at it.

        Args:
            step: Step of the report.
            reports: All reports of this run that count, this one included, step to value.
            total_steps: Steps of the whole run; it is not pruned at its last step.
            trained_seconds: Seconds that the run has trained.
        """
        change = MetricReported(ticket_id=ticket.id, attempt=ticket.attempt, step=step, value=reports[step])
        self.outbox.add(change, age=trained_seconds)
        return False

    def record_checkpoint(
        self, ticket: TicketRow, checkpoint: Checkpoint, *, trained_seconds: float
    ) -> TicketRow:
        """Record a checkpoint, delete those that are no longer needed, and return the ticket with it."""
        change = CheckpointRecorded(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint)
        self.outbox.add(change, age=trained_seconds)
        earlier_checkpoints = (earlier for earlier in ticket.checkpoints if earlier.url != checkpoint.url)
        return dataclasses.replace(
            ticket, checkpoints=checkpoints_to_resume((checkpoint, *earlier_checkpoints))
        )

    @abc.abstractmethod
    def report_run_ended(
        self, change: RunEnded, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Report the end of a run.

        Args:
            before: The ticket while the run was in progress.
            row: The ticket after the run.
            reports: All reports of the run that count, step to value.
        """

    @abc.abstractmethod
    def report_attempt_lost(
        self, change: AttemptLost, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Report that an attempt was lost; arguments as for :meth:`report_run_ended`."""

    @abc.abstractmethod
    def report_attempt_released(self, change: AttemptReleased) -> None:
        """Report that an attempt was released."""

    @abc.abstractmethod
    def close(self) -> None:
        """Deliver the changes if possible, and release tickets that were claimed and not begun."""

    # ---- next work, and state of the study

    @abc.abstractmethod
    def is_finished(self) -> bool:
        """Open the next stage if there is one, and return whether nothing is left to do, now and later."""

    @abc.abstractmethod
    def next_ticket(self, held_ids: list[int]) -> TicketRow | None:
        """Return a ticket to train, with its parameters, or None if no ticket may begin now.

        Args:
            held_ids: Ids of the tickets that are in progress here.
        """

    def folder(self, ticket: TicketRow) -> Path:
        """Return the local folder of a ticket, for its log."""
        return self._folders.logs / run_name(ticket.kind, ticket.number)

    @abc.abstractmethod
    def build_request(self, ticket: TicketRow, memory_share: float | None) -> AnyRequest:
        """Return the request to a worker to train a ticket that has its parameters.

        Args:
            memory_share: Share of its GPU's memory that the run may take; None: all of it.
        """

    @abc.abstractmethod
    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return the reports of earlier attempts of a ticket, step to value."""

    @abc.abstractmethod
    def was_pruned_earlier(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner ends a run by the reports of earlier attempts."""

    @abc.abstractmethod
    def has_finished_run(self) -> bool:
        """Return whether a run of the study is complete."""

    @abc.abstractmethod
    def tickets(self) -> Mapping[int, TicketRow]:
        """Return the known tickets by id."""

    @abc.abstractmethod
    def snapshot(self, own_views: Sequence[WorkerView], elapsed: float) -> Snapshot:
        """Return the current state of the study, for observers.

        Args:
            own_views: Views of the agent's own workers.
            elapsed: Seconds since the agent began.
        """

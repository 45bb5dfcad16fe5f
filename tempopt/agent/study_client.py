"""A study as one agent sees it, wherever that is: in a database, or behind a server."""

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
"""So often at most, while nothing is known to wait, it is asked what others have lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolders:
    """Where the runs of a study are written, each in a subfolder.

    Args:
        logs: Local folder for logs and for what cannot be delivered.
        checkpoints: URL of the folder for checkpoints, or of the server that keeps them.
    """

    logs: Path
    checkpoints: str


@dataclass(slots=True, kw_only=True)
class AgentCallbacks:
    """What an agent does when news of its study arrives.

    Args:
        abandon: Called with the ids of tickets that are others' by now, before anything else is done.
        prune: Called with the id and the attempt of a ticket whose run is to end as pruned.
    """

    abandon: Callable[[Collection[int]], None] = lambda ids: None
    prune: Callable[[int, int], None] = lambda id, attempt: None


class StudyClient(abc.ABC):
    """A study as one agent sees it. Requests raise StoreUnavailableError and can be repeated.

    Args:
        spec: The study's spec.
        study: The study's row.
        folders: Where its runs are written.
        observer: Receives what a person should read.
        outbox: Changes that are not delivered yet; the attribute of that name.

    Attributes:
        outbox: Changes that are not delivered yet.
        listeners: What the agent does when the study tells it something.
        last_empty_poll_at: Time of the last request for a ticket to which the store answered that there is
            none to begin, by the monotonic clock; minus infinity: there was no such request.
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
        """Identities of the code that has trained runs of the study, as far as is known; may be added to."""

    @property
    @abc.abstractmethod
    def state(self) -> StudyState:
        """State of the study when it was last read."""

    def wakeup_sockets(self) -> Sequence[Connection | socket]:
        """Return what becomes readable when there is news without a request."""
        return ()

    # ---- changes to report

    @property
    def urgent(self) -> bool:
        """Whether the end of a run is still to be reported; claiming the next ticket reports it, too."""
        return self.outbox.urgent

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

    def _deliver_for_the_dead(self) -> bool:
        """Deliver what agents on this machine could not before they died; return whether there was any."""
        has_delivered = False
        for path, agent, changes in iter_orphaned_queues(self._folders.logs, self.outbox.file_prefix):
            self._deliver_as(agent, changes)
            self._observer.note(
                "What an agent on this machine could not tell the store before it died was told."
            )
            has_delivered = True
            # a file that stays is delivered once more, which changes nothing
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return has_delivered

    def heartbeat(self, ticket: TicketRow, seconds: float, *, step: int | None = None) -> None:
        """Renew a lease with the next delivery, since its run has made progress.

        Args:
            step: Optimizer steps that it has done; None: not known yet.
        """
        self.outbox.renew(ticket.id, ticket.attempt, seconds, step=step)

    def stop_renewing(self, ticket: TicketRow) -> None:
        """Stop renewing a lease."""
        self.outbox.forget_lease(ticket.id)

    @abc.abstractmethod
    def report_run_started(self, change: RunStarted, history: Mapping[int, float]) -> None:
        """Report that a run has begun to train.

        Args:
            history: What counts of what earlier attempts have reported, step to value.
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
        """Report a value of the metric, and return whether the pruner ends the run there.

        Args:
            step: Step of the report.
            reports: All that count of this run, this one included.
            total_steps: Steps of the whole run; at its last nothing is pruned.
            trained_seconds: Seconds that the run has trained.
        """
        change = MetricReported(ticket_id=ticket.id, attempt=ticket.attempt, step=step, value=reports[step])
        self.outbox.add(change, age=trained_seconds)
        return False

    def keep(self, ticket: TicketRow, checkpoint: Checkpoint, *, trained_seconds: float) -> TicketRow:
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
            row: The ticket after it, as far as the run tells.
            reports: All that count of it.
        """

    @abc.abstractmethod
    def report_attempt_lost(
        self, change: AttemptLost, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Report that an attempt was lost; arguments as for :meth:`report_run_ended`."""

    @abc.abstractmethod
    def report_attempt_released(self, change: AttemptReleased) -> None:
        """Report that an attempt was returned."""

    @abc.abstractmethod
    def close(self) -> None:
        """Deliver what can be delivered, and give back what was taken a moment ago."""

    # ---- what is to be done, and how the study stands

    @abc.abstractmethod
    def is_finished(self) -> bool:
        """Return whether nothing is left to do, now and later; the next stage is opened if there is one."""

    @abc.abstractmethod
    def next_ticket(self, held_ids: list[int]) -> TicketRow | None:
        """Return a ticket to do, with its parameters, None if there is none just now.

        Args:
            held_ids: Ids of the tickets that are in progress here.
        """

    def folder(self, ticket: TicketRow) -> Path:
        """Return the local folder of a ticket, for its log."""
        return self._folders.logs / run_name(ticket.kind, ticket.number)

    @abc.abstractmethod
    def request(self, ticket: TicketRow, memory_share: float | None) -> AnyRequest:
        """Return what a worker is to do with a ticket that has its parameters.

        Args:
            memory_share: Share of its card's memory that the run may take; None: all of it.
        """

    @abc.abstractmethod
    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return what earlier attempts at a ticket have reported, step to value."""

    @abc.abstractmethod
    def was_pruned_earlier(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner ends a run by what earlier attempts have reported."""

    @abc.abstractmethod
    def has_finished_run(self) -> bool:
        """Return whether a run of the study is complete."""

    @abc.abstractmethod
    def tickets(self) -> Mapping[int, TicketRow]:
        """Return the tickets that are known of, by id."""

    @abc.abstractmethod
    def snapshot(self, own_views: Sequence[WorkerView], elapsed: float) -> Snapshot:
        """Return the study as it stands, for observers.

        Args:
            own_views: What the agent's own workers do.
            elapsed: Seconds since the agent began.
        """

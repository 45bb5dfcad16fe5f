"""What an agent asks of its study, wherever that is: in a database, or behind a server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Protocol

from tempopt.agent.observer import Snapshot, WorkerView
from tempopt.storage.changes import AttemptLost, AttemptReleased, RunEnded, RunStarted
from tempopt.storage.rows import Checkpoint, StudyState, TicketRow
from tempopt.training.messages import RunRequest

THOROUGH_SECONDS = 2.0
"""So often at most, while nothing is known to wait, it is asked what others have lost."""


@dataclass(slots=True, kw_only=True)
class AgentCallbacks:
    """What an agent does when its study tells it something.

    Args:
        abandon: Called with the ids of tickets that are others' by now, before anything else is done.
        prune: Called with the id and the attempt of a ticket whose run is to end as pruned.
    """

    abandon: Callable[[Collection[int]], None] = lambda ids: None
    prune: Callable[[int, int], None] = lambda id, attempt: None


class StudyClient(Protocol):
    """A study as one agent sees it. Requests raise StoreUnavailableError and can be repeated.

    Attributes:
        listeners: What the agent does when the study tells it something.
    """

    listeners: AgentCallbacks

    @property
    def codes(self) -> set[str]:
        """Identities of the code that has trained runs of the study, as far as is known; may be added to."""

    @property
    def state(self) -> StudyState:
        """State of the study, as it was told last."""

    @property
    def urgent(self) -> bool:
        """Whether the end of a run is still to be reported; claiming the next ticket reports it, too."""

    @property
    def last_empty_poll_at(self) -> float:
        """When a ticket was looked for last of which the store has said since that there is none to begin.

        By the monotonic clock; minus infinity: never. What could not be asked was not looked for.
        """

    def wakeup_sockets(self) -> Sequence[Connection | socket]:
        """Return what becomes readable when there is news without a request."""

    def flush(self) -> None:
        """Deliver what there is to tell, if it is time."""

    def is_finished(self) -> bool:
        """Return whether nothing is left to do, now and later; the next stage is opened if there is one."""

    def next_ticket(self, held_ids: list[int]) -> TicketRow | None:
        """Return a ticket to do, with its parameters, None if there is none just now.

        Args:
            held_ids: Ids of the tickets that are in progress here.
        """

    def folder(self, ticket: TicketRow) -> Path:
        """Return the local folder of a ticket, for its log."""

    def request(self, ticket: TicketRow, memory_share: float | None) -> RunRequest:
        """Return what a worker is to do with a ticket.

        Args:
            memory_share: Share of its card's memory that the run may take; None: all of it.
        """

    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return what earlier attempts at a ticket have reported, step to value."""

    def was_pruned_earlier(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner ends a run by what earlier attempts have reported."""

    def began(self, change: RunStarted, history: Mapping[int, float]) -> None:
        """Have told that a run has begun to train.

        Args:
            history: What counts of what earlier attempts have reported, step to value.
        """

    def reported(
        self,
        ticket: TicketRow,
        step: int,
        reports: Mapping[int, float],
        *,
        total_steps: int | None,
        trained_seconds: float,
    ) -> bool:
        """Have a report told, and return whether the pruner ends the run there.

        Args:
            step: That of the report.
            reports: All that count of this run, this one included.
            total_steps: Steps of the whole run; at its last nothing is pruned.
            trained_seconds: Seconds that the run has trained.
        """

    def heartbeat(self, ticket: TicketRow, seconds: float, *, step: int | None = None) -> None:
        """Have a lease renewed with the next delivery: its run has moved, and has so long for the next."""

    def keep(self, ticket: TicketRow, checkpoint: Checkpoint, *, trained_seconds: float) -> TicketRow:
        """Have a checkpoint recorded, and those that it makes needless deleted; return the ticket with it."""

    def report_run_ended(
        self, change: RunEnded, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Have the end of a run told.

        Args:
            before: The ticket while the run was in progress.
            row: The ticket after it, as far as the run tells.
            reports: All that count of it.
        """

    def lost(
        self, change: AttemptLost, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Have it told that an attempt was lost; arguments as for :meth:`report_run_ended`."""

    def returned(self, change: AttemptReleased) -> None:
        """Have it told that an attempt was returned."""

    def stop_renewing(self, ticket: TicketRow) -> None:
        """Renew a lease no more."""

    def has_finished_run(self) -> bool:
        """Return whether a run of the study is complete."""

    def tickets(self) -> Mapping[int, TicketRow]:
        """Return the tickets that are known of, by id."""

    def snapshot(self, own_views: Sequence[WorkerView], elapsed: float) -> Snapshot:
        """Return the study as it stands, for observers.

        Args:
            own_views: What the agent's own workers do.
            elapsed: Seconds since the agent began.
        """

    def close(self) -> None:
        """Deliver what can be delivered, and give back what was taken a moment ago."""

"""The state of a running study as plain data, and the protocol of observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tempopt.storage.rows import Kind, TicketRow


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """State of one worker.

    Args:
        slot: Number of the worker, from 0.
        kind: Kind of its ticket; None while it has none.
        number: Number of that ticket within its kind, from 0.
        step: Optimizer steps done.
        total_steps: Optimizer steps of the whole run, once they are known.
        value: Latest reported value of the metric.
        agent: Agent of the worker, as ``host:pid``; None: the agent that made this view.
        machine: Host on which it trains, once it is known.
        device: Device on which it trains, as text for people.
        silent: Whether its lease has expired: its last progress report is older than the lease.
    """

    slot: int
    kind: Kind | None = None
    number: int | None = None
    step: int | None = None
    total_steps: int | None = None
    value: float | None = None
    agent: str | None = None
    machine: str | None = None
    device: str | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of a study at one moment.

    Args:
        study: Name of the study.
        metric: Name of the validation metric.
        direction: Direction of the metric.
        stage: Kind of the tickets in progress; None before the first.
        done: Number of tickets that are over, by kind.
        requested: Number of all tickets, by kind.
        best: Best value so far of the arm ``search``, on the seeds of the search.
        best_params: Parameters that reached ``best``.
        baseline_mean: Mean so far of the arm ``baseline``, on its own seeds.
        workers: One view per worker: first those of the agent that made the snapshot, by slot.
        elapsed: Seconds since this search or resume began.
        remaining: Estimate of the seconds left; None before a run is complete.
        confirms_on: The data on which confirming runs are evaluated: ``test``, ``validate`` or ``program``.
    """

    study: str
    metric: str
    direction: Literal["maximize", "minimize"]
    stage: Kind | None
    done: dict[Kind, int]
    requested: dict[Kind, int]
    best: float | None = None
    best_params: dict[str, Any] = field(default_factory=dict)
    baseline_mean: float | None = None
    workers: list[WorkerView] = field(default_factory=list)
    elapsed: float
    remaining: float | None = None
    confirms_on: Literal["test", "validate", "program"] = "validate"


class Observer(Protocol):
    """Observes a study while it runs. The agent calls it from its own thread and waits for it: be quick."""

    poll_interval_seconds: float | None
    """Seconds between two queries of the store for the workers of other agents; None: no queries."""

    def update(self, snapshot: Snapshot) -> None:
        """Receive the state of the study, at every message from a worker."""

    def on_ticket_end(self, ticket: TicketRow) -> None:
        """Receive a ticket that is over, with any outcome."""

    def note(self, text: str) -> None:
        """Receive a line for the user: a warning, a retry, a change of stage."""


class NullObserver:
    """Observer that ignores everything."""

    poll_interval_seconds: float | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Do nothing."""

    def on_ticket_end(self, ticket: TicketRow) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

"""What a running study shows: plain data, and the protocol of observers.

Draws nothing and decides nothing; the estimate of the time that remains is the agent's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tempopt.storage.rows import Kind, TicketRow


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What one worker is doing.

    Args:
        slot: Number of the worker, from 0.
        kind: Stage of the ticket that it trains; None while it has none.
        number: Position of that ticket within its kind, from 0.
        step: Optimizer steps done.
        total_steps: Optimizer steps of the whole run, once they are known.
        value: Latest reported value of the metric.
        agent: Whose worker it is, as ``host:pid``; None: that of the agent which shows this.
        machine: Host that it trains on, once it is known.
        device: What it trains on there, for people to read.
        silent: Whether its lease is over: no step of its was heard of for too long.
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
    """A study at one moment.

    Args:
        study: Name of the study.
        metric: Name of the validation metric.
        direction: Whether more of it is better.
        stage: Kind of the tickets in progress; None before the first.
        done: Tickets that are over, by kind.
        requested: Tickets asked for, by kind.
        best: Best value so far of the arm ``search``, on the search's own seeds.
        best_params: Parameters that reached it.
        baseline_mean: Mean so far of the arm ``baseline``, on its own seeds.
        workers: One view per worker: those of the agent that shows this by slot, then those of others.
        elapsed: Seconds since this search or resume began.
        remaining: Estimate of the seconds left; None while there is none.
        confirms_on: The data that confirming runs are measured on: ``test``, ``validate`` or ``program``.
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
    """Observes a study while it runs. The agent calls it from its own thread and waits for it: be quick.

    ``poll_interval_seconds``: how often it wants the store to be asked what other agents do; None: never.
    """

    poll_interval_seconds: float | None

    def update(self, snapshot: Snapshot) -> None:
        """Called with the state of the study at every message from a worker."""

    def on_ticket_end(self, ticket: TicketRow) -> None:
        """Called when a ticket is over, whatever its outcome."""

    def note(self, text: str) -> None:
        """Called with what a person should read: a warning, a retry, a change of stage."""


class NullObserver:
    """The observer that ignores everything."""

    poll_interval_seconds: float | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Do nothing."""

    def on_ticket_end(self, ticket: TicketRow) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

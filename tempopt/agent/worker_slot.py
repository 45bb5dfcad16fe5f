"""One worker at work on one ticket, as the agent sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tempopt.agent.observer import WorkerView
from tempopt.records.liveness import host
from tempopt.records.rows import TicketRow
from tempopt.workers.messages import LOG, RunRequest, Stop
from tempopt.workers.process import WorkerProcess

_LOG_BYTES = 32 * 1024
_START_SECONDS = 10.0
_START_LEASES = 3.0
# a validation is finished first
_STOP_SECONDS = 60.0


def first_lease(lease: float) -> float:
    """Return the seconds that a run has for its first move, given those that it has for each of the others.

    Building a model, the first batches of data and the first compilation take longer than a step does.
    """
    return max(_START_LEASES * lease, _START_SECONDS)


@dataclass(slots=True, kw_only=True)
class WorkerSlot:
    """What a worker is doing.

    Args:
        worker: The process.
        ticket: The ticket, None while idle.
        folder: Local folder of the ticket.
        step: Optimizer steps done.
        total_steps: Steps of the whole run; None until the worker has begun.
        reports: Optimizer step to metric, all attempts.
        held: Optimizer step up to which its checkpoints are worth keeping for other runs.
        bound: What the pruner would not have had the last report be worse than; None: no such number.
        device: What the latest run of its was trained on, for people to read; None before the first.
        pruned: Whether the pruner has ended it; whatever still comes is not counted.
        leaving: Whether it has been told to write a checkpoint and stop.
        training: Whether it has begun to train.
        moving: Whether it has moved since.
        abandoned: Ticket and attempt that it was told to stop because they are another's, until it has.
        begun: When it was given the ticket.
        moved: When it last made progress, on the same clock.
        log_from: Where in the ticket's log this attempt begins.
        alone: Whether its card is to be its own: its ticket wants that, or the last one did and the next
            one may.
        waiting: Whether its run has not begun, its card being still in others' use.
        resting: Whether its process was ended, so that another has the card to itself.
        worn: Whether its process is to be replaced before it trains again.
        fresh: Whether its process is known to have trained nothing.
    """

    worker: WorkerProcess
    ticket: TicketRow | None = None
    folder: Path = Path()
    step: int = 0
    total_steps: int | None = None
    reports: dict[int, float] = field(default_factory=dict)
    held: int = 0
    bound: float | None = None
    device: str | None = None
    pruned: bool = False
    leaving: bool = False
    training: bool = False
    moving: bool = False
    abandoned: tuple[int, int] | None = None
    begun: float = 0.0
    moved: float = 0.0
    log_from: int = 0
    alone: bool = False
    waiting: bool = False
    resting: bool = False
    worn: bool = False
    fresh: bool = False

    def take(self, ticket: TicketRow, folder: Path, reports: dict[int, float]) -> None:
        """Give the worker another ticket to do."""
        self.ticket, self.folder, self.reports = ticket, folder, reports
        self.step, self.total_steps, self.bound, self.held = 0, ticket.total_steps, None, 0
        self.pruned = self.leaving = self.training = self.moving = self.waiting = False
        self.alone = ticket.alone
        self.begun = self.moved = time.monotonic()
        log = folder / LOG
        self.log_from = log.stat().st_size if log.exists() else 0

    def send(self, request: RunRequest) -> None:
        """Have the worker begin the run of its ticket."""
        self.waiting = self.fresh = False
        self.begun = self.moved = time.monotonic()
        self.worker.send(request)

    @property
    def age(self) -> float:
        """Seconds since its run was begun, 0 before that."""
        return 0.0 if self.waiting else time.monotonic() - self.begun

    @property
    def cards(self) -> float:
        """How many cards its run has, a share of one that others may use too counting as that share."""
        place = self.worker.place
        return float(len(place.gpus or ())) if self.alone else place.cards

    @property
    def memory_share(self) -> float | None:
        """Share of its card's memory that its run may take, None for all of it."""
        share = self.worker.place.share
        return None if self.alone or share >= 1 else share

    def abandon(self) -> None:
        """Have the worker end a run that is another's by now."""
        assert self.ticket is not None
        if not self.waiting:
            self.abandoned = (self.ticket.id, self.ticket.attempt)
            self.worker.send(Stop(ticket=self.ticket.id, attempt=self.ticket.attempt))
        self.free()
        self.moved = time.monotonic()

    def free(self) -> None:
        """Have no ticket any more."""
        # a warm process keeps memory, and this one's was not capped
        self.worn = self.worn or (self.alone and not self.waiting and self.worker.place.share < 1)
        self.ticket, self.waiting = None, False

    @property
    def at_rest(self) -> bool:
        """Whether its process trains nothing."""
        return (self.ticket is None or self.waiting) and self.abandoned is None

    @property
    def idle(self) -> bool:
        """Whether it can be given a ticket."""
        warm = self.worker.ready and not self.worn and not self.resting
        return warm and self.ticket is None and self.abandoned is None

    def patience(self, lease: float) -> float:
        """Return the seconds that it has for its next move."""
        if self.abandoned is not None:
            return _STOP_SECONDS
        return lease if self.moving else first_lease(lease)

    def stuck(self, lease: float) -> bool:
        """Return whether it did not move for as long as it may, and no word from it is on its way."""
        if self.at_rest:
            return False
        late = time.monotonic() - self.moved > self.patience(lease)
        # an agent that was paused itself has not yet read what came meanwhile
        return late and not self.worker.connection.poll()

    def printed(self) -> str:
        """Return the end of what this attempt has printed."""
        try:
            with (self.folder / LOG).open("rb") as log:
                size = log.seek(0, 2)
                log.seek(max(self.log_from, size - _LOG_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def view(self) -> WorkerView:
        """Return what an observer may see."""
        if self.ticket is None:
            return WorkerView(slot=self.worker.slot, machine=host(), device=self.device)
        return WorkerView(
            slot=self.worker.slot,
            kind=self.ticket.kind,
            number=self.ticket.number,
            step=self.step,
            total_steps=self.total_steps,
            value=next(reversed(self.reports.values()), None),
            bound=self.bound,
            machine=host(),
            device=self.device,
        )

    def concerns(self, ticket: int, attempt: int) -> bool:
        """Return whether a message about this ticket and attempt is about what is being done."""
        return self.ticket is not None and (self.ticket.id, self.ticket.attempt) == (ticket, attempt)

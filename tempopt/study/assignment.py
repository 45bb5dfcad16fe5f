"""One trainer at work on one ticket, as the agent sees it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from tempopt.store.rows import TicketRow
from tempopt.study.progress import TrainerView
from tempopt.training.process import TrainerProcess
from tempopt.training.serve import LOG

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
class Assignment:
    """What a trainer is doing.

    Args:
        trainer: The process.
        ticket: The ticket, None while idle.
        folder: Local folder of the ticket.
        step: Optimizer steps done.
        total_steps: Steps of the whole run; None until the trainer has begun.
        reports: Optimizer step to metric, all attempts.
        pruned: Whether the pruner has ended it; whatever still comes is not counted.
        leaving: Whether it has been told to write a checkpoint and stop.
        training: Whether it has begun to train.
        moving: Whether it has moved since.
        abandoned: Ticket and attempt that it was told to stop because they are another's, until it has.
        begun: When it was given the ticket.
        moved: When it last made progress, on the same clock.
        log_from: Where in the ticket's log this attempt begins.
    """

    trainer: TrainerProcess
    ticket: TicketRow | None = None
    folder: Path = Path()
    step: int = 0
    total_steps: int | None = None
    reports: dict[int, float] = field(default_factory=dict)
    pruned: bool = False
    leaving: bool = False
    training: bool = False
    moving: bool = False
    abandoned: tuple[int, int] | None = None
    begun: float = 0.0
    moved: float = 0.0
    log_from: int = 0

    def take(self, ticket: TicketRow, folder: Path, reports: dict[int, float]) -> None:
        """Give the trainer another ticket to do."""
        self.ticket, self.folder, self.reports = ticket, folder, reports
        self.step, self.total_steps = 0, ticket.total_steps
        self.pruned = self.leaving = self.training = self.moving = False
        self.begun = self.moved = time.monotonic()
        log = folder / LOG
        self.log_from = log.stat().st_size if log.exists() else 0

    @property
    def age(self) -> float:
        """Seconds since it was given the ticket."""
        return time.monotonic() - self.begun

    def abandon(self) -> None:
        """Have the trainer end a run that is another's by now."""
        assert self.ticket is not None
        self.abandoned = (self.ticket.id, self.ticket.attempt)
        self.ticket, self.moved = None, time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether it can be given a ticket."""
        return self.trainer.ready and self.ticket is None and self.abandoned is None

    def patience(self, lease: float) -> float:
        """Return the seconds that it has for its next move."""
        if self.abandoned is not None:
            return _STOP_SECONDS
        return lease if self.moving else first_lease(lease)

    def stuck(self, lease: float) -> bool:
        """Return whether it did not move for as long as it may, and no word from it is on its way."""
        if self.ticket is None and self.abandoned is None:
            return False
        late = time.monotonic() - self.moved > self.patience(lease)
        # an agent that was paused itself has not yet read what came meanwhile
        return late and not self.trainer.connection.poll()

    def printed(self) -> str:
        """Return the end of what this attempt has printed."""
        try:
            with (self.folder / LOG).open("rb") as log:
                size = log.seek(0, 2)
                log.seek(max(self.log_from, size - _LOG_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def view(self) -> TrainerView:
        """Return what an observer may see."""
        if self.ticket is None:
            return TrainerView(slot=self.trainer.slot)
        return TrainerView(
            slot=self.trainer.slot,
            kind=self.ticket.kind,
            number=self.ticket.number,
            step=self.step,
            total_steps=self.total_steps,
            value=next(reversed(self.reports.values()), None),
        )

    def concerns(self, ticket: int, attempt: int) -> bool:
        """Return whether a message about this ticket and attempt is about what is being done."""
        return self.ticket is not None and (self.ticket.id, self.ticket.attempt) == (ticket, attempt)

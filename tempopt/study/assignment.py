"""One trainer at work on one ticket, as the agent sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tempopt.store.rows import TicketRow
from tempopt.study.progress import TrainerView
from tempopt.training.process import TrainerProcess


@dataclass(slots=True, kw_only=True)
class Assignment:
    """What a trainer is doing.

    Args:
        trainer: The process.
        ticket: The ticket, None while idle.
        step: Optimizer steps done.
        total_steps: Steps of the whole run; None until the trainer has begun.
        reports: Optimizer step to metric, all attempts.
        pruned: Whether the pruner has ended it; whatever still comes is not counted.
    """

    trainer: TrainerProcess
    ticket: TicketRow | None = None
    step: int = 0
    total_steps: int | None = None
    reports: dict[int, float] = field(default_factory=dict)
    pruned: bool = False

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

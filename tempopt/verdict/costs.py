"""What a run of a study costs in the mean, by the complete ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

from tempopt.storage.rows import TicketRow


def seconds(ticket: TicketRow) -> float:
    """Return the training seconds of a ticket."""
    return ticket.seconds


def gpu_seconds_of(ticket: TicketRow) -> float:
    """Return the seconds of cards that a ticket took, its training seconds where it trained on none."""
    return ticket.gpu_seconds or ticket.seconds


def mean_cost(tickets: Iterable[TicketRow], cost: Callable[[TicketRow], float] = seconds) -> float | None:
    """Return what a complete run among tickets costs in the mean; None if there are none."""
    costs = [cost(ticket) for ticket in tickets if ticket.outcome == "complete"]
    return fmean(costs) if costs else None

"""What a study's tickets tell about it: which are over, of what kind and round, and what they came to."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tempopt.store.rows import OVER, Kind, TicketRow
from tempopt.study.paired import Direction
from tempopt.training.seeds import derive

ARMS: tuple[Kind, ...] = ("unit", "constant", "search")
"""The arms that are confirmed, in the order of their tickets."""


def over(ticket: TicketRow) -> bool:
    """Return whether nothing more will become of the ticket; one that was withdrawn is over, too."""
    return ticket.state in OVER


def finished(tickets: Iterable[TicketRow]) -> bool:
    """Return whether no ticket is waiting or running."""
    return all(over(ticket) for ticket in tickets)


def current_round(tickets: Iterable[TicketRow]) -> int:
    """Return the round that is being worked on, or was last: 0 for a study that was never enlarged."""
    return max((ticket.round for ticket in tickets), default=0)


def usable(ticket: TicketRow) -> bool:
    """Return whether the run came to its end with a finite value."""
    return ticket.outcome == "complete" and ticket.value is not None and math.isfinite(ticket.value)


def of_kind(
    tickets: Iterable[TicketRow], kind: Kind, arm: str | None = None, *, of_round: int | None = None
) -> list[TicketRow]:
    """Return the tickets of a kind (and arm, and round) by number."""
    found = [
        ticket
        for ticket in tickets
        if ticket.kind == kind and arm in (None, ticket.arm) and of_round in (None, ticket.round)
    ]
    return sorted(found, key=lambda ticket: ticket.number)


def oriented(value: float, direction: Direction) -> float:
    """Return the value with the sign under which more is better."""
    return value if direction == "maximize" else -value


def next_number(tickets: Iterable[TicketRow], kind: Kind) -> int:
    """Return the first number that no ticket of the kind has: numbers go on from round to round."""
    return 1 + max((ticket.number for ticket in tickets if ticket.kind == kind), default=-1)


def fresh_seed(study_seed: int, kind: Kind, pair: int, of_round: int) -> int:
    """Return the seed that a kind trains a pair with; later rounds have others than the first."""
    later = (of_round,) if of_round else ()
    return derive(study_seed, kind, pair, *later)

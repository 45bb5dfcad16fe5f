"""Which tickets a study gets, and when: its first ones, more on request, and those that prove what was found.

Pure: rows in, new tickets out. What choosing and confirming consist of is choose.py's and confirm.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.store.rows import Kind, NewTicket, TicketRow
from tempopt.study.choose import Named, choose_tickets, most_to_choose, names_none
from tempopt.study.confirm import confirm_tickets
from tempopt.study.tickets import ARMS, current_round, next_number, over
from tempopt.training.seeds import derive

if TYPE_CHECKING:
    from tempopt.study.spec import StudySpec

__all__ = ["current_round", "first_tickets", "more_tickets", "next_tickets", "reserve", "to_come"]

PROVING: tuple[Kind, ...] = ("choose", "confirm", "init_only")
"""The kinds that a round ends with, after its search tickets."""


def first_tickets(spec: StudySpec) -> list[NewTicket]:
    """Return the tickets that a study begins with: unit, constant and search.

    The first search tickets get the parameters that ``study.enqueue`` wants tried.
    """
    counts: dict[Kind, int] = {"unit": spec.num_unit, "constant": spec.num_constant}
    if not spec.confirms:
        # a frozen model has no runs to compare: what is asked is where its optimum lies
        counts = {}
    return [
        NewTicket(kind=kind, arm=kind, number=number, seed=derive(spec.study.seed, kind, number))
        for kind, count in counts.items()
        for number in range(count)
    ] + _search(spec, range(spec.study.trials), 0, spec.enqueued(spec.study.enqueue))


def more_tickets(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    count: int,
    enqueued: Sequence[Mapping[str, Any]] = (),
) -> list[NewTicket]:
    """Return more search tickets, of the next round if this one is being proved already.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: How many in all, >= ``len(enqueued)``.
        enqueued: Values of the search space that a person wants tried; the first of the tickets get them.
    """
    now = current_round(tickets)
    proving = any(ticket.kind in PROVING and ticket.round == now for ticket in tickets)
    first = next_number(tickets, "search")
    return _search(spec, range(first, first + count), now + proving, enqueued)


def _search(
    spec: StudySpec, numbers: range, of_round: int, enqueued: Sequence[Mapping[str, Any]]
) -> list[NewTicket]:
    assert len(enqueued) <= len(numbers), "more parameter sets than tickets to try them"
    shared = spec.study.seeds.search
    return [
        NewTicket(
            kind="search",
            arm="search",
            number=number,
            seed=derive(spec.study.seed, "search", number if shared is None else number % shared),
            round=of_round,
            sampled=dict(enqueued[place]) if place < len(enqueued) else None,
        )
        for place, number in enumerate(numbers)
    ]


def next_tickets(tickets: Sequence[TicketRow], spec: StudySpec, named: Named = names_none) -> list[NewTicket]:
    """Return the tickets that follow when all that there are are over; none when the study is, too.

    Args:
        tickets: All tickets of the study, of which none waits or runs.
        spec: The study's spec.
        named: Names the candidates; where it names none, they are those with the best values.
    """
    if "confirm" in _proving(tickets):
        return []
    return choose_tickets(tickets, spec, named) or confirm_tickets(tickets, spec, named)


def _proving(tickets: Iterable[TicketRow]) -> set[Kind]:
    """Return the kinds of the current round that prove what it found, as far as it has them."""
    tickets = list(tickets)
    now = current_round(tickets)
    return {ticket.kind for ticket in tickets if ticket.round == now and ticket.kind in PROVING}


def to_come(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many tickets the current round will still get for choosing and confirming, at the most."""
    kinds = _proving(tickets)
    if "confirm" in kinds or not spec.confirms:
        return 0
    asked = {arm: sum(t.kind == arm and t.state != "withdrawn" for t in tickets) for arm in ARMS}
    confirming = (sum(count > 0 for count in asked.values()) + 1) * spec.study.seeds.confirm
    if "choose" in kinds:
        return confirming + most_to_choose(tickets, spec)
    if not spec.other_names:
        asked["unit"] = min(asked["unit"], 1)
    several = [min(count, spec.study.candidates) for count in asked.values()]
    return confirming + spec.study.seeds.choose * sum(count for count in several if count > 1)


def seconds(ticket: TicketRow) -> float:
    """Return the training seconds of a ticket."""
    return ticket.seconds


def spent(ticket: TicketRow) -> float:
    """Return the seconds of cards that a ticket took, its training seconds where it trained on none."""
    return ticket.gpu_seconds or ticket.seconds


def reserve(
    tickets: Sequence[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float] = seconds
) -> float:
    """Return what choosing and confirming may still cost, summed over trainers.

    An estimate: for each run the mean of the complete ones so far; 0 before there is one.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        cost: What a ticket cost.
    """
    # one that began where another was left cost less than those to come will
    whole = (each for each in tickets if each.outcome == "complete" and each.forked_at is None)
    trained = [cost(ticket) for ticket in whole]
    if not trained:
        return 0.0
    waiting = sum(ticket.kind in PROVING and not over(ticket) for ticket in tickets)
    return fmean(trained) * (waiting + to_come(tickets, spec))

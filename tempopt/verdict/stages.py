"""Which tickets a study gets, and when: its first ones, more on request, and those that decide.

Pure: rows in, new tickets out. A round searches, tunes the baseline, chooses the winner and what it is
compared with (references.py), confirms them on fresh seeds (pairs.py) and, on request, explains the winner
(explanation.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tempopt.spec.sections import FEWEST, KNOWLEDGE_GRADIENT
from tempopt.storage.rows import KINDS, SEARCH_KINDS, Kind, NewTicket, TicketRow
from tempopt.storage.ticket_queries import (
    added_pairs,
    arms_of,
    current_round,
    finished,
    is_terminal,
    join_arms,
    next_number,
    of_kind,
    pairs_of,
)
from tempopt.verdict.explanation import explanation_tickets
from tempopt.verdict.paired_evidence import is_confirmation_complete
from tempopt.verdict.pairs import confirm_tickets, constant_tickets, deciding_arms
from tempopt.verdict.references import has_tuned, reference_tickets, search_seed, tuning_tickets
from tempopt.verdict.selection import Recommend, choose_tickets, most_to_choose, no_recommendations
from tempopt.verdict.set_comparison import compare_tickets, remaining_comparison_runs

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

__all__ = [
    "count_remaining_runs",
    "current_round",
    "first_tickets",
    "more_tickets",
    "next_tickets",
    "remaining_confirmation_runs",
]

PROVING: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in SEARCH_KINDS)
"""The kinds that a round ends with, after its search tickets."""


def first_tickets(spec: StudySpec) -> list[NewTicket]:
    """Return the tickets that a study begins with: baseline, constant and search, or those of a comparison.

    The first search tickets get the parameters that ``study.enqueue`` wants tried. What a study begins with
    follows from the search space that it began with.
    """
    if spec.compare is not None:
        return compare_tickets([], spec)
    counts: dict[Kind, int] = {"baseline": spec.num_baseline, "constant": spec.num_constant}
    return [
        NewTicket(kind=kind, arm=kind, number=number, seed=search_seed(spec, kind, number))
        for kind, count in counts.items()
        for number in range(count)
    ] + _search(spec, range(spec.num_trials), 0, spec.enqueued(spec.study.enqueue))


def is_confirming(tickets: Sequence[TicketRow]) -> bool:
    """Return whether what the current round has found is being proved, or was."""
    this_round = current_round(tickets)
    return any(ticket.kind in PROVING and ticket.round == this_round for ticket in tickets)


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
    first_number = next_number(tickets, "search")
    return _search(
        spec,
        range(first_number, first_number + count),
        current_round(tickets) + is_confirming(tickets),
        enqueued,
    )


def _search(
    spec: StudySpec, numbers: range, of_round: int, enqueued: Sequence[Mapping[str, Any]]
) -> list[NewTicket]:
    assert len(enqueued) <= len(numbers), "more parameter sets than tickets to try them"
    return [
        NewTicket(
            kind="search",
            arm="search",
            number=number,
            seed=search_seed(spec, "search", number),
            round=of_round,
            sampled=dict(enqueued[index]) if index < len(enqueued) else None,
        )
        for index, number in enumerate(numbers)
    ]


def next_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend_fn: Recommend = no_recommendations
) -> list[NewTicket]:
    """Return the tickets that follow when all that there are are over; none when the study is, too.

    Args:
        tickets: All tickets of the study, of which none waits or runs.
        spec: The study's spec.
        recommend_fn: Returns the candidates; where it returns none, they are those with the best values.
    """
    if spec.compare is not None:
        return compare_tickets(tickets, spec)
    if of_kind(tickets, "confirm", of_round=current_round(tickets)):
        return (
            confirm_tickets(tickets, spec, recommend_fn)
            or constant_tickets(tickets, spec, recommend_fn)
            or explanation_tickets(tickets, spec)
        )
    return (
        tuning_tickets(tickets, spec)
        or choose_tickets(tickets, spec, recommend_fn)
        or reference_tickets(tickets, spec, recommend_fn)
        or confirm_tickets(tickets, spec, recommend_fn)
    )


def count_remaining_runs(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many tickets the current round will still get until it is decided, at most.

    Constants that follow a gain, and what explains it, are not among them.
    """
    if spec.compare is not None:
        return remaining_comparison_runs(tickets, spec)
    this_round = current_round(tickets)
    if added_pairs(tickets, this_round):
        return 0
    pairs, tunes = spec.study.seeds.confirm.max, bool(spec.other_names)
    if confirm := of_kind(tickets, "confirm", of_round=this_round):
        num_arms = len(join_arms(deciding_arms(confirm)))
        is_over = finished(confirm) and is_confirmation_complete(tickets, spec, this_round)
        return 0 if is_over else num_arms * (pairs - pairs_of(confirm))
    num_arms = 2 + (tunes or bool(spec.method_names))
    num_tuning = 0 if has_tuned(tickets, spec, this_round) else spec.num_tuning
    return num_tuning + _to_choose(tickets, spec, this_round) + num_arms * pairs


def _to_choose(tickets: Sequence[TicketRow], spec: StudySpec, this_round: int) -> int:
    """Return how many tickets of choosing a round will still get, at most."""
    seeds, choose = spec.study.seeds.choose, of_kind(tickets, "choose", of_round=this_round)
    # the winner, with its own other parameters and with the baseline's
    max_exchanged = 2 if spec.other_names else 0
    if not choose:
        count = candidates_at_most(spec, _num_asked(tickets, "search"))
        return seeds * ((count if count > 1 else 0) + max_exchanged)
    if any("exchange" in arms_of(ticket) for ticket in choose):
        max_exchanged = 0
    return most_to_choose(tickets, spec) + seeds * max_exchanged


def candidates_at_most(spec: StudySpec, num_runs: int) -> int:
    """Return how many candidates an arm with so many runs has at most.

    tempopt's sampler names sets that no run has tried, too.
    """
    max_candidates = spec.study.candidates
    has_model = spec.study.sampler.name == KNOWLEDGE_GRADIENT and num_runs >= FEWEST
    return max_candidates if has_model else min(num_runs, max_candidates)


def _num_asked(tickets: Sequence[TicketRow], kind: Kind) -> int:
    return sum(ticket.kind == kind and ticket.state != "withdrawn" for ticket in tickets)


def remaining_confirmation_runs(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many runs will still choose and confirm: those asked for, and those to come at most."""
    return sum(t.kind in PROVING and not is_terminal(t) for t in tickets) + count_remaining_runs(
        tickets, spec
    )

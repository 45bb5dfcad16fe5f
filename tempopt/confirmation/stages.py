"""Which tickets a study gets, and when: its first ones, more on request, and those that prove what was found.

Pure: rows in, new tickets out. A round searches, chooses the winner and the best constant, has the baseline
tuned again (rematch.py), chooses what the winner is compared with, confirms all of them on fresh seeds
(pairs.py) and takes the winner apart (ablation.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tempopt.confirmation.ablation import ablation_tickets
from tempopt.confirmation.compare import compare_tickets, compare_to_come
from tempopt.confirmation.comparisons import is_decided
from tempopt.confirmation.pairs import confirm_tickets
from tempopt.confirmation.rematch import (
    REMATCHED,
    baseline_candidates,
    baseline_of,
    constant_candidates,
    exchange_tickets,
    first_winner,
    learned_candidates,
    rematch_runs,
    rematch_tickets,
    winner,
)
from tempopt.confirmation.selection import (
    SEARCHED,
    Recommend,
    choose_tickets,
    most_to_choose,
    recommend_none,
    searched,
)
from tempopt.records.rows import KINDS, SEARCHING, Kind, NewTicket, Parameters, TicketRow
from tempopt.records.tickets import (
    added_pairs,
    arms_of,
    current_round,
    finished,
    next_number,
    of_kind,
    over,
    pairs_of,
)
from tempopt.seeds import derive, seed_name
from tempopt.spec.sections import FEWEST, KNOWLEDGE_GRADIENT
from tempopt.temperature import AS_FOUND, GROUPS, LR_RATIOS, is_neutral, split_name

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

__all__ = [
    "current_round",
    "first_tickets",
    "more_tickets",
    "next_tickets",
    "to_come",
    "to_prove",
]

PROVING: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in SEARCHING)
"""The kinds that a round ends with, after its search tickets."""

# search, baseline and constant; each of the twins only where it may be something else
_ARMS = 3
_LEVELS = 5
_PLAIN = GROUPS["schedule"] | GROUPS["level"] | {AS_FOUND}


def first_tickets(spec: StudySpec) -> list[NewTicket]:
    """Return the tickets that a study begins with: baseline, constant and search, or those of a comparison.

    The first search tickets get the parameters that ``study.enqueue`` wants tried. What a study begins with
    follows from the search space that it began with.
    """
    if spec.compare is not None:
        return compare_tickets([], spec)
    counts: dict[Kind, int] = {"baseline": spec.num_baseline, "constant": spec.num_constant}
    return [
        NewTicket(kind=kind, arm=kind, number=number, seed=_seed(spec, kind, number))
        for kind, count in counts.items()
        for number in range(count)
    ] + _search(spec, range(spec.study.trials), 0, spec.enqueued(spec.study.enqueue))


def _seed(spec: StudySpec, kind: Kind, number: int) -> int:
    return derive(spec.study.seed, seed_name(kind), number)


def proving(tickets: Sequence[TicketRow]) -> bool:
    """Return whether what the current round has found is being proved, or was."""
    now = current_round(tickets)
    return any(ticket.kind in PROVING and ticket.round == now for ticket in tickets)


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
    first = next_number(tickets, "search")
    return _search(spec, range(first, first + count), current_round(tickets) + proving(tickets), enqueued)


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
            seed=_seed(spec, "search", number if shared is None else number % shared),
            round=of_round,
            sampled=dict(enqueued[place]) if place < len(enqueued) else None,
        )
        for place, number in enumerate(numbers)
    ]


def next_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> list[NewTicket]:
    """Return the tickets that follow when all that there are are over; none when the study is, too.

    Args:
        tickets: All tickets of the study, of which none waits or runs.
        spec: The study's spec.
        recommend: Returns the candidates; where it returns none, they are those with the best values.
    """
    if spec.compare is not None:
        return compare_tickets(tickets, spec)
    if of_kind(tickets, "confirm", of_round=current_round(tickets)):
        return confirm_tickets(tickets, spec, recommend) or ablation_tickets(tickets, spec)
    return (
        choose_tickets(tickets, spec, _first_choices(tickets, spec, recommend))
        or _after_choosing(tickets, spec, recommend)
        or confirm_tickets(tickets, spec, recommend)
    )


def _first_choices(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend
) -> dict[str, Callable[[], list[Parameters]]]:
    found: dict[str, Callable[[], list[Parameters]]] = {
        arm: partial(searched, arm, tickets, spec, recommend) for arm in SEARCHED
    }
    if of_kind(tickets, "choose", of_round=current_round(tickets)) or found["search"]():
        return found
    # without a winner there is nothing to compare with constants
    return {}


def _after_choosing(tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend) -> list[NewTicket]:
    """Return the rematch, and the runs that choose what the winner is compared with."""
    found = first_winner(tickets, spec, recommend)
    if found is None or is_neutral(found):
        return []
    if not of_kind(tickets, "rematch", of_round=current_round(tickets)):
        if new := rematch_tickets(tickets, spec, found):
            return new
    tuned = {"baseline": lambda: baseline_candidates(tickets, spec, found, recommend)}
    if new := choose_tickets(tickets, spec, tuned) or exchange_tickets(tickets, spec, found, recommend):
        return new
    final = winner(tickets, spec, recommend) or found
    if is_neutral(final):
        return []
    baseline = baseline_of(tickets, spec, found, recommend)
    compared = {
        "constant_twin": lambda: constant_candidates(spec, final),
        "learned": lambda: [] if baseline is None else learned_candidates(spec, baseline),
    }
    return choose_tickets(tickets, spec, compared)


def to_come(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many tickets the current round will still get beside those there are, at most.

    Those that take the winner apart are not among them: there are none unless a gain is shown.
    """
    if spec.compare is not None:
        return compare_to_come(tickets, spec)
    now = current_round(tickets)
    if added_pairs(tickets, now):
        return 0
    pairs = spec.study.seeds.confirm.max
    if confirm := of_kind(tickets, "confirm", of_round=now):
        each = max(1, len(confirm) // max(1, pairs_of(confirm)))
        over_now = finished(confirm) and is_decided(tickets, spec, now)
        return 0 if over_now else each * (pairs - pairs_of(confirm))
    tunes, levels = bool(spec.other_names), _has_levels(spec)
    arms = _ARMS + (tunes or bool(spec.method_names)) + levels + spec.learns
    return _to_choose(tickets, spec, now) + arms * pairs


def _has_levels(spec: StudySpec) -> bool:
    """Return whether the winner may have parts for which constant temperatures are chosen anew."""
    return not {split_name(name)[1] for name in (*spec.search, *spec.fixed_temperatures)} <= _PLAIN


def _to_choose(tickets: Sequence[TicketRow], spec: StudySpec, now: int) -> int:
    """Return how many tickets of choosing and of the rematch a round will still get, at most."""
    tunes, levels, seeds = bool(spec.other_names), _has_levels(spec), spec.study.seeds.choose
    asked = {arm: _asked(tickets, arm) for arm in ("constant", "search")}
    if of_kind(tickets, "rematch", of_round=now) or not tunes:
        rematch = 0
    else:
        rematch = rematch_runs(tickets, spec)
    most = spec.study.candidates
    most_of = {
        "baseline": (most if most > 1 else 0) * tunes,
        "exchange": 2 * tunes,
        "constant_twin": _LEVELS * levels + len(LR_RATIOS) * spec.learns,
    }
    chosen = {arm for t in of_kind(tickets, "choose", of_round=now) for arm in arms_of(t)}
    # learning rates are chosen together with the constants
    begun = [arm in chosen or (arm == "constant_twin" and "learned" in chosen) for arm in most_of]
    # they come in this order, and where an arm has begun those before it have what they get
    later = [n for place, n in enumerate(most_of.values()) if not any(begun[place:])]
    after = seeds * sum(later)
    if of_kind(tickets, "choose", of_round=now):
        choosing = most_to_choose(tickets, spec, (*SEARCHED, *REMATCHED))
    else:
        counts = [candidates_at_most(spec, count) for count in asked.values()]
        choosing = seeds * sum(count for count in counts if count > 1)
    return rematch + choosing + after


def candidates_at_most(spec: StudySpec, num_runs: int) -> int:
    """Return how many candidates an arm with so many runs has at most.

    tempopt's sampler names sets that no run has tried, too.
    """
    most = spec.study.candidates
    names = spec.study.sampler.name == KNOWLEDGE_GRADIENT and num_runs >= FEWEST
    return most if names else min(num_runs, most)


def _asked(tickets: Sequence[TicketRow], kind: Kind) -> int:
    return sum(ticket.kind == kind and ticket.state != "withdrawn" for ticket in tickets)


def to_prove(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many runs will still choose and confirm: those asked for, and those to come at most."""
    return sum(t.kind in PROVING and not over(t) for t in tickets) + to_come(tickets, spec)

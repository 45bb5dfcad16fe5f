"""The tickets of a study by stage: initial ones, requested ones, and those of the confirmation.

Pure: rows in, new tickets out. A round searches, tunes the baseline, chooses the winner and its references,
confirms them on fresh seeds, compares a gain with constants (pairs.py) and, if a command or ``study.explain``
requests it, explains the winner (explanation.py). A finished verdict never changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tempopt.spec.sections import KNOWLEDGE_GRADIENT, MIN_MODEL_RUNS
from tempopt.storage.rows import KINDS, SEARCH_KINDS, Kind, NewTicket, TicketRow
from tempopt.storage.ticket_queries import (
    are_over,
    arms_of,
    current_round,
    is_round_of_added_pairs,
    is_terminal,
    join_arms,
    next_number,
    of_kind,
    pairs_of,
    rounds_of_verdict,
)
from tempopt.verdict.explanation import explanation_tickets
from tempopt.verdict.paired_evidence import Evidence, gain_over_baseline, is_confirmation_complete
from tempopt.verdict.pairs import (
    Recommend,
    choose_tickets,
    confirm_tickets,
    constant_tickets,
    deciding_arms,
    has_tuned,
    max_choosing_tickets,
    more_pairs,
    no_recommendations,
    reference_tickets,
    search_tickets,
    tuning_tickets,
)
from tempopt.verdict.set_comparison import (
    compare_tickets,
    evaluate_comparison,
    more_compare_pairs,
    remaining_comparison_runs,
)

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

CONFIRMING_KINDS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in SEARCH_KINDS)
"""Kinds of the stages of a round after its search."""


def initial_tickets(spec: StudySpec) -> list[NewTicket]:
    """Return the initial tickets of a study: baseline, constant and search, or those of a comparison.

    The first search tickets get the parameters in ``study.enqueue``. A later change of the spec does not
    change these tickets.
    """
    if spec.compare is not None:
        return compare_tickets([], spec)
    counts: dict[Kind, int] = {"baseline": spec.num_baseline, "constant": spec.num_constant}
    design = [ticket for kind, count in counts.items() for ticket in search_tickets(spec, kind, range(count))]
    enqueued_sets = spec.parse_enqueued_sets(spec.study.enqueue)
    return design + search_tickets(spec, "search", range(spec.num_trials), enqueued=enqueued_sets)


def has_begun_confirming(tickets: Sequence[TicketRow]) -> bool:
    """Return whether the current round has tickets that choose, confirm or explain."""
    this_round = current_round(tickets)
    return any(ticket.kind in CONFIRMING_KINDS and ticket.round == this_round for ticket in tickets)


def more_tickets(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    count: int,
    enqueued: Sequence[Mapping[str, Any]] = (),
) -> list[NewTicket]:
    """Return more search tickets, of the next round if this one has passed its search.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: Number of tickets, >= ``len(enqueued)``.
        enqueued: Values of the search space for the first of the tickets.
    """
    first_number = next_number(tickets, "search")
    numbers = range(first_number, first_number + count)
    return search_tickets(
        spec, "search", numbers, current_round(tickets) + has_begun_confirming(tickets), enqueued
    )


def next_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend_fn: Recommend = no_recommendations
) -> list[NewTicket]:
    """Return the tickets that follow when all present ones have ended; empty when the study is complete.

    Args:
        tickets: All tickets of the study, none of them waiting or running.
        spec: The study's spec.
        recommend_fn: Returns the candidates; if it returns none, they are those with the best values.
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


def count_tickets_to_come(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return the largest number of further tickets of the current round until it is decided.

    Constants that follow a gain, and explanations, are not included.
    """
    if spec.compare is not None:
        return remaining_comparison_runs(tickets, spec)
    this_round = current_round(tickets)
    if is_round_of_added_pairs(tickets, this_round):
        return 0
    max_pairs = spec.study.seeds.confirm.max
    if confirm := of_kind(tickets, "confirm", of_round=this_round):
        num_arms = len(join_arms(deciding_arms(confirm)))
        is_over = are_over(confirm) and is_confirmation_complete(tickets, spec, this_round)
        return 0 if is_over else num_arms * (max_pairs - pairs_of(confirm))
    num_arms = 2 + spec.has_twin
    num_tuning = 0 if has_tuned(tickets, spec, this_round) else spec.num_tuning
    return num_tuning + _max_choosing_tickets(tickets, spec, this_round) + num_arms * max_pairs


def _max_choosing_tickets(tickets: Sequence[TicketRow], spec: StudySpec, this_round: int) -> int:
    """Return the largest number of further choosing tickets of a round."""
    seeds, choose = spec.study.seeds.choose, of_kind(tickets, "choose", of_round=this_round)
    # the winner, with its own ordinary parameters and with the baseline's
    max_exchanged = 2 if spec.ordinary_names else 0
    if not choose:
        num_asked = sum(ticket.kind == "search" and ticket.state != "withdrawn" for ticket in tickets)
        count = max_arm_candidates(spec, num_asked)
        return seeds * ((count if count > 1 else 0) + max_exchanged)
    if any("exchange" in arms_of(ticket) for ticket in choose):
        max_exchanged = 0
    return max_choosing_tickets(tickets, spec) + seeds * max_exchanged


def max_arm_candidates(spec: StudySpec, num_runs: int) -> int:
    """Return the largest number of candidates of an arm with ``num_runs`` runs.

    tempopt's sampler may recommend sets that no run has tried.
    """
    max_candidates = spec.study.candidates
    has_model = spec.study.sampler.name == KNOWLEDGE_GRADIENT and num_runs >= MIN_MODEL_RUNS
    return max_candidates if has_model else min(num_runs, max_candidates)


def remaining_confirmation_runs(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return the number of choosing and confirming runs to come: planned ones, and the largest number of
    others.
    """
    return sum(t.kind in CONFIRMING_KINDS and not is_terminal(t) for t in tickets) + count_tickets_to_come(
        tickets, spec
    )


# ---- runs that failed on every attempt

_MIN_ADDED_PAIRS = 2
"""A single pair shows nothing."""


def failed_runs_to_requeue(
    tickets: Sequence[TicketRow], spec: StudySpec
) -> tuple[list[TicketRow], list[NewTicket]]:
    """Return the failed tickets to repeat, and new pairs in place of those that a verdict lacks.

    Pairs that are completed after a verdict are another look at its question. Like pairs that a person adds,
    they make a new round with its own level. Failed runs on which nothing depends stay failed; search runs
    are repeated, since later rounds learn from them.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
    """
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    has_verdict = _has_verdict(tickets, spec)
    tickets_to_requeue = [
        ticket
        for ticket in tickets
        if ticket.state == "failed" and _is_still_needed(ticket, tickets, spec, confirm, has_verdict)
    ]
    # it lacks none where a failure is a result
    lost = _num_missing_pairs(tickets, this_round) if has_verdict and not spec.counts_failures else 0
    count = max(_MIN_ADDED_PAIRS, lost) if lost > 0 else 0
    return tickets_to_requeue, further_pairs(tickets, spec, count) if count else []


def further_pairs(tickets: Sequence[TicketRow], spec: StudySpec, count: int) -> list[NewTicket]:
    """Return a round with ``count`` more pairs of the arms of the last verdict; empty without a verdict.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: Number of pairs, >= 1.
    """
    if spec.compare is not None:
        return more_compare_pairs(tickets, spec, count)
    return more_pairs(tickets, spec, count)


def _has_verdict(tickets: Sequence[TicketRow], spec: StudySpec) -> bool:
    """Return whether the current round has a verdict."""
    decided = bool(further_pairs(tickets, spec, 1))
    if spec.compare is not None:
        comparison = evaluate_comparison(tickets, spec) if decided else None
        return comparison is not None and comparison.has_verdict
    return decided and gain_over_baseline(Evidence(tickets, spec, current_round(tickets))) is not None


def _is_still_needed(
    ticket: TicketRow,
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    confirm: Sequence[TicketRow],
    has_verdict: bool,
) -> bool:
    this_round = current_round(tickets)
    if ticket.kind in SEARCH_KINDS:
        return True
    if ticket.round != this_round:
        return False
    if ticket.kind == "confirm":
        # earlier looks were taken without them
        looks = [look for look in spec.study.seeds.confirm.looks if look < pairs_of(confirm)]
        return not has_verdict and (ticket.pair or 0) >= max(looks, default=0)
    # the choice is final once its confirmation has begun
    return ticket.kind == "choose" and not confirm


def _num_missing_pairs(tickets: Sequence[TicketRow], this_round: int) -> int:
    """Return the number of pairs that the verdict of a round lacks, minus those that were added since."""
    first_round, *added_rounds = rounds_of_verdict(tickets, this_round)
    confirm_tickets = [
        ticket for ticket in of_kind(tickets, "confirm") if ticket.round in (first_round, *added_rounds)
    ]
    lost_pairs = {(ticket.round, ticket.pair) for ticket in confirm_tickets if ticket.state == "failed"}
    fresh_pairs = {(ticket.round, ticket.pair) for ticket in confirm_tickets if ticket.round in added_rounds}
    return len(lost_pairs) - len(fresh_pairs)

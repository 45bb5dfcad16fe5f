"""Which parameter sets of the search are candidates, and which of them is the winner.

Pure: rows in, new tickets out. Who is given up on the way is racing.py's. The winner is chosen first, then
what it is compared with (references.py), on the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.spec.search_space import params_key
from tempopt.storage.racing import best_parameters, candidate_parameters, next_pairs, surviving_candidates
from tempopt.storage.rows import Kind, NewTicket, Parameters, TicketRow
from tempopt.storage.ticket_queries import (
    current_round,
    finished,
    fresh_seed,
    is_usable,
    next_number,
    of_kind,
    pairs_of,
    to_maximize,
)
from tempopt.temperature import training_key
from tempopt.verdict.statistics.paired_tests import Direction

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Recommend = Callable[[Any, int], list[Parameters]]
"""Returns the parameter sets of an arm that are expected to be best, at most so many; none: not known."""


def candidates(tickets: Iterable[TicketRow], k: int, direction: Direction) -> list[Parameters]:
    """Return the k best distinct parameter sets, best first, by the values of their complete runs.

    Two sets are the same if their effective parameters are; a set that was run more than once counts
    with the mean of its complete runs, and of equal values the earlier goes first.

    Args:
        tickets: The tickets of one arm, in the order in which they were run.
        k: How many at most, >= 1.
        direction: Which values are better.
    """
    runs: dict[str, list[TicketRow]] = {}
    for ticket in tickets:
        if is_usable(ticket) and ticket.parameters is not None:
            runs.setdefault(params_key(ticket.parameters), []).append(ticket)
    ranked = sorted(
        runs.values(),
        key=lambda run: to_maximize(fmean(t.value for t in run if t.value is not None), direction),
        reverse=True,
    )
    return [dict(run[0].parameters) for run in ranked[:k] if run[0].parameters is not None]


def no_recommendations(arm: Kind, count: int) -> list[Parameters]:
    """Name no parameter set: candidates are then those with the best values."""
    return []


def search_candidates(
    arm: str, tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend
) -> list[Parameters]:
    """Return the candidates of an arm that has searched, best first; none: nothing of it is complete."""
    runs = of_kind(tickets, arm)  # type: ignore[arg-type]
    max_candidates = spec.study.candidates
    return recommend(arm, max_candidates) or candidates(runs, max_candidates, spec.study.direction)


def choose_tickets(tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend) -> list[NewTicket]:
    """Return the tickets that choose the winner, on fresh seeds that all candidates share.

    Best of k on the very seeds that are estimated on would be a second winner's curse, so choosing has seeds
    of its own. A single candidate gets no ticket, and one that is out of the race gets no more
    (:mod:`tempopt.storage.racing`).

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        recommend: Names the candidates of a round that has no ticket for choosing yet.

    Returns:
        The next tickets of the current round; none if the winner is chosen.
    """
    choose = of_kind(tickets, "choose", "search", of_round=current_round(tickets))
    num_pairs = pairs_of(choose)
    if num_pairs:
        candidates_by_rank = _racing(choose, spec)
    else:
        sets = search_candidates("search", tickets, spec, recommend)
        candidates_by_rank = dict(enumerate(sets)) if len(sets) > 1 else {}
    plan = [
        (pair, "search", rank, parameters)
        for pair in next_pairs(num_pairs, spec.study.seeds.choose)
        for rank, parameters in candidates_by_rank.items()
    ]
    return _tickets(tickets, spec, plan)


def _tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, plan: Sequence[tuple[int, str, int, Parameters]]
) -> list[NewTicket]:
    """Return the tickets for runs that choose: pair, arm, number of the candidate and what it trains."""
    this_round = current_round(tickets)
    return [
        NewTicket(
            kind="choose",
            arm=arm,
            number=number,
            seed=fresh_seed(spec.study.seed, "choose", pair, this_round),
            candidate=rank,
            pair=pair,
            parameters=parameters,
            round=this_round,
        )
        for number, (pair, arm, rank, parameters) in enumerate(plan, next_number(tickets, "choose"))
    ]


def _racing(arm_tickets: Sequence[TicketRow], spec: StudySpec) -> dict[int, Parameters]:
    """Return the candidates that need more seeds, by number; none: the winner is chosen."""
    if not 0 < pairs_of(arm_tickets) < spec.study.seeds.choose:
        return {}
    numbers = surviving_candidates(arm_tickets, spec.study.direction)
    return (
        {candidate: candidate_parameters(arm_tickets, candidate) for candidate in numbers}
        if len(numbers) > 1
        else {}
    )


def most_to_choose(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many more tickets choosing the winner will have at most, once it has some."""
    choose = of_kind(tickets, "choose", "search", of_round=current_round(tickets))
    num_pairs = pairs_of(choose)
    if finished(choose):
        num_racing = len(_racing(choose, spec))
    else:
        num_racing = sum(ticket.pair == num_pairs - 1 for ticket in choose)
    return num_racing * max(0, spec.study.seeds.choose - num_pairs)


def first_winner(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = no_recommendations
) -> Parameters | None:
    """Return the search's choice in the current round; None: there is none, or none yet.

    The best mean over the choosing seeds wins. A candidate that diverged or was lost on some of them ranks
    below every candidate that was so on fewer; of equal means the better of the search wins.
    """
    choose = of_kind(tickets, "choose", "search", of_round=current_round(tickets))
    if choose:
        is_decided = finished(choose) and not _racing(choose, spec)
        return best_parameters(choose, spec.study.direction) if is_decided else None
    sets = search_candidates("search", tickets, spec, recommend)
    return sets[0] if len(sets) == 1 else None


def list_missing_on_choosing_seeds(
    tickets: Sequence[TicketRow], spec: StudySpec, sets: Sequence[Parameters], arm: str
) -> list[NewTicket]:
    """Return the runs that are missing for parameter sets to be compared on all choosing seeds of a round.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        sets: What is compared; what was trained on a seed, for whatever arm, is not trained again.
        arm: Arm of the new tickets.
    """
    this_round = current_round(tickets)
    trained_keys = {
        (training_key(t.parameters), t.pair)
        for t in of_kind(tickets, "choose", of_round=this_round)
        if t.parameters is not None
    }
    plan = [
        (pair, arm, rank, parameters)
        for pair in range(spec.study.seeds.choose)
        for rank, parameters in enumerate(sets)
        if (training_key(parameters), pair) not in trained_keys
    ]
    return _tickets(tickets, spec, plan)


def mean_by_candidate(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> dict[str, float]:
    """Return the mean over a round's choosing seeds, more being better, of what was trained on all of them.

    By ``training_key``; what diverged or was lost on one of them has none.
    """
    values: dict[str, dict[int, float]] = {}
    for ticket in of_kind(tickets, "choose", of_round=of_round):
        if (
            is_usable(ticket)
            and ticket.parameters is not None
            and ticket.value is not None
            and ticket.pair is not None
        ):
            pair_values = values.setdefault(training_key(ticket.parameters), {})
            pair_values[ticket.pair] = to_maximize(ticket.value, spec.study.direction)
    return {
        key: fmean(pair_values.values())
        for key, pair_values in values.items()
        if len(pair_values) >= spec.study.seeds.choose
    }

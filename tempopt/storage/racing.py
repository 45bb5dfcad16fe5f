"""Who is in the race to be an arm's choice, and who wins it: who is clearly worse gets no more seeds.

A race by paired t tests, as irace has it (López-Ibáñez et al. 2016, "The irace package", section 2), but
for the variance: with as few seeds as here, a pair alone does not tell it, all candidates together do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

import numpy as np

from tempopt.spec.alpha_levels import Direction
from tempopt.storage.rows import Parameters, TicketRow
from tempopt.storage.ticket_queries import is_usable, pairs_of, to_maximize

ALPHA = 0.1
"""Chance at which one of two equally good candidates is given up at a look; of more of them, it is larger."""
_FIRST_LOOK = 2


def next_pairs(done: int, seeds: int) -> range:
    """Return the pairs that are trained next: candidates are compared after 2, 4, 8, ... of them.

    Args:
        done: Pairs that were trained.
        seeds: Pairs that there are at most.
    """
    look = _FIRST_LOOK
    while look <= done:
        look *= 2
    return range(done, min(look, seeds))


def surviving_candidates(tickets: Sequence[TicketRow], direction: Direction) -> list[int]:
    """Return the candidates that may still be the best, by number; one at least.

    Out of it is who was left out of the last pair, who was lost on more seeds than the one with the best
    mean, and whose mean is worse than the best one by more than their difference is uncertain.

    Args:
        tickets: The ``choose`` tickets of an arm in one round, all over.
        direction: Which values are better.
    """
    pairs = pairs_of(tickets)
    last_candidates = sorted(
        {t.candidate for t in tickets if t.pair == pairs - 1 and t.candidate is not None}
    )
    values = {candidate: [math.nan] * pairs for candidate in last_candidates}
    for ticket in tickets:
        if ticket.candidate in values and ticket.pair is not None and is_usable(ticket):
            assert ticket.value is not None
            values[ticket.candidate][ticket.pair] = to_maximize(ticket.value, direction)
    lost = {candidate: sum(map(math.isnan, scores)) for candidate, scores in values.items()}
    last_candidates = [candidate for candidate in last_candidates if lost[candidate] == min(lost.values())]
    table_CP = np.array([values[candidate] for candidate in last_candidates])
    if len(last_candidates) == 1 or np.isnan(table_CP).any():
        # the few runs that are left have too little in common to be compared pair by pair
        return last_candidates
    return [last_candidates[index] for index in _not_worse(table_CP)]


def _not_worse(table_CP: np.ndarray) -> list[int]:
    """Return the rows of a table of candidates and pairs, more is better, that may be the best."""
    # it loads scipy.stats, for which who only looks at a study should not wait
    from scipy.stats import t

    mean_C = table_CP.mean(axis=1)
    candidates, pairs = table_CP.shape
    freedom = (candidates - 1) * (pairs - 1)
    if not freedom:
        return list(range(candidates))
    rest_CP = table_CP - mean_C[:, None] - table_CP.mean(axis=0) + table_CP.mean()
    deviation = math.sqrt((rest_CP**2).sum() / freedom * 2.0 / pairs)
    behind_C = mean_C.max() - mean_C
    return [int(index) for index in np.flatnonzero(behind_C <= float(t.isf(ALPHA, freedom)) * deviation)]


def best_candidate(tickets: Sequence[TicketRow], direction: Direction) -> int:
    """Return the best candidate of those that were trained on the last pair, by number."""

    def rank(candidate: int) -> tuple[int, float, int]:
        runs = [ticket for ticket in tickets if ticket.candidate == candidate]
        values = [to_maximize(t.value, direction) for t in runs if is_usable(t) and t.value is not None]
        mean = fmean(values) if values else -math.inf
        return len(runs) - len(values), -mean, candidate

    # a candidate that was given up on the way had fewer seeds to be lost on
    last_pair = pairs_of(tickets) - 1
    return min((t.candidate for t in tickets if t.pair == last_pair and t.candidate is not None), key=rank)


def best_parameters(tickets: Sequence[TicketRow], direction: Direction) -> Parameters:
    """Return what the best candidate of those that were trained on the last pair trains with."""
    return candidate_parameters(tickets, best_candidate(tickets, direction))


def candidate_parameters(tickets: Iterable[TicketRow], candidate: int) -> Parameters:
    """Return what a candidate of an arm trains with."""
    return next(dict(t.parameters) for t in tickets if t.candidate == candidate and t.parameters is not None)

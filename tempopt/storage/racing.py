"""Racing of an arm's candidates: clearly worse ones get no more seeds.

By paired t tests as in irace (López-Ibáñez et al. 2016, "The irace package", section 2), except that the
variance is estimated from all candidates together, since there are too few seeds to estimate it for each
pair.
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
"""Probability that one of two equally good candidates is dropped at a look; larger for more candidates."""
_FIRST_LOOK = 2


def next_pairs(done: int, seeds: int) -> range:
    """Return the pairs to train next: candidates are compared after 2, 4, 8, ... pairs.

    Args:
        done: Number of pairs that were trained.
        seeds: Maximal number of pairs.
    """
    look = _FIRST_LOOK
    while look <= done:
        look *= 2
    return range(done, min(look, seeds))


def surviving_candidates(tickets: Sequence[TicketRow], direction: Direction) -> list[int]:
    """Return the numbers of the candidates that may still be the best; at least one.

    Dropped are candidates without a run on the last pair, candidates with more lost runs than the fewest, and
    candidates whose mean is significantly worse than the best mean.

    Args:
        tickets: The ``choose`` tickets of an arm in one round, all over.
        direction: Direction of the metric.
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
        # too few runs on the same pairs for a paired comparison
        return last_candidates
    return [last_candidates[index] for index in _find_not_worse(table_CP)]


def _find_not_worse(table_CP: np.ndarray) -> list[int]:
    """Return the rows that may be the best of a table of candidates (rows) and pairs; more is better."""
    # lazy import: commands that only show a study should not load scipy.stats
    from scipy.stats import t

    mean_C = table_CP.mean(axis=1)
    candidates, pairs = table_CP.shape
    freedom = (candidates - 1) * (pairs - 1)
    if not freedom:
        return list(range(candidates))
    residual_CP = table_CP - mean_C[:, None] - table_CP.mean(axis=0) + table_CP.mean()
    deviation = math.sqrt((residual_CP**2).sum() / freedom * 2.0 / pairs)
    behind_C = mean_C.max() - mean_C
    return [int(index) for index in np.flatnonzero(behind_C <= float(t.isf(ALPHA, freedom)) * deviation)]


def best_candidate(tickets: Sequence[TicketRow], direction: Direction) -> int:
    """Return the number of the best candidate of those that were trained on the last pair."""

    def rank(candidate: int) -> tuple[int, float, int]:
        runs = [ticket for ticket in tickets if ticket.candidate == candidate]
        values = [to_maximize(t.value, direction) for t in runs if is_usable(t) and t.value is not None]
        mean = fmean(values) if values else -math.inf
        return len(runs) - len(values), -mean, candidate

    # a candidate that was dropped earlier had fewer seeds on which runs could be lost
    last_pair = pairs_of(tickets) - 1
    return min((t.candidate for t in tickets if t.pair == last_pair and t.candidate is not None), key=rank)


def best_parameters(tickets: Sequence[TicketRow], direction: Direction) -> Parameters:
    """Return the parameters of the best candidate of those that were trained on the last pair."""
    return candidate_parameters(tickets, best_candidate(tickets, direction))


def candidate_parameters(tickets: Iterable[TicketRow], candidate: int) -> Parameters:
    """Return the parameters of a candidate of an arm."""
    return next(dict(t.parameters) for t in tickets if t.candidate == candidate and t.parameters is not None)

"""Which parameter sets go on from the search, and which of them each arm is represented by.

Pure: rows in, new tickets out. Who is given up on the way is race.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.store.rows import Kind, NewTicket, TicketRow
from tempopt.study.paired import Direction
from tempopt.study.race import in_race, next_pairs, pairs_of
from tempopt.study.space import distinct
from tempopt.study.tickets import (
    ARMS,
    current_round,
    finished,
    fresh_seed,
    next_number,
    of_kind,
    oriented,
    usable,
)

if TYPE_CHECKING:
    from tempopt.study.spec import StudySpec

Parameters = dict[str, Any]
Named = Callable[[Any, int], list[Parameters]]
"""Returns the parameter sets of an arm that are expected to be best, at most so many; none: not known."""


def candidates(tickets: Iterable[TicketRow], k: int, direction: Direction) -> list[Parameters]:
    """Return the k best distinct parameter sets, best first, by the values of their complete runs.

    Two sets are the same if their effective parameters are; a set that was run more than once counts
    with the mean of its complete runs, and of equal values the earlier goes first.

    Args:
        tickets: The tickets of one arm.
        k: How many at most, >= 1.
        direction: Which values are better.
    """
    runs: dict[str, list[TicketRow]] = {}
    for ticket in sorted(tickets, key=lambda ticket: ticket.number):
        if usable(ticket) and ticket.parameters is not None:
            runs.setdefault(distinct(ticket.parameters), []).append(ticket)
    ranked = sorted(
        runs.values(),
        key=lambda run: oriented(fmean(t.value for t in run if t.value is not None), direction),
        reverse=True,
    )
    return [dict(run[0].parameters) for run in ranked[:k] if run[0].parameters is not None]


def names_none(arm: Kind, count: int) -> list[Parameters]:
    """Name no parameter set: candidates are then those with the best values."""
    return []


def _candidates_of(
    arm: Kind, tickets: Sequence[TicketRow], spec: StudySpec, named: Named
) -> list[Parameters]:
    runs = of_kind(tickets, arm)
    found = named(arm, spec.study.candidates) or candidates(runs, spec.study.candidates, spec.study.direction)
    if not found and arm == "unit":
        # tau = 1 is what everything is measured against, also where it never trains to the end.
        begun = [dict(run.parameters) for run in runs if run.parameters is not None]
        found = begun[:1] or ([] if spec.space("unit") else [spec.parameters("unit", {})])
    return found


def choose_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, named: Named = names_none
) -> list[NewTicket]:
    """Return the tickets that choose each arm's candidate, on fresh seeds that all candidates share.

    Best of k on the very seeds that are estimated on would be a second winner's curse, so choosing
    has seeds of its own. An arm with a single candidate has nothing to choose and gets no ticket, and
    whoever is out of the race gets no more (:mod:`tempopt.study.race`).

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        named: Names the candidates; where it names none, they are those with the best values.

    Returns:
        The next tickets of the current round; none if it has nothing to choose any more, or nothing to
        confirm.
    """
    if not spec.confirms:
        return []
    now = current_round(tickets)
    tried = {arm: of_kind(tickets, "choose", arm, of_round=now) for arm in ARMS}
    done = max(map(pairs_of, tried.values()))
    if done:
        racing = {arm: _racing(tried[arm], spec) for arm in ARMS}
    else:
        found = {arm: _candidates_of(arm, tickets, spec, named) for arm in ARMS}
        if not found["unit"] or not found["search"]:
            return []
        racing = {arm: dict(enumerate(found[arm])) for arm in ARMS if len(found[arm]) > 1}
    plan = [
        (pair, arm, rank, parameters)
        for pair in next_pairs(done, spec.study.seeds.choose)
        for arm, candidates_of_arm in racing.items()
        for rank, parameters in candidates_of_arm.items()
    ]
    return [
        NewTicket(
            kind="choose",
            arm=arm,
            number=number,
            seed=fresh_seed(spec.study.seed, "choose", pair, now),
            candidate=rank,
            pair=pair,
            parameters=parameters,
            round=now,
        )
        for number, (pair, arm, rank, parameters) in enumerate(plan, next_number(tickets, "choose"))
    ]


def _racing(tried: Sequence[TicketRow], spec: StudySpec) -> dict[int, Parameters]:
    """Return the candidates of an arm that need more seeds, by number; none: the arm has its choice."""
    if not 0 < pairs_of(tried) < spec.study.seeds.choose:
        return {}
    left = in_race(tried, spec.study.direction)
    return {candidate: _parameters(tried, candidate) for candidate in left} if len(left) > 1 else {}


def _parameters(tried: Iterable[TicketRow], candidate: int) -> Parameters:
    return next(dict(t.parameters) for t in tried if t.candidate == candidate and t.parameters is not None)


def most_to_choose(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many more tickets choosing will have at the most, once the current round has some."""
    found = 0
    for arm in ARMS:
        tried = of_kind(tickets, "choose", arm, of_round=current_round(tickets))
        pairs = pairs_of(tried)
        racing = _racing(tried, spec) if finished(tried) else [t for t in tried if t.pair == pairs - 1]
        found += len(racing) * max(0, spec.study.seeds.choose - pairs)
    return found


def pick(tickets: Sequence[TicketRow], spec: StudySpec, named: Named = names_none) -> dict[Kind, Parameters]:
    """Return the chosen parameter set of each arm, as far as the arms have been decided in this round.

    The best mean over the choosing seeds wins. A candidate that diverged or was lost on some of them
    ranks below every candidate that was so on fewer; of equal means the better of the search wins.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        named: As for :func:`choose_tickets`.

    Returns:
        Arm to parameters; without the arms of which no run was complete or whose choosing is not over.
    """
    chosen: dict[Kind, Parameters] = {}
    now = current_round(tickets)
    for arm in ARMS:
        tried = of_kind(tickets, "choose", arm, of_round=now)
        if tried:
            decided = finished(tried) and not _racing(tried, spec)
            found = [_best(tried, spec.study.direction)] if decided else []
        else:
            found = _candidates_of(arm, tickets, spec, named)
        if len(found) == 1:
            chosen[arm] = found[0]
    return chosen


def _best(tried: Sequence[TicketRow], direction: Direction) -> Parameters:
    def rank(candidate: int) -> tuple[int, float, int]:
        runs = [ticket for ticket in tried if ticket.candidate == candidate]
        values = [oriented(t.value, direction) for t in runs if usable(t) and t.value is not None]
        mean = fmean(values) if values else -math.inf
        return len(runs) - len(values), -mean, candidate

    # whoever was given up on the way had fewer seeds to be lost on
    last = pairs_of(tried) - 1
    best = min((t.candidate for t in tried if t.pair == last and t.candidate is not None), key=rank)
    return _parameters(tried, best)

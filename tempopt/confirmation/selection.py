"""Which parameter sets go on from the search, and which of them each arm is represented by.

Pure: rows in, new tickets out. Who is given up on the way is racing.py's. The winner is chosen first, then
what it is compared with (references.py), on the same seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.records.racing import best_parameters, candidate_parameters, in_race, next_pairs
from tempopt.records.rows import Kind, NewTicket, Parameters, TicketRow
from tempopt.records.tickets import (
    current_round,
    finished,
    fresh_seed,
    next_number,
    of_kind,
    oriented,
    pairs_of,
    usable,
)
from tempopt.spec.search_space import distinct
from tempopt.statistics.paired_tests import Direction
from tempopt.temperature import training_key

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
        if usable(ticket) and ticket.parameters is not None:
            runs.setdefault(distinct(ticket.parameters), []).append(ticket)
    ranked = sorted(
        runs.values(),
        key=lambda run: oriented(fmean(t.value for t in run if t.value is not None), direction),
        reverse=True,
    )
    return [dict(run[0].parameters) for run in ranked[:k] if run[0].parameters is not None]


def recommend_none(arm: Kind, count: int) -> list[Parameters]:
    """Name no parameter set: candidates are then those with the best values."""
    return []


def searched(
    arm: str, tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend
) -> list[Parameters]:
    """Return the candidates of an arm that has searched, best first; none: nothing of it is complete."""
    runs = of_kind(tickets, arm)  # type: ignore[arg-type]
    most = spec.study.candidates
    return recommend(arm, most) or candidates(runs, most, spec.study.direction)


def choose_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, found: Mapping[str, Callable[[], list[Parameters]]]
) -> list[NewTicket]:
    """Return the tickets that choose each arm's candidate, on fresh seeds that all candidates share.

    Best of k on the very seeds that are estimated on would be a second winner's curse, so choosing
    has seeds of its own. An arm with a single candidate has nothing to choose and gets no ticket, and
    whoever is out of the race gets no more (:mod:`tempopt.records.racing`).

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        found: Arm to what returns its candidates, asked if the arm has no ticket yet in this round.

    Returns:
        The next tickets of the current round; none if these arms have nothing to choose any more.
    """
    now = current_round(tickets)
    tried = {arm: of_kind(tickets, "choose", arm, of_round=now) for arm in found}
    done = max(map(pairs_of, tried.values()), default=0)
    if done:
        racing = {arm: _racing(tried[arm], spec) for arm in found}
    else:
        fresh = {arm: candidates_of() for arm, candidates_of in found.items()}
        racing = {arm: dict(enumerate(sets)) for arm, sets in fresh.items() if len(sets) > 1}
    plan = [
        (pair, arm, rank, parameters)
        for pair in next_pairs(done, spec.study.seeds.choose)
        for arm, candidates_of_arm in racing.items()
        for rank, parameters in candidates_of_arm.items()
    ]
    return _tickets(tickets, spec, plan)


def _tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, plan: Sequence[tuple[int, str, int, Parameters]]
) -> list[NewTicket]:
    """Return the tickets for runs that choose: pair, arm, number of the candidate and what it trains."""
    now = current_round(tickets)
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
    return {candidate: candidate_parameters(tried, candidate) for candidate in left} if len(left) > 1 else {}


def most_to_choose(tickets: Sequence[TicketRow], spec: StudySpec, arms: Iterable[str]) -> int:
    """Return how many more tickets choosing among these arms will have at most, once it has some."""
    found = 0
    for arm in arms:
        tried = of_kind(tickets, "choose", arm, of_round=current_round(tickets))
        pairs = pairs_of(tried)
        racing = _racing(tried, spec) if finished(tried) else [t for t in tried if t.pair == pairs - 1]
        found += len(racing) * max(0, spec.study.seeds.choose - pairs)
    return found


def chosen(
    arm: str, tickets: Sequence[TicketRow], spec: StudySpec, found: Callable[[], list[Parameters]]
) -> Parameters | None:
    """Return the parameter set that represents an arm in this round; None: there is none, or none yet.

    The best mean over the choosing seeds wins. A candidate that diverged or was lost on some of them
    ranks below every candidate that was so on fewer; of equal means the better of the search wins.

    Args:
        arm: The arm.
        tickets: All tickets of the study.
        spec: The study's spec.
        found: Returns the arm's candidates, asked if it has no ticket for choosing.
    """
    tried = of_kind(tickets, "choose", arm, of_round=current_round(tickets))
    if tried:
        decided = finished(tried) and not _racing(tried, spec)
        return best_parameters(tried, spec.study.direction) if decided else None
    sets = found()
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
    now = current_round(tickets)
    trained = {
        (training_key(t.parameters), t.pair)
        for t in of_kind(tickets, "choose", of_round=now)
        if t.parameters is not None
    }
    plan = [
        (pair, arm, rank, parameters)
        for pair in range(spec.study.seeds.choose)
        for rank, parameters in enumerate(sets)
        if (training_key(parameters), pair) not in trained
    ]
    return _tickets(tickets, spec, plan)


def means(tickets: Sequence[TicketRow], spec: StudySpec, of_round: int) -> dict[str, float]:
    """Return the mean over a round's choosing seeds, more being better, of what was trained on all of them.

    By ``training_key``; what diverged or was lost on one of them has none.
    """
    values: dict[str, dict[int, float]] = {}
    for t in of_kind(tickets, "choose", of_round=of_round):
        if usable(t) and t.parameters is not None and t.value is not None and t.pair is not None:
            found = values.setdefault(training_key(t.parameters), {})
            found[t.pair] = oriented(t.value, spec.study.direction)
    return {
        text: fmean(found.values()) for text, found in values.items() if len(found) >= spec.study.seeds.choose
    }

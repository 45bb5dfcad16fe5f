"""Which candidates of a proxy are compared at larger sizes, and which of them is confirmed (``study.proxy``).

Pure: rows in, new tickets out. What the search and the choosing say is said of the smallest proxy. Its
parameter sets become those at another size by a stated rule (spec/model_sizes.py) where a ticket is made, not
before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from tempopt.confirmation.named_finalists import left_open, named, unnamed
from tempopt.confirmation.racing import in_race, next_pairs
from tempopt.confirmation.rematch import baseline_of, first_winner, winner
from tempopt.confirmation.selection import Recommend, best_candidate, candidate_parameters, recommend_none
from tempopt.records.rows import AT_PROXY, NewTicket, Parameters, TicketRow
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
from tempopt.seeds import derive
from tempopt.spec.model_sizes import full_size, shifted_temperatures, size_of, to_proxy, to_size
from tempopt.temperature import is_neutral, training_key

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

FEWEST_PAIRS = 2
"""Candidates are compared at a larger size on so many seeds at least."""
_COMPARED = ("search", "exchange")


def most_pairs(spec: StudySpec) -> int:
    """Return the number of seeds at most that candidates are compared on at a larger size."""
    return max(FEWEST_PAIRS, spec.study.seeds.choose)


def compared_at(
    tickets: Sequence[TicketRow], spec: StudySpec, of_round: int, size: int | None = None
) -> list[TicketRow]:
    """Return the ``transfer`` tickets of a round at a size; None: at the largest that there are any at."""
    tried = of_kind(tickets, "transfer", of_round=of_round)
    at = max((size_of(ticket, spec) for ticket in tried), default=0) if size is None else size
    return [ticket for ticket in tried if size_of(ticket, spec) == at]


def finalists(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> list[Parameters]:
    """Return what is compared at the size after the smallest, as parameters of that; empty if nothing is.

    The winner of the proxy is the first, then come the candidates that were next to it when it was chosen,
    and the baseline is the last. Nothing is compared where a study has no proxy, or where the proxy has
    chosen τ = 1; nor at full size, where there is one finalist alone.

    Args:
        tickets: All tickets of the study; its choosing is over.
        spec: The study's spec.
        recommend: As for :data:`tempopt.confirmation.selection.Recommend`.
    """
    if spec.study.proxy is None:
        return []
    first, found = first_winner(tickets, spec, recommend), winner(tickets, spec, recommend)
    if first is None or found is None or is_neutral(found):
        return []
    sets = [found, *_next_best(tickets, spec, found)][: spec.study.proxy.finalists]
    baseline = baseline_of(tickets, spec, first, recommend)
    enough = len(sets) > 1 or full_size(spec) > 1
    return [*sets, baseline] if enough and baseline is not None else []


def going_on(tickets: Sequence[TicketRow], spec: StudySpec, tried: Sequence[TicketRow]) -> list[Parameters]:
    """Return what is compared at the next size, as parameters of the smallest proxy; empty if nothing is.

    Whoever may still be the best goes on, by the means at this size, and the baseline is the last. Nobody
    does where τ = 1 alone is left. At full size nothing is compared where one is left, or one was to be.

    Args:
        tickets: All tickets of the study.
        spec: Its spec.
        tried: The ``transfer`` tickets at one size, whose race is over.
    """
    size, last = size_of(tried[0], spec), _last(tried)
    if size == full_size(spec):
        return []
    left = in_race(tried, spec.study.direction)
    others = [rank for rank in left if rank != last]
    assert spec.study.proxy is not None
    compares = size + 1 < full_size(spec) or (spec.study.proxy.finalists > 1 and len(left) > 1)
    if not others or not compares:
        return []
    ranked = sorted(others, key=lambda rank: (-_mean(tried, spec, rank), rank))
    return [on_proxy(tickets, spec, candidate_parameters(tried, rank), size=size) for rank in (*ranked, last)]


def _last(tried: Sequence[TicketRow]) -> int:
    """Return the number of the baseline among what is compared at a size."""
    return max(t.candidate or 0 for t in tried)


def _mean(tried: Sequence[TicketRow], spec: StudySpec, rank: int) -> float:
    values = [t.value for t in tried if t.candidate == rank and usable(t) and t.value is not None]
    return oriented(fmean(values), spec.study.direction) if values else -math.inf


def _next_best(tickets: Sequence[TicketRow], spec: StudySpec, found: Parameters) -> list[Parameters]:
    """Return the other candidates that were compared when choosing, best first, τ = 1 left out.

    Whoever was given up has had fewer seeds: each is compared with the winner on the seeds that both have
    had, and whoever was lost on some of them comes after all that were lost on fewer.
    """
    values: dict[str, dict[int, float]] = {}
    sets: dict[str, tuple[Parameters, int]] = {}
    for ticket in of_kind(tickets, "choose", of_round=current_round(tickets)):
        if ticket.arm not in _COMPARED or ticket.parameters is None or ticket.pair is None:
            continue
        key = training_key(ticket.parameters)
        parameters, asked = sets.get(key, (dict(ticket.parameters), 0))
        sets[key] = parameters, asked + 1
        if usable(ticket) and ticket.value is not None:
            values.setdefault(key, {})[ticket.pair] = oriented(ticket.value, spec.study.direction)
    own = values.get(training_key(found), {})
    ranked = []
    for key, (parameters, asked) in sets.items():
        known = values.get(key, {})
        if (both := sorted(own.keys() & known.keys())) and key != training_key(found):
            behind = fmean(own[pair] - known[pair] for pair in both)
            ranked.append((asked - len(known), behind, parameters))
    ranked.sort(key=lambda each: each[:2])
    return [parameters for _, _, parameters in ranked if not is_neutral(parameters)]


def transfer_tickets(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> list[NewTicket]:
    """Return the next runs that compare finalists at a larger size, on seeds of their own.

    They race as candidates do when they are chosen, and who is left goes on to the next size. At full size
    the last ones are named when the others have had their first seeds (named_finalists.py). As long as τ = 1
    may be the best, the first of a size stays in the race beside it: whether the order of the sizes before is
    reversed is told by their pairs.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        recommend: As for :func:`finalists`.

    Returns:
        ``transfer`` tickets of the current round; none if there is nothing to compare any more.
    """
    now = current_round(tickets)
    tried = compared_at(tickets, spec, now)
    if tried and unnamed(tried):
        # a named finalist is trained on the seeds that the others have had
        size, last, done = full_size(spec), _last(tried), 0
        sets = _sets_at(tickets, spec, size, recommend)
        racing = named(tried, sets, spec, recommend)
    elif tried and (racing := _racing(tried, spec)):
        size, last, done = size_of(tried[0], spec), _last(tried), pairs_of(tried)
    else:
        size, done = (size_of(tried[0], spec) if tried else 0) + 1, 0
        sets = _sets_at(tickets, spec, size, recommend)
        open_places = left_open(sets, spec, size, recommend)
        racing = {
            rank: to_size(spec, each, size) for rank, each in enumerate(sets) if rank not in open_places
        }
        last = len(sets) - 1
    plan = [
        (pair, rank, parameters)
        for pair in next_pairs(done, most_pairs(spec))
        for rank, parameters in racing.items()
    ]
    return [
        NewTicket(
            kind="transfer",
            arm="baseline" if rank == last else "search",
            number=number,
            seed=_seed(spec, size, pair, now),
            candidate=rank,
            pair=pair,
            size=size,
            parameters=parameters,
            round=now,
        )
        for number, (pair, rank, parameters) in enumerate(plan, next_number(tickets, "transfer"))
    ]


def _sets_at(
    tickets: Sequence[TicketRow], spec: StudySpec, size: int, recommend: Recommend
) -> list[Parameters]:
    """Return what the sizes before one would have compared there, as parameters of the smallest proxy."""
    before = compared_at(tickets, spec, current_round(tickets), size - 1) if size > 1 else []
    return going_on(tickets, spec, before) if before else finalists(tickets, spec, recommend)


def _seed(spec: StudySpec, size: int, pair: int, of_round: int) -> int:
    """Return the seed of a pair: those of one size decide who is compared at the next."""
    if size == full_size(spec):
        return fresh_seed(spec.study.seed, "transfer", pair, of_round)
    return derive(spec.study.seed, "transfer", "size", size, pair, of_round)


def _racing(tried: Sequence[TicketRow], spec: StudySpec) -> dict[int, Parameters]:
    """Return the finalists that need more seeds at a size, by number; none: it is known who is the best."""
    if not 0 < pairs_of(tried) < most_pairs(spec):
        return {}
    left = set(in_race(tried, spec.study.direction))
    if _last(tried) in left:
        left.add(0)
    return {rank: candidate_parameters(tried, rank) for rank in sorted(left)} if len(left) > 1 else {}


def most_to_transfer(tickets: Sequence[TicketRow], spec: StudySpec) -> list[int]:
    """Return by size how many more ``transfer`` tickets there will be at most, before a round confirms."""
    full, proxy = full_size(spec), spec.study.proxy
    found = [0] * (full + 1)
    if proxy is None:
        return found
    now = current_round(tickets)
    tried = compared_at(tickets, spec, now)
    if tried:
        size, pairs = size_of(tried[0], spec), pairs_of(tried)
        beginning, to_name = [t for t in tried if t.pair == pairs - 1], len(unnamed(tried))
        racing = _racing(tried, spec) if finished(tried) and not to_name else beginning
        found[size] = len(racing) * max(0, most_pairs(spec) - pairs) + to_name * most_pairs(spec)
        if finished(tried) and not racing:
            compared = len(going_on(tickets, spec, tried))
        else:
            beside = sum(t.pair == pairs - 1 and t.candidate != _last(tried) for t in tried)
            compared = beside + 1 if beside else 0
    elif any(t.arm in ("constant_twin", "learned") for t in of_kind(tickets, "choose", of_round=now)):
        return found
    else:
        # the winner with the baseline's other parameters is one candidate more
        most = min(proxy.finalists, spec.study.candidates + bool(spec.other_names))
        size, compared = 0, most + 1 if most > 1 or full > 1 else 0
    for larger in range(size + 1, full + 1):
        if larger < full or proxy.finalists > 1:
            found[larger] = compared * most_pairs(spec)
    return found


def transferred(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> Parameters | None:
    """Return what is to be confirmed, as parameters of the smallest proxy: the best at the largest size.

    τ = 1 may be that. Where nothing was compared at a larger size it is the winner of the proxy, which is the
    winner of a study that has none. None: there is none, or none yet.
    """
    tried = compared_at(tickets, spec, current_round(tickets))
    if not tried:
        return winner(tickets, spec, recommend)
    if not finished(tried) or unnamed(tried) or _racing(tried, spec) or going_on(tickets, spec, tried):
        return None
    best = best_candidate(tried, spec.study.direction)
    return on_proxy(tickets, spec, best, size=size_of(tried[0], spec))


def on_proxy(
    tickets: Sequence[TicketRow], spec: StudySpec, parameters: Parameters, *, size: int | None = None
) -> Parameters:
    """Return the parameters of the smallest proxy that those at a larger size were made of.

    What a run of the proxy has trained is found to the bit; what none has is computed, and so rounded.
    Without a proxy they are the same.

    Args:
        tickets: All tickets of the study.
        spec: Its spec.
        parameters: At the larger size.
        size: Which that is; None: full size.
    """
    if not shifted_temperatures(spec):
        return dict(parameters)
    at = full_size(spec) if size is None else size
    key = training_key(parameters)
    for ticket in tickets:
        if ticket.kind in AT_PROXY and ticket.parameters is not None:
            if training_key(to_size(spec, ticket.parameters, at)) == key:
                return dict(ticket.parameters)
    return to_proxy(spec, parameters, at)

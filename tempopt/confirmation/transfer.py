"""Which candidates of a proxy are compared at full size, and which of them is confirmed (``study.proxy``).

Pure: rows in, new tickets out. What the search and the choosing say is said of the proxy. Its parameter sets
become those at full size by a stated rule (spec/proxy.py) where a ticket at full size is made, not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

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
from tempopt.spec.proxy import shifted_temperatures, to_full, to_proxy
from tempopt.temperature import is_neutral, training_key

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

FEWEST_PAIRS = 2
"""Candidates are compared at full size on so many seeds at least."""
_COMPARED = ("search", "exchange")


def most_pairs(spec: StudySpec) -> int:
    """Return the number of seeds at most that candidates are compared on at full size."""
    return max(FEWEST_PAIRS, spec.study.seeds.choose)


def finalists(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> list[Parameters]:
    """Return what is compared at full size, as parameters of the proxy; empty if nothing is.

    The winner of the proxy is the first, then come the candidates that were next to it when it was chosen,
    and the baseline is the last. Nothing is compared where a study has no proxy, or one finalist alone, or
    where the proxy has chosen τ = 1.

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
    return [*sets, baseline] if len(sets) > 1 and baseline is not None else []


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
    """Return the next runs that compare finalists at full size, on seeds of their own.

    They race as candidates do when they are chosen. As long as τ = 1 may be the best, the winner of the proxy
    stays in the race beside it: whether the order of the proxy is reversed is told by their pairs.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
        recommend: As for :func:`finalists`.

    Returns:
        ``transfer`` tickets of the current round; none if there is nothing to compare any more.
    """
    now = current_round(tickets)
    tried = of_kind(tickets, "transfer", of_round=now)
    if tried:
        racing = _racing(tried, spec)
    else:
        racing = {rank: to_full(spec, each) for rank, each in enumerate(finalists(tickets, spec, recommend))}
    last = max((t.candidate or 0 for t in tried), default=len(racing) - 1)
    plan = [
        (pair, rank, parameters)
        for pair in next_pairs(pairs_of(tried), most_pairs(spec))
        for rank, parameters in racing.items()
    ]
    return [
        NewTicket(
            kind="transfer",
            arm="baseline" if rank == last else "search",
            number=number,
            seed=fresh_seed(spec.study.seed, "transfer", pair, now),
            candidate=rank,
            pair=pair,
            parameters=parameters,
            round=now,
        )
        for number, (pair, rank, parameters) in enumerate(plan, next_number(tickets, "transfer"))
    ]


def _racing(tried: Sequence[TicketRow], spec: StudySpec) -> dict[int, Parameters]:
    """Return the finalists that need more seeds, by number; none: it is known who is the best."""
    if not 0 < pairs_of(tried) < most_pairs(spec):
        return {}
    left = set(in_race(tried, spec.study.direction))
    if max(t.candidate or 0 for t in tried) in left:
        left.add(0)
    return {rank: candidate_parameters(tried, rank) for rank in sorted(left)} if len(left) > 1 else {}


def most_to_transfer(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many more ``transfer`` tickets there will be at most, before a round confirms."""
    proxy = spec.study.proxy
    if proxy is None or proxy.finalists == 1:
        return 0
    now = current_round(tickets)
    tried = of_kind(tickets, "transfer", of_round=now)
    if tried:
        pairs = pairs_of(tried)
        racing = _racing(tried, spec) if finished(tried) else [t for t in tried if t.pair == pairs - 1]
        return len(racing) * max(0, most_pairs(spec) - pairs)
    if any(t.arm in ("constant_twin", "learned") for t in of_kind(tickets, "choose", of_round=now)):
        return 0
    # the winner with the baseline's other parameters is one candidate more
    most = min(proxy.finalists, spec.study.candidates + bool(spec.other_names))
    return (most + 1) * most_pairs(spec) if most > 1 else 0


def transferred(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> Parameters | None:
    """Return what is to be confirmed, as parameters of the proxy: the best at full size, τ = 1 among them.

    Where nothing was compared at full size it is the winner of the proxy, which is the winner of a study that
    has none. None: there is none, or none yet.
    """
    tried = of_kind(tickets, "transfer", of_round=current_round(tickets))
    if not tried:
        return winner(tickets, spec, recommend)
    if not finished(tried) or _racing(tried, spec):
        return None
    return on_proxy(tickets, spec, best_candidate(tried, spec.study.direction))


def on_proxy(tickets: Sequence[TicketRow], spec: StudySpec, parameters: Parameters) -> Parameters:
    """Return the parameters of the proxy that those at full size were made of; the same without a proxy.

    What a run of the proxy has trained is found to the bit; what none has is computed, and so rounded.
    """
    if not shifted_temperatures(spec):
        return dict(parameters)
    key = training_key(parameters)
    for ticket in tickets:
        if ticket.kind in AT_PROXY and ticket.parameters is not None:
            if training_key(to_full(spec, ticket.parameters)) == key:
                return dict(ticket.parameters)
    return to_proxy(spec, parameters)

"""Which candidates of a proxy are compared at larger sizes, and which of them is confirmed (``study.proxy``).

Pure: rows in, new tickets out. What the search and the choosing say is said of the smallest proxy. Its
parameter sets become those at another size by a stated rule (spec/model_sizes.py) where a ticket is made, not
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from tempopt.confirmation.named_finalists import left_open, named
from tempopt.confirmation.rematch import baseline_of, first_winner, winner
from tempopt.confirmation.selection import Recommend, recommend_none
from tempopt.records.racing import best_parameters, candidate_parameters, in_race, next_pairs
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
from tempopt.spec.size_race import (
    FIRST_LARGER,
    baseline_rank,
    compared_at,
    mean_of,
    most_pairs,
    moved_by,
    moved_copies,
    race_is_over,
    shifts_by_rank,
    still_racing,
    to_be_tried,
    unnamed,
)
from tempopt.temperature import is_neutral, training_key

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

_COMPARED = ("search", "exchange")


def finalists(
    tickets: Sequence[TicketRow], spec: StudySpec, recommend: Recommend = recommend_none
) -> list[Parameters]:
    """Return what is compared at the size after the smallest, as parameters of that; empty if nothing is.

    The winner of the proxy is the first, then come its copies whose ln τ is moved, where the shift is to be
    measured, then the candidates that were next to it when it was chosen, and the baseline is the last.
    Nothing is compared where a study has no proxy, or where the proxy has chosen τ = 1; nor at full size,
    where there is one finalist alone.

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
    copies = moved_copies(spec, found, to_be_tried(spec))
    others = _next_best(tickets, spec, found)[: spec.study.proxy.finalists - 1]
    taken = [training_key(each) for each in copies]
    sets = [found, *copies, *(each for each in others if training_key(each) not in taken)]
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
    size, last = size_of(tried[0], spec), baseline_rank(tried)
    if size == full_size(spec):
        return []
    left = in_race(tried, spec.study.direction)
    others = sorted(set(left) - {last}, key=lambda rank: (-mean_of(tried, spec, rank), rank))
    # what one configuration is moved to is the same one at the next size, where the shift is known
    sets = {
        training_key(each): each
        for rank in others
        for each in [on_proxy(tickets, spec, candidate_parameters(tried, rank), size=size)]
    }
    assert spec.study.proxy is not None
    races = spec.study.proxy.finalists > 1 and len(sets) + (last in left) > 1
    if not sets or not (races or size + 1 < full_size(spec)):
        return []
    return [*sets.values(), on_proxy(tickets, spec, candidate_parameters(tried, last), size=size)]


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
        size, last, done = full_size(spec), baseline_rank(tried), 0
        sets = _sets_at(tickets, spec, size, recommend)
        racing = named(tried, sets, spec, recommend)
    elif tried and (racing := still_racing(tried, spec)):
        size, last, done = size_of(tried[0], spec), baseline_rank(tried), pairs_of(tried)
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
        racing = still_racing(tried, spec) if finished(tried) and not to_name else beginning
        found[size] = len(racing) * max(0, most_pairs(spec) - pairs) + to_name * most_pairs(spec)
        if race_is_over(tried, spec):
            compared = len(going_on(tickets, spec, tried))
        else:
            # all that the winner of the proxy is moved to is one of those that go on
            copies = [rank for rank in shifts_by_rank(tried, spec) if rank]
            ranks = {t.candidate for t in beginning} - {baseline_rank(tried), *copies}
            compared = len(ranks) + 1 if ranks else 0
    elif any(t.arm in ("constant_twin", "learned") for t in of_kind(tickets, "choose", of_round=now)):
        return found
    else:
        # the winner with the baseline's other parameters is one candidate more
        most = min(proxy.finalists, spec.study.candidates + bool(spec.other_names))
        moves = to_be_tried(spec)
        size, compared = 0, most + 1 if most > 1 or full > 1 or moves else 0
        found[FIRST_LARGER] = len(moves) * most_pairs(spec)
    for larger in range(size + 1, full + 1):
        if larger < full or proxy.finalists > 1 or (found[larger] and not size):
            found[larger] += compared * most_pairs(spec)
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
    if not race_is_over(tried, spec) or going_on(tickets, spec, tried):
        return None
    best = best_parameters(tried, spec.study.direction)
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
    rows = sorted((t for t in tickets if t.kind in AT_PROXY), key=lambda ticket: ticket.id)
    small = [dict(t.parameters) for t in rows if t.parameters is not None]
    # another set may be moved to τ = 1, which stays where it is
    small.sort(key=lambda each: is_neutral(each) != is_neutral(parameters))
    for to_larger in ways_to(spec, at):
        for each in small:
            if training_key(to_larger(each)) == key:
                return each
    return to_proxy(spec, parameters, at)


def ways_to(spec: StudySpec, size: int) -> Iterator[Callable[[Parameters], Parameters]]:
    """Yield what may make a set of the smallest proxy one of a size: the rule, or what measures it."""
    yield lambda small: to_size(spec, small, size)
    proxy = spec.study.proxy
    if proxy is not None and proxy.shifts_to_try and size == FIRST_LARGER:
        for shift in (0.0, *proxy.shifts_to_try):
            yield partial(moved_by, spec, shift=shift)

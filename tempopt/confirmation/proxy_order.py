"""Whether the order of each proxy held at full size, and what they saved, from rows and a verdict.

Pure. Who is compared at larger sizes is transfer.py's business; the plain words are results/proxy_text.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from tempopt.confirmation.costs import costs_of
from tempopt.confirmation.measured_shift import MeasuredShift, measured_shift, on_common_seeds
from tempopt.confirmation.transfer import on_proxy, ways_to
from tempopt.confirmation.verdict import Verdict
from tempopt.records.rows import Kind, Parameters, TicketRow
from tempopt.records.tickets import current_round, finished, of_kind, oriented, rounds_behind, usable
from tempopt.spec.model_sizes import full_size, size_of, to_size
from tempopt.spec.size_race import FIRST_LARGER, compared_at, mean_of, shifts_by_rank
from tempopt.statistics.paired_tests import ALPHA, PairedTest
from tempopt.statistics.welch import welch
from tempopt.temperature import training_key

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Order = Literal["held", "reversed", "not_decided"]
"""What became of the order of a configuration and τ = 1.

* ``held``: better on the proxy, and shown to be better at full size.
* ``reversed``: shown to be better on the proxy, and shown to be worse at full size.
* ``not_decided``: anything else.
"""
_FEWEST = 2
_PAIRED = 3
"""Two pairs tell their own noise by one degree of freedom; the runs at τ = 1 beside them tell more."""
_AT_ONE: tuple[Kind, ...] = ("baseline", "rematch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """One configuration that was compared at a larger size.

    Args:
        size: That size (:mod:`tempopt.spec.model_sizes`).
        parameters: At that size.
        at_one: Whether it is the baseline.
        before: Mean at the size before: on the smallest proxy over its choosing seeds; of a baseline that had
            nothing to choose there, over its own runs; None: not known.
        value: Mean over the seeds of the comparison; None: no run of it has a value.
        pairs: Number of these seeds.
        named: Whether it was named for full size, and no proxy has compared it.
    """

    size: int
    parameters: Parameters
    at_one: bool
    before: float | None
    value: float | None
    pairs: int
    named: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the sizes cost.

    Args:
        steps: Share of all optimizer steps that each size has trained, the smallest first.
        shares: Share of all training seconds.
        seconds: Training seconds of all runs.
        searched_at_full: Seconds that the same runs would have taken had the search been at full size, an
            estimate: each run of the smallest proxy counts the share of its steps that it trained, times what
            a run at full size took in the mean; None: no run at full size is complete.
    """

    steps: tuple[float, ...]
    shares: tuple[float, ...]
    seconds: float
    searched_at_full: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOrder:
    """What became of the order that one size has shown.

    Args:
        order: The same at the largest size at which it was compared.
        gain: What the configuration gains over τ = 1 at this size; None: not known.
    """

    order: Order
    gain: PairedTest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOrder:
    """What a study says of its proxies.

    Args:
        order: What became of the order: reversed if that of any size is, held if that of all is.
        parameters: The configuration that is compared with τ = 1, at the largest size at which it was: the
            winner that was confirmed. It is the first that was compared there, the winner of the proxy, where
            τ = 1 was the best, or a set that was named for full size; and where the order of what was
            confirmed is not decided, and that of the winner of the proxy is reversed.
        confirmed: Whether that was confirmed; else it was compared by the runs of the transfer.
        largest: The largest size at which it was compared; below full size: nothing but τ = 1 was left there,
            or that is not known yet.
        sizes: What each size below that says, the smallest first.
        at_largest: What it gains at the largest size; None: not known yet.
        finalists: What was compared at larger sizes, size by size, in the order of the size before, τ = 1
            last; or nothing.
        cost: What the sizes cost.
        shift: The shift of ln τ that runs have measured; None: it is given, or not known yet.
    """

    order: Order
    parameters: Parameters | None
    confirmed: bool
    largest: int
    sizes: tuple[SizeOrder, ...]
    at_largest: PairedTest | None
    finalists: tuple[Finalist, ...]
    cost: Cost
    shift: MeasuredShift | None = None


def proxy_order(tickets: Sequence[TicketRow], spec: StudySpec, verdict: Verdict | None) -> ProxyOrder | None:
    """Return what a study says of its proxies; None: it has none.

    The winner of the smallest proxy was chosen by its runs there, so that its gain there is no estimate. What
    is shown at full size is shown by pairs that chose nothing: those of the confirmation. Where τ = 1 was the
    best at a size there are only those of the transfer, which have chosen τ = 1.

    Args:
        tickets: All tickets of the study.
        spec: Its spec.
        verdict: Its latest verdict; None: there is none yet.
    """
    if spec.study.proxy is None:
        return None
    last = current_round(tickets) if verdict is None else verdict.round
    now = rounds_behind(tickets, last)[0]
    confirmed = verdict is not None and not verdict.at_one and not _named(tickets, spec, now, verdict)
    finalists, cost = tuple(_finalists(tickets, spec, now)), _cost(tickets, spec)
    shift = measured_shift(tickets, spec)
    found = _ordered(tickets, spec, now, verdict, finalists, cost, shift, confirmed=confirmed)
    if not confirmed or found.order != "not_decided" or (shift and shift.shift):
        return found
    # another finalist was better at full size: the one that the proxy has chosen may be what misled
    chosen = _ordered(tickets, spec, now, verdict, finalists, cost, shift, confirmed=False)
    return chosen if chosen.order == "reversed" else found


def _ordered(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    now: int,
    verdict: Verdict | None,
    finalists: tuple[Finalist, ...],
    cost: Cost,
    shift: MeasuredShift | None,
    *,
    confirmed: bool,
) -> ProxyOrder:
    """Return the order of what was confirmed, or else of the first that was compared at the largest size."""
    transfer = compared_at(tickets, spec, now)
    largest = full_size(spec) if confirmed or not transfer else size_of(transfer[0], spec)
    ranks = {t.candidate: t.parameters for t in transfer if t.candidate is not None and t.parameters}
    at_one = ranks.get(max((rank for rank in ranks if rank is not None), default=0))
    baseline = at_one if verdict is None else verdict.baseline_params
    subject = ranks.get(_winner_rank(transfer, spec))
    if verdict is not None and confirmed:
        subject = verdict.params
    sizes: tuple[SizeOrder, ...] = ()
    large: PairedTest | None = None
    if subject is not None and baseline is not None:
        both = [on_proxy(tickets, spec, each, size=largest) for each in (subject, baseline)]
        if verdict is not None and confirmed:
            large = None if verdict.over_baseline is None else verdict.over_baseline.paired
        elif finished(transfer):
            large = on_common_seeds(_values(transfer, subject, spec), _values(transfer, baseline, spec))
        gains = [_gain(tickets, spec, now, both, size) for size in range(largest)]
        sizes = tuple(SizeOrder(order=_order(gain, large), gain=gain) for gain in gains)
    return ProxyOrder(
        order=_together([each.order for each in sizes]),
        parameters=subject,
        confirmed=confirmed,
        largest=largest,
        sizes=sizes,
        at_largest=large,
        finalists=finalists,
        cost=cost,
        shift=shift,
    )


def _winner_rank(transfer: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return the number of the winner of the proxy, moved to where it is best if its shift was measured."""
    if not transfer or size_of(transfer[0], spec) != FIRST_LARGER:
        return 0
    return max(shifts_by_rank(transfer, spec), key=lambda rank: mean_of(transfer, spec, rank), default=0)


def _named(tickets: Sequence[TicketRow], spec: StudySpec, now: int, verdict: Verdict) -> bool:
    """Return whether what was confirmed was named for full size, so that no proxy says anything of it."""
    if not compared_at(tickets, spec, now, full_size(spec)):
        return False
    return not _chosen_from(tickets, spec, now, verdict.params)


def _chosen_from(tickets: Sequence[TicketRow], spec: StudySpec, now: int, parameters: Parameters) -> bool:
    """Return whether a set at full size was among those that the smallest proxy has chosen from."""
    key = training_key(on_proxy(tickets, spec, parameters))
    return any(_trains(t, key) for t in of_kind(tickets, "choose", of_round=now))


def _together(orders: Sequence[Order]) -> Order:
    if "reversed" in orders:
        return "reversed"
    return "held" if orders and set(orders) == {"held"} else "not_decided"


def _order(small: PairedTest | None, large: PairedTest | None) -> Order:
    if small is None or large is None or large.p_value >= ALPHA:
        return "not_decided"
    if small.gain > 0 and large.gain > 0:
        return "held"
    return "reversed" if small.significant and large.gain < 0 else "not_decided"


def _gain(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    now: int,
    both: Sequence[Parameters],
    size: int,
) -> PairedTest | None:
    """Return what a configuration gains over τ = 1 at a size below the largest.

    Args:
        tickets: All tickets of the study.
        spec: Its spec.
        now: The round.
        both: The configuration and the baseline, as parameters of the smallest proxy.
        size: The size: on the smallest proxy it is told by pairs, or by means if there are few.
    """
    if size > 0:
        runs = compared_at(tickets, spec, now, size)
        return on_common_seeds(*(_values(runs, to_size(spec, each, size), spec) for each in both))
    choose = of_kind(tickets, "choose", of_round=now)
    one, other = (_values(choose, each, spec) for each in both)
    if len(one.keys() & other.keys()) >= _PAIRED:
        return on_common_seeds(one, other)
    at_one = [*other.values(), *_alone(tickets, spec, both[1])]
    return welch([*one.values()], at_one) if min(len(one), len(at_one)) >= _FEWEST else None


def _alone(tickets: Sequence[TicketRow], spec: StudySpec, baseline: Parameters) -> list[float]:
    """Return the values of the runs at τ = 1 on seeds of their own that train the same as the baseline."""
    runs = [t for t in tickets if t.kind in _AT_ONE and _trains(t, training_key(baseline))]
    return [oriented(t.value, spec.study.direction) for t in runs if usable(t) and t.value is not None]


def _trains(ticket: TicketRow, key: str) -> bool:
    return ticket.parameters is not None and training_key(ticket.parameters) == key


def _values(runs: Iterable[TicketRow], parameters: Parameters, spec: StudySpec) -> dict[int, float]:
    """Return the values of the runs that train a parameter set by pair, more being better."""
    key = training_key(parameters)
    return {
        t.pair: oriented(t.value, spec.study.direction)
        for t in runs
        if usable(t) and t.pair is not None and t.value is not None and _trains(t, key)
    }


def _finalists(tickets: Sequence[TicketRow], spec: StudySpec, now: int) -> Iterable[Finalist]:
    sign = oriented(1.0, spec.study.direction)
    for size in range(1, full_size(spec) + 1):
        transfer = compared_at(tickets, spec, now, size)
        last = max((t.candidate for t in transfer if t.candidate is not None), default=-1)
        for rank in sorted({t.candidate for t in transfer if t.candidate is not None}):
            runs = [t for t in transfer if t.candidate == rank]
            parameters = next(t.parameters for t in runs if t.parameters is not None)
            small = _before(tickets, spec, now, size, parameters, at_one=rank == last)
            large = [*_values(transfer, parameters, spec).values()]
            yield Finalist(
                size=size,
                parameters=dict(parameters),
                at_one=rank == last,
                before=sign * fmean(small) if small else None,
                value=sign * fmean(large) if large else None,
                pairs=len(runs),
                named=rank != last
                and size == full_size(spec)
                and not _chosen_from(tickets, spec, now, parameters),
            )


def _before(
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    now: int,
    size: int,
    parameters: Parameters,
    *,
    at_one: bool,
) -> list[float]:
    """Return the values at the size before of what was compared at a size, more being better."""
    small = on_proxy(tickets, spec, parameters, size=size)
    if size > 1:
        runs = compared_at(tickets, spec, now, size - 1)
        known = (_values(runs, to_larger(small), spec) for to_larger in ways_to(spec, size - 1))
        return [*next(filter(None, known), {}).values()]
    found = [*_values(of_kind(tickets, "choose", of_round=now), small, spec).values()]
    return found or (_alone(tickets, spec, small) if at_one else [])


def _cost(tickets: Sequence[TicketRow], spec: StudySpec) -> Cost:
    full = full_size(spec)
    steps, seconds = [0] * (full + 1), [0.0] * (full + 1)
    runs, transfer = 0.0, 0.0
    for ticket in tickets:
        size, trained = size_of(ticket, spec), ticket.steps_trained or 0
        steps[size] += trained
        seconds[size] += ticket.seconds
        if not size and ticket.total_steps:
            runs += trained / ticket.total_steps
        if ticket.kind == "transfer" and size == full:
            transfer += ticket.seconds
    costs = costs_of(tickets, spec)
    known = costs is not None and costs.basis == "measured"
    return Cost(
        steps=tuple(each / max(1, sum(steps)) for each in steps),
        shares=tuple(each / (sum(seconds) or 1.0) for each in seconds),
        seconds=sum(seconds),
        # a search at full size has nothing to transfer
        searched_at_full=runs * costs.full + seconds[full] - transfer if costs and known else None,
    )

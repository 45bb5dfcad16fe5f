"""Whether the order of a proxy held at full size, and what the proxy saved, from rows and a verdict.

Pure. Who is compared at full size is transfer.py's business, and the plain words are results/proxy_text.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from tempopt.confirmation.costs import at_proxy, costs_of
from tempopt.confirmation.transfer import on_proxy
from tempopt.confirmation.verdict import Verdict
from tempopt.records.rows import Kind, Parameters, TicketRow
from tempopt.records.tickets import current_round, finished, of_kind, oriented, rounds_behind, usable
from tempopt.statistics.paired_tests import ALPHA, PairedTest, paired
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
    """One configuration that was compared at full size.

    Args:
        parameters: At full size.
        at_one: Whether it is the baseline.
        proxy: Mean on the proxy over its choosing seeds; of a baseline that had nothing to choose, over its
            own runs; None: not known.
        full: Mean over the seeds of the comparison at full size; None: no run of it has a value.
        pairs: Number of these seeds.
    """

    parameters: Parameters
    at_one: bool
    proxy: float | None
    full: float | None
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the two sizes cost.

    Args:
        full_steps: Share of all optimizer steps that were trained at full size.
        full_seconds: Share of all training seconds.
        seconds: Training seconds of all runs.
        searched_at_full: Seconds that the same runs would have taken had the search been at full size, an
            estimate: each run of the proxy counts the share of its steps that it trained, times what a run at
            full size took in the mean; None: no run at full size is complete.
    """

    full_steps: float
    full_seconds: float
    seconds: float
    searched_at_full: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOrder:
    """What a study says of its proxy.

    Args:
        order: What became of the order.
        parameters: The configuration that is compared with τ = 1, at full size: the winner that was
            confirmed, or the winner of the proxy where τ = 1 was the best at full size.
        confirmed: Whether that was confirmed; else it was compared by the runs of the transfer.
        on_proxy: What it gains over τ = 1 on the proxy; None: not known.
        at_full: The same at full size; None: not known yet.
        finalists: What was compared at full size, in the order of the proxy, τ = 1 last; or nothing.
        cost: What the two sizes cost.
    """

    order: Order
    parameters: Parameters | None
    confirmed: bool
    on_proxy: PairedTest | None
    at_full: PairedTest | None
    finalists: tuple[Finalist, ...]
    cost: Cost


def proxy_order(tickets: Sequence[TicketRow], spec: StudySpec, verdict: Verdict | None) -> ProxyOrder | None:
    """Return what a study says of its proxy; None: it has none.

    The winner of the proxy was chosen by its runs there, so that its gain there is no estimate. What is shown
    at full size is shown by pairs that chose nothing: those of the confirmation. Where τ = 1 was the best at
    full size there are only those of the transfer, which have chosen τ = 1.

    Args:
        tickets: All tickets of the study.
        spec: Its spec.
        verdict: Its latest verdict; None: there is none yet.
    """
    if spec.study.proxy is None:
        return None
    last = current_round(tickets) if verdict is None else verdict.round
    now = rounds_behind(tickets, last)[0]
    transfer = of_kind(tickets, "transfer", of_round=now)
    confirmed = verdict is not None and not verdict.at_one
    ranks = {t.candidate: t.parameters for t in transfer if t.candidate is not None and t.parameters}
    at_one = ranks.get(max((rank for rank in ranks if rank is not None), default=0))
    baseline = at_one if verdict is None else verdict.baseline_params
    subject = verdict.params if verdict is not None and confirmed else ranks.get(0)
    small = large = None
    if subject is not None and baseline is not None:
        small = _on_proxy(tickets, spec, now, subject, baseline)
        if verdict is not None and confirmed:
            large = None if verdict.over_baseline is None else verdict.over_baseline.paired
        elif finished(transfer):
            large = _paired(_values(transfer, subject, spec), _values(transfer, baseline, spec))
    return ProxyOrder(
        order=_order(small, large),
        parameters=subject,
        confirmed=confirmed,
        on_proxy=small,
        at_full=large,
        finalists=tuple(_finalists(tickets, spec, now, transfer)),
        cost=_cost(tickets, spec),
    )


def _order(small: PairedTest | None, large: PairedTest | None) -> Order:
    if small is None or large is None or large.p_value >= ALPHA:
        return "not_decided"
    if small.gain > 0 and large.gain > 0:
        return "held"
    return "reversed" if small.significant and large.gain < 0 else "not_decided"


def _on_proxy(
    tickets: Sequence[TicketRow], spec: StudySpec, now: int, subject: Parameters, baseline: Parameters
) -> PairedTest | None:
    """Return what a configuration gains over τ = 1 on the proxy: by pairs, or by means if there are few."""
    choose = of_kind(tickets, "choose", of_round=now)
    one, other = (_values(choose, on_proxy(tickets, spec, each), spec) for each in (subject, baseline))
    if len(one.keys() & other.keys()) >= _PAIRED:
        return _paired(one, other)
    at_one = [*other.values(), *_alone(tickets, spec, baseline)]
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


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> PairedTest | None:
    pairs = sorted(one.keys() & other.keys())
    if len(pairs) < _FEWEST:
        return None
    return paired([one[pair] - other[pair] for pair in pairs], test="t", direction="maximize")


def _finalists(
    tickets: Sequence[TicketRow], spec: StudySpec, now: int, transfer: Sequence[TicketRow]
) -> Iterable[Finalist]:
    choose = of_kind(tickets, "choose", of_round=now)
    last = max((t.candidate for t in transfer if t.candidate is not None), default=0)
    sign = oriented(1.0, spec.study.direction)
    for rank in range(last + 1 if transfer else 0):
        parameters = next(t.parameters for t in transfer if t.candidate == rank and t.parameters is not None)
        small = [*_values(choose, on_proxy(tickets, spec, parameters), spec).values()]
        small = small or (_alone(tickets, spec, parameters) if rank == last else [])
        large = [*_values(transfer, parameters, spec).values()]
        yield Finalist(
            parameters=dict(parameters),
            at_one=rank == last,
            proxy=sign * fmean(small) if small else None,
            full=sign * fmean(large) if large else None,
            pairs=sum(t.candidate == rank for t in transfer),
        )


def _cost(tickets: Sequence[TicketRow], spec: StudySpec) -> Cost:
    steps, seconds = {True: 0, False: 0}, {True: 0.0, False: 0.0}
    runs, transfer = 0.0, 0.0
    for ticket in tickets:
        small, trained = at_proxy(ticket.kind, spec), ticket.steps_trained or 0
        steps[small] += trained
        seconds[small] += ticket.seconds
        if small and ticket.total_steps:
            runs += trained / ticket.total_steps
        if ticket.kind == "transfer":
            transfer += ticket.seconds
    costs = costs_of(tickets, spec)
    known = costs is not None and costs.basis == "measured"
    return Cost(
        full_steps=steps[False] / max(1, sum(steps.values())),
        full_seconds=seconds[False] / (sum(seconds.values()) or 1.0),
        seconds=sum(seconds.values()),
        # a search at full size has nothing to transfer
        searched_at_full=runs * costs.full + seconds[False] - transfer if costs and known else None,
    )

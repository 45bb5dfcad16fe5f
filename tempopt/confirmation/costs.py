"""What a run of a study costs in the mean, by complete runs: one of each proxy, and one at full size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tempopt.records.rows import TicketRow
from tempopt.spec.model_sizes import full_size, size_of

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Basis = Literal["measured", "prices", "ratio", "proxy", "stated"]
"""What the cost of a run at full size is taken from.

* ``measured``: complete runs at full size, all runs where a study has no proxy.
* ``prices``: runs of a proxy, times the ratio of the prices of both that the spec states.
* ``ratio``: runs of a proxy, times the ratio of the steps and of the numbers of parameters of both.
* ``proxy``: runs of a proxy as they are, since nothing is known of the sizes.
* ``stated``: the spec, before any run at full size is complete.
"""

BASES: dict[Basis, str] = {
    "measured": "runs at full size as measured",
    "prices": "a run at full size as one of the proxy, times the ratio of their prices in study.limits",
    "ratio": "a run at full size as one of the proxy, times the ratio of their steps and parameters",
    "proxy": "a run at full size as one of the proxy, since their sizes are not known",
    "stated": "a run as study.limits states it",
}
"""The same in words."""


def seconds(ticket: TicketRow) -> float:
    """Return the training seconds of a ticket."""
    return ticket.seconds


def spent(ticket: TicketRow) -> float:
    """Return the seconds of cards that a ticket took, its training seconds where it trained on none."""
    return ticket.gpu_seconds or ticket.seconds


def is_whole(ticket: TicketRow) -> bool:
    """Return whether a run says what others will cost: one that began where another was left cost less."""
    return ticket.outcome == "complete" and ticket.forked_at is None


@dataclass(frozen=True, slots=True)
class Total:
    """Complete runs of one size: how many, and what they cost together."""

    runs: int = 0
    cost: float = 0.0

    def plus(self, cost: float) -> Total:
        """Return the total with one run more."""
        return Total(self.runs + 1, self.cost + cost)

    @property
    def mean(self) -> float:
        """Mean cost of a run; there is one at least."""
        return self.cost / self.runs


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanCosts:
    """What a run costs in the mean.

    Args:
        sizes: One of each size, the smallest first (:mod:`tempopt.spec.model_sizes`).
        basis: What that at full size is taken from.
    """

    sizes: tuple[float, ...]
    basis: Basis

    @property
    def smallest(self) -> float:
        """What a run of the search costs."""
        return self.sizes[0]

    @property
    def full(self) -> float:
        """What a run at full size costs."""
        return self.sizes[-1]

    @property
    def proxies(self) -> tuple[float, ...]:
        """What a run of each proxy costs."""
        return self.sizes[:-1]

    def of(self, runs: Sequence[float]) -> float:
        """Return what so many runs of each size cost."""
        return sum(cost * count for cost, count in zip(self.sizes, runs, strict=True))


def no_totals(spec: StudySpec) -> list[Total]:
    """Return for each size that no run is complete."""
    return [Total() for _ in range(full_size(spec) + 1)]


def mean_costs(spec: StudySpec, totals: Sequence[Total]) -> MeanCosts | None:
    """Return what a run costs in the mean, None if no run is complete.

    What no run of a size tells is what one of the nearest smaller size cost, or else larger one, times the
    ratio of their prices, or of their steps and numbers of parameters.

    Args:
        spec: The study's spec.
        totals: Complete runs of each size.
    """
    known = [size for size, each in enumerate(totals) if each.runs]
    if not known:
        return None
    ratios, basis = _ratios(spec)
    found = []
    for size, each in enumerate(totals):
        near = max((other for other in known if other <= size), default=known[0])
        found.append(each.mean if each.runs else totals[near].mean * ratios[size] / ratios[near])
    return MeanCosts(sizes=tuple(found), basis="measured" if totals[-1].runs else basis)


def _ratios(spec: StudySpec) -> tuple[Sequence[float], Basis]:
    """Return what a run of each size costs beside others, unmeasured, and what that is taken from."""
    limits, proxy = spec.study.limits, spec.study.proxy
    if limits.run_gpu_hours is not None and limits.proxy_prices is not None and proxy is not None:
        return [*limits.proxy_prices, limits.run_gpu_hours], "prices"
    if proxy is None or proxy.cost_ratios is None:
        return [1.0] * (full_size(spec) + 1), "proxy"
    return proxy.cost_ratios, "ratio"


def costs_of(
    tickets: Iterable[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float] = seconds
) -> MeanCosts | None:
    """Return what a run costs in the mean by the complete ones among tickets; None if there are none."""
    totals = no_totals(spec)
    for ticket in filter(is_whole, tickets):
        size = size_of(ticket, spec)
        totals[size] = totals[size].plus(cost(ticket))
    return mean_costs(spec, totals)

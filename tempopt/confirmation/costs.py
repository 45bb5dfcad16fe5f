"""What a run of a study costs in the mean, by complete runs: one of its proxy, and one at full size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tempopt.records.rows import AT_PROXY, Kind, TicketRow

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Basis = Literal["measured", "prices", "ratio", "proxy", "stated"]
"""What the cost of a run at full size is taken from.

* ``measured``: complete runs at full size, all runs where a study has no proxy.
* ``prices``: runs of the proxy, times the ratio of the prices of both that the spec states.
* ``ratio``: runs of the proxy, times the ratio of the steps and of the numbers of parameters of both.
* ``proxy``: runs of the proxy as they are, since nothing is known of the sizes.
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


def at_proxy(kind: Kind, spec: StudySpec) -> bool:
    """Return whether tickets of a kind train the proxy of a study."""
    return spec.study.proxy is not None and kind in AT_PROXY


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
        proxy: One of the proxy; where a study has none, any.
        full: One at full size.
        basis: What ``full`` is taken from.
    """

    proxy: float
    full: float
    basis: Basis

    def of(self, *, proxy: float, full: float) -> float:
        """Return what so many runs of both sizes cost."""
        return self.proxy * proxy + self.full * full


def mean_costs(spec: StudySpec, proxy: Total, full: Total) -> MeanCosts | None:
    """Return what a run costs in the mean, None if no run is complete.

    Args:
        spec: The study's spec.
        proxy: Complete runs of its proxy.
        full: Those at full size.
    """
    if full.runs:
        return MeanCosts(proxy=proxy.mean if proxy.runs else full.mean, full=full.mean, basis="measured")
    if not proxy.runs:
        return None
    limits = spec.study.limits
    if limits.run_gpu_hours is not None and limits.proxy_gpu_hours is not None:
        priced = proxy.mean * limits.run_gpu_hours / limits.proxy_gpu_hours
        return MeanCosts(proxy=proxy.mean, full=priced, basis="prices")
    ratio = None if spec.study.proxy is None else spec.study.proxy.cost_ratio
    if ratio is None:
        return MeanCosts(proxy=proxy.mean, full=proxy.mean, basis="proxy")
    return MeanCosts(proxy=proxy.mean, full=proxy.mean * ratio, basis="ratio")


def costs_of(
    tickets: Iterable[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float] = seconds
) -> MeanCosts | None:
    """Return what a run costs in the mean by the complete ones among tickets; None if there are none."""
    totals = {False: Total(), True: Total()}
    for ticket in filter(is_whole, tickets):
        small = at_proxy(ticket.kind, spec)
        totals[small] = totals[small].plus(cost(ticket))
    return mean_costs(spec, totals[True], totals[False])

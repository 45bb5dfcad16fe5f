"""When a study has used up what it was allowed: the search then ends, in time for what proves it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import variance

from tempopt.agent.study_cache import StudyCache
from tempopt.confirmation.costs import BASES, MeanCosts, costs_of, is_whole, seconds, spent
from tempopt.confirmation.stages import Upcoming, at_sizes, to_prove
from tempopt.forecast.prices import costs_given
from tempopt.forecast.split import after_gain, is_open
from tempopt.records.rows import SEARCHING, TicketRow
from tempopt.sampling.arms import Arms
from tempopt.spec.model_sizes import size_of
from tempopt.spec.study_spec import StudySpec

_HOUR = 3600.0
# a split may use all of its budget to the last run
_ROUNDING = 1e-9


def ended_by(spec: StudySpec, cache: StudyCache, *, workers: int) -> str | None:
    """Return in words the limit that ends the search now, None if it continues or is over already.

    It continues while the next run fits into the limit, with what runs at work have still to cost and what
    choosing and confirming take, as far as that can be foreseen. What counts for ``gpu_hours`` is the time of
    cards, and where runs train on none their training time.

    Args:
        spec: The study's spec, with ``study.limits``.
        cache: Its tickets, and its age.
        workers: Workers that will share what is left to do, >= 1.
    """
    limits = spec.study.limits
    if limits.hours is None and limits.gpu_hours is None:
        return None
    if not any(row.state == "waiting" for kind in SEARCHING for row in cache.of_kind(kind)):
        return None
    tickets = list(cache.tickets.values())
    passing, proving = _left(tickets, spec, seconds)
    passing_of_cards, proving_of_cards = _left(tickets, spec, spent)
    allowances = (
        ("hours", cache.age, passing / workers, proving / workers, limits.hours),
        ("gpu_hours", cache.spent, passing_of_cards, proving_of_cards, limits.gpu_hours),
    )
    by_name = {"hours": seconds, "gpu_hours": spent}
    for name, used, search, proof, limit in allowances:
        if limit is not None and (used + search + proof) / _HOUR > limit * (1 + _ROUNDING):
            rests_on = _rests_on(tickets, spec, by_name[name])
            return (
                f"study.limits.{name} allows {limit:g}; {used / _HOUR:.3g} are used and confirming takes "
                f"about {proof / _HOUR:.3g} more{rests_on}. The search ends here; what it has found is "
                "confirmed."
            )
    return None


def _left(
    tickets: Sequence[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float]
) -> tuple[float, float]:
    """Return the seconds that the search still costs if one run more begins, and those of choosing and proof.

    Where the budget was split, runs that take the winner apart are part of the proof.
    """
    costs = _costs(tickets, spec, cost)
    if costs is None:
        return 0.0, 0.0
    running = [each for each in tickets if each.kind in SEARCHING and each.state == "running"]
    search = costs.smallest + sum(max(0.0, costs.smallest - cost(each)) for each in running)
    proof = to_prove(tickets, spec).plus(after_gain(spec) if is_open(spec) else at_sizes(spec))
    return search, costs.of(proof.sizes) + _margin(tickets, spec, cost, proof)


def _costs(
    tickets: Sequence[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float]
) -> MeanCosts | None:
    """Return what a run costs in the mean; what is stated of full size counts until it is measured there."""
    costs = costs_of(tickets, spec, cost)
    stated = costs_given(spec) if cost is spent else None
    if stated is None or (costs is not None and costs.basis == "measured"):
        return costs
    hours = [each * _HOUR for each in stated.sizes]
    small = hours[:-1] if costs is None else costs.proxies
    return MeanCosts(sizes=(*small, hours[-1]), basis="stated")


def _margin(
    tickets: Sequence[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float], left: Upcoming
) -> float:
    """Return by how much runs that are left may exceed their mean cost: two standard errors of their sum."""
    known: list[list[float]] = [[] for _ in left.sizes]
    for each in filter(is_whole, tickets):
        known[size_of(each, spec)].append(cost(each))
    squares, smaller = 0.0, known[0]
    for own, count in zip(known, left.sizes, strict=True):
        # what is not known yet at a size varies as the one before does, as far as that can be said
        smaller = own or smaller
        if len(smaller) > 1:
            # the mean that they are taken to cost is uncertain, too
            squares += variance(smaller) * (count + count**2 / len(smaller))
    return 2.0 * math.sqrt(squares)


def _rests_on(tickets: Sequence[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float]) -> str:
    """Return in words what the cost of a run at full size is taken from, where the search trains a proxy."""
    costs = _costs(tickets, spec, cost)
    if costs is None or spec.study.proxy is None:
        return ""
    return f" ({BASES[costs.basis]})"


def beyond_notice(spec: StudySpec, ticket: TicketRow, arms: Arms, *, left: int) -> str | None:
    """Return in words that nothing left of the search could be noticed, None if something could, or may.

    What all runs that are left would add if each were worth as much as the next, against the standard error
    of the gain that they are searched for. So Makarova et al. end a search (2022, "Automatic Termination for
    Hyperparameter Optimization"), with a bound on the regret in place of the expected rise.

    Args:
        spec: The study's spec, with ``study.limits.standard_errors``.
        ticket: A search ticket that has not been begun.
        arms: What is known.
        left: Search tickets that have not been begun, this one included.
    """
    limit = spec.study.limits.standard_errors
    prospect = arms.prospect(ticket) if limit is not None and ticket.kind == "search" else None
    if limit is None or prospect is None:
        return None
    rise, noise = prospect
    error = noise * math.sqrt(2.0 / spec.study.seeds.confirm.max)
    if left * rise >= limit * error:
        return None
    return (
        f"study.limits.standard_errors is {limit:g}: the next trial is expected to add {rise:.2g}, and all "
        f"{left} that are left {left * rise:.2g}, were each worth as much, to a gain with a standard error "
        f"of {error:.2g}. The search ends here; what it has found is confirmed."
    )

"""Conditions that end a search early: convergence, and limits of time with a reserve for confirming."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import fmean, variance

from tempopt.agent.study_cache import StudyCache
from tempopt.sampling.arms import SearchArms
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import SEARCH_KINDS, TicketRow
from tempopt.storage.ticket_queries import gpu_seconds_of
from tempopt.verdict.stages import remaining_confirmation_runs

_HOUR = 3600.0  # seconds


def find_stop_reason(spec: StudySpec, cache: StudyCache, *, workers: int) -> str | None:
    """Return a sentence on the limit that ends the search now, None if it continues or is over already.

    The search continues while the limit allows the estimated rest of the runs in progress, one more run, and
    choosing and confirming. ``gpu_hours`` counts the time of GPUs; for runs without a GPU, their training
    time.

    Args:
        spec: The study's spec, with ``study.limits``.
        cache: The study's tickets and age.
        workers: Workers that share the remaining runs, >= 1.
    """
    limits = spec.study.limits
    if limits.hours is None and limits.gpu_hours is None:
        return None
    if not any(row.state == "waiting" for kind in SEARCH_KINDS for row in cache.tickets_of_kind(kind)):
        return None
    tickets = list(cache.tickets.values())
    search_seconds, proof_seconds = _estimate_remaining_seconds(tickets, spec, attrgetter("seconds"))
    search_gpu_seconds, proof_gpu_seconds = _estimate_remaining_seconds(tickets, spec, gpu_seconds_of)
    allowances = (
        ("hours", cache.age, search_seconds / workers, proof_seconds / workers, limits.hours),
        ("gpu_hours", cache.gpu_seconds, search_gpu_seconds, proof_gpu_seconds, limits.gpu_hours),
    )
    for name, used_amount, search, proof, limit in allowances:
        if limit is not None and (used_amount + search + proof) / _HOUR > limit:
            return (
                f"study.limits.{name} allows {limit:g}; {used_amount / _HOUR:.3g} are used and confirming "
                f"takes about {proof / _HOUR:.3g} more. The search ends here; its best configuration is "
                "confirmed."
            )
    return None


def _estimate_remaining_seconds(
    tickets: Sequence[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float]
) -> tuple[float, float]:
    """Return the remaining seconds of the search with one more run, and those of choosing and confirming.

    The latter include a margin of two standard errors of their estimate.
    """
    costs = [cost(ticket) for ticket in tickets if ticket.outcome == "complete"]
    if not costs:
        return 0.0, 0.0
    mean = fmean(costs)
    running = [ticket for ticket in tickets if ticket.kind in SEARCH_KINDS and ticket.state == "running"]
    search = mean + sum(max(0.0, mean - cost(ticket)) for ticket in running)
    count = remaining_confirmation_runs(tickets, spec)
    # the second term: the mean cost is an estimate, too
    spread = variance(costs) * (count + count**2 / len(costs)) if len(costs) > 1 else 0.0
    return search, count * mean + 2.0 * math.sqrt(spread)


def find_convergence_reason(
    spec: StudySpec, ticket: TicketRow, arms: SearchArms, *, num_left: int
) -> str | None:
    """Return a sentence that the rest of the search cannot change the verdict, None if it may.

    Compares the expected improvement of all remaining runs, if each adds as much as the next one, with the
    standard error of the gain. Makarova et al. (2022, "Automatic Termination for Hyperparameter
    Optimization") end a search in this way, with a bound on the regret in place of the expected improvement.

    Args:
        spec: The study's spec, with ``study.limits.standard_errors``.
        ticket: A search ticket that has not begun.
        arms: Model of the runs so far.
        num_left: Number of search tickets that have not begun, this one included.
    """
    limit = spec.study.limits.standard_errors
    prospect = arms.expected_improvement(ticket) if limit is not None and ticket.kind == "search" else None
    if limit is None or prospect is None:
        return None
    rise, noise = prospect
    error = noise * math.sqrt(2.0 / spec.study.seeds.confirm.max)
    if num_left * rise >= limit * error:
        return None
    return (
        f"study.limits.standard_errors is {limit:g}: the next trial is expected to add {rise:.2g}, and all "
        f"{num_left} that are left {num_left * rise:.2g} if each adds as much, to a gain with a standard "
        f"error of {error:.2g}. The search ends here; its best configuration is confirmed."
    )

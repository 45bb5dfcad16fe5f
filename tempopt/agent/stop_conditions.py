"""When a study has used up what it was allowed: the search then ends, in time for what proves it."""

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

_HOUR = 3600.0


def find_stop_reason(spec: StudySpec, cache: StudyCache, *, workers: int) -> str | None:
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
    if not any(row.state == "waiting" for kind in SEARCH_KINDS for row in cache.of_kind(kind)):
        return None
    tickets = list(cache.tickets.values())
    search_seconds, proof_seconds = _estimate_remaining_seconds(tickets, spec, attrgetter("seconds"))
    search_gpu_seconds, proof_gpu_seconds = _estimate_remaining_seconds(tickets, spec, gpu_seconds_of)
    allowances = (
        ("hours", cache.age, search_seconds / workers, proof_seconds / workers, limits.hours),
        ("gpu_hours", cache.spent, search_gpu_seconds, proof_gpu_seconds, limits.gpu_hours),
    )
    for name, used_amount, search, proof, limit in allowances:
        if limit is not None and (used_amount + search + proof) / _HOUR > limit:
            return (
                f"study.limits.{name} allows {limit:g}; {used_amount / _HOUR:.3g} are used and confirming "
                f"takes about {proof / _HOUR:.3g} more. The search ends here; what it has found is "
                "confirmed."
            )
    return None


def _estimate_remaining_seconds(
    tickets: Sequence[TicketRow], spec: StudySpec, cost: Callable[[TicketRow], float]
) -> tuple[float, float]:
    """Return the seconds that the search still costs if one run more begins, and those of choosing and proof.

    The latter have a margin of two standard errors of what so many runs cost.
    """
    costs = [cost(ticket) for ticket in tickets if ticket.outcome == "complete"]
    if not costs:
        return 0.0, 0.0
    mean = fmean(costs)
    running = [ticket for ticket in tickets if ticket.kind in SEARCH_KINDS and ticket.state == "running"]
    search = mean + sum(max(0.0, mean - cost(ticket)) for ticket in running)
    count = remaining_confirmation_runs(tickets, spec)
    # the mean that they are taken to cost is uncertain, too
    spread = variance(costs) * (count + count**2 / len(costs)) if len(costs) > 1 else 0.0
    return search, count * mean + 2.0 * math.sqrt(spread)


def find_convergence_reason(
    spec: StudySpec, ticket: TicketRow, arms: SearchArms, *, num_left: int
) -> str | None:
    """Return in words that nothing left of the search could be noticed, None if something could, or may.

    What all runs that are left would add if each were worth as much as the next, against the standard error
    of the gain that they are searched for. So Makarova et al. end a search (2022, "Automatic Termination for
    Hyperparameter Optimization"), with a bound on the regret in place of the expected rise.

    Args:
        spec: The study's spec, with ``study.limits.standard_errors``.
        ticket: A search ticket that has not been begun.
        arms: What is known.
        num_left: Search tickets that have not been begun, this one included.
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
        f"{num_left} that are left {num_left * rise:.2g}, were each worth as much, to a gain with a standard "
        f"error of {error:.2g}. The search ends here; what it has found is confirmed."
    )

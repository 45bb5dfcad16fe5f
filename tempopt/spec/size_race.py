"""The race of the finalists of a proxy at a larger size, and the shift of ln τ that it measures.

With ``study.proxy.temperature: measured`` the winner of the proxy races at the first larger size as it is,
and with ln τ moved by each of ``try_shifts``. The shift of the configuration that is best there is the rule
from then on, as if it had been given as a number. Pure: rows in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.records.racing import best_candidate, candidate_parameters, in_race
from tempopt.records.rows import Parameters, TicketRow
from tempopt.records.tickets import current_round, finished, of_kind, oriented, pairs_of, usable
from tempopt.spec.model_sizes import shifted_temperatures, size_of
from tempopt.temperature import training_key
from tempopt.temperature.scaling import shifted

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

FEWEST_PAIRS = 2
"""Candidates are compared at a larger size on so many seeds at least."""
FIRST_LARGER = 1
"""The size at which shifts of ln τ are tried."""


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


def baseline_rank(tried: Sequence[TicketRow]) -> int:
    """Return the number of the baseline among what is compared at a size: it is the last."""
    return max(t.candidate or 0 for t in tried)


def unnamed(tried: Sequence[TicketRow]) -> list[int]:
    """Return the places that are still open among what is compared at a size (named_finalists.py)."""
    taken = {ticket.candidate for ticket in tried}
    return [place for place in range(max((each or 0 for each in taken), default=0)) if place not in taken]


def mean_of(tried: Sequence[TicketRow], spec: StudySpec, rank: int) -> float:
    """Return the mean of a candidate, more being better; −∞ if no run of it has a value."""
    values = [t.value for t in tried if t.candidate == rank and usable(t) and t.value is not None]
    return oriented(fmean(values), spec.study.direction) if values else -math.inf


def still_racing(tried: Sequence[TicketRow], spec: StudySpec) -> dict[int, Parameters]:
    """Return the finalists that need more seeds at a size, by number; none: it is known who is the best."""
    if not 0 < pairs_of(tried) < most_pairs(spec):
        return {}
    left = set(in_race(tried, spec.study.direction))
    if baseline_rank(tried) in left:
        left.add(0)
    return {rank: candidate_parameters(tried, rank) for rank in sorted(left)} if len(left) > 1 else {}


def race_is_over(tried: Sequence[TicketRow], spec: StudySpec) -> bool:
    """Return whether it is known who is the best at a size; not where nothing is compared there."""
    return bool(tried) and finished(tried) and not unnamed(tried) and not still_racing(tried, spec)


def to_be_tried(spec: StudySpec) -> list[float]:
    """Return the shifts of ln τ that are still to be tried; none where the rule is known."""
    proxy = spec.study.proxy
    return [] if proxy is None or not proxy.is_unmeasured else proxy.shifts_to_try


def moved_by(spec: StudySpec, parameters: Mapping[str, Any], shift: float) -> Parameters:
    """Return a parameter set with ln τ of what the rule moves moved by a shift."""
    moved = dict(parameters)
    for temperature in shifted_temperatures(spec):
        moved = shifted(moved, shift, temperature)
    return moved


def moved_copies(spec: StudySpec, found: Parameters, shifts: Sequence[float]) -> list[Parameters]:
    """Return a parameter set moved by each of some shifts, without what trains the same."""
    moved = [moved_by(spec, found, shift) for shift in shifts]
    own = training_key(found)
    return [each for key, each in {training_key(each): each for each in moved}.items() if key != own]


def shifts_by_rank(tried: Sequence[TicketRow], spec: StudySpec) -> dict[int, float]:
    """Return by number the shifts that are tried at the first larger size; 0 is the winner of the proxy."""
    proxy = spec.study.proxy
    if proxy is None or proxy.temperature != "measured" or not tried:
        return {}
    ranks = {training_key(t.parameters): t.candidate for t in tried if t.candidate and t.parameters}
    own = candidate_parameters(tried, 0)
    keys = {shift: training_key(moved_by(spec, own, shift)) for shift in proxy.shifts_to_try}
    found = {ranks[key]: shift for shift, key in keys.items() if key in ranks}
    return {0: 0.0, **found} if found else {}


def shift_race(tickets: Sequence[TicketRow], spec: StudySpec) -> list[TicketRow]:
    """Return the runs that have measured the shift: those of the first such race that is over; or none."""
    for of_round in range(current_round(tickets) + 1):
        tried = compared_at(tickets, spec, of_round, FIRST_LARGER)
        if race_is_over(tried, spec) and shifts_by_rank(tried, spec):
            return tried
    return []


def with_measured_shift(tickets: Sequence[TicketRow], spec: StudySpec) -> StudySpec:
    """Return the spec with the shift of ln τ that its runs have measured.

    It is the same where that is not asked for, or not known yet. The shift is 0 where the best at the first
    larger size is no moved copy of the winner of the proxy, but itself, another finalist or τ = 1.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
    """
    proxy = spec.study.proxy
    if proxy is None or not proxy.is_unmeasured:
        return spec
    tried = shift_race(tickets, spec)
    if not tried:
        return spec
    shift = shifts_by_rank(tried, spec).get(best_candidate(tried, spec.study.direction), 0.0)
    study = spec.study.model_copy(update={"proxy": proxy.measured_as(shift)})
    return spec.model_copy(update={"study": study})

"""Who went on from whom in the populations of a study, and how far they are: read from its search tickets.

Says nothing in words. Who goes on from whom is decided in :mod:`tempopt.sampling.population`. Whose
checkpoint a run began from does not say it: that depends on what was at hand, and may have been another's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempopt.records.rows import OVER, Parameters, TicketRow
from tempopt.records.tickets import oriented
from tempopt.spec.population import Place, Population
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import training_key

_GOT_THERE = ("complete", "pruned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a member of a population trains in one interval: a search trial.

    Args:
        run: Its ticket.
        place: Population, interval and member, each from 0.
        parent: The trial of the interval before that it goes on from; None: it began anew.
        parent_place: Where that is in the population.
        taus: Temperature where the interval begins, and where it ends.
    """

    run: TicketRow
    place: Place
    parent: TicketRow | None
    parent_place: Place | None
    taus: tuple[float, float]

    @property
    def took_over(self) -> bool:
        """Whether it goes on from another member."""
        return self.parent_place is not None and self.parent_place.member != self.place.member

    @property
    def value(self) -> float | None:
        """Its value at the end of the interval; None: it is not there, or has none."""
        return reached(self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """How far the population is that was begun last.

    Args:
        population: Which it is, from 0.
        interval: The interval that its members train, from 0; the last one where they have trained all.
        compared: The last interval that all members are through, and were compared after; None before one is.
        best: Its trial with the best value then; None: no member got there.
        populations: Number of populations that were asked for.
        intervals: Number of intervals of each.
    """

    population: int
    interval: int
    compared: int | None
    best: TicketRow | None
    populations: int
    intervals: int

    @property
    def now(self) -> str:
        """What is trained: ``interval 2 of 3``, or ``population 1 of 2, interval 2 of 3``."""
        of = f"population {self.population + 1} of {self.populations}, " if self.populations > 1 else ""
        return f"{of}interval {self.interval + 1} of {self.intervals}"

    @property
    def after(self) -> str | None:
        """Where the members were compared last, ``interval 1 of 3``; None before that."""
        return None if self.compared is None else f"interval {self.compared + 1} of {self.intervals}"


def reached(run: TicketRow) -> float | None:
    """Return the finite value with which a run came to the end of its interval; None: it did not."""
    there = run.outcome in _GOT_THERE and run.value is not None and math.isfinite(run.value)
    return run.value if there else None


def ends_with_interval(run: TicketRow, spec: StudySpec) -> Place | None:
    """Return where a run is that ended with an interval of a population before its last; None: it is none."""
    population = spec.study.population
    if population is None or run.kind != "search" or run.outcome != "pruned":
        return None
    place = population.place(run.number)
    return place if place.interval < population.intervals - 1 else None


def lineage(rows: Iterable[TicketRow], spec: StudySpec) -> list[Member]:
    """Return the search trials of a study with a population that were begun, by number.

    Args:
        rows: Tickets; those of other kinds are passed over.
        spec: The study's spec, whose sampler is ``population``.
    """
    population = spec.study.population
    assert population is not None
    begun = {row.number: row for row in rows if row.kind == "search" and row.sampled is not None}
    found = []
    for number, row in sorted(begun.items()):
        place = population.place(number)
        parent = _parent(place, population, begun, spec)
        sampled = row.sampled or {}
        first, last = (sampled[name] for name in population.names(place.interval)[-2:])
        found.append(
            Member(
                run=row,
                place=place,
                parent=None if parent is None else begun[population.number(parent)],
                parent_place=parent,
                taus=(first, last),
            )
        )
    return found


def _parent(
    place: Place, population: Population, begun: Mapping[int, TicketRow], spec: StudySpec
) -> Place | None:
    if place.interval == 0:
        return None
    # it loads Optuna, for which who looks at other studies should not wait
    from tempopt.sampling.population import parent

    before = [Place(place.population, place.interval - 1, member) for member in range(population.members)]
    there = {each: begun[number] for each in before if (number := population.number(each)) in begun}
    decided = parent(place, population, {each.member: reached(row) for each, row in there.items()}, spec)
    # a trial that was lost then, and was trained again since, would lead elsewhere: what it tries tells
    last = population.names(place.interval)[-1]
    own = _but(begun[population.number(place)].sampled or {}, last)
    alike = [each for each, row in there.items() if row.sampled == own]
    if decided in alike:
        return decided
    return next((each for each in alike if each.member == place.member), next(iter(alike), None))


def _but(sampled: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {each: value for each, value in sampled.items() if each != name}


def ancestry(members: Sequence[Member], parameters: Parameters, spec: StudySpec) -> list[Member]:
    """Return whom a parameter set came from, the first interval's first; empty: no member trained it whole.

    Args:
        members: Those of :func:`lineage`.
        parameters: A parameter set of a trial of the last interval, as the winner of a search.
        spec: The study's spec.
    """
    population = spec.study.population
    assert population is not None
    key = training_key(parameters)
    whole = [
        each
        for each in members
        if each.place.interval == population.intervals - 1
        and each.value is not None
        and training_key(each.run.parameters or {}) == key
    ]
    if not whole:
        return []
    by_number = {each.run.number: each for each in members}
    line = [
        max(whole, key=lambda each: (oriented(each.value or 0.0, spec.study.direction), -each.run.number))
    ]
    while (parent := line[0].parent) is not None:
        line.insert(0, by_number[parent.number])
    return line


def latest(rows: Iterable[TicketRow], spec: StudySpec) -> Latest | None:
    """Return how far the population is that was begun last; None: the study has none, or it has not begun."""
    population = spec.study.population
    if population is None:
        return None
    search = {row.number: row for row in rows if row.kind == "search" and row.state != "withdrawn"}
    begun = [number for number, row in search.items() if row.sampled is not None or row.state in OVER]
    if not begun:
        return None
    which = population.place(max(begun)).population
    compared, best = None, None
    for interval in range(population.intervals):
        numbers = [population.number(Place(which, interval, each)) for each in range(population.members)]
        there = [search[number] for number in numbers if number in search]
        if len(there) < len(numbers) or any(row.state not in OVER for row in there):
            break
        compared = interval
        got = [row for row in there if reached(row) is not None]
        best = max(
            got,
            key=lambda row: (oriented(row.value or 0.0, spec.study.direction), -row.number),
            default=None,
        )
    now = 0 if compared is None else min(compared + 1, population.intervals - 1)
    return Latest(
        population=which,
        interval=now,
        compared=compared,
        best=best,
        populations=len(search) // population.trials,
        intervals=population.intervals,
    )

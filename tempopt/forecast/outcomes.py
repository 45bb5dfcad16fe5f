"""Studies in memory whose runs train nothing: which tickets there are if the runs turn out in some way.

Which tickets follow is decided by ``tempopt.confirmation`` alone; made up is what a run tries, and its value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from tempopt.confirmation.stages import first_tickets, next_tickets
from tempopt.confirmation.timing import timing_runs
from tempopt.records.rows import NewTicket, Parameters, TicketRow
from tempopt.records.tickets import arms_of, oriented
from tempopt.sampling.initial_design import first_trial
from tempopt.sampling.unit_cube import at_place, at_places
from tempopt.seeds import derive
from tempopt.spec.constants import constant_grid
from tempopt.spec.domains import Choices
from tempopt.spec.search_space import Arm, distinct
from tempopt.spec.sections import FEWEST, KNOWLEDGE_GRADIENT
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import (
    GENERATION,
    NEUTRAL,
    NORMALISATION,
    active_groups,
    constant_levels,
    constant_plans,
    is_neutral,
    mean_level,
    temperatures_of,
    training_key,
)

if TYPE_CHECKING:
    from tempopt.confirmation.selection import Recommend

CLEAR_GAIN = 3.0
"""Gain of a drawn study that has one, in standard deviations of a pair's difference."""

_POINTS = 40
_NOISE = 0.01
_FAR = 1e6
_BEHIND = 1.2
_CLIMBED = 3
_TWO = 2
_PLACES = (0.25, 0.75)


class Outcome(Protocol):
    """How the runs of a study turn out."""

    def sampled(self, ticket: NewTicket, place: int) -> dict[str, Any]:
        """Return the values of its arm's space that a ticket tries.

        Args:
            ticket: A ticket whose parameters are sampled.
            place: Its number in its arm.
        """

    def value(self, row: TicketRow) -> float:
        """Return what a run comes to, more being better."""


@dataclass(frozen=True, slots=True)
class Made:
    """A study in memory that is over.

    Args:
        batches: Its tickets, by what was planned together: a batch begins when the one before it is over.
    """

    batches: tuple[tuple[TicketRow, ...], ...]

    @property
    def rows(self) -> list[TicketRow]:
        """All tickets, in their order."""
        return [row for batch in self.batches for row in batch]


def carried_out(spec: StudySpec, outcome: Outcome, recommend: Recommend | None = None) -> Made:
    """Return a study from its first ticket to its last, as its runs turn out.

    Args:
        spec: The study's spec.
        outcome: What its runs try, and what they come to.
        recommend: As for :func:`tempopt.confirmation.stages.next_tickets`.
    """
    rows: list[TicketRow] = []
    batches: list[tuple[TicketRow, ...]] = []
    given = () if recommend is None else (recommend,)
    new = first_tickets(spec)
    while new:
        batch = tuple(_done(ticket, len(rows) + at, spec, outcome) for at, ticket in enumerate(new))
        rows += batch
        batches.append(batch)
        new = next_tickets(rows, spec, *given)
    return Made(tuple(batches))


def _done(new: NewTicket, id: int, spec: StudySpec, outcome: Outcome) -> TicketRow:
    """Return a ticket as the store has it once its run is complete."""
    parameters, sampled = new.parameters, new.sampled
    if parameters is None:
        arm = cast(Arm, new.arm)
        # the rematch continues the numbers of the baseline
        place = new.number + spec.num_baseline * (new.kind == "rematch")
        sampled = {**outcome.sampled(new, place), **(sampled or {})}
        parameters = spec.parameters(arm, sampled)
    row = as_row(
        new,
        id,
        state="done",
        outcome="complete",
        attempt=1,
        parameters=parameters,
        sampled=sampled,
    )
    return dataclasses.replace(row, value=oriented(outcome.value(row), spec.study.direction))


_REQUIRED = [each.name for each in dataclasses.fields(TicketRow) if each.default is dataclasses.MISSING]
_NEW = [each.name for each in dataclasses.fields(NewTicket)]


def as_row(new: NewTicket, id: int, **others: Any) -> TicketRow:
    """Return a ticket as the store has it, with other values of a row."""
    values: dict[str, Any] = {**dict.fromkeys(_REQUIRED), "id": id, "study_id": 0, "seconds": 0.0}
    return TicketRow(**{**values, **{name: getattr(new, name) for name in _NEW}, **others})


class Space:
    """The space that a study searches, as far as it decides which runs there are.

    Args:
        spec: The study's spec.
    """

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self._constants = spec.constants()
        self._parts: dict[str, int] = {}

    def drawn(self, ticket: NewTicket, place: int, seed: int) -> dict[str, Any]:
        """Return a point drawn for a ticket from its arm's space; of a constant, its temperature."""
        found = self._point(cast(Arm, ticket.arm), place, seed)
        return found | (self._constants[place] if ticket.kind == "constant" else {})

    def _point(self, arm: Arm, place: int, seed: int) -> dict[str, Any]:
        space = self.spec.space(arm)
        return at_places(space, np.random.default_rng(derive(seed, arm, place)).random(len(space)).tolist())

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        """Points of the search's space that train differently; τ = 1 is among them where it is there."""
        drawn = (self._point("search", place, 0) for place in range(_POINTS))
        points = [first_trial(self.spec, "search", 0, seed=0), *drawn]
        return list({distinct(self.parameters(each)): each for each in points}.values())

    def parameters(self, point: dict[str, Any]) -> Parameters:
        """Return the parameter set of a point of the search's space."""
        return self.spec.parameters("search", point)

    def parts(self, parameters: Parameters) -> int:
        """Return how many parts a plan has that could be taken away."""
        key = training_key(parameters)
        if key not in self._parts:
            methods = {
                name: NEUTRAL[name] if name in NORMALISATION else self.spec.search[name].baseline
                for name in self.spec.method_names
            }
            changed = sum(parameters.get(name, value) != value for name, value in methods.items())
            drawn = (name for name in GENERATION if name in self.spec.search)
            changed += any(parameters.get(name, NEUTRAL[name]) != NEUTRAL[name] for name in drawn)
            self._parts[key] = len(active_groups(parameters)) + changed
        return self._parts[key]

    @cached_property
    def most_parts(self) -> int:
        """The number of parts of a plan that has as many as any."""
        return max(self.parts(self.parameters(each)) for each in self.points)

    @cached_property
    def by_parts(self) -> list[dict[str, Any]]:
        """The points but τ = 1, those with the fewest parts first."""
        others = [each for each in self.points if not is_neutral(self.parameters(each))]
        return sorted(others, key=lambda each: self.parts(self.parameters(each)))

    @cached_property
    def richest(self) -> list[list[dict[str, Any]]]:
        """The points, with others that have more parts, in one or two orders.

        Those first that have the most parts of a plan; and, where others have more methods, those first that
        have the most of these: under some normalisers a plan has no entropy term.
        """
        plans = self._climbed(self.riches)
        methods = self._climbed(lambda point: self.riches(point)[::-1])
        return [plans] if self.riches(plans[0]) == self.riches(methods[0]) else [plans, methods]

    def _climbed(self, riches: Callable[[dict[str, Any]], tuple[int, int]]) -> list[dict[str, Any]]:
        drawn = sorted(self.points, key=riches, reverse=True)
        found = []
        for point in drawn[:_CLIMBED]:
            for name, values in 2 * [*self._values.items()]:
                point = max((point, *({**point, name: value} for value in values)), key=riches)
            found.append(point)
        known = {distinct(self.parameters(each)): each for each in [*found, *drawn]}
        return sorted(known.values(), key=riches, reverse=True)

    @cached_property
    def _values(self) -> dict[str, list[Any]]:
        return {
            name: list(domain.choices)
            if isinstance(domain := self.spec.search[name], Choices)
            else [at_place(each, place) for place in _PLACES]
            for name, each in self.spec.space("search").items()
        }

    def riches(self, point: dict[str, Any]) -> tuple[int, int]:
        """Return how many parts of its plan a point has, and how many methods."""
        parameters = self.parameters(point)
        plan = len(active_groups(parameters))
        return plan, self.parts(parameters) - plan

    @cached_property
    def at_one(self) -> list[dict[str, Any]]:
        """The points that are τ = 1."""
        return [each for each in self.points if is_neutral(self.parameters(each))]


class Drawn:
    """Runs that try points drawn from the space, with normal noise: a study as it may well turn out.

    Args:
        space: What is searched.
        gain: What a plan with all parts is worth, in standard deviations of a pair's difference; one with
            some of them is worth its share.
        seed: All that is drawn follows from it.
        correlation: Of two runs that share a seed, in [0, 1).
    """

    def __init__(self, space: Space, *, gain: float, seed: int, correlation: float = 0.0) -> None:
        self._space = space
        self._seed = seed
        self._common, self._own = math.sqrt(correlation), math.sqrt(1 - correlation)
        self.difference = _NOISE * self._own * math.sqrt(2.0)
        """Standard deviation of a pair's difference."""
        self._gain = gain * self.difference

    def sampled(self, ticket: NewTicket, place: int) -> dict[str, Any]:
        """Return a point drawn from the space; of a constant, its temperature."""
        return self._space.drawn(ticket, place, self._seed)

    def value(self, row: TicketRow) -> float:
        """Return gain and noise, the same for the same parameters and seed."""
        parameters = row.parameters or {}
        own, common = (
            np.random.default_rng(derive(self._seed, *parts)).standard_normal()
            for parts in ((training_key(parameters), row.kind, row.seed), ("seed", row.seed))
        )
        gain = 0.0
        if self._gain and self._space.most_parts:
            gain = self._gain * self._space.parts(parameters) / self._space.most_parts
        return float(gain + _NOISE * (self._own * own + self._common * common))


@dataclass(frozen=True, slots=True, kw_only=True)
class Extreme:
    """Runs that turn out so that as few, or as many, others follow as can be.

    Args:
        space: What is searched.
        best: The values of the search's space that its first trials try, best first.
        ties: Whether candidates are equal, so that none is dropped; else the first look drops all but one.
        own: Whether the rematch finds nothing better than the winner's own other parameters.
        exchanged: Whether the winner is better with the baseline's other parameters.
        ahead: Whether the winner is ahead on the confirming seeds, by too little to stop; else it is behind.
        simpler: Which of the simpler plans alone is as good as the winner, from 0.
    """

    space: Space
    best: list[dict[str, Any]]
    ties: bool
    own: bool
    exchanged: bool
    ahead: bool
    simpler: int = 0

    def sampled(self, ticket: NewTicket, place: int) -> dict[str, Any]:
        """Return the best points first, then others; of a constant, its temperature."""
        if ticket.kind == "search":
            # what study.enqueue gives is no part of them: the trials after it begin anew
            given = len(self.space.spec.study.enqueue) if self.ties else 0
            place_of_best = place - given if place >= given else place
            if place_of_best < len(self.best):
                return self.best[place_of_best]
        return self.space.drawn(ticket, place, 0)

    def value(self, row: TicketRow) -> float:
        """Return a value that has no noise."""
        match row.kind:
            case "constant":
                return -float(row.number) - _FAR * (self._alike(row.parameters or {}) == self.ties)
            case "search" if self.ties:
                own = distinct(row.parameters or {}) == distinct(self.space.parameters(self.best[0]))
                return _FAR * own - row.number
            case "baseline" | "search":
                return -float(row.number)
            case "rematch":
                # the first one tries the winner's own
                return (1.0 if self.own else -1.0) if row.number == 0 else 0.5 - 0.001 * row.number
            case "choose":
                return self._chosen(row)
        if "search" not in arms_of(row):
            return 0.0
        if not self.ahead:
            return -1.0
        assert row.pair is not None
        return 1.0 if row.pair % 2 == 0 else -0.9

    def _alike(self, constant: Parameters) -> bool:
        """Whether a constant shares runs with the baseline, or with the winner without its other parts."""
        return _is_level_of(constant, self.space.parameters(self.best[0]))

    def _chosen(self, row: TicketRow) -> float:
        rank = row.candidate or 0
        if row.arm == "exchange":
            return 0.0 if rank == 0 else 1.0 if self.exchanged else -1.0
        if row.arm == "simpler":
            # ranks 0 and 1 are the winner and the baseline
            return 2.0 if rank in (0, 2 + self.simpler) else -5.0
        low = -5.0 if row.arm == "baseline" else 0.0
        if row.arm == "constant" and is_neutral(row.parameters or {}):
            # the baseline, behind the winner by no more than noise: a simpler plan may then do as well
            low -= _BEHIND / self.space.spec.study.seeds.choose
        if not self.ties:
            return low - rank
        assert row.pair is not None
        # as good as each other, with noise; on an odd number of seeds the search's first is the best, and
        # among constants a middle one, which no other arm trains
        noise = (row.pair + rank + (row.arm == "search")) % 2
        return low + noise + (0.1 if row.arm == "constant_twin" and rank == 1 else 0.0)


def fewest(spec: StudySpec) -> Iterator[Made]:
    """Yield studies of which one has as few runs as a study can have whose search is not ended before."""
    space = Space(by_students_test(spec))
    plainest = [*space.by_parts, *space.at_one]
    tunes = (False, True) if spec.other_names else (False,)
    for own in tunes:
        yield _extreme(space, plainest, own=own)
    yield _extreme(space, plainest, exchanged=True)
    if space.at_one:
        yield _extreme(space, [*space.at_one, *space.by_parts])


def most(spec: StudySpec) -> Iterator[Made]:
    """Yield studies of which one has as many runs as a study can have."""
    # a gain that is shown at the last look takes the winner apart, as "full" does in any case
    full = {"ablation": "full"} if spec.study.ablation == "auto" else {}
    space = Space(by_students_test(spec, **full))
    for best in space.richest:
        # of two parts one alone may be what is confirmed, or trained without the other anyway
        both = spec.study.ablation != "none" and space.riches(best[0])[0] == _TWO
        for exchanged in (False, True) if spec.other_names else (False,):
            for simpler in (0, 1) if both else (0,):
                yield _extreme(space, best, many=True, exchanged=exchanged, simpler=simpler)


def _extreme(
    space: Space,
    best: list[dict[str, Any]],
    *,
    many: bool = False,
    own: bool = False,
    exchanged: bool = False,
    simpler: int = 0,
) -> Made:
    outcome = Extreme(
        space=space, best=best, ties=many, own=own, exchanged=exchanged, ahead=many, simpler=simpler
    )
    if not many:
        return carried_out(space.spec, outcome)
    made = carried_out(space.spec, outcome, _named(space, best))
    # these follow where a gain is shown, which no values show at the last look and at none before
    timed = [
        _done(new, len(made.rows) + place, space.spec, outcome)
        for place, new in enumerate(timing_runs(made.rows, space.spec))
    ]
    return Made((*made.batches, tuple(timed))) if timed else made


def _is_level_of(constant: Parameters, best: Parameters) -> bool:
    """Whether constants are neutral, or among those that stand in for the schedules of the best."""
    return is_neutral(constant) or all(
        mean_level(constant, name) in constant_levels(best, name) for name in temperatures_of(constant)
    )


def _named(space: Space, best: list[dict[str, Any]]) -> Recommend | None:
    """Return what names as many candidates as there may be; tempopt's sampler names untried sets, too."""
    spec = space.spec
    if spec.study.sampler.name != KNOWLEDGE_GRADIENT:
        return None

    def named(arm: Any, count: int) -> list[Parameters]:
        runs = {"search": spec.study.trials, "constant": spec.num_constant}.get(arm, 0)
        if runs < FEWEST or not spec.space(arm):
            return []
        if arm == "search":
            return [space.parameters(each) for each in best[:count]]
        first = space.parameters(best[0])
        # one of them may be neutral besides
        grid = constant_grid(spec.space(), count + len(constant_plans(first)) + 1)
        found = [spec.parameters("constant", each) for each in grid]
        return [each for each in found if not _is_level_of(each, first)][:count]

    return named


def likely(spec: StudySpec, studies: int) -> Iterator[tuple[bool, Made]]:
    """Yield drawn studies, of which every other one has a clear gain, each with whether it has."""
    space = Space(by_students_test(spec))
    for number in range(studies):
        gains = bool(number % 2)
        outcome = Drawn(space, gain=CLEAR_GAIN * gains, seed=number)
        yield gains, carried_out(space.spec, outcome)


def by_students_test(spec: StudySpec, **study: Any) -> StudySpec:
    """Return the spec with Student's test: others take longer, and stop hardly elsewhere."""
    data = spec.to_json()
    own = {**data["study"], "test": "t", **study}
    return StudySpec.from_json({**data, "study": own})

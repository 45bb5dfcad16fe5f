"""Studies in memory whose runs train nothing: which tickets there are if the runs turn out in some way.

Which tickets follow is decided by ``tempopt.confirmation`` alone; made up is what a run tries, and its value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from tempopt.confirmation.stages import first_tickets, next_tickets
from tempopt.records.rows import NewTicket, Parameters, TicketRow
from tempopt.records.tickets import arms_of, oriented
from tempopt.sampling.initial_design import first_trial
from tempopt.sampling.unit_cube import at_places
from tempopt.seeds import derive
from tempopt.spec.search_space import Arm, distinct
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import active_groups, is_neutral, training_key

if TYPE_CHECKING:
    from tempopt.confirmation.selection import Recommend

CLEAR_GAIN = 3.0
"""Gain of a drawn study that has one, in standard deviations of a pair's difference."""

_POINTS = 40
_NOISE = 0.01


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
    values: dict[str, Any] = {
        each.name: None for each in dataclasses.fields(TicketRow) if each.default is dataclasses.MISSING
    }
    known = {each.name: getattr(new, each.name) for each in dataclasses.fields(new)}
    values |= {"id": id, "study_id": 0, "state": "done", "outcome": "complete", "attempt": 1, "seconds": 0.0}
    row = TicketRow(**{**values, **known, "parameters": parameters, "sampled": sampled})
    return dataclasses.replace(row, value=oriented(outcome.value(row), spec.study.direction))


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
        return found | ({"temperature_init": self._constants[place]} if ticket.kind == "constant" else {})

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
            values = {name: self.spec.search[name].baseline for name in self.spec.method_names}
            methods = sum(parameters.get(name, value) != value for name, value in values.items())
            self._parts[key] = len(active_groups(parameters)) + methods
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
    """

    space: Space
    best: list[dict[str, Any]]
    ties: bool
    own: bool
    exchanged: bool
    ahead: bool

    def sampled(self, ticket: NewTicket, place: int) -> dict[str, Any]:
        """Return the best points first, then others; of a constant, its temperature."""
        if ticket.kind == "search" and place < len(self.best):
            return self.best[place]
        return self.space.drawn(ticket, place, 0)

    def value(self, row: TicketRow) -> float:
        """Return a value that has no noise."""
        match row.kind:
            case "constant":
                # the first one is τ = 1, which shares the runs of the baseline
                return float(row.number) if self.ties else -float(row.number)
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

    def _chosen(self, row: TicketRow) -> float:
        rank = row.candidate or 0
        if row.arm == "exchange":
            return 0.0 if rank == 0 else 1.0 if self.exchanged else -1.0
        if row.arm == "simpler":
            # ranks 0 and 1 are the winner and the baseline; a simpler plan is as good as the winner
            return -5.0 if rank == 1 else 2.0
        low = -5.0 if row.arm == "baseline" else 0.0
        if not self.ties:
            return low - rank
        assert row.pair is not None
        # as good as each other, with noise; among constants a middle one, which no other arm trains
        return low + (row.pair + rank) % 2 + (0.1 if row.arm == "constant_twin" and rank == 1 else 0.0)


def fewest(spec: StudySpec) -> Iterator[Made]:
    """Yield studies of which one has as few runs as a study can have whose search is not ended before."""
    space = Space(_by_students_test(spec))
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
    space = Space(_by_students_test(spec, **full))
    richest = space.by_parts[::-1]
    yield _extreme(space, richest, many=True)
    if spec.other_names:
        yield _extreme(space, richest, many=True, exchanged=True)


def _extreme(
    space: Space,
    best: list[dict[str, Any]],
    *,
    many: bool = False,
    own: bool = False,
    exchanged: bool = False,
) -> Made:
    outcome = Extreme(space=space, best=best, ties=many, own=own, exchanged=exchanged, ahead=many)
    return carried_out(space.spec, outcome)


def likely(spec: StudySpec, studies: int) -> Iterator[tuple[bool, Made]]:
    """Yield drawn studies, of which every other one has a clear gain, each with whether it has."""
    space = Space(_by_students_test(spec))
    for number in range(studies):
        gains = bool(number % 2)
        outcome = Drawn(space, gain=CLEAR_GAIN * gains, seed=number)
        yield gains, carried_out(space.spec, outcome)


def _by_students_test(spec: StudySpec, **study: Any) -> StudySpec:
    """Return the spec with Student's test: others take longer, and stop hardly elsewhere."""
    data = spec.to_json()
    return StudySpec.from_json({**data, "study": {**data["study"], "test": "t", **study}})

"""Studies in memory that compare the values of a parameter: how few and how many runs they may have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tempopt.confirmation.selection import Recommend
from tempopt.forecast.outcomes import CLEAR_GAIN, Drawn, Made, Space, carried_out
from tempopt.records.rows import NewTicket, Parameters, TicketRow
from tempopt.sampling.unit_cube import at_places
from tempopt.spec.sections import FEWEST, KNOWLEDGE_GRADIENT
from tempopt.spec.study_spec import StudySpec

_APART = 1.0
_NOISE = 0.001
_TWO = 2


class DrawnValues(Drawn):
    """Runs that try points drawn from the space, with normal noise, and values of which each is worth more.

    Args:
        space: What is searched.
        gain: What the last value is worth over the first, in standard deviations of a pair's difference.
        seed: All that is drawn follows from it.
    """

    def __init__(self, space: Space, *, gain: float, seed: int) -> None:
        super().__init__(space, gain=0.0, seed=seed)
        self._spec, self._step = space.spec, gain * self.difference / (len(space.spec.compared_values) - 1)

    def value(self, row: TicketRow) -> float:
        """Return noise, and what its value is worth."""
        return super().value(row) + self._step * (_place(row.parameters or {}, self._spec) or 0)


class ExtremeValues:
    """Runs that turn out so that as few, or as many, others follow as can be.

    Args:
        space: What is searched.
        ties: Whether candidates are equal, and values too, so that all pairs are trained; else the first look
            at candidates leaves one, and that at values shows each to differ from each.
    """

    def __init__(self, space: Space, *, ties: bool) -> None:
        self._space, self._ties = space, ties

    def sampled(self, ticket: NewTicket, place: int) -> dict[str, Any]:
        """Return a point drawn from the space."""
        return self._space.drawn(ticket, place, 0)

    def value(self, row: TicketRow) -> float:
        """Return a value that has next to no noise."""
        if row.kind == "search":
            return -float(row.number)
        assert row.pair is not None
        if row.kind == "choose":
            rank = row.candidate or 0
            return float((row.pair + rank) % _TWO) if self._ties else -float(rank)
        if self._ties:
            return 0.0
        place = _place(row.parameters or {}, self._space.spec) or 0
        return place * (_APART + _NOISE * (row.pair % _TWO))


def _place(parameters: Parameters, spec: StudySpec) -> int | None:
    values = enumerate(spec.compared_values)
    return next((n for n, each in values if parameters.get(each.parameter) == each.value), None)


def fewest_runs(space: Space) -> Made:
    """Return a study that has as few runs as one can have whose search is not ended before."""
    return carried_out(space.spec, ExtremeValues(space, ties=False))


def most_runs(space: Space) -> Made:
    """Return a study that has as many runs as one can have."""
    return carried_out(space.spec, ExtremeValues(space, ties=True), _named(space))


def likely_runs(space: Space, studies: int) -> Iterator[tuple[bool, Made]]:
    """Yield drawn studies, every other one with values that differ clearly, each with whether they do."""
    for number in range(studies):
        differ = bool(number % _TWO)
        outcome = DrawnValues(space, gain=CLEAR_GAIN * differ, seed=number)
        yield differ, carried_out(space.spec, outcome)


def _named(space: Space) -> Recommend | None:
    """Return what names as many candidates as there may be; tempopt's sampler names untried sets, too."""
    spec = space.spec
    values = {each.name: each.sampled for each in spec.compared_values}
    if spec.study.sampler.name != KNOWLEDGE_GRADIENT:
        return None

    def named(arm: Any, count: int) -> list[Parameters]:
        if spec.study.trials // len(values) < FEWEST:
            return []
        searched = spec.space()
        places = ((number + 1) / (count + 1) for number in range(count))
        points = (at_places(searched, [place] * len(searched)) for place in places)
        return [spec.parameters("search", each | values[arm]) for each in points]

    return named

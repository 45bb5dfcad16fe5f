"""What the members of a population try: draws of the first interval, and who goes on from whom after it.

Population based training (Jaderberg et al. 2017) with truncation selection. All of it follows from the
study's seed and the results of the intervals before, whoever trained them and in whatever order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import FloatDistribution

from tempopt.sampling.initial_design import first_trial
from tempopt.sampling.unit_cube import at_place, place_of
from tempopt.seeds import derive
from tempopt.spec.population import FIRST, Place, Population
from tempopt.spec.sections import POPULATION

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

REPLACED = 0.25
"""Share of the members that take over a better one, and share of those that are taken over."""
EXPLORES = 0.25
"""Standard deviation of the step to a new temperature of who has taken over another one's, as a share of the
logarithmic range."""
GOES_ON = 0.05
"""The same of who goes on from itself."""


class PopulationSearch:
    """The search arm of a study whose sampler is ``population``.

    Args:
        spec: The study's spec.
        population: What its sampler was asked for.
    """

    def __init__(self, spec: StudySpec, population: Population) -> None:
        self._spec = spec
        self._population = population
        self._space = spec.space("search")
        self._asked: dict[int, dict[str, Any]] = {}
        self._values: dict[int, float | None] = {}

    def asked(self, number: int, sampled: Mapping[str, Any]) -> None:
        """Take in what a search ticket tries."""
        self._asked[number] = dict(sampled)

    def told(self, number: int, value: float | None) -> None:
        """Take in what a search ticket came to at the end of its interval; None: it did not get there."""
        self._values[number] = value

    def sample(self, number: int) -> dict[str, Any]:
        """Return what a search ticket tries: values of the search space, its temperatures up to its end.

        All tickets of the interval before have to be told.
        """
        place = self._population.place(number)
        if place.interval == 0:
            return self._begun(place)
        parent = self._parent(place)
        if parent is None:
            return self._begun(place)
        name = self._population.names(place.interval)[-1]
        before = self._population.names(place.interval)[-2]
        inherited = self._asked[self._population.number(parent)]
        spread = GOES_ON if parent.member == place.member else EXPLORES
        return {**inherited, name: self._near(name, inherited[before], spread, place)}

    def _begun(self, place: Place) -> dict[str, Any]:
        """Return draws of all that is searched; the temperature is constant up to the interval's end."""
        count = place.population * self._population.members + place.member
        if place.interval:
            # nobody of the interval before has got to its end: others than those are tried
            count += (place.interval + 1) * self._population.trials
        drawn = first_trial(self._spec, "search", count, seed=self._spec.study.seed)
        found = {name: value for name, value in drawn.items() if name not in self._population.temperatures}
        for name in self._population.names(place.interval):
            space = self._space[name]
            assert isinstance(space, FloatDistribution)
            found[name] = min(max(float(drawn[FIRST]), space.low), space.high)
        return found

    def _near(self, name: str, temperature: float, spread: float, place: Place) -> float:
        space = self._space[name]
        step = spread * float(_generator("step", place, self._spec).standard_normal())
        found = at_place(space, min(max(place_of(space, temperature) + step, 0.0), 1.0))
        assert isinstance(found, float)
        return found

    def _parent(self, place: Place) -> Place | None:
        """Return whose schedule a member goes on with, its own or a better one's; None: there is none."""
        beside = (
            Place(place.population, place.interval - 1, each) for each in range(self._population.members)
        )
        values = {each.member: self._values[self._population.number(each)] for each in beside}
        return parent(place, self._population, values, self._spec)


def parent(
    place: Place, population: Population, values: Mapping[int, float | None], spec: StudySpec
) -> Place | None:
    """Return whose schedule a member goes on with, its own or a better one's; None: there is none.

    Args:
        place: Of the member, behind the first interval.
        population: The options of the sampler.
        values: By member what the trials of the interval before came to; None or not finite: they did not get
            to its end.
        spec: The study's spec.
    """
    sign = 1.0 if spec.study.direction == "maximize" else -1.0
    known = {
        member: sign * value for member, value in values.items() if value is not None and math.isfinite(value)
    }
    if not known:
        return None
    # of equal values the earlier goes first
    ranked = sorted(known, key=lambda member: (-known[member], member))
    moved = max(1, math.floor(REPLACED * population.members))
    lost = population.members - len(ranked)
    staying = ranked[: max(1, len(ranked) - max(0, moved - lost))]
    if place.member in staying:
        return Place(place.population, place.interval - 1, place.member)
    donors = staying[:moved]
    drawn = int(_generator("donor", place, spec).integers(len(donors)))
    return Place(place.population, place.interval - 1, donors[drawn])


def _generator(what: str, place: Place, spec: StudySpec) -> np.random.Generator:
    parts = (place.population, place.interval, place.member)
    return np.random.default_rng(derive(spec.study.seed, POPULATION, what, *parts))

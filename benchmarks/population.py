"""What does a search by a population come to, beside the default sampler with as many training steps?

Worlds in closed form in which a training has a course: what its temperature does to it adds up step by step,
so that trainings with one beginning are the same up to where their schedules part, chance included. Each
world has a best course of ln τ, drawn at random: constant, a straight line, or a line with a bend at each of
two places. In most classes a validation shows what the training has come to so far; in two of them it shows
besides how well the temperature of the moment suits a goal that the end does not have.

A share is the true value of what is named: 1 is the best schedule, 0 is τ = 1. Both searches have the steps
of 8 or 16 whole trainings. The default one has 4 workers, and samples start, end and shape of the schedule,
as the bundled studies do, or the knots of the population. The population's steps to new temperatures were
chosen on even draws; the table is of odd ones.

    python -m benchmarks.population --draws 40
    python -m benchmarks.population --draws 40 --choose     # the steps of the population, on even draws
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded.world import Training
from benchmarks.simulated.clock import simulate
from benchmarks.simulated.tuners import TUNERS
from tempopt.sampling import population as ours
from tempopt.sampling.population import PopulationSearch
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import TemperatureParameters

Array = NDArray[np.float64]
Parameters = Mapping[str, Any]

BINS = 50
"""Parts of a training in which the temperature is taken to be constant."""
BUDGETS = (8, 16)
SPAN = np.log(4.0)
_TAU = {"low": 0.25, "high": 4.0}
_PLAIN = {"temperature_init": _TAU, "temperature_final": _TAU, "schedule": ["constant", "linear", "cosine"]}
LEAST = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A class of worlds.

    Args:
        bends: Places at which the best course bends; None: it is constant.
        noise: Standard deviation of a whole training's own chance, in units of the known gain.
        misleads: How much of what a validation shows before the end is about another goal.
    """

    bends: int | None
    noise: float = 0.3
    misleads: float = 0.0


KINDS = {
    "constant": Kind(bends=None),
    "line": Kind(bends=0),
    "two bends": Kind(bends=2),
    "two bends, noise 1": Kind(bends=2, noise=1.0),
    "line, early values mislead": Kind(bends=0, misleads=1.0),
    "two bends, early values mislead": Kind(bends=2, misleads=1.0),
}


class Course:
    """One world.

    Args:
        name: Its class.
        draw: Which of the class.
        search: The section ``search:`` of its spec.
        study: More of the section ``study:``.
    """

    rungs = tuple(range(50, 501, 50))
    total_steps = rungs[-1]

    def __init__(self, name: str, draw: int, search: Mapping[str, Any], **study: Any) -> None:
        self.kind, self._mark = KINDS[name], _number(name, draw)
        self.spec = StudySpec.from_json(
            {
                "study": {"name": "course", "metric": "m", "direction": "maximize", "seed": draw, **study},
                "model": {"class_path": "made.up.Model", "init_args": {}},
                "trainer": {"max_steps": self.total_steps},
                "search": dict(search),
            }
        )
        rng = np.random.default_rng(self._mark)
        places = np.linspace(0.0, 1.0, BINS)
        while True:
            bends = self.kind.bends
            if bends is None:
                self._best = np.full(BINS, rng.uniform(-1, 1))
            else:
                knots = [0.0, *sorted(rng.uniform(0.1, 0.9, bends)), 1.0]
                self._best = np.interp(places, knots, rng.uniform(-1, 1, len(knots)))
            # what early steps decide may be lost later, or all
            self._weights = np.exp(rng.uniform(-1.5, 1.5) * places)
            self._weights /= self._weights.sum()
            if (gain := float(self._weights @ self._best**2)) >= LEAST:
                self._gain = gain
                break
        self._elsewhere = rng.uniform(-1, 1)

    def _harm(self, course: Array) -> Array:
        """Return by how much each part of a training makes it worse, in units of the known gain."""
        harm: Array = self._weights * (course - self._best) ** 2 / self._gain
        return harm

    def worth(self, parameters: Parameters) -> float:
        """Return what a schedule comes to in the mean over seeds, as a share of the known gain."""
        return 1.0 - float(self._harm(_course(_text(parameters))).sum())

    def shown(self, parameters: Parameters, seed: int) -> Array:
        """Return what a validation shows at the end of each part, under the temperature of the moment."""
        course = _course(_text(parameters))
        own = np.cumsum(_chance(self._mark, seed, course.tobytes())) / np.sqrt(BINS)
        grown = -3.0 * np.exp(-4.0 * np.linspace(1 / BINS, 1.0, BINS))
        goal = self.kind.misleads * (course - self._elsewhere) ** 2 * (1.0 - np.linspace(1 / BINS, 1.0, BINS))
        return 1.0 + grown - np.cumsum(self._harm(course)) + self.kind.noise * own - goal

    def train(self, parameters: Parameters, seed: int) -> Training:
        """Return a training as the simulated clock asks for it."""
        curve = self.shown(parameters, seed)[[rung * BINS // self.total_steps - 1 for rung in self.rungs]]
        return Training(final=curve, current=curve)


@lru_cache(maxsize=100_000)
def _course(text: tuple[tuple[str, str], ...]) -> Array:
    given = {name: _VALUES[name, value] for name, value in text}
    plan = TemperatureParameters.from_mapping(given).plan(1)
    along = [plan.temperatures((place + 0.5) / BINS)[0] for place in range(BINS)]
    return np.log(along) / SPAN


_VALUES: dict[tuple[str, str], Any] = {}


def _text(parameters: Parameters) -> tuple[tuple[str, str], ...]:
    _VALUES.update({(name, repr(value)): value for name, value in parameters.items()})
    return tuple((name, repr(value)) for name, value in sorted(parameters.items()))


@lru_cache(maxsize=20_000)
def _chance(mark: int, seed: int, course: bytes) -> Array:
    """Return the chance of each part: the same for all trainings whose courses are the same up to it."""
    size = len(course) // BINS
    parts = (hashlib.blake2b(course[: (n + 1) * size], digest_size=8).digest() for n in range(BINS))
    return np.array(
        [np.random.default_rng([mark, seed, int.from_bytes(each, "big")]).standard_normal() for each in parts]
    )


def _number(*given: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(given).encode(), digest_size=6).digest(), "big")


def by_population(name: str, draw: int, budget: int) -> float:
    """Return what the best member of a population comes to, with a member for each whole training."""
    sampler = {"name": "population", "members": budget, "intervals": 5}
    world = Course(name, draw, {"temperature_init": _TAU}, sampler=sampler)
    population = world.spec.study.population
    assert population is not None
    search, ended = PopulationSearch(world.spec, population), dict[int, float]()
    for number in range(population.trials):
        sampled = search.sample(number)
        search.asked(number, sampled)
        if number == population.last_beside(number):
            for each in range(number - population.members + 1, number + 1):
                parameters = world.spec.parameters("search", search.sample(each))
                until = population.until(each) or 1.0
                ended[each] = float(world.shown(parameters, draw)[max(round(until * BINS) - 1, 0)])
            for each in range(number - population.members + 1, number + 1):
                search.told(each, ended[each])
    last = range(population.trials - population.members, population.trials)
    best = max(last, key=lambda number: ended[number])
    return world.worth(world.spec.parameters("search", search.sample(best)))


def by_default(name: str, draw: int, budget: int, *, knots: bool) -> float:
    """Return what the default sampler and pruner name."""
    search: dict[str, Any] = _PLAIN
    if knots:
        inner = {f"temperature_knot_{number}": _TAU for number in range(1, 5)}
        search = {"temperature_init": _TAU, **inner, "temperature_final": _TAU, "schedule": ["piecewise"]}
    world = Course(name, draw, search, validate_at="current")
    made: list[Any] = []

    def make() -> Any:
        made.append(TUNERS["tempopt"](world, draw))  # type: ignore[arg-type]
        return made[0]

    simulate(world, make, budget=budget * world.total_steps, workers=4, seed=draw, see="current")  # type: ignore[arg-type]
    named: Sequence[Parameters] = made[0].named(1)
    return world.worth(named[0])


SEARCHES: dict[str, Callable[[str, int, int], float]] = {
    "population": by_population,
    "default, start and end": lambda name, draw, budget: by_default(name, draw, budget, knots=False),
    "default, knots": lambda name, draw, budget: by_default(name, draw, budget, knots=True),
}


def _said(shares: Sequence[float]) -> str:
    mean, error = np.mean(shares), np.std(shares, ddof=1) / np.sqrt(len(shares))
    return f"{mean:.2f} ± {error:.2f}"


def choose(draws: Sequence[int], budget: int) -> None:
    """Print what steps of several sizes come to, in the mean over the classes."""
    for explores, goes_on in itertools.product((0.08, 0.15, 0.25, 0.4), (0.0, 0.05, 0.1, 0.2)):
        ours.EXPLORES, ours.GOES_ON = explores, goes_on
        found = {name: [by_population(name, draw, budget) for draw in draws] for name in KINDS}
        each = ", ".join(f"{np.mean(shares):.2f}" for shares in found.values())
        mean = np.mean([np.mean(shares) for shares in found.values()])
        print(f"explores {explores}, goes on {goes_on}: {mean:.3f} ({each})", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--budget", type=int, nargs="+", default=BUDGETS)
    given = parser.parse_args()
    if given.choose:
        for budget in given.budget:
            print(f"budget {budget}")
            choose(range(0, given.draws, 2), budget)
        return
    print("| world | budget | " + " | ".join(SEARCHES) + " |")
    print("|---|---|" + "---|" * len(SEARCHES))
    for name, budget in itertools.product(KINDS, given.budget):
        found = [
            _said([search(name, draw, budget) for draw in range(1, given.draws, 2)])
            for search in SEARCHES.values()
        ]
        print(f"| {name} | {budget} | " + " | ".join(found) + " |", flush=True)


if __name__ == "__main__":
    main()

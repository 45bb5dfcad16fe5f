"""The sampler ``population`` as a spec asks for it: options, defaults, and what it cannot be used with.

Population based training of one temperature schedule: members train side by side and are compared at the
ends of intervals, where the worse go on from a better one with another temperature. What members
try in an interval is drawn in ``tempopt.sampling.population``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError, unknown
from tempopt.records.rows import Kind
from tempopt.spec.domains import Choices
from tempopt.spec.sections import POPULATION
from tempopt.temperature.entropy_control import CONTROL, has_target
from tempopt.temperature.groups import CREDITED, GROUPS
from tempopt.temperature.knots import INNER_KNOTS, KNOTS
from tempopt.temperature.named import split_name
from tempopt.temperature.plan import steps_until

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

MEMBERS, INTERVALS = 8, 5
"""What a population has unless a spec says otherwise."""
FEWEST_MEMBERS, MOST_MEMBERS = 4, 1000
FEWEST_INTERVALS, MOST_INTERVALS = 2, len(INNER_KNOTS) + 1

FIRST, LAST, SCHEDULE = "temperature_init", "temperature_final", "piecewise"
_OPTIONS = ("members", "intervals", "ends")
_GROWTH = 1.5
"""An interval is so many times as long as the one before it."""
_EXAMPLE = "[0.1, 0.3, 1]"
_WITH_IT = f"with sampler: {POPULATION}"
_NO_USE = f"given {_WITH_IT}, which has no use for it. Take it out."


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search ticket is among the populations of its study.

    Args:
        population: Which population, from 0; a study that is enlarged has several, one after another.
        interval: Which interval of its training, from 0.
        member: Which member, from 0.
    """

    population: int
    interval: int
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The options of ``study.sampler: population``.

    Args:
        members: Runs that train side by side, 4 to 1000.
        ends: Training progress at which each interval ends, in (0, 1], ascending; the last is 1.
    """

    members: int
    ends: tuple[float, ...]

    @property
    def intervals(self) -> int:
        """Number of intervals of a training, 2 to 5."""
        return len(self.ends)

    @property
    def trials(self) -> int:
        """Search trials of one population: each member of each interval is one."""
        return self.members * self.intervals

    @property
    def temperatures(self) -> tuple[str, ...]:
        """The sampled names of the temperatures at progress 0 and at the end of each interval."""
        return (FIRST, *INNER_KNOTS[: self.intervals - 1], LAST)

    def place(self, number: int) -> Place:
        """Return where the search ticket of a number is."""
        population, rest = divmod(number, self.trials)
        return Place(population, *divmod(rest, self.members))

    def number(self, place: Place) -> int:
        """Return the number of the search ticket at a place."""
        return place.population * self.trials + place.interval * self.members + place.member

    def last_beside(self, number: int) -> int:
        """Return the last number of the interval of a search ticket: those after it have to wait for it."""
        return number - number % self.members + self.members - 1

    def until(self, number: int) -> float | None:
        """Return the progress at which the run of a search ticket ends; None: it is trained to its end."""
        interval = self.place(number).interval
        return None if interval == self.intervals - 1 else self.ends[interval]

    def share(self, number: int) -> float:
        """Return which share of a whole training a search ticket adds to the one that it goes on from."""
        interval = self.place(number).interval
        return self.ends[interval] - (self.ends[interval - 1] if interval else 0.0)

    def names(self, interval: int) -> tuple[str, ...]:
        """Return the sampled names of the temperatures that count up to the end of a interval."""
        return self.temperatures[: interval + 2]

    def as_trained(self, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return sampled values with the temperatures as one list of knots, which is what is trained.

        Behind its last knot a schedule is constant.

        Args:
            sampled: Values by name, with the temperatures up to the end of an interval among them.
        """
        found = {name: value for name, value in sampled.items() if name not in self.temperatures}
        given = [
            (at, sampled.get(name)) for at, name in zip((0.0, *self.ends), self.temperatures, strict=True)
        ]
        knots = [[at, tau] for at, tau in given if tau is not None]
        if len(knots) == 1:
            knots.append([1.0, knots[0][1]])
        return {**found, "schedule": SCHEDULE, KNOTS: knots}


def population_of(options: Mapping[str, Any]) -> Population:
    """Return the population that the options of the sampler ask for.

    Raises:
        ValueError: An option is unknown or not as it has to be.
    """
    for name in options:
        if name not in _OPTIONS:
            raise ValueError(unknown(f"option of {POPULATION}", name, _OPTIONS))
    members = _whole(options, "members", MEMBERS, FEWEST_MEMBERS, MOST_MEMBERS)
    given = options.get("ends")
    count = _whole(
        options, "intervals", INTERVALS if given is None else None, FEWEST_INTERVALS, MOST_INTERVALS
    )
    ends = _growing(count) if given is None and count is not None else _ends(given)
    if count is not None and count != len(ends):
        raise ValueError(
            f"given {count} intervals and {len(ends)} ends. Give an end for each interval, or one of the two."
        )
    assert members is not None
    return Population(members=members, ends=ends)


def _whole(options: Mapping[str, Any], name: str, default: int | None, low: int, high: int) -> int | None:
    value = options.get(name, default)
    if value is None and name not in options:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"given {name}: {value!r}. Give a whole number from {low} to {high}.")
    return value


def _growing(count: int) -> tuple[float, ...]:
    lengths = [_GROWTH**place for place in range(count)]
    # few digits, since a person reads them in each schedule
    return (*(round(gone / sum(lengths), 3) for gone in [*accumulate(lengths)][:-1]), 1.0)


def _ends(given: object) -> tuple[float, ...]:
    asked = (
        f"Give {FEWEST_INTERVALS} to {MOST_INTERVALS} shares of training, ascending, of which the last is 1, "
        f"as in {_EXAMPLE}."
    )
    if not isinstance(given, list | tuple) or not FEWEST_INTERVALS <= len(given) <= MOST_INTERVALS:
        raise ValueError(f"given ends: {given!r}. {asked}")
    before = 0.0
    for each in given:
        number = isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
        if not number or not before < each <= 1.0:
            raise ValueError(f"given ends: {given!r}. {asked}")
        before = each
    if before != 1.0:
        raise ValueError(f"given ends: {given!r}. {asked}")
    return tuple(float(each) for each in given)


def with_population(given: object) -> object:
    """Return a spec with what follows from ``study.sampler: population``, where a person does not write it.

    These are the number of trials, one seed for all of them, no pruner, validation at the current
    temperature, and the temperatures at the ends of the intervals in the section ``search:``.
    """
    if not isinstance(given, Mapping) or not isinstance(study := given.get("study"), Mapping):
        return given
    asked = study.get("sampler")
    if study.get("evaluate_only") is not None:
        return given
    name, options = (asked, {}) if isinstance(asked, str) else (None, asked)
    if isinstance(options, Mapping) and "name" in options:
        name, options = options["name"], {key: each for key, each in options.items() if key != "name"}
    if name != POPULATION or not isinstance(options, Mapping):
        return given
    try:
        population = population_of(options)
    except ValueError:
        # what is wrong is told where the section is read
        return given
    defaults = {"trials": population.trials, "pruner": "none", "validate_at": "current"}
    defaults["parallel"] = population.members
    study = {**defaults, **study}
    if isinstance(seeds := study.get("seeds", {}), Mapping):
        study["seeds"] = {"search": 1, **seeds}
    search = given.get("search")
    if isinstance(search, Mapping) and isinstance(level := search.get(FIRST), Mapping):
        # with another schedule that one is the fault, and not what would be added here
        if search.get("schedule", [SCHEDULE]) in ([SCHEDULE], {"choices": [SCHEDULE]}):
            search = {**{each: level for each in population.temperatures}, **search, "schedule": [SCHEDULE]}
    return {**given, "study": study, **({} if search is None else {"search": search})}


def population_problems(spec: StudySpec) -> list[tuple[str, str]]:
    """Return what a spec with this sampler cannot have: the path of each fault, and the message."""
    population = spec.study.population
    if population is None:
        return []
    if spec.study.evaluate_only is not None:
        return [("study.evaluate_only", _NO_USE)]
    return [*_of_study(spec, population), *_of_training(spec, population), *_of_search(spec, population)]


def _of_study(spec: StudySpec, population: Population) -> list[tuple[str, str]]:
    study, limits, lines = spec.study, spec.study.limits, []
    if study.trials % population.trials:
        message = (
            f"given {study.trials} {_WITH_IT}, whose {population.members} members train "
            f"{population.intervals} intervals: each of these is a trial. Give {population.trials}, a "
            "multiple of it, or nothing."
        )
        lines.append(("study.trials", message))
    if study.pruner.name != "none":
        message = (
            f"given {study.pruner.name} {_WITH_IT}, which says itself who goes on. Give none, or nothing."
        )
        lines.append(("study.pruner", message))
    if study.validate_at != "current":
        message = (
            f"given {study.validate_at} {_WITH_IT}, whose members are compared before their last "
            "temperature is known. Give current, or nothing."
        )
        lines.append(("study.validate_at", message))
    if study.seeds.search != 1:
        message = (
            f"given {study.seeds.search} {_WITH_IT}, whose members go on from each other's checkpoints, "
            "and so have one seed. Give 1, or nothing."
        )
        lines.append(("study.seeds.search", message))
    taken_out = {
        "study.compare": study.compare is not None,
        "study.proxy": study.proxy is not None,
        "study.enqueue": bool(study.enqueue),
        "study.prior": study.prior is not None,
        "compare": spec.compare is not None,
    }
    lines += [(path, _NO_USE) for path, is_given in taken_out.items() if is_given]
    for name in ("hours", "gpu_hours"):
        if getattr(limits, name) is not None:
            message = (
                f"given {_WITH_IT}, whose trials are complete in its last interval alone: a search that ends "
                "before has nothing to choose from. Take it out, or have fewer members."
            )
            lines.append((f"study.limits.{name}", message))
    return lines


def _of_training(spec: StudySpec, population: Population) -> list[tuple[str, str]]:
    steps = spec.trainer.get("max_steps")
    if isinstance(steps, int) and steps > 0:
        ends = [0, *(steps_until(each, steps) for each in population.ends)]
        if any(begin == end for begin, end in itertools.pairwise(ends)):
            message = (
                f"given {steps} {_WITH_IT}, whose {population.intervals} intervals would end after "
                f"{', '.join(map(str, ends[1:]))} steps: one has none. Train longer, or give fewer intervals."
            )
            return [("trainer.max_steps", message)]
    if spec.trainer.get("callbacks"):
        message = (
            f"given with sampler: {POPULATION}. Callbacks may keep what is in no checkpoint, so that no "
            "member could go on from another one's. Take them out, or let the sampler be another one."
        )
        return [("trainer.callbacks", message)]
    return []


def _of_search(spec: StudySpec, population: Population) -> list[tuple[str, str]]:
    lines = []
    search, fixed = spec.search, spec.fixed_temperatures
    own = {*population.temperatures, "schedule"}
    moved = {*GROUPS["schedule"], *GROUPS["level"]}
    for name, domain in search.items():
        temperature, bare = split_name(name)
        if temperature and name in CREDITED:
            message = (
                f"{POPULATION} searches one temperature, that of attention, in whose schedules alone runs "
                "may differ that go on from each other. Take it out, or let the sampler be another one."
            )
            lines.append((f"search.{name}", message))
        elif bare == CONTROL:
            lines.append((f"search.{name}", _controlled()))
        elif name in population.temperatures:
            if isinstance(domain, Choices) or domain.step is not None or not domain.log:
                message = (
                    f"{POPULATION} multiplies temperatures by factors, and needs a logarithmic range. "
                    "Give {low: ..., high: ...} without log and step."
                )
                lines.append((f"search.{name}", message))
        elif name == "schedule":
            if not isinstance(domain, Choices) or domain.choices != (SCHEDULE,):
                lines.append((f"search.{name}", _scheduled()))
        elif bare in moved and name not in own:
            message = (
                f"{POPULATION} decides itself how the temperature moves: by that at the start, and those at "
                f"the ends of {population.intervals} intervals. Take it out."
            )
            lines.append((f"search.{name}", message))
    if FIRST not in search:
        message = (
            f"there is no {FIRST}, and {POPULATION} searches a schedule of attention's temperature. Give "
            f"one, as in {FIRST}: {{low: 0.25, high: 4}}, or let the sampler be another one."
        )
        lines.append(("search", message))
    if has_target(fixed):
        lines.append((f"model.init_args.{CONTROL}", _controlled()))
    for name in fixed:
        if name in moved and (name != "schedule" or fixed[name] != SCHEDULE):
            lines.append((f"model.init_args.{name}", _scheduled()))
    return lines


def _scheduled() -> str:
    return f"{POPULATION} searches a {SCHEDULE} schedule, knot by knot, and no other. Take it out."


def _controlled() -> str:
    return (
        f"under control of the entropy temperatures follow from the training, and {POPULATION} searches a "
        "schedule of them. Take it out, or let the sampler be another one."
    )


def ends_at(spec: StudySpec, kind: Kind, number: int) -> float | None:
    """Return the training progress, in (0, 1), at which a run ends; None: it is trained to its end.

    Args:
        spec: The study's spec.
        kind: Kind of the run.
        number: Its number among those of its kind.
    """
    population = spec.study.population if kind == "search" else None
    return None if population is None else population.until(number)


def refuse_part(spec: StudySpec, count: int) -> None:
    """Refuse to add search trials that are no whole populations.

    Raises:
        SpecError: The sampler is ``population``, and they are none.
    """
    population = spec.study.population
    if population is not None and count % population.trials:
        raise SpecError(
            f"{count} trials were to be added to a search by {POPULATION}, where one population has "
            f"{population.trials}. Give a multiple of that."
        )

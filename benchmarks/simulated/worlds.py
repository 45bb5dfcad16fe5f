"""Worlds in closed form, in which it is known what temperature is worth: nothing, or a gain of a chosen size.

A metric of a training is a smooth function of its parameters, plus what its seed does to every training, plus
what is its own. So a verdict can be held against what is true, and a claim be counted as false. Nothing is
trained and no class is imported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.recorded.world import Training
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import (
    AS_FOUND,
    LEARNED,
    LR_RATIOS,
    NEUTRAL,
    PLAN_PARAMETERS,
    TEMPERATURE_PARAMETERS,
    TemperatureParameters,
    drop_unused_params,
    initial_named_temperatures,
    join_name,
    neutral_values,
    parameters_of_temperature,
    progress,
    split_name,
)
from tempopt.training.messages import Evaluation

Array = NDArray[np.float64]
Parameters = Mapping[str, Any]

_POINTS = 9


@dataclass(frozen=True, slots=True)
class Course:
    """A temperature over training: logarithms of its ratio to that of the baseline, which is 0 everywhere.

    Args:
        mean: Mean over training.
        first: At its beginning.
        last: At its end.
        scaled: Whether it follows the length.
    """

    mean: float
    first: float
    last: float
    scaled: bool


def course(parameters: Mapping[str, Any], temperature: str = "") -> Course:
    """Return what a world looks at of a temperature of a parameter set; attention's, if none is named."""
    return _course(tuple((n, value) for n, value in parameters.items() if n in PLAN_PARAMETERS), temperature)


@lru_cache(maxsize=100_000)
def _course(parameters: tuple[tuple[str, Any], ...], temperature: str) -> Course:
    plan = parameters_of_temperature(dict(parameters), temperature)
    as_found_tau = initial_named_temperatures(dict(parameters)).get(temperature, 1.0)
    temperature_plan = TemperatureParameters.from_mapping(plan).plan(1)
    log_ratios = [
        math.log(temperature_plan.temperatures(progress(index, _POINTS))[0] / as_found_tau)
        for index in range(_POINTS)
    ]
    is_scaled = plan.get("length_scaling", "none") != "none"
    return Course(
        mean=math.fsum(log_ratios) / _POINTS,
        first=log_ratios[0],
        last=log_ratios[-1],
        scaled=is_scaled,
    )


def mean_course(courses: Sequence[Course]) -> Course:
    """Return the mean of several temperatures' courses."""
    return Course(
        mean=fmean(course.mean for course in courses),
        first=fmean(course.first for course in courses),
        last=fmean(course.last for course in courses),
        scaled=any(course.scaled for course in courses),
    )


# ---- chance: what a seed does to all of its trainings, and what each has of its own

Shape = Literal["normal", "heavy"]
"""Distribution of chance: normal, or Student's t with three degrees of freedom, of the same variance."""

SHARED = 0.01
"""Standard deviation of what a seed does to all of its trainings."""
RUN_SD = 0.01
"""Standard deviation of what is a training's own."""
PAIR = RUN_SD * math.sqrt(2.0)
"""Standard deviation of the difference of two trainings on one seed; gains are given in it."""
RUNGS = (100, 200, 300, 400, 500)
"""Steps after which a training is validated."""

# of the variance that is a training's own, the part that its validation and its test have in common
_COMMON = 0.75
_FREEDOM = 3


@dataclass(frozen=True, slots=True)
class Luck:
    """What is a training's own: at its end, in its validation and test, on the way, and whether it lives."""

    run: float
    validation: float
    test: float
    rungs: Array
    chance: float

    def spread(self, factor: float) -> Luck:
        """Return the same with its end, validation and test so many times as far from what is expected."""
        deviations = {name: factor * getattr(self, name) for name in ("run", "validation", "test")}
        return dataclasses.replace(self, **deviations)


@lru_cache(maxsize=1000)
def luck(key: str, seed: int, shape: Shape) -> Luck:
    """Return what is a training's own.

    Args:
        key: Equal for trainings with the same parameters.
        seed: Their seed.
        shape: Distribution.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest, "big")])
    draws = _draw(rng, 3 + len(RUNGS), shape)
    common, own_sd = RUN_SD * math.sqrt(_COMMON), RUN_SD * math.sqrt(1.0 - _COMMON)
    run, validation, test = common * draws[0], own_sd * draws[1], own_sd * draws[2]
    return Luck(float(run), float(validation), float(test), draws[3:], float(rng.random()))


@lru_cache(maxsize=1000)
def of_seed(seed: int, shape: Shape) -> float:
    """Return what a seed does to all of its trainings."""
    return SHARED * float(_draw(np.random.default_rng([seed, 1]), 1, shape)[0])


def _draw(rng: np.random.Generator, count: int, shape: Shape) -> Array:
    if shape == "heavy":
        return rng.standard_t(_FREEDOM, count) / math.sqrt(_FREEDOM / (_FREEDOM - 2))
    return rng.standard_normal(count)


# ---- what temperature and the other parameters are worth

_LOW, _HIGH = 0.25, 4.0
_AS_FOUND = {"contrast": 0.5, "teacher": 4.0}
_LR = (1e-4, 1e-2)
_LEVEL = 0.8
_START = 0.3
# off the middle of the space, where a search may begin, and far enough from its ends to move
_BEST = (0.4, 0.62, 0.45, 0.7, 0.3, 0.55)
_SEEN_EARLY = 0.005
_LEARNING_SPREADS = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What temperature is worth; 0 at τ = 1, and ``size`` where it is worth most.

    Args:
        of: ``level``: the mean of log τ counts, so that the best constant is as good as any schedule;
            ``schedule``: the last τ over the first counts, so that every constant is as good as τ = 1;
            ``length``: whether τ follows the length.
        size: In standard deviations of a pair (``PAIR``).
        inference: Share that is to be had by evaluating under that temperature, however trained.
    """

    of: Literal["level", "schedule", "length"]
    size: float
    inference: float = 0.0

    def __post_init__(self) -> None:
        assert self.of != "schedule" or not self.inference, "no evaluation can make up for a schedule"

    def trained_gain(self, plan: Course) -> float:
        """Return what training under a plan is worth, were all of the gain training's."""
        position = {"level": plan.mean, "schedule": plan.last - plan.first, "length": 0.0}[self.of]
        return self._bump_at(position, plan)

    def evaluated_gain(self, plan: Course) -> float:
        """Return what evaluating at the end of a plan is worth, were all of the gain evaluation's."""
        return self._bump_at(plan.last, plan)

    def _bump_at(self, position: float, plan: Course) -> float:
        best = self.size * PAIR
        return best * plan.scaled if self.of == "length" else best * bump(position, _PEAKS[self.of])


_PEAKS = {"level": math.log(0.5), "schedule": math.log(0.25)}


def bump(position: float, peak: float) -> float:
    """Return a smooth function that is 0 at 0, 1 at its peak, and nowhere below -0.85."""
    width = 0.8 * abs(peak)
    foot = math.exp(-0.5 * (peak / width) ** 2)
    return (math.exp(-0.5 * ((position - peak) / width) ** 2) - foot) / (1.0 - foot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupling:
    """How temperature and the other parameters hang together, with the same best value for every τ.

    Args:
        how: ``ridge``: log lr plus log τ counts, and neither for itself; ``moving``: the best place of every
            other parameter moves with τ; ``flatter``: the lower τ, the less it costs to be off the best
            place.
        by: Which τ: the mean over training, or the last one.
    """

    how: Literal["ridge", "moving", "flatter"]
    by: Literal["mean", "last"] = "mean"

    def loss(self, places: Sequence[float], plan: Course) -> float:
        """Return the squared distance of the other parameters from their best places under a plan."""
        log_tau = plan.mean if self.by == "mean" else plan.last
        shift = 0.0
        if self.how == "ridge":
            shift = -log_tau / math.log(_LR[1] / _LR[0])
            return (
                _squared_distance(places[:1], shift)
                + _squared_distance(places, 0.0)
                - _squared_distance(places[:1], 0.0)
            )
        if self.how == "moving":
            shift = -0.3 * math.tanh(log_tau)
        return _squared_distance(places, shift) * (math.exp(log_tau) if self.how == "flatter" else 1.0)


def _squared_distance(places: Sequence[float], shift: float) -> float:
    return sum((position - best - shift) ** 2 for position, best in zip(places, _BEST, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapse:
    """Trainings that end badly, each by itself.

    Args:
        at_one: How probable that is at τ = 1.
        at_best: How probable where log τ, in the mean over training, is that of τ = 0.5.
        drop: What a training loses by it.
    """

    at_one: float
    at_best: float
    drop: float = 0.3

    def probability(self, plan: Course) -> float:
        """Return how probable it is under a plan."""
        # beyond τ = 1 it stays as it is, or a world in which a gain is lost by collapses would have one there
        return self.at_one + (self.at_best - self.at_one) * max(0.0, bump(plan.mean, _PEAKS["level"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What temperature costs in another metric, ``val_loss``, which is 1 at τ = 1.

    It grows with the square of log τ, in the mean over training.

    Args:
        at_best: By how much the loss is higher at τ = 0.5.
        margin: By how much it may be higher; the spec has a guard that says so.
    """

    at_best: float
    margin: float

    def loss(self, plan: Course) -> float:
        """Return the mean of the loss over seeds."""
        return 1.0 + self.at_best * (plan.mean / _PEAKS["level"]) ** 2


_LOSS_SHARED, _LOSS_OWN = 0.01, 0.005


@dataclass(frozen=True, kw_only=True)
class ModelWorld:
    """A world in closed form.

    Args:
        name: Name.
        others: Number of other parameters that are searched: ``lr``, then ``x1`` and so on.
        curvature: What it costs to be off the best place of one of them by the whole of its range.
        gain: What temperature is worth; None: nothing.
        tied: How temperature and the others hang together; None: not at all.
        collapse: Which trainings end badly; None: none.
        cost: What temperature costs in another metric, which is guarded; None: nothing.
        named: Whether two temperatures have names; what temperature is worth is the mean over all that are
            searched, and so is what other parameters hang on.
        attends: Whether attention's is searched.
        read: Whether the metric changes with named temperatures at inference, so that they are tested there.
        learned: Share of the gain that learned temperatures reach at the highest ratio of learning rates
            that is tried, and half of it at any other.
        noise: Distribution of chance.
        uneven: Whether what is a training's own is wider the farther the temperatures are from the
            baseline's, twice as wide at the ends of their ranges, and half as wide again where they are
            learned.
        claims: By the name of an answer whether the gain that it speaks of is there in this world; of an
            answer that is not named this is not said.
    """

    name: str
    others: int = 0
    curvature: float = 1.0
    gain: Gain | None = None
    tied: Coupling | None = None
    collapse: Collapse | None = None
    cost: Cost | None = None
    named: bool = False
    attends: bool = True
    read: bool = False
    learned: float = 0.0
    noise: Shape = "normal"
    uneven: bool = False
    claims: Mapping[str, bool] = field(default_factory=dict)

    rungs = RUNGS
    total_steps = RUNGS[-1]

    @property
    def temperatures(self) -> list[str]:
        """Names of the temperatures that are searched; attention's is the empty text."""
        return [""] * self.attends + list(_AS_FOUND) * self.named

    @cached_property
    def spec(self) -> StudySpec:
        """A study in this world."""
        search: dict[str, Any] = {}
        for temperature in self.temperatures:
            as_found_tau = _AS_FOUND.get(temperature, 1.0)
            tau = {"low": _LOW * as_found_tau, "high": _HIGH * as_found_tau, "log": True}
            kinds = ["constant", "linear", "cosine"]
            temperature_domains = {"temperature_init": tau, "temperature_final": tau, "schedule": kinds}
            search |= {join_name(temperature, name): domain for name, domain in temperature_domains.items()}
        if self.gain is not None and self.gain.of == "length":
            search["length_scaling"] = ["none", "log_n"]
        for name in self.ordinary_names:
            low, high = _LR if name == "lr" else (0.0, 1.0)
            search[name] = {"low": low, "high": high, "log": name == "lr"}
        study: dict[str, Any] = {"name": self.name, "metric": "val_accuracy", "direction": "maximize"}
        if self.collapse is not None:
            study["failure"] = _LEVEL - self.collapse.drop / 2.0
        if self.cost is not None:
            study["guards"] = {"val_loss": f"<= +{100 * self.cost.margin:g}%"}
        return StudySpec.from_json(
            {
                "study": study,
                "model": {"class_path": "made.up.Model", "init_args": {}},
                "trainer": {"max_steps": self.total_steps},
                "temperatures": {
                    name: {
                        "value": f"{name}.temperature",
                        "as_found": _AS_FOUND[name],
                        "evaluated": self.read,
                    }
                    for name in self.temperatures
                    if name
                },
                "search": search,
            }
        )

    @cached_property
    def ordinary_names(self) -> list[str]:
        """Names of the other parameters that are searched."""
        return ["lr", *(f"x{index}" for index in range(1, self.others))][: self.others]

    def false(self, answer: str) -> bool | None:
        """Return whether a gain by an answer of that name would be false; None: that is not said."""
        if answer in NO_CLAIMS or ":" in answer:
            return None
        is_claimed = self.claims.get(answer, self.claims.get("*"))
        return None if is_claimed is None else not is_claimed

    def truth(self, sets: Sequence[Parameters]) -> Array:
        """Return the mean values of parameter sets over seeds."""
        return np.array([self.worth(params) for params in sets])

    def worth(self, parameters: Parameters, evaluated_params: Parameters | None = None) -> float:
        """Return a parameter set's mean value over seeds.

        Args:
            parameters: What is trained with.
            evaluated_params: Temperature parameters that it is evaluated under; None: its own.
        """
        value = self._calm(parameters, evaluated_params)
        if self.collapse is not None:
            value -= self.collapse.drop * self.collapse.probability(self._course(parameters))
        return value

    def _course(self, parameters: Parameters) -> Course:
        return mean_course([course(parameters, name) for name in self.temperatures])

    def failure_rate(self, parameters: Parameters) -> float:
        """Return how probable it is that a training ends badly."""
        return 0.0 if self.collapse is None else self.collapse.probability(self._course(parameters))

    def _calm(self, parameters: Parameters, evaluated_params: Parameters | None) -> float:
        """Return a parameter set's value where nothing collapses."""
        plan = self._course(parameters)
        places = [unit_position(name, float(parameters[name])) for name in self.ordinary_names]
        loss = _squared_distance(places, 0.0) if self.tied is None else self.tied.loss(places, plan)
        return _LEVEL - self.curvature * loss + self._temperature_gain(parameters, evaluated_params)

    def _temperature_gain(self, parameters: Parameters, evaluated_params: Parameters | None) -> float:
        """Return what temperature is worth."""
        if self.gain is None:
            return 0.0
        if LEARNED in parameters:
            fast = parameters[LEARNED] == max(LR_RATIOS)
            return self.learned * self.gain.size * PAIR * (1.0 if fast else 0.5)
        share = self.gain.inference
        trained_gain = fmean(self.gain.trained_gain(course(parameters, name)) for name in self.temperatures)
        if not share:
            return trained_gain
        end = course(parameters if evaluated_params is None else evaluated_params)
        return (1.0 - share) * trained_gain + share * self.gain.evaluated_gain(end)

    def train(self, parameters: Parameters, seed: int) -> Training:
        """Return a training; the same for parameters of the same effect and the same seed.

        Args:
            parameters: The whole parameter set.
            seed: What it does is common to its trainings.
        """
        run_luck = self._luck(parameters, self._key(parameters), seed)
        end = self._ends(parameters, None, seed, run_luck)
        fractions = np.array(RUNGS) / self.total_steps
        growth = (1.0 - np.exp(-4.0 * fractions)) / (1.0 - math.exp(-4.0))
        curve = _START + (end - _START) * growth + _SEEN_EARLY * (1.0 - fractions) * run_luck.rungs
        validation_curve = curve + run_luck.validation * growth
        return Training(final=validation_curve, current=validation_curve, test=end + run_luck.test)

    def measure(self, parameters: Parameters, seed: int, evaluation: Evaluation) -> float:
        """Return what is measured at the end of a training, under its own temperature or another one."""
        key = self._key(parameters)
        run_luck = self._luck(parameters, key, seed)
        plan = evaluation.temperature
        value = self._ends(parameters, plan, seed, run_luck)
        value += run_luck.test if evaluation.on == "test" else run_luck.validation
        if plan is None or _ends_alike(plan, parameters):
            return value
        key += json.dumps(drop_unused_params({**NEUTRAL, **plan}), sort_keys=True)
        second_luck = self._luck(parameters, key, seed)
        return value + (second_luck.test if evaluation.on == "test" else second_luck.validation) / 2.0

    def keeps(self, parameters: Parameters) -> bool:
        """Return whether a parameter set keeps the guard in the mean over seeds."""
        return self.cost is None or self.cost.loss(self._course(parameters)) <= 1.0 + self.cost.margin

    def guarded_value(self, parameters: Parameters, seed: int, evaluation: Evaluation, metric: str) -> float:
        """Return what is measured of the metric that is guarded."""
        assert self.cost is not None and metric == "val_loss", "nothing else is guarded here"
        key = f"{metric} {evaluation.on} {self._key(parameters)}"
        chance = self._luck(parameters, key, seed)
        run_noise = _LOSS_OWN / RUN_SD * (chance.run + chance.validation)
        seed_noise = _LOSS_SHARED / SHARED * of_seed(seed, self.noise)
        return self.cost.loss(self._course(parameters)) + seed_noise + run_noise

    def _ends(self, parameters: Parameters, plan: Parameters | None, seed: int, run_luck: Luck) -> float:
        """Return a training's value, without the noise of a validation or a test."""
        value = self._calm(parameters, plan) + of_seed(seed, self.noise) + run_luck.run
        if self.collapse is not None and run_luck.chance < self.collapse.probability(
            self._course(parameters)
        ):
            value -= self.collapse.drop
        return value

    def _luck(self, parameters: Parameters, key: str, seed: int) -> Luck:
        run_luck = luck(key, seed, self.noise)
        if not self.uneven:
            return run_luck
        distance = fmean(abs(course(parameters, name).mean) for name in self.temperatures) / math.log(_HIGH)
        return run_luck.spread(_LEARNING_SPREADS if LEARNED in parameters else 1.0 + distance)

    def _key(self, parameters: Parameters) -> str:
        names = (*self.ordinary_names, LEARNED)
        key_params = ((n, v) for n, v in parameters.items() if n in names or n in TEMPERATURE_PARAMETERS)
        # to a cache 1, 1.0 and true are the same
        return _key(self.name, tuple((name, repr(value), value) for name, value in key_params))


@lru_cache(maxsize=10_000)
def _key(world: str, parameters: tuple[tuple[str, str, Any], ...]) -> str:
    params = {name: value for name, _, value in parameters}
    return json.dumps([world, drop_unused_params({**neutral_values(params), **params})], sort_keys=True)


def unit_position(name: str, value: float) -> float:
    """Return where in its range a value is, 0 to 1."""
    return math.log(value / _LR[0]) / math.log(_LR[1] / _LR[0]) if name == "lr" else value


def _ends_alike(plan: Parameters, parameters: Parameters) -> bool:
    """Return whether a training ends at the temperatures of a plan, which may leave some as they are."""
    plan_params = {
        name: value for name, value in parameters.items() if split_name(name)[1] == AS_FOUND
    } | plan
    names = {split_name(name)[0] for name in plan}
    ends = ([course(params, name) for name in names] for params in (plan_params, parameters))
    plan_ends, param_ends = (
        [(course_end.last, course_end.scaled) for course_end in courses] for courses in ends
    )
    return plan_ends == param_ends


NO_CLAIMS = frozenset(
    {"over_baseline", "over_twin", "twin_over_baseline", "over_constant", "over_constant_twin", "is_constant"}
)
"""What is said about a winner and claims no gain of temperature: one comparison of two may be won by luck."""

_NOTHING = {"*": False}
_BOTH = {"total": True}
_LEVELS = {**_BOTH, "against_constant": False, "schedule_shown": False}
_SCHEDULES = {**_BOTH, "against_constant": True, "schedule_shown": True, "inference_only": False}
_TRAINED = {**_LEVELS, "inference_only": False}
_EVALUATED = {**_LEVELS, "inference_only": True}
_TWO_LEVELS = {"total": True, "learned": True, "against_constant": False, "schedule_shown": False}
_SIZE = 2.0


def _all_worlds(size: float) -> list[ModelWorld]:
    """Return the worlds, with gains of a size."""
    level, schedule = Gain(of="level", size=size), Gain(of="schedule", size=size)
    length, rescued_collapse = Gain(of="length", size=size), Collapse(at_one=0.25, at_best=0.05)
    return [
        *(ModelWorld(name=f"null-{k}", others=k, claims=_NOTHING) for k in (0, 1, 3, 6)),
        *(ModelWorld(name=f"weak-{k}", others=k, curvature=1 / 6, claims=_NOTHING) for k in (1, 3, 6)),
        ModelWorld(name="ridge", others=1, tied=Coupling(how="ridge"), claims=_NOTHING),
        ModelWorld(name="ridge-last", others=3, tied=Coupling(how="ridge", by="last"), claims=_NOTHING),
        ModelWorld(name="moving", others=3, tied=Coupling(how="moving"), claims=_NOTHING),
        ModelWorld(name="flatter", others=3, tied=Coupling(how="flatter"), claims=_NOTHING),
        *(ModelWorld(name=f"level-{k}", others=k, gain=level, claims=_TRAINED) for k in (0, 3)),
        *(ModelWorld(name=f"schedule-{k}", others=k, gain=schedule, claims=_SCHEDULES) for k in (0, 3)),
        *(ModelWorld(name=f"length-{k}", others=k, gain=length, claims=_SCHEDULES) for k in (0, 3)),
        *(
            ModelWorld(
                name=f"inference-{share}",
                others=3,
                gain=Gain(of="level", size=size, inference=share / 100),
                claims=_EVALUATED,
            )
            for share in (50, 80, 100)
        ),
        ModelWorld(name="collapse", collapse=Collapse(at_one=0.1, at_best=0.1), claims=_NOTHING),
        ModelWorld(name="collapse-3", others=3, collapse=Collapse(at_one=0.1, at_best=0.1), claims=_NOTHING),
        ModelWorld(name="rescued", collapse=rescued_collapse, claims=_TRAINED),
        ModelWorld(name="two-0", named=True, attends=False, claims=_NOTHING),
        ModelWorld(name="two-3", others=3, named=True, attends=False, claims=_NOTHING),
        ModelWorld(name="two-read", others=3, named=True, attends=False, read=True, claims=_NOTHING),
        ModelWorld(name="three-3", others=3, named=True, claims=_NOTHING),
        ModelWorld(
            name="two-moving",
            others=3,
            named=True,
            attends=False,
            tied=Coupling(how="moving"),
            claims=_NOTHING,
        ),
        ModelWorld(name="three-heavy", others=3, named=True, noise="heavy", claims=_NOTHING),
        ModelWorld(name="three-uneven", others=3, named=True, uneven=True, claims=_NOTHING),
        *(
            ModelWorld(
                name=f"two-level-{k}",
                others=k,
                named=True,
                attends=False,
                gain=level,
                learned=0.5,
                claims=_TWO_LEVELS,
            )
            for k in (0, 3)
        ),
        *(
            ModelWorld(name=f"guarded-{k}", others=k, gain=level, cost=Cost(at_best=0.04, margin=0.02))
            for k in (0, 3)
        ),
        # what is gained by those that live is less than what is lost by those that do not
        ModelWorld(name="risky", gain=level, collapse=Collapse(at_one=0.05, at_best=0.25), claims=_NOTHING),
    ]


NAMES = tuple(world.name for world in _all_worlds(_SIZE))


@cache
def world_of(name: str) -> ModelWorld:
    """Return the world of a name; ``level-3@1.5`` is ``level-3`` with a gain of 1.5 for 2 (``PAIR``)."""
    bare, _, size = name.partition("@")
    world = next(world for world in _all_worlds(float(size) if size else _SIZE) if world.name == bare)
    return world

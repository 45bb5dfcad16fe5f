"""Classes of worlds in closed form that no default was chosen on; each draw of one is another world.

A world has one best configuration, drawn from its space, and a value that falls with the distance from it.
Values are shares of the known gain: 1 is the best configuration in the mean over seeds, 0 is τ = 1 with
numbers in the middle of their ranges and the first of the choices. So noise and collapses are in units of the
gain. Distances are taken between courses of τ, and not between what a surrogate knows of them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution

from benchmarks.recorded.world import Training
from benchmarks.simulated.worlds import course
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import TEMPERATURE_PARAMETERS

Array = NDArray[np.float64]
Parameters = Mapping[str, Any]

RUNGS = (100, 200, 300, 400, 500)
_SPAN = math.log(16.0)
_TAU = {"low": 0.25, "high": 4.0, "log": True}
_PLAN = {"temperature_init": _TAU, "temperature_final": _TAU, "schedule": ["constant", "linear", "cosine"]}
_LR = {"low": 1e-4, "high": 1e-2, "log": True}
_UNIT = {"low": 0.0, "high": 1.0}
_STEEP = 9.0
"""Fall of the logarithm of a value by the mean squared distance, which is about 1/6 for two random points."""
_LEAST_GAIN = 0.5
_SEEN_EARLY = 0.5
_OTHER_HILLS = (0.8, 0.7)
_EARLY_START = -2.0
_ALWAYS = 0.02


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A class of worlds.

    Args:
        name: Name.
        search: What is searched, as in a spec.
        noise: Standard deviation of what is a training's own; what its seed does to all is half as wide.
        heavy: Whether noise is Student's t with three degrees of freedom instead of normal, as wide.
        edge: Whether the best temperature is at an end of its range.
        hills: Number of optima, of which one is the best.
        cliff: What is lost as soon as τ is a little farther from 1 than at the best place.
        collapse: What a training loses that collapses; how probable that is grows beyond the best τ to ½.
        tau_matters: Whether temperature does anything.
    """

    name: str
    search: Mapping[str, Any]
    noise: float = 0.3
    heavy: bool = False
    edge: bool = False
    hills: int = 1
    cliff: float = 0.0
    collapse: float = 0.0
    tau_matters: bool = True


_TUNED = {**_PLAN, "lr": _LR}
_MANY = {
    **_TUNED,
    "dropout": {"low": 0.0, "high": 0.5},
    "weight_decay": {"low": 1e-4, "high": 1.0, "log": True},
    "optimizer": ["adam", "sgd", "lion"],
    "norm": ["layer", "rms", "none", "batch"],
    "layers": {"low": 1, "high": 8},
    **{f"x{index}": _UNIT for index in range(3)},
}
_ONLY = {"temperature_init": [1.0]}

KINDS = (
    Kind(name="temperature alone", search=_PLAN),
    Kind(name="with lr and dropout", search={**_TUNED, "dropout": {"low": 0.0, "high": 0.5}}),
    Kind(name="best at the edge", search=_TUNED, edge=True),
    Kind(name="three optima", search=_TUNED, hills=3),
    Kind(name="noise 0.3", search=_TUNED),
    Kind(name="noise 1", search=_TUNED, noise=1.0),
    Kind(name="noise 3", search=_TUNED, noise=3.0),
    Kind(name="collapses", search=_TUNED, collapse=3.0),
    Kind(name="heavy tails", search=_TUNED, noise=1.0, heavy=True),
    Kind(name="τ does nothing", search={**_TUNED, "dropout": {"low": 0.0, "high": 0.5}}, tau_matters=False),
    Kind(name="a cliff, little noise", search=_TUNED, noise=0.03, cliff=2.0),
    Kind(name="12 parameters", search=_MANY),
    Kind(name="1 to 3 heads", search={**_ONLY, "heads": {"low": 1, "high": 3}}, tau_matters=False),
    Kind(
        name="heads and layers",
        search={**_ONLY, "heads": {"low": 1, "high": 3}, "layers": {"low": 1, "high": 3}},
        tau_matters=False,
    ),
)  # fmt: skip
"""All classes."""


class UnseenWorld:
    """One world.

    Args:
        kind: Its class.
        draw: Which of the class; what is drawn follows from it.
    """

    rungs = RUNGS
    total_steps = RUNGS[-1]

    def __init__(self, kind: Kind, draw: int) -> None:
        self.kind, self.draw = kind, draw
        self.spec = StudySpec.from_json(
            {
                "study": {"name": "unseen", "metric": "val_accuracy", "direction": "maximize"},
                "model": {"class_path": "made.up.Model", "init_args": {}},
                "trainer": {"max_steps": self.total_steps},
                "search": dict(kind.search),
            }
        )
        self._space = self.spec.space()
        self._mark = _number(kind.name, draw)
        self._draw_hills(np.random.default_rng(self._mark))

    def _draw_hills(self, rng: np.random.Generator) -> None:
        """Draw where it is best, until that is better than τ = 1 by enough."""
        heights: tuple[float, ...] = (1.0, *_OTHER_HILLS)[: self.kind.hills]
        first = self._coordinates_of(self.first)
        while True:
            tops = [self._random(rng) for _ in heights]
            if self.kind.edge:
                end = rng.choice([_TAU["low"], _TAU["high"]])
                tops[0] = self.spec.parameters(
                    "search", {**tops[0], "temperature_init": float(end), "schedule": "constant"}
                )
            self._hills = [(h, self._coordinates_of(top)) for h, top in zip(heights, tops, strict=True)]
            self.best_set = tops[0]
            self._weights = rng.dirichlet(np.ones(len(first[0]))) if len(first[0]) else np.zeros(0)
            self._prices = {
                name: dict(
                    zip(
                        map(repr, distribution.choices),
                        rng.uniform(0.1, 0.8, len(distribution.choices)),
                        strict=True,
                    )
                )
                for name, distribution in self._choices.items()
            }
            self._base, self._unit = 0.0, 1.0
            gain = self._hill(self.best_set) - self._hill(self.first)
            if gain >= _LEAST_GAIN:
                self._base, self._unit = self._hill(self.first), gain
                return

    @cached_property
    def _choices(self) -> dict[str, CategoricalDistribution]:
        """The choices that are no part of a plan of τ."""
        return {
            name: distribution
            for name, distribution in self._space.items()
            if isinstance(distribution, CategoricalDistribution) and name not in TEMPERATURE_PARAMETERS
        }

    @cached_property
    def first(self) -> dict[str, Any]:
        """The set at τ = 1 with numbers in the middle of their ranges and the first of the choices."""
        params: dict[str, Any] = {}
        for name, distribution in self._space.items():
            if name == "schedule":
                params[name] = "constant"
            elif isinstance(distribution, CategoricalDistribution):
                params[name] = distribution.choices[0]
            else:
                params[name] = 1.0 if name in TEMPERATURE_PARAMETERS else _value_at(distribution, 0.5)
        return self.spec.parameters("search", params)

    def _random(self, rng: np.random.Generator) -> dict[str, Any]:
        return self.spec.parameters(
            "search", {n: _value_at(distribution, rng.random()) for n, distribution in self._space.items()}
        )

    def _coordinates_of(self, parameters: Parameters) -> tuple[Array, dict[str, str]]:
        """Return the course of τ and the numbers, each of a range of 1, and the choices."""
        coordinates: list[float] = []
        if self.kind.tau_matters:
            plan = course(parameters)
            coordinates += [plan.mean / _SPAN, plan.last / _SPAN]
        coordinates += [
            _position(distribution, parameters[name])
            for name, distribution in self._space.items()
            if name not in TEMPERATURE_PARAMETERS and name not in self._choices
        ]
        return np.array(coordinates), {name: repr(parameters[name]) for name in self._choices}

    def _hill(self, parameters: Parameters) -> float:
        """Return the height of the highest hill above a set, 0 to 1."""
        coordinates, choices = self._coordinates_of(parameters)
        heights = []
        for height, (top, best) in self._hills:
            fall = _STEEP * float(self._weights @ (coordinates - top) ** 2)
            fall += sum(self._prices[n][choices[n]] for n in choices if choices[n] != best[n])
            heights.append(height * math.exp(-fall))
        return max(heights)

    def _beyond(self, parameters: Parameters) -> float:
        """Return how much farther from 1 τ is than at the best place, as a share of its range."""
        best, course_mean = course(self.best_set).mean / _SPAN, course(parameters).mean / _SPAN
        return (course_mean - best) * math.copysign(1.0, best)

    def collapse_rate(self, parameters: Parameters) -> float:
        """Return how probable it is that a training collapses."""
        if not self.kind.collapse:
            return 0.0
        return _ALWAYS + (0.5 - _ALWAYS) * min(max(self._beyond(parameters) / 0.15, 0.0), 1.0)

    def worth(self, parameters: Parameters) -> float:
        """Return a set's mean value over seeds, as a share of the known gain."""
        return self._calm(parameters) - self.kind.collapse * (self.collapse_rate(parameters) - _ALWAYS)

    def _calm(self, parameters: Parameters) -> float:
        height = (self._hill(parameters) - self._base) / self._unit
        is_beyond = self.kind.cliff and self._beyond(parameters) > 0.02
        return height - self.kind.cliff * bool(is_beyond)

    def truth(self, sets: Sequence[Parameters]) -> Array:
        """Return the mean values of sets over seeds."""
        return np.array([self.worth(params) for params in sets])

    def train(self, parameters: Parameters, seed: int) -> Training:
        """Return a training; the same for sets of the same effect and the same seed."""
        run_rng = np.random.default_rng([self._mark, seed, _number(*self._effect(parameters))])
        noise = self._noise(run_rng, 2 + len(RUNGS))
        end = self._calm(parameters) + self.kind.noise * noise[0]
        end += 0.5 * self.kind.noise * self._noise(np.random.default_rng([self._mark, seed]), 1)[0]
        if self.kind.collapse:
            # the rate that there always is costs every set the same
            end += self.kind.collapse * (_ALWAYS - float(run_rng.random() < self.collapse_rate(parameters)))
        fractions = np.array(RUNGS) / self.total_steps
        growth = (1.0 - np.exp(-4.0 * fractions)) / (1.0 - math.exp(-4.0))
        early_noise = _SEEN_EARLY * self.kind.noise * (1.0 - fractions) * noise[2:]
        curve = _EARLY_START + (end - _EARLY_START) * growth + early_noise
        return Training(final=curve, current=curve)

    def _noise(self, rng: np.random.Generator, count: int) -> Array:
        if self.kind.heavy:
            return rng.standard_t(3, count) / math.sqrt(3.0)
        return rng.standard_normal(count)

    def _effect(self, parameters: Parameters) -> tuple[Any, ...]:
        plan = course(parameters)
        other_params = {n: parameters[n] for n in self._space if n not in TEMPERATURE_PARAMETERS}
        return round(plan.mean, 9), round(plan.first, 9), round(plan.last, 9), json.dumps(other_params)


def _value_at(distribution: Any, position: float) -> Any:
    """Return the value at a place from 0 to 1, all values of a grid and all choices being as likely."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[
            min(int(position * len(distribution.choices)), len(distribution.choices) - 1)
        ]
    low, high, step = distribution.low, distribution.high, distribution.step
    if step is not None and not distribution.log:
        return low + step * min(int(position * ((high - low) / step + 1)), round((high - low) / step))
    return low * (high / low) ** position if distribution.log else low + position * (high - low)


def _position(distribution: Any, value: float) -> float:
    low, high = distribution.low, distribution.high
    if distribution.log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def _number(*args: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(args).encode(), digest_size=6).digest(), "big")


WORLDS: dict[str, Callable[[int], UnseenWorld]] = {
    kind.name: lambda draw, kind=kind: UnseenWorld(kind, draw)  # type: ignore[misc]
    for kind in KINDS
}
"""What makes a world of a class, by the name of the class."""

Half = Literal["chosen on", "held back"]


def half(draw: int) -> Half:
    """Return whether something may be chosen on a draw: on the even ones."""
    return "held back" if draw % 2 else "chosen on"

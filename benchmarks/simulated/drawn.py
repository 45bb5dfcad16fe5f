"""Worlds that nothing was chosen on: each study has another one, drawn with its seed.

What temperature is worth has another shape than in ``worlds.py``: it falls with the distance from a best plan
that is drawn, by a law that is drawn. Noise, learning curves and the cost of a bad learning rate are drawn as
well. The size of the gain, in standard deviations of a pair's difference, is not: it names the world.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from benchmarks.recorded.world import Training
from benchmarks.simulated.worlds import (
    PAIR,
    RUNGS,
    Collapse,
    Course,
    ModelWorld,
    course,
    of_seed,
    unit_position,
    world_of,
)
from tempopt.training.messages import Evaluation

Best = Literal["nothing", "constant", "schedule"]
Kind = Literal["plain", "ridge", "moving", "heavy", "divergence", "ties"]

_LEVEL = 0.8
_RANGE = math.log(4.0)
_NEAREST = math.log(1.5)
_LEAST_CHANGE = math.log(4.0)
_CONSTANT_SHARE = 0.4
_GRID = np.linspace(-_RANGE, _RANGE, 41)
_LAWS: tuple[Callable[[float], float], ...] = (
    lambda squared: math.exp(-squared),
    lambda squared: 1.0 / (1.0 + squared) ** 2,
    lambda squared: max(0.0, 1.0 - squared / 3.0),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is drawn of one world.

    Args:
        best_plan: Mean of log τ over training under the best plan, and its change from beginning to end.
        width: Distance from it at which the gain has fallen by one unit of its law, in log τ.
        turn: How much a change during training counts beside the mean level.
        law: How the gain falls with the squared distance.
        rates: Best places of the other parameters, 0 to 1 in their ranges.
        curvature: What it costs to be off the best place of one of them by the whole of its range.
        shift: How far those places move with the mean of log τ.
        shared: Factor on the noise that a seed has in common for all of its trainings.
        speed: How quickly a training approaches its end.
        early: Standard deviation of what shows early in training and is gone at the end.
        failures: How probable it is that a training diverges.
        grid: Distance of the values that the metric can have; 0: every value.
    """

    best_plan: tuple[float, float]
    width: float
    turn: float
    law: int
    rates: tuple[float, ...]
    curvature: float
    shift: float
    shared: float
    speed: float
    early: float
    failures: float
    grid: float

    @classmethod
    def draw(cls, rng: np.random.Generator, best: Best, kind: Kind, others: int) -> Shape:
        """Draw one; a schedule until the best constant has less than 40 % of its gain."""
        while True:
            shape = cls._draw_once(rng, best, kind, others)
            constants = max(shape.gain(float(tau), 0.0) for tau in _GRID)
            if best != "schedule" or constants < _CONSTANT_SHARE:
                return shape

    @classmethod
    def _draw_once(cls, rng: np.random.Generator, best: Best, kind: Kind, others: int) -> Shape:
        level = float(rng.choice([-1.0, 1.0]) * rng.uniform(_NEAREST, 0.95 * _RANGE))
        change = float(rng.choice([-1.0, 1.0]) * rng.uniform(_LEAST_CHANGE, 1.9 * _RANGE))
        middle = float(rng.uniform(-1.0, 1.0)) * max(0.0, _RANGE - abs(change) / 2.0)
        ends = (level, level) if best != "schedule" else (middle - change / 2.0, middle + change / 2.0)
        top = _plan(*ends, schedule=str(rng.choice(["linear", "cosine"])))
        sign = rng.choice([-1.0, 1.0])
        return cls(
            best_plan=(top.mean, top.last - top.first),
            width=float(rng.uniform(0.6, 1.2)) * (abs(level) if best != "schedule" else abs(change) / 2.0),
            turn=float(rng.choice([0.0, rng.uniform(0.1, 0.5)])) if best == "constant" else 0.5,
            law=int(rng.integers(len(_LAWS))),
            rates=tuple(float(share) for share in rng.uniform(0.2, 0.8, others)),
            curvature=float(np.exp(rng.uniform(math.log(0.15), math.log(1.5)))),
            shift=float(sign * rng.uniform(0.1, 0.3)) if kind in ("ridge", "moving") else 0.0,
            shared=float(np.exp(rng.uniform(math.log(0.3), math.log(3.0)))),
            speed=float(rng.uniform(2.0, 6.0)),
            early=float(rng.uniform(0.2, 1.0)) * PAIR,
            failures=float(rng.uniform(0.05, 0.3)) if kind == "divergence" else 0.0,
            grid=float(rng.uniform(1.0, 3.0)) * PAIR if kind == "ties" else 0.0,
        )

    def gain(self, mean: float, change: float) -> float:
        """Return the share of the gain that a plan is worth: 1 at the best one, 0 at τ = 1.

        Args:
            mean: Mean of log τ over training.
            change: Change of log τ from beginning to end.
        """
        foot = self._height(0.0, 0.0)
        return (self._height(mean, change) - foot) / (1.0 - foot)

    def _height(self, mean: float, change: float) -> float:
        squared = (mean - self.best_plan[0]) ** 2 + self.turn * (change - self.best_plan[1]) ** 2
        return _LAWS[self.law](squared / self.width**2)


@dataclass(frozen=True, kw_only=True)
class DrawnWorld(ModelWorld):
    """A world of a study.

    Args:
        best: What the best set is.
        kind: What is unusual in it.
        size: What the best set gains over τ = 1, in standard deviations of a pair's difference.
        draw: Seed of what is drawn.
    """

    best: Best = "nothing"
    kind: Kind = "plain"
    size: float = 0.0
    draw: int = 0

    @cached_property
    def shape(self) -> Shape:
        """What is drawn."""
        return Shape.draw(np.random.default_rng([self.draw, 20261130]), self.best, self.kind, self.others)

    def _calm(self, parameters: Mapping[str, Any], evaluated: Mapping[str, Any] | None) -> float:
        plan, shape = self._course(parameters), self.shape
        gain = self.size * PAIR * shape.gain(plan.mean, plan.last - plan.first)
        places = [unit_position(name, float(parameters[name])) for name in self.ordinary_names]
        return _LEVEL + gain - shape.curvature * self._distance(places, plan)

    def _distance(self, places: list[float], plan: Course) -> float:
        """Return the squared distance of other parameters from their best places under a plan."""
        shape = self.shape
        # on a ridge only the first moves with τ, and as far as a product of both demands
        moved = [shape.shift * plan.mean if self.kind == "ridge" else shape.shift * math.tanh(plan.mean)]
        moved += [moved[0] if self.kind == "moving" else 0.0] * len(places)
        return sum((at - best - by) ** 2 for at, best, by in zip(places, shape.rates, moved, strict=False))

    def train(self, parameters: Mapping[str, Any], seed: int) -> Training:
        """Return a training; the same for parameters of the same effect and the same seed."""
        key, shape = self._key(parameters), self.shape
        run_luck = self._luck(parameters, key, seed)
        end = self._ends(parameters, None, seed, run_luck)
        done = np.array(RUNGS) / self.total_steps
        growth = (1.0 - np.exp(-shape.speed * done)) / (1.0 - math.exp(-shape.speed))
        curve = 0.4 + (end - 0.4) * growth + shape.early * (1.0 - done) * run_luck.rungs
        validated = self._rounded(curve + run_luck.validation * growth)
        return Training(final=validated, current=validated, test=float(self._rounded(end + run_luck.test)))

    def measure(self, parameters: Mapping[str, Any], seed: int, evaluation: Evaluation) -> float:
        """Return what is measured at the end of a training; it does not depend on another temperature."""
        return float(self._rounded(super().measure(parameters, seed, evaluation)))

    def _ends(self, parameters: Mapping[str, Any], plan: Any, seed: int, run_luck: Any) -> float:
        usual = super()._ends(parameters, plan, seed, run_luck)
        return usual + (self.shape.shared - 1.0) * of_seed(seed, self.noise)

    def _rounded(self, values: Any) -> Any:
        grid = self.shape.grid
        return values if not grid else grid * np.round(np.asarray(values) / grid)


def _plan(first: float, last: float, schedule: str) -> Course:
    ends = {"temperature_init": math.exp(first), "temperature_final": math.exp(last)}
    return course({**ends, "schedule": schedule})


_NOTHING = {"*": False}
_CONSTANT = {"total": True, "against_constant": False, "schedule_shown": False, "inference_only": False}
_SCHEDULE = {"total": True, "against_constant": True, "schedule_shown": True, "inference_only": False}


def world_for(name: str, draw: int = 0) -> ModelWorld:
    """Return the world of a study.

    Args:
        name: A name of ``worlds.py``; ``drawn-BEST-OTHERS@SIZE`` where something is to be gained, as
            ``drawn-schedule-1@1.5``; ``drawn-KIND-OTHERS`` where nothing is. OTHERS: number of other
            parameters that are searched.
        draw: Seed of what is drawn.
    """
    if not name.startswith("drawn-"):
        return world_of(name)
    bare, _, size = name.partition("@")
    _, what, others = bare.split("-")
    options: dict[str, Any] = {"name": name.replace("@", "-"), "others": int(others), "draw": draw}
    if size:
        claims = _CONSTANT if what == "constant" else _SCHEDULE
        return DrawnWorld(**options, best=what, size=float(size), claims=claims)
    kind: Any = "plain" if what == "null" else what
    noise: Any = "heavy" if kind == "heavy" else "normal"
    world = DrawnWorld(**options, kind=kind, noise=noise, claims=_NOTHING)
    if kind != "divergence":
        return world
    rate = world.shape.failures
    return DrawnWorld(**options, kind=kind, claims=_NOTHING, collapse=Collapse(at_one=rate, at_best=rate))

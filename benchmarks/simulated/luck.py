"""Chance in a simulated world: what a seed does to all of its trainings, and what each has of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
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

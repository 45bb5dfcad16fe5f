"""The tasks whose trainings are recorded, and the configurations that are trained of each."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from scipy.stats import qmc

from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import NEUTRAL

STUDIES = Path(__file__).parents[2] / "studies"
SEEDS = 3
_SOBOL_SEED = 20_261_121
_ANCHORS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One bundled study, as its trainings are recorded.

    Args:
        name: Name of the study.
        every: Optimizer steps between validations; each second of them is under the temperature of the
            moment, see :class:`benchmarks.recorded.alternate.Alternate`.
        two_humps: Whether some seeds learn and others hardly do, so that the metric, a share, is near its
            least or its greatest value: what a seed adds depends on how good the others are.
    """

    name: str
    every: int
    two_humps: bool = False

    @property
    def spec(self) -> StudySpec:
        """The study's spec, with the validations that are recorded."""
        alternate = {
            "class_path": "benchmarks.recorded.alternate.Alternate",
            "init_args": {"every": self.every},
        }
        return load_spec(
            STUDIES / f"{self.name}.yaml",
            [f"trainer.val_check_interval={self.every}", f"trainer.callbacks={json.dumps([alternate])}"],
        )

    def configurations(self, count: int) -> list[dict[str, Any]]:
        """Return the first so many parameter sets: anchors, then a scrambled Sobol sequence.

        A longer list begins with the shorter one. The anchors are τ = 1 and constants; where a parameter that
        has nothing to do with temperature is searched, τ = 1 with values that cover its range.
        """
        spec = self.spec
        space = spec.space()
        sobol = qmc.Sobol(len(space), seed=_SOBOL_SEED)
        # the balance of a power of two is not to be had by a list that can grow
        points = sobol.random(2 ** max(1, (count - 1).bit_length()))
        sets = (
            {
                name: value_at(distribution, x)
                for (name, distribution), x in zip(space.items(), p, strict=True)
            }
            for p in points
        )
        anchors = (
            spec.parameters(arm, params)  # type: ignore[arg-type]
            for arm, params in _anchors(spec)
        )
        all_params = itertools.chain(anchors, (spec.parameters("search", params) for params in sets))
        return list(itertools.islice(all_params, count))


TASKS = {
    task.name: task
    for task in (
        Task(name="max_retrieval", every=25),
        Task(name="associative_recall", every=10, two_humps=True),
        Task(name="digits", every=15),
        Task(name="source_lm", every=30),
    )
}


def _anchors(spec: StudySpec) -> list[tuple[str, dict[str, Any]]]:
    other_space = spec.space("baseline")
    constants = spec.space("constant")["temperature_init"]
    places = [index / (_ANCHORS - 1) for index in range(_ANCHORS)]
    baseline = [
        {name: value_at(distribution, position) for name, distribution in other_space.items()}
        for position in places
        if other_space
    ] or [{}]
    middle = {name: value_at(distribution, 0.5) for name, distribution in other_space.items()}
    temperatures = [value_at(constants, position) for position in places]
    flat = [{"temperature_init": t, **middle} for t in temperatures if t != NEUTRAL["temperature_init"]]
    return [("baseline", params) for params in baseline] + [("constant", params) for params in flat]


def value_at(distribution: BaseDistribution, position: float) -> Any:
    """Return the value at a place in [0, 1] of a distribution, places being equally likely."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[
            min(int(position * len(distribution.choices)), len(distribution.choices) - 1)
        ]
    assert isinstance(distribution, FloatDistribution)
    low, high = distribution.low, distribution.high
    value = low * (high / low) ** position if distribution.log else low + position * (high - low)
    return round(float(value), 6)

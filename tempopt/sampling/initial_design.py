"""First parameters of an arm, before there are results: points that cover its space.

On recorded trainings a design that spans the space serves a model better than the schedules that theory
prefers, which are much alike (benchmarks/README.md, "What is tried first").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tempopt.sampling.unit_cube import count_values, from_unit, to_unit
from tempopt.seeds import derive, seed_name
from tempopt.temperature import TEMPERATURE_PARAMETERS, neutral_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optuna.distributions import BaseDistribution

    from tempopt.spec.search_space import SamplingArm
    from tempopt.spec.study_spec import StudySpec

_NUM_SETS = 64
_INNER_SHARE = 0.5
_MIN_VALUES = 4
"""Number of values up to which the middle half would be one or two values."""
_STRENGTH_PARAMS = ("entropy_lambda", "entropy_lambda_final", "output_temperature")
"""Temperature parameters with small effects at small values and harm at large ones, like a learning rate."""


def initial_params(spec: StudySpec, arm: SamplingArm, number: int, *, seed: int) -> dict[str, Any]:
    """Return the values of an arm's space for a trial before there are results.

    The range of a learning rate usually has the likely values in its middle, so the first values of ordinary
    parameters are from there. If a parameter has few values, such as 1 to 3 heads, all of them are likely.

    Args:
        spec: The study's spec.
        arm: The arm.
        number: Number of the ticket in its arm, from 0.
        seed: Seed of the points of the design.
    """
    # imported here: commands that only show a study should not load scipy.stats
    from scipy.stats import qmc

    space, neutral = spec.space(arm), neutral_values(spec.fixed_temperatures)
    design = qmc.Sobol(len(space), seed=derive(seed, seed_name(arm), "first") & 0xFFFFFFFF).random(_NUM_SETS)
    values = {}
    for (name, distribution), position in zip(space.items(), design[number % _NUM_SETS], strict=True):
        if number == 0 and arm != "search":
            values[name] = _neutral(name, distribution, neutral)
        elif _is_strength(name, distribution):
            values[name] = from_unit(distribution, 0.5 + _INNER_SHARE * (position - 0.5))
        else:
            values[name] = from_unit(distribution, position)
    return values


def _is_strength(name: str, distribution: BaseDistribution) -> bool:
    """Return whether a parameter is a number whose likely values are in the middle of its range."""
    if isinstance(distribution, CategoricalDistribution) or count_values(distribution) <= _MIN_VALUES:
        return False
    return name not in TEMPERATURE_PARAMETERS or name in _STRENGTH_PARAMS


def _neutral(name: str, distribution: BaseDistribution, neutral: Mapping[str, Any]) -> Any:
    """Return the neutral value of a parameter, or the middle if its range has none."""
    value = neutral.get(name)
    if isinstance(distribution, CategoricalDistribution):
        return value if value in distribution.choices else from_unit(distribution, 0.5)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    is_in_range = value is not None and distribution.low <= value <= distribution.high
    if (
        is_in_range
        and value is not None
        and isinstance(distribution, FloatDistribution)
        and not distribution.step
    ):
        return float(value)
    return from_unit(distribution, to_unit(distribution, value) if is_in_range else 0.5)

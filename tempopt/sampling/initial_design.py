"""What an arm tries before anything is known: points that cover its space.

On recorded trainings a design that spans the space serves a model better than the schedules that theory
likes, which are much alike (benchmarks/README.md, "What is tried first").
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

_POINTS = 64
_INNER = 0.5
_FEW = 4
"""Values of which the middle half would be one or two."""
_STRENGTHS = ("entropy_lambda", "entropy_lambda_final", "output_temperature")
"""Temperature parameters of which a little does little and much does harm, as with a learning rate."""


def initial_params(spec: StudySpec, arm: SamplingArm, number: int, *, seed: int) -> dict[str, Any]:
    """Return the values of an arm's own space that it tries as long as nothing is known.

    A person gives a range for a learning rate with the likely values in its middle, so that the first values
    of what is no temperature are from there. Where a parameter has few values, such as 1 to 3 heads, all of
    them are likely.

    Args:
        spec: The study's spec.
        arm: The arm.
        number: Number of the ticket in its arm, from 0.
        seed: The points of the design follow from it.
    """
    # it loads scipy.stats, for which who only looks at a study should not wait
    from scipy.stats import qmc

    space, neutral = spec.space(arm), neutral_values(spec.fixed_temperatures)
    design = qmc.Sobol(len(space), seed=derive(seed, seed_name(arm), "first") & 0xFFFFFFFF).random(_POINTS)
    values = {}
    for (name, distribution), position in zip(space.items(), design[number % _POINTS], strict=True):
        if number == 0 and arm != "search":
            values[name] = _neutral(name, distribution, neutral)
        elif _is_strength(name, distribution):
            values[name] = from_unit(distribution, 0.5 + _INNER * (position - 0.5))
        else:
            values[name] = from_unit(distribution, position)
    return values


def _is_strength(name: str, distribution: BaseDistribution) -> bool:
    """Return whether a parameter is a number of which the middle of its range is likely."""
    if isinstance(distribution, CategoricalDistribution) or count_values(distribution) <= _FEW:
        return False
    return name not in TEMPERATURE_PARAMETERS or name in _STRENGTHS


def _neutral(name: str, distribution: BaseDistribution, neutral: Mapping[str, Any]) -> Any:
    """Return the value at which a parameter changes nothing, or the middle where it has none in its range."""
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

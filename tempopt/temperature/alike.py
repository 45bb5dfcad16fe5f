"""How far two parameter sets train alike: to which optimizer step, and whether they are validated alike.

Exact: numbers are compared bit by bit, so that what one run has trained can be taken over by another.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from tempopt.temperature.entropy import EntropyParameters
from tempopt.temperature.entropy_control import is_controlled
from tempopt.temperature.generation import GENERATION
from tempopt.temperature.named import as_found, own_parameters, split_name
from tempopt.temperature.parameters import effective, neutral_values
from tempopt.temperature.plan import TemperatureParameters, is_own_number, progress
from tempopt.temperature.schedules import SCHEDULES, Constant, Schedule

_SCHEDULED = frozenset(
    {"schedule", "schedule_args", "entropy_lambda", "entropy_lambda_final", "entropy_schedule"}
    | {each.name for schedule in SCHEDULES.values() for each in fields(schedule)}
)
"""What decides attention by a value at each step alone; everything else has to be the same."""


def _is_scheduled(name: str) -> bool:
    return name in _SCHEDULED or is_own_number(name)


@dataclass(frozen=True, slots=True)
class _Course:
    """What a parameter set comes to at each step, and, as text, all that has to be the same throughout.

    What an evaluation alone reads is apart.
    """

    schedule: Schedule
    entropy: EntropyParameters
    rest: str
    evaluated: str

    def at(self, progress: float) -> tuple[float, float, float]:
        """Return temperature and entropy weight, with the weight's sign, which a zero has too."""
        weight = self.entropy.weight(progress)
        return self.schedule(progress), weight, math.copysign(1.0, weight)


def same_training(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two parameter sets are the same throughout a training, evaluations at its end included.

    Args:
        one: Flat parameters; temperature parameters that are missing are neutral.
        other: The same.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    return training_key(one) == training_key(other)


def training_key(parameters: Mapping[str, Any]) -> str:
    """Return a text that is equal for parameter sets with :func:`same_training`.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    # as they are written: to a cache 1, 1.0 and true are the same, and so are 0.0 and -0.0
    return _key(tuple((name, repr(value), value) for name, value in parameters.items()))


@lru_cache(maxsize=10_000)
def _key(parameters: tuple[tuple[str, str, Any], ...]) -> str:
    return _text(_whole({name: value for name, _, value in parameters}))


def steps_alike(one: Mapping[str, Any], other: Mapping[str, Any], *, at_most: int, total_steps: int) -> int:
    """Return the number of optimizer steps, from the first on, that two parameter sets train alike.

    They may differ in the schedules of temperature and entropy weight. Under control of the entropy they may
    differ in that of the weight alone, since its temperatures follow from what was trained. Both of these are
    bit-equal at every step below what is returned; all other parameters that have an effect in training are
    the same, or it is 0. The parameters of generation have none.

    Args:
        one: Flat parameters; temperature parameters that are missing are neutral.
        other: The same.
        at_most: No further step is looked at, >= 0.
        total_steps: Optimizer steps of the whole training, >= 1.

    Returns:
        A number from 0 to ``at_most``.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    if same_training(one, other):
        return at_most
    first, second = _course(one), _course(other)
    # with a term of weight 0 attention is computed in another way than without one
    if first.rest != second.rest or first.entropy.has_term != second.entropy.has_term:
        return 0
    if first.at(0.0)[1:] != second.at(0.0)[1:]:
        return 0
    moves = first.entropy.moves or second.entropy.moves
    for step in range(at_most):
        at = progress(step, total_steps)
        # a long training has many steps, and a weight that stays is known
        if first.schedule(at) != second.schedule(at) or (moves and first.at(at) != second.at(at)):
            return step
    return at_most


def end_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two parameter sets evaluate alike at progress 1: each layer's temperature is bit-equal.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    first, second = _course(one), _course(other)
    alike = (first.rest, first.evaluated) == (second.rest, second.evaluated)
    return alike and first.schedule(1.0) == second.schedule(1.0)


def steps_held(parameters: Mapping[str, Any], total_steps: int) -> int:
    """Return for how many optimizer steps a schedule stays at its first temperature and entropy weight.

    Exact for those that never come back to it; 0 where the entropy of attention is controlled.

    Args:
        parameters: Flat parameters; temperature parameters that are missing are neutral.
        total_steps: Optimizer steps of the whole training, >= 0.

    Returns:
        A number from 0 to ``total_steps``.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    if is_controlled(_whole(parameters)):
        return 0
    course = _course(parameters)
    first = course.at(0.0)
    steps = range(total_steps)
    return bisect_left(steps, True, key=lambda step: course.at(progress(step, total_steps)) != first)


def _whole(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what counts of a parameter set, without the named temperatures that stay as found."""
    whole = effective({**neutral_values(parameters), **parameters})
    for name, found in as_found(parameters).items():
        own = own_parameters(whole, name)
        if own["schedule"] == Constant.name and own["temperature_init"] == found:
            whole = {each: value for each, value in whole.items() if split_name(each)[0] != name}
    return whole


def _course(parameters: Mapping[str, Any]) -> _Course:
    whole = _whole(parameters)
    return _Course(
        schedule=TemperatureParameters.from_mapping(whole).plan(1).schedule,
        entropy=EntropyParameters.from_mapping(whole),
        rest=_text({n: value for n, value in whole.items() if not _is_scheduled(n) and n not in GENERATION}),
        evaluated=_text({name: whole[name] for name in GENERATION if name in whole}),
    )


def _text(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)

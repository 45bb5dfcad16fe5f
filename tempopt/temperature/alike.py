"""How far two parameter sets train alike: to which optimizer step, and whether they are validated alike.

Exact: numbers are compared bit by bit, so that what one run has trained can be taken over by another.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from tempopt.temperature.entropy import EntropyParameters
from tempopt.temperature.entropy_control import is_controlled
from tempopt.temperature.generation import GENERATION
from tempopt.temperature.named import as_found, own_parameters, split_name
from tempopt.temperature.parameters import effective, neutral_values
from tempopt.temperature.plan import TemperatureParameters, is_own_number, progress
from tempopt.temperature.schedules import SCHEDULES, Constant, Piecewise, Schedule

_SCHEDULED = frozenset(
    {"schedule", "schedule_args", "entropy_lambda", "entropy_lambda_final", "entropy_schedule"}
    | {each.name for schedule in SCHEDULES.values() for each in fields(schedule)}
)
"""What decides attention by a value at each step alone; everything else has to be the same."""

_WORTH_SHARING = 0.05
"""Share of a training from which on a common beginning is worth a checkpoint."""


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
    return _key(_as_cached(parameters))


def hashable(value: Any) -> Any:
    """Return a value of a parameter with lists as tuples, for caches."""
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


def _as_cached(parameters: Mapping[str, Any]) -> tuple[tuple[str, str, Any], ...]:
    # as they are written: to a cache 1, 1.0 and true are the same, and so are 0.0 and -0.0
    return tuple((name, repr(value), hashable(value)) for name, value in parameters.items())


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

    Exact for ``piecewise`` and for those that never come back to it; 0 where the entropy is controlled.

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

    def moved(step: int) -> bool:
        return course.at(progress(step, total_steps)) != first

    last = total_steps
    if isinstance(course.schedule, Piecewise):
        # behind the knot that it goes to first it may come back
        last = min(math.ceil(course.schedule.leaves * (total_steps - 1)), total_steps)
    found = bisect_left(range(last), True, key=moved)
    return (
        found
        if found < last
        else next((step for step in range(last, total_steps) if moved(step)), total_steps)
    )


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a training begins, and how it is evaluated at its end.

    Args:
        start: Equal for parameter sets that train alike as long as both of them stay where they begin.
        steps: Optimizer steps for which it stays there; 0 where that is less than a twentieth of the
            training, which is not worth a checkpoint.
        end: Equal for parameter sets that evaluate alike at progress 1.
    """

    start: Hashable
    steps: int
    end: Hashable


def beginning(parameters: Mapping[str, Any], total_steps: int) -> Beginning:
    """Return how a training begins.

    Args:
        parameters: Flat parameters; temperature parameters that are missing are neutral.
        total_steps: Optimizer steps of the whole training, >= 0.

    Raises:
        SpecError: A temperature parameter has a value that it cannot have.
    """
    return _beginning(_as_cached(parameters), total_steps)


@lru_cache(maxsize=10_000)
def _beginning(parameters: tuple[tuple[str, str, Any], ...], total_steps: int) -> Beginning:
    given = {name: value for name, _, value in parameters}
    course, held = _course(given), steps_held(given, total_steps)
    return Beginning(
        start=(course.rest, course.entropy.has_term, course.at(0.0)),
        steps=held if held >= _WORTH_SHARING * total_steps else 0,
        end=(course.rest, course.evaluated, course.schedule(1.0)),
    )


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

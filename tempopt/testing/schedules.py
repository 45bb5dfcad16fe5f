"""Property tests for custom schedules. Needs hypothesis."""

from __future__ import annotations

import math
from dataclasses import Field, fields
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tempopt.errors import SpecError, UsageError
from tempopt.temperature.custom_schedules import CLOSE, custom_schedule_fields
from tempopt.temperature.ranges import DeclaredRange, declared_range
from tempopt.temperature.schedules import Schedule

_SCALE = st.floats(1e-6, 1e6)
_LEVELS = {"temperature_init": 2.0, "temperature_final": 0.5}


def check_schedule(kind: type[Schedule]) -> None:
    """Test the properties of a schedule, at many values of its parameters.

    Its temperature is finite and between ``temperature_init`` and ``temperature_final`` at every progress in
    [0, 1], and deterministic. It begins at the former, ends at the latter, and is constant if they are equal,
    with a relative tolerance of 1e-9. Schedules with equal parameters are equal. A progress outside [0, 1],
    and a parameter out of its range, are refused.

    Args:
        kind: The class of a custom schedule.

    Raises:
        AssertionError: A property does not hold; the message has the schedule and the progress.
        SpecError: The class is not declared as required by :class:`tempopt.temperature.Schedule`.
    """
    name = getattr(kind, "name", None)
    if not (isinstance(kind, type) and issubclass(kind, Schedule) and name):
        raise SpecError(f"{kind!r} is not a schedule. Give a subclass of tempopt.temperature.Schedule.")
    if custom_schedule_fields(name) is None:
        raise SpecError(f"{name} is a schedule of tempopt, which has its own tests. Give a custom schedule.")
    _check_values(kind)
    _check_refusals(kind)


def _check_values(kind: type[Schedule]) -> None:
    @settings(report_multiple_bugs=False)
    @given(_draw_schedules(kind), st.floats(0.0, 1.0))
    def check(schedule: Any, progress: float) -> None:
        initial, final, value = schedule.temperature_init, schedule.temperature_final, schedule(progress)
        slack = CLOSE * max(initial, final)
        assert min(initial, final) - slack <= value <= max(initial, final) + slack, (
            f"{_describe_value(schedule, progress)}, which is not between its temperatures"
        )
        assert schedule(progress) == value, (
            f"{_describe_value(schedule, progress)}, and another one when asked again"
        )
        assert math.isclose(schedule(0.0), initial, abs_tol=slack), (
            f"{_describe_value(schedule, 0.0)}, not temperature_init"
        )
        assert math.isclose(schedule(1.0), final, abs_tol=slack), (
            f"{_describe_value(schedule, 1.0)}, not temperature_final"
        )
        numbers = {field.name: getattr(schedule, field.name) for field in fields(kind)}
        assert kind(**numbers) == schedule
        flat = kind(**{**numbers, "temperature_final": initial})
        assert math.isclose(flat(progress), initial, rel_tol=CLOSE), (
            f"{_describe_value(flat, progress)}, though it has nowhere to go"
        )

    check()


def _check_refusals(kind: type[Schedule]) -> None:
    for progress in (-1e-9, 1.0 + 1e-9, math.nan):
        try:
            kind(**_LEVELS)(progress)
        except UsageError:
            continue
        raise AssertionError(f"{kind.name} takes a progress of {progress!r}. Override _at, not __call__.")
    for field in fields(kind):
        for value in (math.nan, math.inf, "1", None, True):
            try:
                kind(**{**_LEVELS, field.name: value})
            except SpecError:
                continue
            raise AssertionError(f"{kind.name} takes {field.name}={value!r}. Call super().__post_init__().")


def _draw_schedules(kind: type[Schedule]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: _draw_values(field) for field in fields(kind)})


def _draw_values(field: Field[Any]) -> st.SearchStrategy[Any]:
    allowed = declared_range(field)
    if not isinstance(allowed, DeclaredRange):
        return _SCALE
    if allowed.is_integer:
        return st.integers(int(allowed.low), int(allowed.high))
    return st.floats(allowed.low, allowed.high)


def _describe_value(schedule: Schedule, progress: float) -> str:
    return f"{schedule!r} is {schedule(progress)!r} at progress {progress!r}"

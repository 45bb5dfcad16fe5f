"""Schedules against their formulas, written out a second time, and against their promises."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from tempopt.errors import SpecError, UsageError
from tempopt.temperature.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    HoldAnneal,
    InverseLinear,
    InverseSqrt,
    Linear,
    Logarithmic,
    Piecewise,
    Polynomial,
    Schedule,
    Sigmoid,
    Step,
    Triangular,
    WarmupAnneal,
)
from tests.temperature.schedule_strategies import INNER, LEVELS

temperatures = st.floats(1e-6, 1e6)
progresses = st.floats(0.0, 1.0)
PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    "temperature_init": temperatures,
    "temperature_final": temperatures,
    "warmup_start": temperatures,
    "warmup_fraction": st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
    "hold_fraction": st.floats(0.0, 1.0, exclude_max=True),
    "num_knots": st.none() | st.integers(1, 4),
    **dict.fromkeys(INNER, st.none() | temperatures),
    "temperature_knots": st.none(),
    "curvature": st.floats(1e-6, 1e6),
    "cycles": st.integers(0, 10_000).map(lambda num_cycles: num_cycles + 0.5),
    "power": st.floats(1e-3, 1e3),
    "num_steps": st.integers(2, 100),
}
MONOTONE = (
    Linear,
    Cosine,
    Exponential,
    Polynomial,
    Step,
    InverseLinear,
    InverseSqrt,
    Logarithmic,
    Sigmoid,
    HoldAnneal,
)


@st.composite
def schedules(draw: st.DrawFn, kinds: tuple[type[Schedule], ...] = tuple(SCHEDULES.values())) -> Schedule:
    kind = draw(st.sampled_from(kinds))
    return kind(**{name: draw(PARAMETERS[name]) for name in inspect.signature(kind).parameters})


def first(schedule: Any) -> float:
    return schedule.warmup_start if isinstance(schedule, WarmupAnneal) else schedule.temperature_init


def last(schedule: Any) -> float:
    return schedule.temperature_init if isinstance(schedule, Constant) else schedule.temperature_final


def levels(schedule: Schedule) -> list[float]:
    names = [name for name in inspect.signature(type(schedule)).parameters if name in LEVELS]
    return [level for name in names if (level := getattr(schedule, name)) is not None]


def test_the_registry_names_each_schedule_once() -> None:
    assert all(kind.name == name for name, kind in SCHEDULES.items())


@given(schedules())
def test_a_schedule_meets_its_ends_to_the_last_bit(schedule: Schedule) -> None:
    assert schedule(0.0) == first(schedule)
    assert schedule(1.0) == last(schedule)


@given(schedules(), progresses)
def test_a_schedule_is_positive_and_stays_between_its_levels(schedule: Schedule, progress: float) -> None:
    temperature = schedule(progress)
    assert 0.0 < temperature < math.inf
    assert min(levels(schedule)) <= temperature <= max(levels(schedule))


@given(schedules(MONOTONE), st.lists(progresses, min_size=2, max_size=20))
def test_a_schedule_without_cycles_never_turns_back(schedule: Any, points: list[float]) -> None:
    sign = math.copysign(1.0, schedule.temperature_final - schedule.temperature_init)
    path = [sign * schedule(progress) for progress in sorted(points)]
    slack = 1e-12 * max(levels(schedule))
    assert all(later >= earlier - slack for earlier, later in itertools.pairwise(path))


@given(schedules((WarmupAnneal,)))
def test_warmup_anneal_is_at_its_initial_temperature_when_the_warmup_ends(schedule: Any) -> None:
    assert schedule(schedule.warmup_fraction) == schedule.temperature_init


def _anneal(t: float) -> float:
    start, init, final, warmup = 1.5, 3.0, 0.5, 0.2
    if t < warmup:
        return float(np.exp(np.interp(t, [0.0, warmup], np.log([start, init]))))
    return final + (init - final) * math.cos(math.pi / 2 * (t - warmup) / (1 - warmup)) ** 2


BY_HAND: list[tuple[Schedule, Callable[[float], float]]] = [
    (Constant(temperature_init=3.0), lambda t: 3.0),
    (
        Linear(temperature_init=3.0, temperature_final=0.5),
        lambda t: float(np.interp(t, [0.0, 1.0], [3.0, 0.5])),
    ),
    (
        Cosine(temperature_init=3.0, temperature_final=0.5),
        lambda t: 0.5 + 2.5 * math.cos(math.pi * t / 2) ** 2,
    ),
    (Exponential(temperature_init=3.0, temperature_final=0.5), lambda t: 3.0 ** (1 - t) * 0.5**t),
    (
        Polynomial(temperature_init=3.0, temperature_final=0.5, power=2.0),
        lambda t: 3.0 - 2.5 * (2 * t - t * t),
    ),
    (
        Polynomial(temperature_init=0.5, temperature_final=3.0, power=0.5),
        lambda t: 3.0 - 2.5 * math.sqrt(1 - t),
    ),
    (
        Step(temperature_init=4.0, temperature_final=0.5, num_steps=4),
        lambda t: (4.0, 2.0, 1.0, 0.5)[0 if t < 0.25 else 1 if t < 0.5 else 2 if t < 0.75 else 3],
    ),
    (
        WarmupAnneal(temperature_init=3.0, temperature_final=0.5, warmup_start=1.5, warmup_fraction=0.2),
        _anneal,
    ),
    (
        Cyclic(temperature_init=3.0, temperature_final=0.5, cycles=2.5),
        lambda t: 1.75 + 1.25 * math.sin(5 * math.pi * t + math.pi / 2),
    ),
    (
        InverseLinear(temperature_init=3.0, temperature_final=0.5),
        lambda t: 1 / float(np.interp(t, [0.0, 1.0], [1 / 3, 2.0])),
    ),
    (
        InverseSqrt(temperature_init=3.0, temperature_final=0.5, curvature=8.0),
        # g runs from 1 to 1/3
        lambda t: 0.5 + 2.5 * (1 / math.sqrt(1 + 8 * t) - 1 / 3) / (2 / 3),
    ),
    (
        Logarithmic(temperature_init=3.0, temperature_final=0.5, curvature=7.0),
        lambda t: 3.0 - 2.5 * math.log2(1 + 7 * t) / 3,
    ),
    (
        Sigmoid(temperature_init=3.0, temperature_final=0.5, curvature=6.0),
        lambda t: 3.0 - 2.5 * float((expit(6 * t - 3) - expit(-3)) / (expit(3) - expit(-3))),
    ),
    (
        HoldAnneal(temperature_init=3.0, temperature_final=0.5, hold_fraction=0.25),
        lambda t: 3.0 if t < 0.25 else 0.5 + 2.5 * math.cos(math.pi / 2 * (t - 0.25) / 0.75) ** 2,
    ),
    (
        Triangular(temperature_init=3.0, temperature_final=0.5, cycles=1.5),
        lambda t: float(np.interp(t, [0, 1 / 3, 2 / 3, 1], [3.0, 0.5, 3.0, 0.5])),
    ),
    (
        Piecewise(temperature_init=3.0, temperature_final=0.5, temperature_knot_1=0.25),
        lambda t: 3.0 * (0.25 / 3.0) ** (2 * t) if t < 0.5 else 0.25 * 2.0 ** (2 * t - 1),
    ),
]


@pytest.mark.parametrize(("schedule", "by_hand"), BY_HAND, ids=lambda case: getattr(case, "name", ""))
def test_a_schedule_follows_its_formula(schedule: Schedule, by_hand: Callable[[float], float]) -> None:
    for progress in (0.0, 0.01, 0.1, 0.24, 0.26, 1 / 3, 0.5, 0.6, 0.77, 0.9, 0.999, 1.0):
        assert schedule(progress) == pytest.approx(by_hand(progress), rel=1e-12)


@given(schedules((Triangular, Cyclic)), st.floats(0.0, 0.5))
def test_a_cycle_is_as_long_above_its_middle_as_below(schedule: Any, share: float) -> None:
    half = 0.5 / schedule.cycles
    ends = schedule.temperature_init + schedule.temperature_final
    assert schedule(share * half) + schedule((1.0 - share) * half) == pytest.approx(ends, rel=1e-9)


def test_a_step_schedule_has_as_many_levels_as_asked() -> None:
    schedule = Step(temperature_init=4.0, temperature_final=1.0, num_steps=5)
    assert len({schedule(k / 999) for k in range(1000)}) == 5


@pytest.mark.parametrize("progress", [-1e-9, 1.0000001, math.nan, math.inf])
def test_a_progress_outside_training_is_refused(progress: float) -> None:
    with pytest.raises(UsageError, match=r"outside \[0, 1\]"):
        Linear(temperature_init=1.0, temperature_final=2.0)(progress)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf, True, "1.0", None, 1e-7, 1e7])
def test_an_impossible_temperature_is_refused_where_it_is_given(temperature: Any) -> None:
    with pytest.raises(SpecError, match=r"temperature_final=.* from 1e-06 to 1e\+06"):
        Cosine(temperature_init=1.0, temperature_final=temperature)


def test_a_constant_schedule_knows_no_final_temperature() -> None:
    with pytest.raises(TypeError, match="temperature_final"):
        Constant(temperature_init=1.0, temperature_final=2.0)  # type: ignore[call-arg]

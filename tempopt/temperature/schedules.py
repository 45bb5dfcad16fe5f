"""Temperature over training progress, one final class per schedule, without depth and length.

A schedule outside this file is a subclass of :class:`Schedule` in another module, named
``package.module:Class``. It is registered when a person imports that module; nothing here imports it.

In the formulas t is the progress in [0, 1], a is ``temperature_init`` and b is ``temperature_final``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, fields
from typing import ClassVar, final

from tempopt.errors import SpecError, UsageError
from tempopt.temperature.knots import INNER_KNOTS, KNOTS, Knot, check_knots, num_inner_knots, to_knots
from tempopt.temperature.ranges import HIGHEST, LOWEST, ValidatedParameters, check_number

CUSTOM_SCHEDULES: dict[str, type[Schedule]] = {}
"""Schedules outside tempopt whose modules were imported, by ``package.module:Class``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(ValidatedParameters, ABC):
    """A temperature over training progress.

    Subclasses are frozen dataclasses. The fields of those in tempopt are named as in
    ``TemperatureParameters``. A custom schedule has ``temperature_init``, ``temperature_final`` and, declared
    by :func:`tempopt.temperature.number`, its own numbers, which are the parameters ``schedule_args.NAME``:

    .. code-block:: python

        @dataclass(frozen=True, slots=True, kw_only=True)
        class Knee(Schedule):
            temperature_init: float
            temperature_final: float
            knee: float = number(0.5, low=0.01, high=1.0)

            def _at(self, progress: float) -> float:
                share = min(progress / self.knee, 1.0)
                return self.temperature_init ** (1.0 - share) * self.temperature_final**share

    Every schedule is positive, stays between its temperatures, and begins and ends at them.
    :func:`tempopt.testing.check_schedule` tests a schedule for this.
    """

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        # with slots the class is created twice, and super() would refer to the first only
        if cls.__module__ != __name__:
            cls.name = f"{cls.__module__}:{cls.__qualname__}"
            CUSTOM_SCHEDULES[cls.name] = cls

    def __call__(self, progress: float) -> float:
        """Return the temperature at a training progress in [0, 1].

        Raises:
            UsageError: The progress is outside [0, 1].
            SpecError: A schedule outside tempopt raises an error, or returns no temperature from 1e-6 to 1e6.
        """
        if not 0.0 <= progress <= 1.0:
            raise UsageError(
                f"progress={progress!r} is outside [0, 1]. Take it from progress(step, total_steps)."
            )
        return self._at(progress) if self.name in SCHEDULES else self._evaluate_and_check(progress)

    def _evaluate_and_check(self, progress: float) -> float:
        try:
            temperature = self._at(progress)
        except Exception as error:
            raise SpecError(
                f"{self!r} raised {type(error).__name__} at progress {progress!r}: {error}"
            ) from error
        # rounding at both ends is allowed
        if not (
            isinstance(temperature, int | float)
            and LOWEST * (1 - 1e-9) <= temperature <= HIGHEST * (1 + 1e-9)
        ):
            raise SpecError(
                f"{self!r} is {temperature!r} at progress {progress!r}. "
                f"Return a number from {LOWEST:g} to {HIGHEST:g}."
            )
        return min(max(float(temperature), LOWEST), HIGHEST)

    @abstractmethod
    def _at(self, progress: float) -> float: ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Schedule):
    """a, throughout."""

    name: ClassVar[str] = "constant"

    temperature_init: float

    def _at(self, progress: float) -> float:
        return self.temperature_init


@dataclass(frozen=True, slots=True, kw_only=True)
class _Annealed(Schedule):
    """From ``temperature_init`` to ``temperature_final``."""

    temperature_init: float
    temperature_final: float

    def _mix(self, weight: float) -> float:
        """Return the level between both ends, given the weight of the initial one."""
        init, final = self.temperature_init, self.temperature_final
        return _clamp(init, final, weight * init + (1.0 - weight) * final)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(_Annealed):
    """a + (b - a) t; tutorials also call it a curriculum."""

    name: ClassVar[str] = "linear"

    def _at(self, progress: float) -> float:
        return self._mix(1.0 - progress)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(_Annealed):
    """b + (a - b)(1 + cos pi t) / 2: half a cosine, flat at both ends (Loshchilov & Hutter 2017)."""

    name: ClassVar[str] = "cosine"

    def _at(self, progress: float) -> float:
        return self._mix(_half_cosine(progress))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Exponential(_Annealed):
    """a (b / a)^t: the same factor in every step, a straight line on a logarithmic axis."""

    name: ClassVar[str] = "exponential"

    def _at(self, progress: float) -> float:
        return _interpolate_geometrically(self.temperature_init, self.temperature_final, progress)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Polynomial(_Annealed):
    """b + (a - b)(1 - t)^power; a power above 1 moves early, below 1 late, 1 is linear."""

    name: ClassVar[str] = "polynomial"

    power: float

    def _at(self, progress: float) -> float:
        return self._mix((1.0 - progress) ** self.power)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Step(_Annealed):
    """a (b / a)^(min(floor(t N), N - 1) / (N - 1)) with N = ``num_steps``: a staircase of N equal steps."""

    name: ClassVar[str] = "step"

    num_steps: int

    def _at(self, progress: float) -> float:
        last_step = self.num_steps - 1
        step = min(math.floor(progress * self.num_steps), last_step)
        return _interpolate_geometrically(self.temperature_init, self.temperature_final, step / last_step)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupAnneal(_Annealed):
    """From s = ``warmup_start`` to a at t = w = ``warmup_fraction``, then a cosine from a to b.

    s (a / s)^(t / w) for t < w, then b + (a - b)(1 + cos pi u) / 2 with u = (t - w) / (1 - w).
    Unlike the form in tutorials it starts above zero, is continuous at w, and ends at b.
    """

    name: ClassVar[str] = "warmup_anneal"

    warmup_start: float
    warmup_fraction: float

    def _at(self, progress: float) -> float:
        if progress < self.warmup_fraction:
            return _interpolate_geometrically(
                self.warmup_start, self.temperature_init, progress / self.warmup_fraction
            )
        anneal_progress = (progress - self.warmup_fraction) / (1.0 - self.warmup_fraction)
        return self._mix(_half_cosine(anneal_progress))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Cyclic(_Annealed):
    """b + (a - b)(1 + cos 2 pi N t) / 2 with N = ``cycles`` half-integer, so that it ends at b.

    After Kukleva et al., "Temperature Schedules for Self-Supervised Contrastive Methods on
    Long-Tail Data" (ICLR 2023).
    """

    name: ClassVar[str] = "cyclic"

    cycles: float

    def _at(self, progress: float) -> float:
        # The remainder is exact, so the end is exactly half a cosine away from a for any number of cycles.
        phase = math.fmod(2.0 * self.cycles * progress, 2.0)
        return self._mix(_half_cosine(phase))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InverseLinear(_Annealed):
    """1 / (1 / a + (1 / b - 1 / a) t): the inverse temperature, by which logits are multiplied, is linear."""

    name: ClassVar[str] = "inv_linear"

    def _at(self, progress: float) -> float:
        init, final = self.temperature_init, self.temperature_final
        if progress <= 0.0:
            return init
        # Not by 1 / a and 1 / b, which would round the ends.
        harmonic = final / ((1.0 - progress) * (final / init) + progress)
        return _clamp(init, final, harmonic)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrt(_Annealed):
    """b + (a - b)(g(t) - g(1)) / (1 - g(1)) with g(t) = (1 + c t)^(-1/2) and c = ``curvature``.

    It changes early and slows down, the more so the larger c; towards 0 it is linear.
    """

    name: ClassVar[str] = "inv_sqrt"

    curvature: float

    def _at(self, progress: float) -> float:
        fraction = self._unscaled_share(progress) / self._unscaled_share(1.0)
        return self._mix(1.0 - fraction)

    def _unscaled_share(self, progress: float) -> float:
        # 1 - g, without the cancellation of that difference at small curvature.
        return -math.expm1(-0.5 * math.log1p(self.curvature * progress))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Logarithmic(_Annealed):
    """a + (b - a) ln(1 + c t) / ln(1 + c) with c = ``curvature``: like ``inv_sqrt``, but slows down less."""

    name: ClassVar[str] = "logarithmic"

    curvature: float

    def _at(self, progress: float) -> float:
        fraction = math.log1p(self.curvature * progress) / math.log1p(self.curvature)
        return self._mix(1.0 - fraction)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sigmoid(_Annealed):
    """a + (b - a)(f(t) - f(0)) / (f(1) - f(0)) with f(t) = 1 / (1 + exp(-c (t - 1/2))), c = ``curvature``.

    It changes in the middle, the more suddenly the larger c; towards 0 it is linear. Without the
    normalisation it would not begin at a and end at b.
    """

    name: ClassVar[str] = "sigmoid"

    curvature: float

    def _at(self, progress: float) -> float:
        quarter_curvature = self.curvature / 4.0
        # f(t) - 1/2 is tanh(c (t - 1/2) / 2) / 2.
        weight = (
            1.0 - math.tanh(quarter_curvature * (2.0 * progress - 1.0)) / math.tanh(quarter_curvature)
        ) / 2.0
        return self._mix(weight)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HoldAnneal(_Annealed):
    """a until t = h = ``hold_fraction``, then a cosine from a to b.

    From there on b + (a - b)(1 + cos pi u) / 2 with u = (t - h) / (1 - h).
    """

    name: ClassVar[str] = "hold_anneal"

    hold_fraction: float = 0.5

    def _at(self, progress: float) -> float:
        anneal_progress = max(progress - self.hold_fraction, 0.0) / (1.0 - self.hold_fraction)
        return self._mix(_half_cosine(anneal_progress))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Triangular(_Annealed):
    """``cyclic`` with straight lines instead of cosines: N = ``cycles`` times from a to b and back, ending at
    b.

    After Smith, "Cyclical Learning Rates for Training Neural Networks" (2017).
    """

    name: ClassVar[str] = "triangular"

    cycles: float

    def _at(self, progress: float) -> float:
        phase = math.fmod(2.0 * self.cycles * progress, 2.0)
        return self._mix(abs(1.0 - phase))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Piecewise(Schedule):
    """ln tau is linear in t between knots: a at 0, up to four inner knots, b at 1.

    With h = ``hold_fraction`` above 0 it is a until t = h. Inner knot k of K = ``num_knots`` lies at h + (1 -
    h) k / (K + 1); K is by default the last knot that has a temperature. A knot without a temperature is
    omitted, and the line continues to the next one. ``temperature_knots`` instead gives a complete schedule:
    pairs of progress and temperature, constant before the first and after the last.
    """

    name: ClassVar[str] = "piecewise"

    temperature_init: float = 1.0
    temperature_final: float = 1.0
    hold_fraction: float = 0.0
    num_knots: int | None = None
    temperature_knot_1: float | None = None
    temperature_knot_2: float | None = None
    temperature_knot_3: float | None = None
    temperature_knot_4: float | None = None
    temperature_knots: tuple[Knot, ...] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            if field.name == KNOTS:
                check_knots(value)
                object.__setattr__(self, KNOTS, to_knots(value))
            else:
                check_number(field.name, value)

    @property
    def knots(self) -> tuple[Knot, ...]:
        """Progress and temperature of each knot, by progress."""
        if self.temperature_knots is not None:
            return self.temperature_knots
        hold, levels = self.hold_fraction, {name: getattr(self, name) for name in INNER_KNOTS}
        num_inner = num_inner_knots({"num_knots": self.num_knots, **levels})
        inner_knots = [
            (hold + (1.0 - hold) * number / (num_inner + 1), levels[name])
            for number, name in enumerate(INNER_KNOTS[:num_inner], 1)
            if levels[name] is not None
        ]
        hold_knots = [(hold, self.temperature_init)] if hold > 0.0 else []
        return ((0.0, self.temperature_init), *hold_knots, *inner_knots, (1.0, self.temperature_final))

    def _at(self, progress: float) -> float:
        knots = self.knots
        index = bisect_right(knots, progress, key=lambda knot: knot[0])
        if index in (0, len(knots)):
            return knots[min(index, len(knots) - 1)][1]
        (start, start_temperature), (end, end_temperature) = knots[index - 1], knots[index]
        return _interpolate_geometrically(
            start_temperature, end_temperature, (progress - start) / (end - start)
        )


SCHEDULES: dict[str, type[Schedule]] = {
    schedule.name: schedule
    for schedule in (
        Constant,
        Linear,
        Cosine,
        Exponential,
        Polynomial,
        Step,
        WarmupAnneal,
        Cyclic,
        InverseLinear,
        InverseSqrt,
        Logarithmic,
        Sigmoid,
        HoldAnneal,
        Triangular,
        Piecewise,
    )
}
"""Name of a schedule to its class."""


def _half_cosine(phase: float) -> float:
    return (1.0 + math.cos(math.pi * phase)) / 2.0


def _interpolate_geometrically(init: float, final: float, fraction: float) -> float:
    if fraction <= 0.0:
        return init
    if fraction >= 1.0:
        return final
    return _clamp(init, final, init * (final / init) ** fraction)


def _clamp(init: float, final: float, value: float) -> float:
    # Rounding may exceed an end by an ulp; a schedule never does.
    return min(max(value, min(init, final)), max(init, final))

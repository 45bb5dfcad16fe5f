"""Allowed numbers of the temperature parameters; allowed names are in the registries of strategies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self

from tempopt.errors import SpecError

# Beyond these, attention in float32 is one-hot or uniform for any logits, and 1/tau times a layer's factor
# would leave the range of half precision.
LOWEST = 1e-6
HIGHEST = 1e6

_METADATA_KEY = "tempopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRange:
    """The allowed values of one numeric parameter: a predicate, and its description in words."""

    allowed: str
    accepts: Callable[[float], bool]
    is_integer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRange(ParameterRange):
    """The range of a number that :func:`number` declares: ``low`` to ``high``, both included."""

    low: int | float
    high: int | float


def _closed_range(low: int | float, high: int | float, *, is_integer: bool = False) -> DeclaredRange:
    """Return the range of numbers from ``low`` to ``high``, both included."""
    return DeclaredRange(
        allowed=f"a {'whole number' if is_integer else 'number'} from {low:g} to {high:g}",
        accepts=lambda value: low <= value <= high,
        is_integer=is_integer,
        low=low,
        high=high,
    )


def _integers_from(low: int, *, hint: str = "") -> ParameterRange:
    """Return the range of integers from ``low``."""
    return ParameterRange(
        allowed=hint or f"a whole number of at least {low}",
        accepts=lambda value: value >= low,
        is_integer=True,
    )


def _open_unit_interval(allowed: str) -> ParameterRange:
    """Return the range of numbers between 0 and 1, both excluded."""
    return ParameterRange(allowed=allowed, accepts=lambda value: 0 < value < 1)


def _half_open_unit_interval(allowed: str) -> ParameterRange:
    return ParameterRange(allowed=allowed, accepts=lambda value: 0 <= value < 1)


SCALE = _closed_range(LOWEST, HIGHEST)
FINITE = ParameterRange(allowed="a finite number", accepts=math.isfinite)
_FRACTION = _open_unit_interval("a number between 0 and 1, both excluded")
_ENTROPY = "a share of ln n, the largest entropy of n keys,"

RANGES: dict[str, ParameterRange] = {
    "temperature": SCALE,
    "temperature_init": SCALE,
    "temperature_final": SCALE,
    "layer_ratio": SCALE,
    "head_ratio": SCALE,
    "n0": ParameterRange(allowed="a finite number above 1", accepts=lambda value: 1.0 < value < math.inf),
    # Beyond this a factor would leave the range of float32 for small n0.
    "length_power": _closed_range(0, 4),
    "length_slope": _closed_range(0, HIGHEST),
    "warmup_start": SCALE,
    "warmup_fraction": _FRACTION,
    "hold_fraction": _half_open_unit_interval("a share of training from 0, and less than 1"),
    "num_knots": _closed_range(1, 4, is_integer=True),
    **{f"temperature_knot_{knot}": SCALE for knot in range(1, 5)},
    "cycles": ParameterRange(
        allowed="an odd number of half cycles (0.5, 1.5, 2.5, ...), which end at temperature_final",
        accepts=lambda value: 0 < value < math.inf and (2 * value) % 2 == 1,
    ),
    "power": SCALE,
    "curvature": SCALE,
    "num_steps": _integers_from(2),
    "top_k": _integers_from(1),
    "min_weight": _FRACTION,
    "window": _integers_from(1),
    "local_share": _closed_range(0, 1),
    "num_layers": _integers_from(1),
    "entropy_lambda": FINITE,
    "entropy_lambda_final": FINITE,
    "entropy_target": ParameterRange(
        allowed=f"{_ENTROPY} from 0 to 1", accepts=lambda value: 0 <= value <= 1
    ),
    "control_level": _open_unit_interval(f"{_ENTROPY} between 0 and 1, both excluded"),
    "control_start": _open_unit_interval(f"{_ENTROPY} between 0 and 1, both excluded"),
    "control_spread": SCALE,
    "output_temperature": SCALE,
    "sampling_temperature": ParameterRange(
        allowed=f"0, which takes the most likely token, or {SCALE.allowed}",
        accepts=lambda value: value == 0 or SCALE.accepts(value),
    ),
    "top_p": ParameterRange(allowed="a number above 0, and at most 1", accepts=lambda value: 0 < value <= 1),
    "top_k_tokens": _integers_from(0, hint="a whole number of at least 1, or 0 for all tokens"),
    "min_p": _half_open_unit_interval("a number from 0, and less than 1"),
}


def number(default: int | float, *, low: int | float, high: int | float) -> Any:
    """Declare a number of a custom schedule as a field of its dataclass.

    Args:
        default: Default value; an integer declares an integer parameter.
        low: Smallest allowed value.
        high: Largest allowed value.

    Raises:
        ValueError: The default is not between ``low`` and ``high``, or one of these is not finite.
    """
    if not -math.inf < low <= default <= high < math.inf:
        raise ValueError(
            f"default {default!r} is not from {low!r} to {high!r}. Give finite numbers in order."
        )
    number_range = _closed_range(low, high, is_integer=isinstance(default, int))
    return field(default=default, metadata={_METADATA_KEY: number_range})


def declared_range(parameter: Field[Any]) -> DeclaredRange | None:
    """Return the range that :func:`number` declared for a field; None if it declared none."""
    number_range: DeclaredRange | None = parameter.metadata.get(_METADATA_KEY)
    return number_range


def check_number(name: str, value: object, number_range: ParameterRange | None = None) -> None:
    """Refuse a value that the numeric parameter ``name`` cannot have.

    Args:
        name: The parameter.
        value: Its value.
        number_range: Its allowed values; None: those of ``RANGES`` for the name.

    Raises:
        SpecError: The value is not a number, not finite or out of range.
    """
    number_range = number_range or RANGES[name]
    kinds = (int,) if number_range.is_integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise SpecError(
            f"{name}={value!r} is {_describe_type(value)}. Give {number_range.allowed}.{_hint_text(value)}"
        )
    if not number_range.accepts(value):
        raise SpecError(f"{name}={value!r} is out of range. Give {number_range.allowed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedParameters:
    """A dataclass whose fields are numeric temperature parameters, checked on construction.

    Raises:
        SpecError: A field has a value that is not allowed.
    """

    def __post_init__(self) -> None:
        for parameter in fields(self):
            check_number(parameter.name, getattr(self, parameter.name), declared_range(parameter))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatParameters:
    """A dataclass whose fields are named like the parameters of a flat mapping."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(parameter.name for parameter in fields(cls) if parameter.init)

    @classmethod
    def from_mapping(cls, parameters: Mapping[str, Any]) -> Self:
        """Select these parameters from a flat mapping that may hold others; missing ones are neutral."""
        return cls(**{name: parameters[name] for name in cls.names() if name in parameters})


def _describe_type(value: object) -> str:
    if value is None:
        return "not set"
    article = "an" if type(value).__name__[0] in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def _hint_text(value: object) -> str:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            float(value)
            return " It is text: write it without quotes, and in YAML with a dot, as in 1.0e-3."
    return ""

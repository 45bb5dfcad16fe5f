"""Which numbers the temperature parameters may be; which names are known is said by their registries."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self

from tempopt.errors import SpecError

# Beyond these, attention in float32 is one-hot or uniform whatever the logits are, and 1/tau, times a
# layer's factor, would leave the range of half precision altogether.
LOWEST = 1e-6
HIGHEST = 1e6

_METADATA_KEY = "tempopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRange:
    """The values of one numeric parameter: a test, and the words that say it to a person."""

    allowed: str
    accepts: Callable[[float], bool]
    is_integer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRange(ParameterRange):
    """The values of a number that :func:`number` declares: from ``low`` to ``high``, both allowed."""

    low: int | float
    high: int | float


def _from_to(low: int | float, high: int | float, *, is_integer: bool = False) -> OwnRange:
    """Return the range of numbers from ``low`` to ``high``, both allowed."""
    return OwnRange(
        allowed=f"a {'whole number' if is_integer else 'number'} from {low:g} to {high:g}",
        accepts=lambda value: low <= value <= high,
        is_integer=is_integer,
        low=low,
        high=high,
    )


def _at_least(low: int, *, hint: str = "") -> ParameterRange:
    """Return the range of whole numbers from ``low``."""
    return ParameterRange(
        allowed=hint or f"a whole number of at least {low}",
        accepts=lambda value: value >= low,
        is_integer=True,
    )


def _in_unit_interval(allowed: str) -> ParameterRange:
    """Return the range of numbers between 0 and 1, both excluded."""
    return ParameterRange(allowed=allowed, accepts=lambda value: 0 < value < 1)


def _from_zero_below_one(allowed: str) -> ParameterRange:
    return ParameterRange(allowed=allowed, accepts=lambda value: 0 <= value < 1)


SCALE = _from_to(LOWEST, HIGHEST)
FINITE = ParameterRange(allowed="a finite number", accepts=math.isfinite)
_FRACTION = _in_unit_interval("a number between 0 and 1, both excluded")
_ENTROPY = "a share of ln n, the largest entropy of n keys,"

RANGES: dict[str, ParameterRange] = {
    "temperature": SCALE,
    "temperature_init": SCALE,
    "temperature_final": SCALE,
    "layer_ratio": SCALE,
    "head_ratio": SCALE,
    "n0": ParameterRange(allowed="a finite number above 1", accepts=lambda value: 1.0 < value < math.inf),
    # Beyond it a factor would leave the range of float32 where n0 is small.
    "length_power": _from_to(0, 4),
    "length_slope": _from_to(0, HIGHEST),
    "warmup_start": SCALE,
    "warmup_fraction": _FRACTION,
    "hold_fraction": _from_zero_below_one("a share of training from 0, and less than 1"),
    "num_knots": _from_to(1, 4, is_integer=True),
    **{f"temperature_knot_{knot}": SCALE for knot in range(1, 5)},
    "cycles": ParameterRange(
        allowed="an odd number of half cycles (0.5, 1.5, 2.5, ...), which end at temperature_final",
        accepts=lambda value: 0 < value < math.inf and (2 * value) % 2 == 1,
    ),
    "power": SCALE,
    "curvature": SCALE,
    "num_steps": _at_least(2),
    "top_k": _at_least(1),
    "min_weight": _FRACTION,
    "window": _at_least(1),
    "local_share": _from_to(0, 1),
    "num_layers": _at_least(1),
    "entropy_lambda": FINITE,
    "entropy_lambda_final": FINITE,
    "entropy_target": ParameterRange(
        allowed=f"{_ENTROPY} from 0 to 1", accepts=lambda value: 0 <= value <= 1
    ),
    "control_level": _in_unit_interval(f"{_ENTROPY} between 0 and 1, both excluded"),
    "control_start": _in_unit_interval(f"{_ENTROPY} between 0 and 1, both excluded"),
    "control_spread": SCALE,
    "output_temperature": SCALE,
    "sampling_temperature": ParameterRange(
        allowed=f"0, which takes the most likely token, or {SCALE.allowed}",
        accepts=lambda value: value == 0 or SCALE.accepts(value),
    ),
    "top_p": ParameterRange(allowed="a number above 0, and at most 1", accepts=lambda value: 0 < value <= 1),
    "top_k_tokens": _at_least(0, hint="a whole number of at least 1, or 0 for all tokens"),
    "min_p": _from_zero_below_one("a number from 0, and less than 1"),
}


def number(default: int | float, *, low: int | float, high: int | float) -> Any:
    """Declare a number that a schedule has for itself, as a field of its dataclass.

    Args:
        default: Value where none is given; an integer declares a whole number.
        low: Least value, itself allowed.
        high: Largest value, itself allowed.

    Raises:
        ValueError: The default is not from ``low`` to ``high``, or these are not finite.
    """
    if not -math.inf < low <= default <= high < math.inf:
        raise ValueError(
            f"default {default!r} is not from {low!r} to {high!r}. Give finite numbers in order."
        )
    number_range = _from_to(low, high, is_integer=isinstance(default, int))
    return field(default=default, metadata={_METADATA_KEY: number_range})


def own_range(parameter: Field[Any]) -> OwnRange | None:
    """Return what :func:`number` declared of a field; None if it declared nothing."""
    number_range: OwnRange | None = parameter.metadata.get(_METADATA_KEY)
    return number_range


def check_number(name: str, value: object, number_range: ParameterRange | None = None) -> None:
    """Refuse a value that the numeric parameter ``name`` cannot have.

    Args:
        name: The parameter.
        value: Its value.
        number_range: What it may be; None: what ``RANGES`` says of that name.

    Raises:
        SpecError: if the value is not a number, not finite or out of range.
    """
    number_range = number_range or RANGES[name]
    kinds = (int,) if number_range.is_integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise SpecError(f"{name}={value!r} is {_kind(value)}. Give {number_range.allowed}.{_remedy(value)}")
    if not number_range.accepts(value):
        raise SpecError(f"{name}={value!r} is out of range. Give {number_range.allowed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedParameters:
    """A dataclass whose fields are numeric temperature parameters, checked as it is made.

    Raises:
        SpecError: if a field has a value that it cannot have.
    """

    def __post_init__(self) -> None:
        for parameter in fields(self):
            check_number(parameter.name, getattr(self, parameter.name), own_range(parameter))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatParameters:
    """A dataclass whose fields are named as parameters of a flat mapping."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the parameters."""
        return tuple(parameter.name for parameter in fields(cls) if parameter.init)

    @classmethod
    def from_mapping(cls, parameters: Mapping[str, Any]) -> Self:
        """Pick these parameters out of a flat mapping that may hold others; missing ones are neutral."""
        return cls(**{name: parameters[name] for name in cls.names() if name in parameters})


def _kind(value: object) -> str:
    if value is None:
        return "not set"
    article = "an" if type(value).__name__[0] in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def _remedy(value: object) -> str:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            float(value)
            return " It is text: write it without quotes, and in YAML with a dot, as in 1.0e-3."
    return ""

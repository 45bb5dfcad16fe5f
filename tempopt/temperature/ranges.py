"""Which numbers the temperature parameters may be; which names are known is said by their registries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any

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


def _is_scale(value: float) -> bool:
    return LOWEST <= value <= HIGHEST


_SCALE = ParameterRange(allowed=f"a number from {LOWEST:g} to {HIGHEST:g}", accepts=_is_scale)

FINITE = ParameterRange(allowed="a finite number", accepts=math.isfinite)

_FRACTION = ParameterRange(
    allowed="a number between 0 and 1, both excluded", accepts=lambda value: 0 < value < 1
)

_INNER_SHARE = ParameterRange(
    allowed="a share of ln n, the largest entropy of n keys, between 0 and 1, both excluded",
    accepts=lambda value: 0 < value < 1,
)

RANGES: dict[str, ParameterRange] = {
    "temperature": _SCALE,
    "temperature_init": _SCALE,
    "temperature_final": _SCALE,
    "layer_ratio": _SCALE,
    "head_ratio": _SCALE,
    "n0": ParameterRange(allowed="a finite number above 1", accepts=lambda value: 1.0 < value < math.inf),
    # Beyond it a factor would leave the range of float32 where n0 is small.
    "length_power": ParameterRange(allowed="a number from 0 to 4", accepts=lambda value: 0 <= value <= 4),
    "length_slope": ParameterRange(
        allowed=f"a number from 0 to {HIGHEST:g}", accepts=lambda value: 0 <= value <= HIGHEST
    ),
    "warmup_start": _SCALE,
    "warmup_fraction": _FRACTION,
    "hold_fraction": ParameterRange(
        allowed="a share of training from 0, and less than 1", accepts=lambda value: 0 <= value < 1
    ),
    "num_knots": ParameterRange(
        allowed="a whole number from 1 to 4", accepts=lambda value: 1 <= value <= 4, is_integer=True
    ),
    **{f"temperature_knot_{schedule_number}": _SCALE for schedule_number in range(1, 5)},
    "cycles": ParameterRange(
        allowed="an odd number of half cycles (0.5, 1.5, 2.5, ...), which end at temperature_final",
        accepts=lambda value: 0 < value < math.inf and (2 * value) % 2 == 1,
    ),
    "power": _SCALE,
    "curvature": _SCALE,
    "num_steps": ParameterRange(
        allowed="a whole number of at least 2", accepts=lambda value: value >= 2, is_integer=True
    ),
    "top_k": ParameterRange(
        allowed="a whole number of at least 1", accepts=lambda value: value >= 1, is_integer=True
    ),
    "min_weight": _FRACTION,
    "window": ParameterRange(
        allowed="a whole number of at least 1", accepts=lambda value: value >= 1, is_integer=True
    ),
    "local_share": ParameterRange(allowed="a share from 0 to 1", accepts=lambda value: 0 <= value <= 1),
    "num_layers": ParameterRange(
        allowed="a whole number of at least 1", accepts=lambda value: value >= 1, is_integer=True
    ),
    "entropy_lambda": FINITE,
    "entropy_lambda_final": FINITE,
    "entropy_target": ParameterRange(
        allowed="a share of ln n, the largest entropy of n keys, from 0 to 1",
        accepts=lambda value: 0 <= value <= 1,
    ),
    "control_level": _INNER_SHARE,
    "control_start": _INNER_SHARE,
    "control_spread": _SCALE,
    "output_temperature": _SCALE,
    "sampling_temperature": ParameterRange(
        allowed=f"0, which takes the most likely token, or a number from {LOWEST:g} to {HIGHEST:g}",
        accepts=lambda value: value == 0 or _is_scale(value),
    ),
    "top_p": ParameterRange(allowed="a number above 0, and at most 1", accepts=lambda value: 0 < value <= 1),
    "top_k_tokens": ParameterRange(
        allowed="a whole number of at least 1, or 0 for all tokens",
        accepts=lambda value: value >= 0,
        is_integer=True,
    ),
    "min_p": ParameterRange(
        allowed="a number from 0, and less than 1",
        accepts=lambda value: 0 <= value < 1,
    ),
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
    is_whole = isinstance(default, int)
    allowed_text = f"a {'whole number' if is_whole else 'number'} from {low:g} to {high:g}"
    number_range = OwnRange(
        allowed=allowed_text,
        accepts=lambda value: low <= value <= high,
        is_integer=is_whole,
        low=low,
        high=high,
    )
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


def _kind(value: object) -> str:
    if value is None:
        return "not set"
    article = "an" if type(value).__name__[0] in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def _remedy(value: object) -> str:
    if isinstance(value, str) and _reads_as_number(value):
        return " It is text: write it without quotes, and in YAML with a dot, as in 1.0e-3."
    return ""


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Whether a recommended value lies at the end of its searched range, and how far that range is to be widened.

Pure; the widened range is searched in a new study.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tempopt.spec.domains import RangeDomain
from tempopt.temperature import CREDITED, GROUPS, named_schedule_params, split_name
from tempopt.temperature.ranges import RANGES

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

_END = 0.02
"""So near to an end of its range, as a share of it, a value lies at the end."""
_HALVINGS = 100
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """A searched range at whose end a recommended value lies.

    Args:
        name: The parameter.
        value: The recommended value.
        low: Lower end of the range that was searched.
        high: Its upper end.
        to_low: Lower end of the range to search.
        to_high: Its upper end.
    """

    name: str
    value: float
    low: float
    high: float
    to_low: float
    to_high: float


def find_params_at_range_ends(parameters: Mapping[str, Any], spec: StudySpec) -> Iterator[Widening]:
    """Return the searched ranges of temperatures at whose ends parameters lie, as far as they can be wider.

    Numbers that shape a schedule (a power, a share of training) are no reason to search again, nor is a
    named temperature that stays as found: no search has put it there.
    """
    for name, domain in spec.search.items():
        value = parameters.get(name)
        temperature, bare = split_name(name)
        shapes = bare in GROUPS["schedule"] and bare not in GROUPS["level"]
        if not isinstance(domain, RangeDomain) or name not in CREDITED or shapes:
            continue
        if temperature and bare in GROUPS["level"] and not named_schedule_params(parameters, temperature):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        ends = _wider(name, domain, float(value))
        if ends is not None:
            yield Widening(
                name=name,
                value=float(value),
                low=float(domain.low),
                high=float(domain.high),
                to_low=ends[0],
                to_high=ends[1],
            )


def _wider(name: str, domain: RangeDomain, value: float) -> tuple[float, float] | None:
    """Return a range that is half as wide again at the end where a value lies, as far as is allowed.

    None: the value lies at neither end, or that end is the last value that is allowed.
    """
    log = domain.log and domain.low > 0 and value > 0
    low, high, position = (math.log(bound) if log else bound for bound in (domain.low, domain.high, value))
    margin = _END * (high - low)
    if position <= low + margin:
        to_low = _beyond(name, domain, domain.low, domain.high)
        return None if to_low >= domain.low else (to_low, float(domain.high))
    if position >= high - margin:
        to_high = _beyond(name, domain, domain.high, domain.low)
        return None if to_high <= domain.high else (float(domain.low), to_high)
    return None


def _beyond(name: str, domain: RangeDomain, end: float, opposite_end: float) -> float:
    """Return where a range ends that is half as wide again at an end, or the last value that is allowed."""
    ratio = math.sqrt(end / opposite_end) if domain.low > 0 else 1.0
    min_step = domain.step or isinstance(domain.low, int)
    linear_end = end + math.copysign(max(abs(end - opposite_end) / 2, min_step), end - opposite_end)
    target = end * ratio if domain.log else linear_end
    allowed = RANGES.get(split_name(name)[1])
    if allowed is None or allowed.accepts(_number(target, domain)):
        return _number(target, domain)
    if allowed.accepts(_number(end * ratio, domain)) and not allowed.accepts(0.0):
        # what has to be above 0 goes half as far again in ratio
        return _number(end * ratio, domain)
    allowed_end, refused_end = float(end), target
    for _ in range(_HALVINGS):
        middle = (allowed_end + refused_end) / 2
        allowed_end, refused_end = (middle, refused_end) if allowed.accepts(middle) else (allowed_end, middle)
    rounded_ends = (0.0, _number(allowed_end, domain), _inward(allowed_end, end, domain))
    bounds = (
        sorted((allowed_end - _ROUNDING, end))
        if allowed_end < end
        else sorted((end, allowed_end + _ROUNDING))
    )
    return next(
        (value for value in rounded_ends if allowed.accepts(value) and bounds[0] <= value <= bounds[1]), end
    )


def _number(value: float, domain: RangeDomain) -> float:
    """Return a value as it is written: whole where the range is, in its steps, else with three digits."""
    if domain.step is not None:
        steps = math.trunc((value - domain.low) / domain.step + math.copysign(_ROUNDING, value - domain.low))
        return float(f"{domain.low + steps * domain.step:.12g}")
    return float(round(value)) if isinstance(domain.low, int) else float(f"{value:.3g}")


def _inward(value: float, end: float, domain: RangeDomain) -> float:
    """Return a value as :func:`_number` does, but no farther from an end of its range."""
    towards = math.ceil if value < end else math.floor
    if isinstance(domain.low, int) or not value:
        return float(towards(value))
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return float(f"{towards(value / unit) * unit:.3g}")

"""Whether a recommended value lies at the end of its searched range, and the range to search instead.

Pure; a new study searches the widened range.
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
_MAX_HALVINGS = 6
_ROUNDING = 1e-9  # of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Widening:
    """A searched range at whose end a recommended value lies.

    Args:
        name: The parameter.
        value: The recommended value.
        low: Lower end of the searched range.
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
    """Yield the searched ranges of temperatures that have a parameter at an end and can be widened.

    Numbers that shape a schedule (a power, a share of training) do not justify another search, nor does a
    named temperature as found, which no search has chosen.
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
        ends = _widen(name, domain, float(value))
        if ends is not None:
            yield Widening(
                name=name,
                value=float(value),
                low=float(domain.low),
                high=float(domain.high),
                to_low=ends[0],
                to_high=ends[1],
            )


def _widen(name: str, domain: RangeDomain, value: float) -> tuple[float, float] | None:
    """Return a range extended by half of its width at the end where a value lies, if that is allowed.

    None if the value lies at neither end, or that end is the last allowed value.
    """
    log = domain.log and domain.low > 0 and value > 0
    low, high, position = (math.log(bound) if log else bound for bound in (domain.low, domain.high, value))
    margin = _END * (high - low)
    if position <= low + margin:
        to_low = _widened_end(name, domain, domain.low, domain.high)
        return None if to_low >= domain.low else (to_low, float(domain.high))
    if position >= high - margin:
        to_high = _widened_end(name, domain, domain.high, domain.low)
        return None if to_high <= domain.high else (float(domain.low), to_high)
    return None


def _widened_end(name: str, domain: RangeDomain, end: float, opposite_end: float) -> float:
    """Return where a range ends that is half as wide again at an end, or as much wider as is allowed."""
    ratio = math.sqrt(end / opposite_end) if domain.low > 0 else 1.0
    min_step = domain.step or isinstance(domain.low, int)
    linear_end = end + math.copysign(max(abs(end - opposite_end) / 2, min_step), end - opposite_end)
    target = end * ratio if domain.log else linear_end
    # what has to be above 0 goes half as far again in ratio
    targets = [target, *([end * ratio] if ratio != 1.0 else [])]
    targets += [end + (target - end) / 2**halving for halving in range(1, _MAX_HALVINGS)]
    allowed = RANGES.get(split_name(name)[1])
    values = (_format_number(value, domain) for value in targets)
    return next((value for value in values if allowed is None or allowed.accepts(value)), float(end))


def _format_number(value: float, domain: RangeDomain) -> float:
    """Return a value as it is written: an integer if the range has integers, in its steps, else with three
    digits.
    """
    if domain.step is not None:
        steps = math.trunc((value - domain.low) / domain.step + math.copysign(_ROUNDING, value - domain.low))
        return float(f"{domain.low + steps * domain.step:.12g}")
    return float(round(value)) if isinstance(domain.low, int) else float(f"{value:.3g}")

"""The domain of one searched name: a range of numbers, or choices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from tempopt.errors import SpecError

UNSET = "<unset>"
"""Marks a domain without a baseline value, since null is a valid one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeDomain:
    """Numbers from ``low`` to ``high``, both included; integers if ``low`` and ``high`` are integers.

    Args:
        log: Whether the scale is logarithmic: equal ratios instead of equal differences are equally far.
        step: Distance of neighbouring values; None for a continuous range.
        baseline: Value with which runs at τ = 1 and at constant τ train; UNSET: these runs tune the parameter
            like all others.
        when: Values of other searched names under which it is active, by name; None: it is always active.
    """

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None
    baseline: Any = UNSET
    when: Mapping[str, tuple[Any, ...]] | None = None

    @property
    def probes(self) -> tuple[Any, ...]:
        """Values that represent the range: both ends, and one between them."""
        if self.step is not None:
            middle = self.low + self.step
        elif isinstance(self.low, int):
            middle = (self.low + self.high) // 2
        else:
            middle = self.low + 0.381966 * (self.high - self.low)
        return (self.low, self.high, middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """One of several unordered values.

    Args:
        baseline: As for :class:`RangeDomain`.
        when: As for :class:`RangeDomain`.
    """

    choices: tuple[Any, ...]
    baseline: Any = UNSET
    when: Mapping[str, tuple[Any, ...]] | None = None

    @property
    def probes(self) -> tuple[Any, ...]:
        """All choices."""
        return self.choices


Domain = RangeDomain | Choices


def domain_to_yaml(domain: Domain) -> dict[str, Any]:
    """Return a domain as plain data."""
    data = {key: value for key, value in asdict(domain).items() if value is not None}
    if domain.baseline == UNSET:
        del data["baseline"]
    else:
        data["baseline"] = domain.baseline
    return data


def is_plain(value: object) -> bool:
    """Return whether a value may be a choice: text, a finite number, true, false or null."""
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool | int | str)


def same_value(value: object, other_value: object) -> bool:
    """Return whether two parameter values are the same; true and 1 differ here, unlike in Python."""
    return bool(value == other_value) and isinstance(value, bool) is isinstance(other_value, bool)


def domain_contains(domain: Domain, value: object) -> Any:
    """Return a value as its domain stores it; raises SpecError with the allowed values if it is outside."""
    if isinstance(domain, Choices):
        for choice in domain.choices:
            if same_value(choice, value):
                return choice
        raise SpecError(f"given {value!r}. Give one of {', '.join(map(json.dumps, domain.choices))}.")
    is_whole = isinstance(domain.low, int) and isinstance(domain.high, int)
    allowed_text = f"{'a whole number' if is_whole else 'a number'} from {domain.low} to {domain.high}"
    if domain.step is not None:
        allowed_text += f" in steps of {domain.step}"
    if (
        isinstance(value, bool)
        or not isinstance(value, int if is_whole else int | float)
        or not domain.low <= value <= domain.high
        or (domain.step and (Decimal(str(value)) - Decimal(str(domain.low))) % Decimal(str(domain.step)))
    ):
        raise SpecError(f"given {value!r}. Give {allowed_text}.")
    return value if is_whole else float(value)

"""The constant temperatures of a study."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tempopt.spec.search_space import constant_ranges
from tempopt.temperature.named import join_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_BASES = (2, 3, 5, 7, 11, 13, 17, 19)


def constant_grid(space: Mapping[str, BaseDistribution], count: int) -> list[dict[str, float]]:
    """Return ``count`` different constant temperatures that cover the searched range evenly in ratio.

    Van der Corput's sequence (1935) from its second number on, without the middle of the range, where τ = 1
    often lies: any beginning of the list covers the range, and a longer list begins with the shorter one.
    Several temperatures are varied together, each by the sequence of another base (Halton 1960).

    Args:
        space: The whole search space.
        count: Number of constants, at least 0.

    Returns:
        The parameters of each: ``temperature_init`` of every temperature that is searched.
    """
    ranges = {
        join_name(temperature, "temperature_init"): span
        for temperature, span in constant_ranges(space).items()
    }
    constants: list[dict[str, float]] = [{} for _ in range(count)]
    for base, (level, (low, high)) in zip(_BASES, ranges.items(), strict=False):
        for constant, position in zip(constants, _positions(base), strict=False):
            constant[level] = low * (high / low) ** position
    return constants


def _positions(base: int) -> Iterable[float]:
    """Return van der Corput's sequence without the middle."""
    return (_van_der_corput(index, base) for index in itertools.count(2 if base == 2 else 1))


def _van_der_corput(index: int, base: int) -> float:
    """Return ``index`` with its digits mirrored at the point, in (0, 1)."""
    position, scale = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        scale /= base
        position += digit * scale
    return position

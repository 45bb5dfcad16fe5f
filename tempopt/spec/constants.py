"""The constant temperatures of a study: which are tried, and which more where their range was amended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tempopt.spec.search_space import constant_ranges
from tempopt.temperature.named import join_name

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Box = Mapping[str, tuple[float, float]]
"""Lowest and highest value of each level that constants differ in, by its name."""

_BASES = (2, 3, 5, 7, 11, 13, 17, 19)
_CANDIDATES = 1024


def constant_grid(space: Mapping[str, BaseDistribution], count: int) -> list[dict[str, float]]:
    """Return ``count`` different constant temperatures that cover the searched range evenly in ratio.

    The middle, both ends, then van der Corput's sequence (1935): any beginning of the list covers the
    range, and a longer list begins with the shorter one, so that asking for more repeats none. Several
    temperatures are varied together, each by the sequence of another base (Halton 1960).

    Args:
        space: The whole search space.
        count: Number of constants, at least 0.

    Returns:
        The parameters of each: ``temperature_init`` of every temperature that is searched.
    """
    return _spread(
        {
            join_name(temperature, "temperature_init"): span
            for temperature, span in constant_ranges(space).items()
        },
        count,
    )


def _spread(box: Box, count: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = [{} for _ in range(count)]
    for base, (level, (low, high)) in zip(_BASES, box.items(), strict=False):
        positions = itertools.chain((0.5, 0.0, 1.0), _inner_positions(base))
        for each, position in zip(found, positions, strict=False):
            # low and high are given exactly, whatever the powers round to
            each[level] = {0.0: low, 1.0: high}.get(position, low * (high / low) ** position)
    return found


def _inner_positions(base: int) -> Iterable[float]:
    """Return van der Corput's sequence, from where the middle and both ends have been."""
    return (_van_der_corput(index, base) for index in itertools.count(2 if base == 2 else 1))


def _van_der_corput(index: int, base: int) -> float:
    """Return ``index`` with its digits mirrored at the point, in (0, 1)."""
    position, scale = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        scale /= base
        position += digit * scale
    return position


def holds(box: Box, levels: Mapping[str, float]) -> bool:
    """Return whether a box has the same levels as a constant and holds all of them."""
    return box.keys() == levels.keys() and all(low <= levels[n] <= high for n, (low, high) in box.items())


def new_part(box: Box, earlier: Sequence[Box]) -> float:
    """Return how large the part of a box is that none before it covers, in ratio to what those cover.

    Sizes are those in log temperature. 1 where none before has the same levels.

    Args:
        box: The ranges of now.
        earlier: Those before.
    """
    alike = [each for each in earlier if each.keys() == box.keys()]
    if not alike:
        return 1.0
    cuts = [sorted({math.log(end) for each in (box, *alike) for end in each[level]}) for level in box]
    covered = new = 0.0
    for cell in itertools.product(*map(itertools.pairwise, cuts)):
        middle = {level: math.exp((one + other) / 2) for level, (one, other) in zip(box, cell, strict=True)}
        size = math.prod(other - one for one, other in cell)
        if any(holds(each, middle) for each in alike):
            covered += size
        elif holds(box, middle):
            new += size
    return new / covered


def more_constants(
    box: Box, tried: Sequence[Mapping[str, float]], count: int, *, earlier: Sequence[Box] = ()
) -> list[dict[str, float]]:
    """Return constants that cover what those that were tried leave open in the ranges of now.

    Of one temperature, each fills the largest gap in log temperature: it is one of both ends, or the middle
    of a gap; of equal gaps, one beyond those that were tried. Of several, they are the first of the sequence
    of :func:`constant_grid` that lie in none of the earlier ranges, then the first of the others.

    Args:
        box: The ranges of now.
        tried: Those that there are; what is outside of the ranges counts for nothing.
        count: Number of constants.
        earlier: The ranges before.
    """
    if len(box) == 1:
        [(level, (low, high))] = box.items()
        there = [each[level] for each in tried if holds(box, each)]
        return [{level: each} for each in _gaps(low, high, there, count)]
    spread = [each for each in _spread(box, _CANDIDATES + count) if each not in tried]
    covered = [any(holds(each, levels) for each in earlier) for levels in spread]
    order = sorted(range(len(spread)), key=covered.__getitem__)
    return [spread[index] for index in order[:count]]


def _gaps(low: float, high: float, tried: Sequence[float], count: int) -> list[float]:
    there = sorted(map(math.log, tried))
    ends = math.log(low), math.log(high)
    first, last = (there[0], there[-1]) if there else ends
    found: list[float] = []
    for _ in range(count):
        middles = [(one + other) / 2 for one, other in itertools.pairwise(there)]
        options = [*ends, *middles] if there else [sum(ends) / 2]
        # equal but for rounding
        gaps = [round(min((abs(place - each) for each in there), default=0.0), 9) for place in options]
        farthest = [option for option, gap in zip(options, gaps, strict=True) if gap == max(gaps)]
        best = min(farthest, key=lambda place: (first <= place <= last, place))
        there = sorted([*there, best])
        # low and high are given exactly, whatever the powers round to
        found.append({ends[0]: low, ends[1]: high}.get(best, math.exp(best)))
    return found

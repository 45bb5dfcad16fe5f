"""How often does the interval of a trained model's gain hold the truth, over data sets of which it is known?

The interval is tempopt's own (tempopt/verdict/statistics/bootstrap.py), as ``tempopt evaluate`` gives it, of
2,000 resamples. Each data set is drawn from a distribution of paired differences: a loss (normal, or with a
heavy tail), an accuracy of which few items change, and batches of items of uneven size.

    python -m benchmarks.bootstrap --sets 2000
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tempopt.verdict.statistics.bootstrap import paired_bootstrap

_UNITS = (10, 20, 50, 200)
_AT_ONCE = 250

Draw = Callable[[np.random.Generator, int, int], tuple[NDArray[np.float64], NDArray[np.float64]]]


def _normal(
    draw: np.random.Generator, sets: int, units: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return draw.normal(0.1, 1.0, (sets, units)), np.ones(units)


def _skewed(
    draw: np.random.Generator, sets: int, units: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return draw.exponential(size=(sets, units)) - 0.9, np.ones(units)


def _accuracy(
    draw: np.random.Generator, sets: int, units: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # 8 % of the items change: 3 % become wrong, 5 % right
    return draw.choice([-1.0, 0.0, 1.0], p=[0.03, 0.92, 0.05], size=(sets, units)), np.ones(units)


def _batches(
    draw: np.random.Generator, sets: int, units: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # batches of 32, the last one of 7
    sizes = np.array([32.0] * (units - 1) + [7.0])
    return draw.normal(0.1, 1.0, (sets, units)) / np.sqrt(sizes), sizes


_KINDS: dict[str, tuple[Draw, Callable[[int], float]]] = {
    "a loss, normal": (_normal, lambda units: 0.1),
    "a loss, skewed (exponential)": (_skewed, lambda units: 0.1),
    "an accuracy, 8 % of the items change": (_accuracy, lambda units: 0.02),
    "batches of 32, the last of 7": (
        _batches,
        lambda units: 0.1 * ((units - 1) * np.sqrt(32) + np.sqrt(7)) / (32 * (units - 1) + 7),
    ),
}


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=2000, help="data sets of each kind and number of units")
    args = parser.parse_args()
    print(f"| differences | {' | '.join(f'{units} units' for units in _UNITS)} |")
    print(f"|---|{'---|' * len(_UNITS)}", flush=True)
    for name, (draw, truth) in _KINDS.items():
        shares = [_coverage(draw, truth, args.sets, units) for units in _UNITS]
        cell_texts = ("no interval" if math.isnan(share) else f"{100 * share:.1f} %" for share in shares)
        print(f"| {name} | {' | '.join(cell_texts)} |", flush=True)


def _coverage(draw: Draw, truth: Callable[[int], float], sets: int, units: int) -> float:
    """Return the share of the intervals that hold the truth; NaN if there is none."""
    generator = np.random.default_rng(units)
    num_covered = num_intervals = 0
    for first in range(0, sets, _AT_ONCE):
        values, sizes = draw(generator, min(_AT_ONCE, sets - first), units)
        # each with draws of its own, as studies have them
        for number, row in enumerate(values):
            (interval,) = paired_bootstrap([row], sizes, seed=first + number, resamples=2000)
            if interval is not None:
                num_intervals += 1
                num_covered += interval.low <= truth(units) <= interval.high
    return num_covered / num_intervals if num_intervals else float("nan")


if __name__ == "__main__":
    main()

"""What is lost at full size by what a small training has chosen, and by how much its best ln τ moves.

Nothing is trained and no file is read here; ``more is better`` holds for each metric.

Shapes: S seeds, P plans, C constant plans, B bootstrap samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

Floats = NDArray[np.float64]
Verdict = Literal["transfers", "does not transfer", "not decided"]
Order = Literal["held", "reversed", "not decided"]

LOOKS = (8, 16, 24)
"""Numbers of seeds after which it is asked whether it is decided."""
ALPHA = 0.05 / len(LOOKS)
"""Error of each interval, so that all looks together have 5 % (Bonferroni)."""
TOLERATED = 0.25
"""Share of the possible gain that may be lost by what transfers."""
FEWEST = 4
"""Fewest seeds of which anything is said."""
_SAMPLES = 20_000
_WINDOW = 2
_PLACES = 4_000


@dataclass(frozen=True, slots=True)
class Runs:
    """All trainings of one size, paired by seed; more is better.

    Args:
        validate_SP: What a choice goes by, shape (seeds, plans); the plain plan is the first.
        test_SP: What a plan is judged by, in the same shape.
    """

    validate_SP: Floats
    test_SP: Floats

    def first(self, seeds: int) -> Runs:
        """Return the runs of the first so many seeds."""
        return Runs(self.validate_SP[:seeds], self.test_SP[:seeds])


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its confidence interval at 1 - ALPHA; the ends may be infinite."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Return whether a value is within."""
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a small size is worth to full size.

    Args:
        seeds: Seeds of each plan at full size.
        chosen: Number of the plan with the best validation mean at the small size.
        best: The same at full size.
        place: Place of ``best`` in the order of the small size's validation means, from 1.
        small_gain: Gain of ``chosen`` over the plain plan at the small size, paired.
        gain: The same at full size, on seeds that had no part in the choice.
        possible: Cross-fitted gain of the best plan of full size.
        lost: Cross-fitted share of ``possible`` that the choice of the small size does not reach.
    """

    seeds: int
    chosen: int
    best: int
    place: int
    small_gain: Interval
    gain: Interval
    possible: Interval
    lost: Interval

    @property
    def verdict(self) -> Verdict:
        """Whether a gain is shown and less than TOLERATED is lost, or more is lost, or neither is shown."""
        if self.lost.high < TOLERATED and self.gain.low > 0:
            return "transfers"
        return "does not transfer" if self.lost.low > TOLERATED else "not decided"

    @property
    def order(self) -> Order:
        """What became of the order of choice and plain plan, in the words of a study's verdict."""
        if self.small_gain.low > 0:
            if self.gain.low > 0:
                return "held"
            if self.gain.high < 0:
                return "reversed"
        return "not decided"


@dataclass(frozen=True, slots=True)
class Shift:
    """The best constant ln τ of two sizes; a value that is NaN is beyond the grid, as is an infinite end.

    Args:
        small: Where it is at the small size.
        full: Where it is at full size.
        moved: ``full`` less ``small``.
    """

    small: Interval
    full: Interval
    moved: Interval


def transfer(small: Runs, full: Runs, seed: int = 0) -> Transfer:
    """Return what the choice of the small size is worth at full size.

    The small size chooses by its validation means. At full size each seed in turn is left out; the plan with
    the best validation mean of the others is compared with the plain plan and with the choice by the test
    metric of the seed that was left out. The mean over seeds of best less plain is the possible gain, and
    that of best less chosen over it is the share that is lost.

    Gains are paired, with the interval of Student's t. That of the share is of a bootstrap over the seeds of
    full size, with percentiles of Student's t (Hesterberg 2015) and one seed less drawn than there are, which
    makes the variance unbiased (Rao & Wu 1988). Its upper limit is the largest of those that each plan has if
    it is taken as the best one: however seldom the best plan is found, what is lost to it is covered.
    """
    seeds = len(full.test_SP)
    assert seeds >= FEWEST
    chosen, best = (int(np.argmax(runs.validate_SP.mean(0))) for runs in (small, full))
    others_SP = (full.validate_SP.sum(0) - full.validate_SP) / (seeds - 1)
    at_best_S = full.test_SP[np.arange(seeds), others_SP.argmax(1)]
    possible_S = at_best_S - full.test_SP[:, 0]
    lost_S = at_best_S - full.test_SP[:, chosen]
    drawn_BS = np.random.default_rng(seed).multinomial(seeds - 1, [1 / seeds] * seeds, _SAMPLES) / (seeds - 1)
    tail = float(norm.sf(t.isf(ALPHA / 2, seeds - 1)))
    possible_B = drawn_BS @ possible_S
    # where nothing is possible, any share may be lost
    share_B = _ratio(drawn_BS @ lost_S, possible_B, otherwise=-np.inf)
    return Transfer(
        seeds=seeds,
        chosen=chosen,
        best=best,
        place=1 + int((small.validate_SP.mean(0) > small.validate_SP.mean(0)[best]).sum()),
        small_gain=_paired(small.test_SP[:, chosen] - small.test_SP[:, 0]),
        gain=_paired(full.test_SP[:, chosen] - full.test_SP[:, 0]),
        possible=_paired(possible_S),
        lost=Interval(
            float(lost_S.mean() / possible_S.mean()) if possible_S.mean() > 0 else math.nan,
            float(np.quantile(share_B, tail, method="lower")),
            _most_lost(drawn_BS @ full.test_SP, chosen, tail),
        ),
    )


def _most_lost(means_BP: Floats, chosen: int, tail: float) -> float:
    over_plain_BP = means_BP - means_BP[:, :1]
    nothing_B1 = over_plain_BP.max(1, keepdims=True) <= 0
    # a plan that is no better than the plain one is not what is lost to, unless no plan is
    share_BP = _ratio(
        means_BP - means_BP[:, [chosen]], over_plain_BP, otherwise=np.where(nothing_B1, np.inf, -np.inf)
    )
    return float(np.quantile(share_BP, 1 - tail, axis=0, method="higher").max())


def _ratio(above: Floats, below: Floats, otherwise: Floats | float) -> Floats:
    known = below > 0
    return np.where(known, above / np.where(known, below, 1.0), otherwise)


def until_decided(small: Runs, full: Runs) -> Transfer:
    """Return the first look that decides, or the last one that there are seeds for."""
    most = min(len(small.test_SP), len(full.test_SP))
    looks = [seeds for seeds in LOOKS if seeds <= most] or [most]
    for seeds in looks:
        found = transfer(small.first(seeds), full.first(seeds))
        if found.verdict != "not decided":
            break
    return found


def optimum_shift(small: Runs, full: Runs, ln_tau_C: Floats, seed: int = 0) -> Shift:
    """Return where the best constant ln τ is at both sizes, and by how much it is higher at full size.

    The best place is the vertex of the parabola through the test means of the best constant and of up to two
    neighbours on each side, by least squares. Of one beyond the grid that alone is known.

    Args:
        small: Trainings of the small size; the first plans are the constants, in the order of ``ln_tau_C``.
        full: Those of full size.
        ln_tau_C: ln τ of the constants, shape (constants,), in any order.
        seed: Seed of the bootstrap over seeds.
    """
    draw = np.random.default_rng(seed)
    order = np.argsort(ln_tau_C)
    ends = []
    for runs in (small, full):
        test_SC = runs.test_SP[:, : len(ln_tau_C)][:, order]
        seeds = len(test_SC)
        drawn_BS = draw.multinomial(seeds - 1, [1 / seeds] * seeds, _PLACES) / (seeds - 1)
        means_BC = np.vstack([np.full(seeds, 1 / seeds), drawn_BS]) @ test_SC
        ends.append(np.array([_best_place(ln_tau_C[order], mean_C) for mean_C in means_BC]).T)
    (small_low, small_high), (full_low, full_high) = ends
    fewest = min(len(small.test_SP), len(full.test_SP))
    return Shift(
        small=_between(small_low, small_high, len(small.test_SP)),
        full=_between(full_low, full_high, len(full.test_SP)),
        moved=_between(full_low - small_high, full_high - small_low, fewest),
    )


def _between(low_B: Floats, high_B: Floats, seeds: int) -> Interval:
    """Return an interval of what is known to lie between two numbers, of the estimate and then of samples."""
    value = low_B[0] if low_B[0] == high_B[0] else math.nan
    return _interval(value, low_B[1:], high_B[1:], seeds)


def _best_place(x_C: Floats, y_C: Floats) -> tuple[float, float]:
    """Return between which two numbers the best place lies: twice the same where it is on the grid."""
    top = int(np.argmax(y_C))
    near = slice(max(0, top - _WINDOW), top + _WINDOW + 1)
    curvature, slope, _ = np.polyfit(x_C[near], y_C[near], 2)
    # without a vertex that is a maximum the best constant says where it is
    place = -slope / (2 * curvature) if curvature < 0 else x_C[top]
    at_end = curvature >= 0 and top in (0, len(x_C) - 1)
    if place < x_C[0] or (at_end and top == 0):
        return -math.inf, float(x_C[0])
    if place > x_C[-1] or at_end:
        return float(x_C[-1]), math.inf
    return float(place), float(place)


def _interval(value: float, low_B: Floats, high_B: Floats, seeds: int) -> Interval:
    tail = float(norm.sf(t.isf(ALPHA / 2, seeds - 1)))
    low = np.quantile(low_B, tail, method="lower")
    high = np.quantile(high_B, 1 - tail, method="higher")
    return Interval(float(value), float(low), float(high))


def _paired(differences_S: Floats) -> Interval:
    mean, seeds = float(differences_S.mean()), len(differences_S)
    half = float(t.isf(ALPHA / 2, seeds - 1) * differences_S.std(ddof=1) / math.sqrt(seeds))
    return Interval(mean, mean - half, mean + half)


WORLDS: dict[str, tuple[int, tuple[float, ...]]] = {
    "nothing is lost": (3, (0, 0.3, 0.6, 1, 0.6, 0.3, 0.5, 0.4)),
    "0.1 is lost": (4, (0, 0.3, 0.6, 1, 0.9, 0.3, 0.5, 0.4)),
    "0.25 is lost": (4, (0, 0.3, 0.6, 1, 0.75, 0.3, 0.5, 0.4)),
    "0.25 is lost to each of six": (4, (0, 1, 1, 1, 0.75, 1, 1, 1)),
    "0.6 is lost": (4, (0, 0.3, 0.6, 1, 0.4, 0.3, 0.5, 0.4)),
    "the order is reversed": (4, (0, 0.3, 0.6, 1, -0.5, 0.3, 0.5, 0.4)),
    "no plan gains": (4, (0, 0, 0, 0, 0, 0, 0, 0)),
}
"""The plan that the small size chooses, and the true means of all plans at full size."""


def planted(
    chosen: int, means: tuple[float, ...], noise: float, draw: np.random.Generator
) -> tuple[Runs, Runs]:
    """Return the trainings of a world whose truth is known, with as many seeds as may be needed.

    Args:
        chosen: The plan that is clearly the best at the small size.
        means: True means of the plans at full size.
        noise: Standard deviation of a training, beside as much again that all plans of a seed share.
        draw: What to draw from.
    """
    true_small = np.zeros(len(means))
    true_small[chosen] = 10.0 * noise

    def runs(mean_P: Floats) -> Runs:
        shared_SP = mean_P + noise * draw.standard_normal((max(LOOKS), 1))
        own = noise * draw.standard_normal((2, max(LOOKS), len(means)))
        return Runs(shared_SP + own[0], shared_SP + own[1])

    return runs(true_small), runs(np.array(means))


def simulated(worlds: int, noises: tuple[float, ...] = (0.15, 0.5)) -> str:
    """Return how often what is said of planted worlds, as Markdown; noise is in possible gains."""
    lines = [
        "| world | noise | transfers | does not transfer | not decided | order held | reversed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (chosen, means) in WORLDS.items():
        for noise in noises:
            draw = np.random.default_rng(0)
            found = [until_decided(*planted(chosen, means, noise, draw)) for _ in range(worlds)]
            counts = [sum(each.verdict == said for each in found) for said in get_args(Verdict)]
            counts += [sum(each.order == said for each in found) for said in ("held", "reversed")]
            shares = " | ".join(f"{100 * count / worlds:.1f} %" for count in counts)
            lines.append(f"| {name} | {noise:g} | {shares} |")
    return "\n".join(lines)

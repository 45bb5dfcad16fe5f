"""Would a pooled variance tell the order of a proxy from fewer pairs, and does such a test hold its level?

The winner of a proxy and τ = 1 are compared at full size by the seeds that both were trained on, by a paired
test (tempopt/confirmation/proxy_order.py). With two pairs it has one degree of freedom. All finalists are
trained on the same first seeds, so that seeds are blocks, and the residuals of all of them in the additive
model of configuration and seed could tell the variance. Two such tests are looked at beside the paired one:

* ``common seeds``: the residuals of those that were trained on all seeds that the pair has in common;
* ``all runs``: the additive model fitted to all runs of the race by least squares, whose difference of the
  two is tested on as many degrees of freedom as there are runs beyond its rank.

With ``larger variance`` a test takes the variance of ``common seeds`` or that of the pair's own differences,
whichever is larger. The race is tempopt's own (tempopt/records/racing.py), values are made up: a normal
effect of the seed, and noise of variance 1 for each run unless the world says otherwise.

    python -m benchmarks.pooled_order --races 20000
    python -m benchmarks.pooled_order --races 20000 --seeds 2
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from benchmarks.simulated.whole import row
from tempopt.records.racing import in_race, next_pairs
from tempopt.records.rows import NewTicket, TicketRow

Array = NDArray[np.float64]

ALPHA = 0.05
TESTS = ("paired", "common seeds", "all runs", "larger variance")


@dataclass(frozen=True, kw_only=True)
class World:
    """What configurations are worth, the winner of the proxy first and τ = 1 last.

    Args:
        gain: Of the winner over τ = 1.
        other: What the others are worth more than τ = 1, the named one first.
        variances: Of the pair's noise, and of that of the others.
        shuffled: Whether each configuration has one of the two variances at random instead.
        heavy: Whether the noise is Student's with 3 degrees of freedom.
    """

    gain: float = 0.0
    other: tuple[float, float] = (0.0, 0.0)
    variances: tuple[float, float] = (1.0, 1.0)
    shuffled: bool = False
    heavy: bool = False

    def draw(self, finalists: int, seeds: int, rng: np.random.Generator) -> Array:
        """Return the value of each configuration on each seed."""
        named, rest = self.other
        middle = [rest] * (finalists - 2) + [named] * (finalists > 1)
        mean_C = np.array([self.gain, *middle, 0.0])
        pair, others = np.sqrt(self.variances)
        scale_C = np.array([pair, *[others] * len(middle), pair])
        if self.shuffled:
            scale_C = rng.choice([pair, others], len(mean_C))
        shape = (len(mean_C), seeds)
        noise_CS = rng.standard_t(3, shape) / math.sqrt(3) if self.heavy else rng.standard_normal(shape)
        return mean_C[:, None] + scale_C[:, None] * noise_CS + rng.standard_normal(seeds)


WORLDS: Mapping[str, World] = {
    "no gain": World(),
    "no gain, heavy tails": World(heavy=True),
    "no gain, the named one is better by 2": World(other=(2.0, 0.0)),
    "no gain, the others are worse by 3": World(other=(-3.0, -3.0)),
    "no gain, twice the variance of the pair": World(variances=(2.0, 1.0)),
    "no gain, twice the variance of the others": World(variances=(1.0, 2.0)),
    "no gain, twice the variance of any, by chance": World(variances=(2.0, 1.0), shuffled=True),
    "a gain of 2": World(gain=2.0),
    "a gain of 3": World(gain=3.0),
    "a gain of 3, the named one has 4": World(gain=3.0, other=(4.0, 0.0)),
    "a loss of 3": World(gain=-3.0),
}


def race(value_CS: Array) -> list[int]:
    """Return on how many seeds each configuration is trained until the race is over."""
    last, seeds = len(value_CS) - 1, value_CS.shape[1]
    tried: list[TicketRow] = []
    trained, racing, done = [0] * len(value_CS), set(range(len(value_CS))), 0
    while len(racing) > 1 and done < seeds:
        for pair in next_pairs(done, seeds):
            for rank in sorted(racing):
                tried.append(_ticket(len(tried), rank, pair, float(value_CS[rank, pair])))
                trained[rank] += 1
            done += 1
        racing = set(in_race(tried, "maximize"))
        if last in racing:
            # the winner of the proxy is compared as long as τ = 1 may be the best
            racing.add(0)
    return trained


def _ticket(number: int, rank: int, pair: int, value: float) -> TicketRow:
    new = NewTicket(
        kind="transfer", arm="search", number=number, seed=pair, candidate=rank, pair=pair, parameters={}
    )
    return row(new, number, state="done", outcome="complete", value=value)


def shown(value_CS: Array, trained: Sequence[int]) -> dict[str, int]:
    """Return by test whether the pair is shown to differ: 1 for a gain, -1 for a loss, else 0."""
    common = min(trained[0], trained[-1])
    difference_S = value_CS[0, :common] - value_CS[-1, :common]
    gain, own = float(difference_S.mean()), float(difference_S.var(ddof=1)) / 2
    complete_CS = value_CS[[each >= common for each in trained], :common]
    _, _, variance, freedom = fitted(complete_CS, [common] * len(complete_CS))
    fit, factor, over_all, left = fitted(value_CS, trained)
    found = {
        "paired": (gain, own * 2 / common, common - 1),
        "common seeds": (gain, variance * 2 / common, freedom),
        "all runs": (fit, over_all * factor, left),
        "larger variance": (gain, max(variance, own) * 2 / common, freedom),
    }
    return {
        name: int(abs(estimate) > _quantile(freedom) * math.sqrt(squared)) * (1 if estimate > 0 else -1)
        for name, (estimate, squared, freedom) in found.items()
    }


def fitted(value_CS: Array, trained: Sequence[int]) -> tuple[float, float, float, int]:
    """Fit effects of configurations and seeds to the runs that there are, by least squares.

    Returns:
        The difference of the first and the last configuration, the factor by which its variance is that of a
        run, the residual variance of a run, and its degrees of freedom.
    """
    configurations, seeds = len(trained), max(trained)
    cells = [(c, s) for c, count in enumerate(trained) for s in range(count)]
    design_RP = np.zeros((len(cells), configurations + seeds))
    for place, (c, s) in enumerate(cells):
        design_RP[place, [c, configurations + s]] = 1.0
    value_R = np.array([value_CS[cell] for cell in cells])
    inverse_PP = np.linalg.pinv(design_RP.T @ design_RP, hermitian=True)
    effect_P = inverse_PP @ design_RP.T @ value_R
    contrast_P = np.zeros(configurations + seeds)
    contrast_P[[0, configurations - 1]] = 1.0, -1.0
    rest_R = value_R - design_RP @ effect_P
    # all are trained on the first seeds, so that one level is all that is not told
    freedom = len(cells) - (configurations + seeds - 1)
    factor = float(contrast_P @ inverse_PP @ contrast_P)
    return float(contrast_P @ effect_P), factor, float(rest_R @ rest_R) / freedom, freedom


@lru_cache
def _quantile(freedom: int) -> float:
    return float(t.isf(ALPHA / 2, freedom))


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--races", type=int, default=20000, help="in each world")
    parser.add_argument("--finalists", type=int, default=3, help="beside τ = 1")
    parser.add_argument("--seeds", type=int, default=4, help="study.seeds.choose")
    given = parser.parse_args()
    print(f"| world | {' | '.join(TESTS)} | pairs |")
    print("|---" * (2 + len(TESTS)) + "|", flush=True)
    for name in given.worlds:
        rng, pairs, world = np.random.default_rng(0), 0, WORLDS[name]
        gains, losses = dict.fromkeys(TESTS, 0), dict.fromkeys(TESTS, 0)
        for _ in range(given.races):
            value_CS = world.draw(given.finalists, given.seeds, rng)
            trained = race(value_CS)
            pairs += min(trained[0], trained[-1])
            for test, which in shown(value_CS, trained).items():
                gains[test] += which > 0
                losses[test] += which < 0
        cells = [
            f"{(gains[each] + losses[each]) / given.races:.1%} ({losses[each] / given.races:.1%})"
            for each in TESTS
        ]
        print(f"| {name} | {' | '.join(cells)} | {pairs / given.races:.1f} |", flush=True)


if __name__ == "__main__":
    main()

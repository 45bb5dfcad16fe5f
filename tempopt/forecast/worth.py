"""What a study of so many trials, candidates, seeds and pairs is worth: the gain it finds, if it can show it.

Drawn searches, in standard deviations of a pair's difference. Configurations are drawn at random, and their
true gains are normal. How much there is to find differs between studies: the best of :data:`USUAL` has
anything from hardly a gain to a clear one in the mean, each as likely. A run sees a gain with half the
variance of a pair's difference. The best runs are the candidates, the best candidate in the mean over the
choosing seeds is the winner, and Student's test shows its gain with the chance that it has. Where the search
trains a proxy, gains at full size are other numbers, which spread as those on the proxy do and have a given
correlation with them. Finalists are compared at full size beside τ = 1, on as many seeds as there are for
choosing. Sizes in between are as many equal steps on the way: gains at a size follow from those at the one
before it alone, so that the correlation of both ends stays what it is. There finalists that are clearly worse
are dropped. Pure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tempopt.forecast.outcomes import CLEAR_GAIN
from tempopt.records.racing import ALPHA
from tempopt.statistics.power import power_of

Array = NDArray[np.float64]

USUAL = 40
"""Trials of a study that finds what there is to find, more or less: those of a default one."""
AGREEMENT = 0.7
"""Correlation of what a configuration gains on a proxy and at full size.

An assumption, measured for no proxy: half of what makes configurations differ at full size is then seen on
the proxy. The lower it is, the sooner finalists are worth their runs.
"""
STUDIES = 1000
"""Drawn searches that a mean is over."""

# a single run has half the variance of a pair's difference
_RUN = math.sqrt(0.5)
_HIGHEST = 12.0
_BINS = 240
# a product of matrices may round equal rows differently, and of equal worths the cheaper one counts
_DIGITS = 12
# as in tempopt.confirmation.transfer
_FEWEST_SEEDS = 2


@dataclass(frozen=True, slots=True)
class Worths:
    """What studies are worth, by number of trials, candidates, choosing seeds, finalists and pairs.

    Args:
        gain_TKSF: Mean true gain of the winner, one that is worse than the baseline counting as 0.
        shown_TKSFP: Chance to show it.
        worth_TKSFP: Mean gain of the winner where it is shown, 0 where it is not.
    """

    gain_TKSF: Array
    shown_TKSFP: Array
    worth_TKSFP: Array


def worths(
    trials: Sequence[int],
    candidates: Sequence[int],
    seeds: Sequence[int],
    pairs: Sequence[int],
    *,
    finalists: Sequence[int] = (1,),
    agreement: float = 1.0,
    between: int = 0,
    alpha: float,
    comparisons: int,
) -> Worths:
    """Return what studies are worth; the same for the same numbers, whatever others are asked with them.

    Args:
        trials: Numbers of search trials, each >= 1.
        candidates: Numbers of candidates, each >= 1.
        seeds: Numbers of choosing seeds, each >= 1.
        pairs: Numbers of confirming pairs, each >= 2.
        finalists: Numbers of candidates that are compared at full size, each >= 1; 1: none is.
        agreement: Correlation of gains where the search is and at full size, in [-1, 1]; 1: it is the same.
        between: Sizes in between, at which finalists are compared, too; with any, the correlation is >= 0.
        alpha: Two-sided level of the test.
        comparisons: Comparisons that have to show the gain, 1 or 2.
    """
    shape = len(trials), len(candidates), len(seeds), len(finalists)
    # gains are counted in bins, so that a power is computed once for each of them
    counts_TKSFB = np.zeros((*shape, _BINS))
    for place, number in enumerate(trials):
        for one, two, gains_FN in _winners(number, candidates, seeds, finalists, agreement, between):
            where_FN = np.rint(np.clip(gains_FN, 0.0, _HIGHEST) * ((_BINS - 1) / _HIGHEST)).astype(int)
            for three, where in enumerate(where_FN):
                counts_TKSFB[place, one, two, three] = np.bincount(where, minlength=_BINS) / len(where)
    effects_B = np.linspace(0.0, _HIGHEST, _BINS)
    power_BP = np.array([_powers(number, alpha, comparisons) for number in pairs]).T
    return Worths(
        gain_TKSF=np.round(counts_TKSFB @ effects_B, _DIGITS),
        shown_TKSFP=np.round(counts_TKSFB @ power_BP, _DIGITS),
        worth_TKSFP=np.round(counts_TKSFB @ (effects_B[:, None] * power_BP), _DIGITS),
    )


@functools.lru_cache(maxsize=512)
def _powers(pairs: int, alpha: float, comparisons: int) -> Array:
    """Return by bin the chance to show a gain; where two comparisons have to, at least that of both."""
    each = np.array([power_of(float(e), pairs, alpha=alpha) for e in np.linspace(0.0, _HIGHEST, _BINS)])
    return np.maximum(0.0, 1.0 - comparisons * (1.0 - each))


def _winners(
    trials: int,
    candidates: Sequence[int],
    seeds: Sequence[int],
    finalists: Sequence[int],
    agreement: float,
    between: int,
) -> Iterator[tuple[int, int, Array]]:
    """Yield the true gains of winners by finalists and drawn search, with the places of their numbers."""
    most, most_seeds = min(trials, max(candidates)), max(seeds)
    # what a trial and a seed draw does not depend on how many there are
    spread_N1 = spreads_N()[:, None]
    true_NT = _drawn("true", trials).T * spread_N1
    seen_NT = true_NT + _RUN * _drawn("own", trials).T
    best_NC = np.argpartition(-seen_NT, most - 1, axis=1)[:, :most]
    order_NC = np.argsort(-np.take_along_axis(seen_NT, best_NC, axis=1), axis=1)
    best_NC = np.take_along_axis(best_NC, order_NC, axis=1)
    true_CN = np.take_along_axis(true_NT, best_NC, axis=1).T
    larger_ZCN = [true_CN]
    step = agreement if not between else agreement ** (1.0 / (between + 1))
    for size in range(between, -1, -1):
        drawn_TN = _drawn(f"size {size}" if size else "full size", trials)
        other_CN = np.take_along_axis(drawn_TN.T * spread_N1, best_NC, axis=1).T
        larger_ZCN.append(step * larger_ZCN[-1] + math.sqrt(1.0 - step**2) * other_CN)
    again_CSN = np.stack([_drawn(f"choose {rank}", most_seeds) for rank in range(len(true_CN))])
    for one, of_these in enumerate(candidates):
        for two, on_these in enumerate(seeds):
            seen_CN = true_CN[:of_these] + _RUN * again_CSN[:of_these, :on_these].mean(axis=1)
            order_CN = np.argsort(-seen_CN, axis=0)[: max(finalists)]
            gain_ZCN = [np.take_along_axis(each, order_CN, axis=0) for each in larger_ZCN[1:]]
            fresh = max(_FEWEST_SEEDS, on_these)
            if between:
                kinds = [(min(count, len(order_CN)), count > 1) for count in finalists]
                by_kind = {kind: _through(gain_ZCN, *kind, fresh) for kind in dict.fromkeys(kinds)}
                yield one, two, np.stack([by_kind[kind] for kind in kinds])
            else:
                yield one, two, _of_finalists(gain_ZCN[0], finalists, fresh)


def _of_finalists(gain_CN: Array, finalists: Sequence[int], seeds: int) -> Array:
    """Return by finalists what is confirmed gains, of candidates in the order of the proxy; τ = 1 gains 0."""
    seen_N, found_N = _race(0, seeds), np.zeros(gain_CN.shape[1])
    # of one candidate there is no race
    by_count = {1: gain_CN[0]}
    for count, gain_N in enumerate(gain_CN[: max(finalists)], start=1):
        own_N = gain_N + _race(count, seeds)
        found_N = np.where(own_N > seen_N, gain_N, found_N)
        seen_N = np.maximum(own_N, seen_N)
        by_count.setdefault(count, found_N)
    return np.stack([by_count[min(count, len(gain_CN))] for count in finalists])


def _through(gain_ZCN: Sequence[Array], count: int, races: bool, seeds: int) -> Array:
    """Return what is confirmed gains where so many finalists go through sizes in between; τ = 1 gains 0.

    Whoever is clearly worse at a size is dropped, as in :mod:`tempopt.records.racing`, but for the looks
    on the way and for what is not known of the noise.

    Args:
        gain_ZCN: True gains at each larger size, of candidates in the order of the smallest.
        count: Finalists.
        races: Whether those that are left race at full size, too.
        seeds: Seeds at each size.
    """
    limit = _limit(count, seeds)
    zero_1N = np.zeros((1, gain_ZCN[0].shape[1]))
    # τ = 1 is the first row, and is looked at at each size
    *between, full_CN = (np.concatenate([zero_1N, each[:count]]) for each in gain_ZCN)
    left_CN = np.ones(full_CN.shape, dtype=bool)
    for size, gain_CN in enumerate(between, start=1):
        left_CN[0] = True
        seen_CN = np.where(left_CN, gain_CN + _races(size, count, seeds), -math.inf)
        left_CN &= seen_CN.max(axis=0) - seen_CN <= limit
    best_N = seen_CN.argmax(axis=0)
    raced_N = left_CN[1:].any(axis=0) & (left_CN.sum(axis=0) > 1) & races
    left_CN[0] = True
    last_N = np.where(left_CN, full_CN + _races(0, count, seeds), -math.inf).argmax(axis=0)
    found_N: Array = np.take_along_axis(full_CN, np.where(raced_N, last_N, best_N)[None], axis=0)[0]
    return found_N


@functools.lru_cache(maxsize=64)
def _limit(count: int, seeds: int) -> float:
    """Return how far behind the best of so many finalists and τ = 1 somebody is who is clearly worse."""
    # it loads scipy.stats, for which who only looks at a study should not wait
    from scipy.stats import t

    return float(t.isf(ALPHA, count * (seeds - 1))) * _RUN * math.sqrt(2.0 / seeds)


def _races(size: int, count: int, seeds: int) -> Array:
    """Return the same as :func:`_race` for τ = 1 and so many finalists; 0 is full size."""
    return np.stack([_race(place, seeds, size) for place in range(count + 1)])


@functools.lru_cache(maxsize=256)
def _race(place: int, seeds: int, size: int = 0) -> Array:
    """Return by drawn search what chance adds to the mean of a finalist; τ = 1 is the first."""
    kind = f"race {place} at {size}" if size else f"race {place}"
    noise_N: Array = _RUN * _drawn(kind, seeds).mean(axis=0)
    return noise_N


@functools.lru_cache(maxsize=64)
def _all(kind: str, count: int) -> Array:
    seed = int.from_bytes(kind.encode(), "big")
    return np.random.default_rng(seed).standard_normal((count, STUDIES))


def _drawn(kind: str, count: int) -> Array:
    """Return standard normal numbers by place and study; of more places the first are the same."""
    return _all(kind, 2 ** math.ceil(math.log2(max(1, count))))[:count]


@functools.cache
def spreads_N() -> Array:
    """Return by drawn search the standard deviation of the true gains of configurations."""
    share_N = (np.arange(STUDIES) + 0.5) / STUDIES
    spread_N: Array = CLEAR_GAIN * share_N / float(_all("usual", USUAL).max(axis=0).mean())
    return spread_N

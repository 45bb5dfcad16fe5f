"""Heads of a model that are unlike the others, at a rate of false alarms for the model as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

FALSE_ALARMS = 0.01
"""Share of models without an unusual head in which one is found, whatever number of heads they have."""

FEWEST_PEERS = 3
"""Other heads that it takes to say what is usual: of two, the median absolute deviation is half their gap."""

MOST_UNUSUAL = 1.0 / 8.0
"""Share of heads that can be unusual, but one in any model: more than that are usual."""

# Median absolute deviation of the logit of H / ln n within a layer before the heads of a model are looked at,
# and the number of heads for which that stands.
_PRIOR_MAD, _PRIOR_HEADS = 0.4, 20.0
# How much nearer to 0 or 1 an entropy is makes no difference.
_NEAREST = 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A head that a gap separates from the others.

    Args:
        usual: Median of H / ln n of the heads that it is compared with.
        gap: Distance in the logit of H / ln n from the nearest head that is not unusual, signed.
        needed: The distance that it takes.
    """

    usual: float
    gap: float
    needed: float


_Heads = dict[tuple[int, int], float]


def outliers(entropy: Mapping[int, Mapping[int, float]]) -> dict[tuple[int, int], Outlier]:
    """Return the heads that are unlike all others, by layer and head.

    Compared are the logits of H / ln n, each less the median of the other heads of its layer, or of all
    layers with fewer than :data:`FEWEST_PEERS` other heads. Where they have exponential tails of scale b the
    outermost is further from the next than b ln(2/α), on either side, in a share α of models, of however many
    heads (Rényi 1953); lighter tails have smaller gaps. b is the median absolute deviation over ln 2,
    moderated by what is usual in models, so that a few heads that agree by chance make no outlier of another.
    Where layers scatter by very unlike amounts, or tails are far heavier, α is exceeded.

    Args:
        entropy: H / ln n, in [0, 1], by layer and head.
    """
    groups = list(_groups(entropy))
    residuals, medians = _residuals_and_medians(groups)
    if len(residuals) <= FEWEST_PEERS:
        return {}
    needed_gap = _scale(residuals) * math.log(2.0 / FALSE_ALARMS)
    outlier_heads: dict[tuple[int, int], Outlier] = {}
    for sign in (-1.0, 1.0):
        outward = sorted(residuals, key=lambda key: sign * residuals[key], reverse=True)
        max_count = max(1, math.floor(MOST_UNUSUAL * len(outward)))
        for count in range(max_count, 0, -1):
            inner = residuals[outward[count]]
            if sign * (residuals[outward[count - 1]] - inner) >= needed_gap:
                for key in outward[:count]:
                    outlier_heads[key] = Outlier(
                        usual=medians[key], gap=residuals[key] - inner, needed=needed_gap
                    )
                break
    return outlier_heads


def heads_without_peers(entropy: Mapping[int, Mapping[int, float]]) -> list[tuple[int, int]]:
    """Return the heads that :func:`outliers` compares with none, by layer and head."""
    compared_heads = {key for group in _groups(entropy) for key in group}
    return [
        (layer, head)
        for layer, heads in entropy.items()
        for head in heads
        if (layer, head) not in compared_heads
    ]


def _groups(entropy: Mapping[int, Mapping[int, float]]) -> Iterator[_Heads]:
    """Yield the heads that are compared with one another: those of each wide layer, and all the others."""
    narrow_heads: _Heads = {}
    for layer, heads in entropy.items():
        group = {(layer, head): value for head, value in heads.items()}
        if len(heads) > FEWEST_PEERS:
            yield group
        else:
            narrow_heads |= group
    if len(narrow_heads) > FEWEST_PEERS:
        yield narrow_heads


def _residuals_and_medians(groups: list[_Heads]) -> tuple[_Heads, _Heads]:
    """Return each head's residual in logits from the median of the other heads, and that median."""
    residuals: _Heads = {}
    medians: _Heads = {}
    for group in groups:
        # a middle of few heads is uncertain itself
        width = math.sqrt(1.0 + math.pi / (2.0 * (len(group) - 1)))
        for key, value in group.items():
            medians[key] = median(other_value for other_key, other_value in group.items() if other_key != key)
            residuals[key] = (_logit(value) - _logit(medians[key])) / width
    return residuals, medians


def _scale(residuals: _Heads) -> float:
    count = len(residuals)
    mad = median(map(abs, residuals.values()))
    moderated = (_PRIOR_HEADS * _PRIOR_MAD**2 + count * mad**2) / (_PRIOR_HEADS + count)
    return math.sqrt(moderated) / math.log(2.0)


def _logit(value: float) -> float:
    clamped_value = min(max(value, _NEAREST), 1.0 - _NEAREST)
    return math.log(clamped_value / (1.0 - clamped_value))

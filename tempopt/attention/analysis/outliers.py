"""Heads of a model that differ from the others, at a rate of false alarms for the model as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

FALSE_ALARMS = 0.01
"""Share of models without an unusual head in which one is reported, for any number of heads."""

MIN_PEERS = 3
"""Smallest number of other heads to compare with: the median absolute deviation of two is half their gap."""

MOST_UNUSUAL = 1.0 / 8.0
"""Largest share of unusual heads, though one is possible in any model; more than that are usual."""

# Prior median absolute deviation of the logit of H / ln n within a layer, and its weight in heads.
_PRIOR_MAD, _PRIOR_HEADS = 0.4, 20.0
# Differences of an entropy closer to 0 or 1 than this are ignored.
_NEAREST = 3e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A head that a gap separates from the others.

    Args:
        usual: Median of H / ln n of the heads that it is compared with.
        gap: Distance in the logit of H / ln n from the nearest head that is not unusual, signed.
        needed: Smallest significant distance.
    """

    usual: float
    gap: float
    needed: float


_Heads = dict[tuple[int, int], float]


def outliers(entropy: Mapping[int, Mapping[int, float]]) -> dict[tuple[int, int], Outlier]:
    """Return the heads that differ from all others, by layer and head.

    The logits of H / ln n are compared, each minus the median of the other heads of its layer, or of all
    layers with fewer than :data:`MIN_PEERS` other heads. If they have exponential tails of scale b, the
    outermost is further from the next than b ln(2/α), on either side, in a share α of models, for any number
    of heads (Rényi 1953); lighter tails have smaller gaps. b is the median absolute deviation over ln 2,
    shrunk towards a prior, so that a few heads that agree by chance do not make another one an outlier. If
    layers scatter by very different amounts, or tails are far heavier, α is exceeded.

    Args:
        entropy: H / ln n, in [0, 1], by layer and head.
    """
    groups = list(_groups(entropy))
    residuals, medians = _residuals_and_medians(groups)
    if len(residuals) <= MIN_PEERS:
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
    """Return the heads that :func:`outliers` cannot compare, by layer and head."""
    compared_heads = {key for group in _groups(entropy) for key in group}
    return [
        (layer, head)
        for layer, heads in entropy.items()
        for head in heads
        if (layer, head) not in compared_heads
    ]


def _groups(entropy: Mapping[int, Mapping[int, float]]) -> Iterator[_Heads]:
    """Yield the groups of heads that are compared: each wide layer, and all other layers together."""
    narrow_heads: _Heads = {}
    for layer, heads in entropy.items():
        group = {(layer, head): value for head, value in heads.items()}
        if len(heads) > MIN_PEERS:
            yield group
        else:
            narrow_heads |= group
    if len(narrow_heads) > MIN_PEERS:
        yield narrow_heads


def _residuals_and_medians(groups: list[_Heads]) -> tuple[_Heads, _Heads]:
    """Return each head's residual in logits from the median of the other heads, and that median."""
    residuals: _Heads = {}
    medians: _Heads = {}
    for group in groups:
        # the median of few heads is itself uncertain
        width = math.sqrt(1.0 + math.pi / (2.0 * (len(group) - 1)))
        for key, value in group.items():
            medians[key] = median(other_value for other_key, other_value in group.items() if other_key != key)
            residuals[key] = (_logit(value) - _logit(medians[key])) / width
    return residuals, medians


def _scale(residuals: _Heads) -> float:
    count = len(residuals)
    mad = median(map(abs, residuals.values()))
    moderated_variance = (_PRIOR_HEADS * _PRIOR_MAD**2 + count * mad**2) / (_PRIOR_HEADS + count)
    return math.sqrt(moderated_variance) / math.log(2.0)


def _logit(value: float) -> float:
    clamped_value = min(max(value, _NEAREST), 1.0 - _NEAREST)
    return math.log(clamped_value / (1.0 - clamped_value))

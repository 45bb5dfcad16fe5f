"""Tests of paired differences: estimate, interval and p, with interim looks and added pairs.

Independent of tickets, arms and seeds. The caller gives the level of a comparison and the looks, and decides
how a study shares its level among comparisons and rounds.

Each test assumes a symmetric distribution of the differences under the null hypothesis. If arms have noise of
the same shape, this holds for any shape. If they do not (one of them collapses now and then), it does not
hold, and with few pairs no interval has its nominal coverage: in simulations, 8 pairs of 25 % against 5 %
collapses are covered 88 % of the time by t. SciPy is loaded only when a test is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Literal

from tempopt.spec.alpha_levels import ALPHA as ALPHA
from tempopt.spec.alpha_levels import Direction as Direction
from tempopt.verdict.statistics.group_sequential import Look, increment, nominal_p, repeated_p, repeated_score
from tempopt.verdict.statistics.power import pairs_needed

_ROUNDING = 1e-9
"""Differences this close, relative to the median of their sizes, count as equal: subtracting two accuracies
that are multiples of 1/n leaves a rounding error in place of a tie.
"""

_EXACT = 1e-12
"""Differences this close, relative to the values, are rounding errors of a weighted difference."""

_NOTHING = 1e-15
"""Differences that are all smaller are rounding errors of metrics near one, and count as zero."""

_MAX_LEVEL = 0.99
"""Level at which pairs are added where the present ones are nearly sufficient alone."""

_FEWEST_SKEWED = 6
_MAX_DOUBLINGS = 60
_NUM_HALVINGS = 60

_LEAST_P = 1e-300
_MAX_P = 1 - 1e-16
"""p-values are clipped to this range before they are combined, so that no stage decides alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """Result of a test of paired differences, or of two independent samples.

    Args:
        gain: The mean, in the metric's unit; > 0 is better for any direction.
        ci_low: Lower end of the interval; -inf if there are too few pairs for a bound.
        ci_high: Upper end of the interval, or inf.
        p_value: Two-sided; with several looks or stages the sequential one. Significant below ``alpha``.
        n_pairs: Number of pairs, including those of earlier stages; 0 for independent samples.
        alpha: Level of the test; the interval covers 1 - alpha.
        is_equal: Whether at least two differences are all equal, so that the noise is unknown.
        sample_sizes: Numbers of values of the arm and of the reference, for independent samples.
    """

    gain: float
    ci_low: float
    ci_high: float
    p_value: float
    n_pairs: int
    alpha: float
    is_equal: bool = False
    sample_sizes: tuple[int, int] | None = None

    @property
    def num_runs(self) -> int:
        """Number of pairs, or of the values of both samples."""
        return self.n_pairs if self.sample_sizes is None else sum(self.sample_sizes)

    @property
    def is_without_effect(self) -> bool:
        """Whether at least two differences are all zero."""
        return self.is_equal and self.gain == 0

    @property
    def confidence(self) -> float:
        """Coverage of the interval."""
        return 1 - self.alpha

    @property
    def significant(self) -> bool:
        """Whether a gain is shown: p is below the level, and therefore the interval is above 0."""
        return self.p_value < self.alpha and self.gain > 0

    @property
    def is_worse(self) -> bool:
        """Whether a loss is shown: p is below the level, and therefore the interval is below 0."""
        return self.p_value < self.alpha and self.gain < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDifferences:
    """The pairs of one round, and the looks at them.

    Args:
        differences: Value of the arm minus value of the reference, one for each pair.
        looks: (usable pairs, share of the level spent by then) at each look up to the last, which has all
            pairs. None: a single look at the end, which may spend everything.
    """

    differences: tuple[float, ...]
    looks: tuple[Look, ...] | None = None


def paired_test(
    differences: Sequence[float],
    *,
    direction: Direction,
    alpha: float = ALPHA,
    looks: Sequence[Look] | None = None,
    earlier: Sequence[StageDifferences] = (),
) -> PairedTest:
    """Test whether paired differences are centred on zero, two-sided.

    It is Student's test. Differences without variance (a metric with few values, a seed without effect) do
    not show the noise that t divides by, and p = 0 would not be justified: in this case their signs are
    tested, and p is 2^(1-n). For a single pair, and for differences that are all zero, p is 1 and the
    interval is infinite.

    With ``looks``, p is the repeated p-value and the interval the repeated confidence interval (Jennison &
    Turnbull 2000, chapter 9), valid for any stopping rule: by exact boundaries (see
    :mod:`.group_sequential`), and for signs by the share that the last look alone may spend.

    With ``earlier``, the evidence of the stages for a gain and for a loss is combined by the inverse normal
    method (Lehmacher & Wassmer 1999), which is valid for any reason to add pairs; each stage has twice the
    weight of the one before, since pairs are added where the present ones did not suffice. The interval
    contains the values that the combination does not reject. An interval that misses the estimate is widened
    to include it, and p is that of the estimate's sign, so that p below the level with a gain is equivalent
    to an interval above zero. A stage of one pair contributes to the estimate only.

    Args:
        differences: Value of the arm minus value of the reference, one for each pair of the present round.
        direction: ``maximize`` or ``minimize``: which sign of a difference is better.
        alpha: Two-sided level of this comparison, in (0, 1).
        looks: Looks at ``differences`` up to the present one, as in :class:`StageDifferences`.
        earlier: Earlier stages, whose pairs count as well.
    """
    assert 0 < alpha < 1, alpha
    present = StageDifferences(differences=tuple(differences), looks=None if looks is None else tuple(looks))
    stages = [_Evidence(stage, direction) for stage in (*earlier, present)]
    gains = [gain for stage in stages for gain in stage.gains]
    if max(map(abs, gains)) <= _NOTHING:
        low, high, p = -math.inf, math.inf, 1.0
        gain = 0.0
    elif len(gains) == 1:
        low, high, p = -math.inf, math.inf, 1.0
        gain = gains[0]
    else:
        gain = fmean(gains)
        informative_stages = [stage for stage in stages if len(stage.gains) > 1] or stages[-1:]
        low, high, p = (
            informative_stages[0].alone(alpha)
            if len(informative_stages) == 1
            else _combine_stages(informative_stages, gain, alpha)
        )
        if len(informative_stages) == 1 and (gain > 0) != (fmean(informative_stages[0].gains) > 0):
            # a single added pair has changed the sign, for which it is no evidence
            p = 1.0
    return PairedTest(
        gain=gain,
        ci_low=min(low, gain),
        ci_high=max(high, gain),
        p_value=p,
        n_pairs=len(gains),
        alpha=alpha,
        is_equal=len(gains) > 1
        and max(gains) - min(gains) <= max(_NOTHING, _ROUNDING * max(map(abs, gains))),
    )


def skewness(differences: Sequence[float]) -> float | None:
    """Return the sample skewness G1 of differences in its standard errors under a normal distribution.

    Joanes and Gill 1998, "Comparing measures of sample skewness and kurtosis", The Statistician 47(1).

    Args:
        differences: Paired differences.

    Returns:
        A number, 0 for a symmetric distribution; None with fewer than six differences, or equal ones.
    """
    count = len(differences)
    if count < _FEWEST_SKEWED or max(differences) - min(differences) <= _NOTHING:
        return None
    mean, deviation = fmean(differences), stdev(differences)
    cubes = math.fsum(((difference - mean) / deviation) ** 3 for difference in differences)
    skewness = count / ((count - 1) * (count - 2)) * cubes
    error = math.sqrt(6 * count * (count - 1) / ((count - 2) * (count + 1) * (count + 3)))
    return skewness / error


def margin_left(
    arm: Sequence[float],
    reference: Sequence[float],
    *,
    side: Literal["most", "least"],
    margin: float,
    relative: bool,
) -> list[float]:
    """Return by pair the distance to the margin; a mean above 0 is within the margin.

    With a margin that is a share X of the absolute value of the reference's mean, it is (1 + X) · reference_i
    - arm_i if the arm may be above, and arm_i - (1 - X) · reference_i if it may be below; for a reference
    with a negative mean, X has the opposite sign. So the mean over pairs is X · |mean of the reference| minus
    the disadvantage of the arm, and the noise of the reference's mean is accounted for.

    Args:
        arm: Values of the arm, one for each pair.
        reference: Values of its reference.
        side: ``most``: the arm may be above by the margin; ``least``: below.
        margin: >= 0.
        relative: Whether the margin is a share of the absolute value of the reference's mean.
    """
    assert margin >= 0, margin
    sign = -1.0 if reference and fmean(reference) < 0 else 1.0
    slacks = []
    for of_arm, of_reference in zip(arm, reference, strict=True):
        worsening = of_arm - of_reference if side == "most" else of_reference - of_arm
        slack = (margin * sign * of_reference if relative else margin) - worsening
        rounding = _EXACT * max(abs(of_arm), abs(of_reference), margin)
        slacks.append(0.0 if abs(slack) <= rounding else slack)
    return slacks


def pairs_to_add(
    stages: Sequence[StageDifferences],
    effect: float,
    *,
    direction: Direction,
    alpha: float,
) -> int | None:
    """Return the number of pairs of a further stage that shows a true gain together with all stages, at 80 %
    power.

    The evidence of the stages counts, by the inverse normal method as in :func:`paired_test`. The new pairs
    are assumed to have the given effect, never the observed gain.

    Args:
        stages: Stages so far, at least one.
        effect: The true gain, in the metric's unit, > 0.
        direction: As in :func:`paired_test`.
        alpha: Two-sided level of the comparison with the new pairs, in (0, 1).

    Returns:
        A number of at least 2; None if it is above 100,000, or if no two pairs of a stage differ, so that
        their variance is unknown.
    """
    assert stages and math.isfinite(effect) and effect > 0 and 0 < alpha < 1, (effect, alpha)
    from scipy.special import ndtr, ndtri

    evidence = [_Evidence(stage, direction) for stage in stages if len(stage.differences) > 1]
    squares = sum((len(stage.gains) - 1) * stdev(stage.gains) ** 2 for stage in evidence)
    if squares <= _NOTHING**2:
        return None
    deviation = math.sqrt(squares / sum(len(stage.gains) - 1 for stage in evidence))
    *weights, weight = _weights(len(evidence) + 1)
    weighted_score = sum(share * stage.score(0.0, 1) for share, stage in zip(weights, evidence, strict=True))
    needed_score = (-float(ndtri(alpha / 2)) - weighted_score) / weight
    next_alpha = min(2 * float(ndtr(-needed_score)), _MAX_LEVEL)
    return pairs_needed(effect / deviation, alpha=next_alpha)


class _Evidence:
    """Evidence of one stage for and against a gain."""

    def __init__(self, stage: StageDifferences, direction: Direction) -> None:
        differences = stage.differences
        assert differences and all(map(math.isfinite, differences)), differences
        self.gains = [0.0 - d for d in differences] if direction == "minimize" else list(differences)
        self._looks = stage.looks or ((len(differences), 1.0),)
        assert self._looks[-1][0] == len(differences), "the looks of a stage end with the present one"
        self._share = increment(self._looks)
        # the median, so that a single extreme run does not turn all other pairs into ties
        sizes = [abs(gain) for gain in self.gains if abs(gain) > _NOTHING]
        self._zero = _ROUNDING * (median(sizes) if sizes else max(map(abs, self.gains)))
        self._mean = fmean(self.gains)
        self._is_equal = max(self.gains) - min(self.gains) <= self._zero
        self._error = 0.0 if self._is_equal else stdev(self.gains) / math.sqrt(len(self.gains))

    def alone(self, alpha: float) -> tuple[float, float, float]:
        """Return the ends of the interval and the two-sided p without other stages."""
        if self._is_equal:
            p = min(1.0, 2 * self._sign_p(0.0, 1 if self._mean > 0 else -1))
            return (self._mean, self._mean, p) if p < alpha else (-math.inf, math.inf, p)
        from scipy.special import stdtr, stdtrit

        freedom, mean = len(self.gains) - 1, self._mean
        level = nominal_p(self._looks, alpha)
        margin = float(stdtrit(freedom, (1 + (1 - level)) / 2)) * self._error if level > 0 else math.inf
        p = 2 * float(stdtr(freedom, -abs(mean) / self._error))
        return mean - margin, mean + margin, p if self._looks[0][1] == 1 else repeated_p(self._looks, p)

    def score(self, against: float, sign: int) -> float:
        """Return the normal score of the one-sided p for a mean above a value (sign 1) or below it (-1)."""
        from scipy.special import ndtri, stdtr

        if self._is_equal:
            if abs(against) <= _NOTHING and abs(self._mean) <= _NOTHING:
                return 0.0  # all pairs are ties, which speak for neither side
            return -float(ndtri(min(self._sign_p(against, sign), _MAX_P)))
        t = sign * (self._mean - against) / self._error
        tail = max(_LEAST_P, float(stdtr(len(self.gains) - 1, -abs(t))))
        plain_score = math.copysign(float(ndtri(tail)), t)
        return max(repeated_score(self._looks, plain_score), float(ndtri(1 - _MAX_P)))

    def _sign_p(self, against: float, sign: int) -> float:
        """Return the one-sided p, by the sign test, of equal differences above (1) or below (-1) a value."""
        is_beyond = sign * (self._mean - against) > self._zero
        if not is_beyond or self._share <= 0:
            return 1.0
        return min(1.0, max(_LEAST_P, 2.0 ** -len(self.gains)) / self._share)


def _combine_stages(stages: Sequence[_Evidence], gain: float, alpha: float) -> tuple[float, float, float]:
    """Return the ends of the interval and the two-sided p of several stages combined."""

    def p_of(against: float, sign: int) -> float:
        from scipy.special import ndtr

        score = sum(
            weight * stage.score(against, sign)
            for weight, stage in zip(_weights(len(stages)), stages, strict=True)
        )
        return float(ndtr(-score))

    gains = [gain for stage in stages for gain in stage.gains]
    low = _lower_end(lambda theta: 2 * p_of(theta, 1) < alpha, gains)
    high = -_lower_end(lambda theta: 2 * p_of(-theta, -1) < alpha, [-gain for gain in gains])
    return low, high, min(1.0, 2 * p_of(0.0, 1 if gain > 0 else -1))


def _weights(num_stages: int) -> list[float]:
    """Return the weights of the stages' normal scores; their squares double by stage and sum to 1."""
    total = 2.0**num_stages - 1
    return [math.sqrt(2.0**stage / total) for stage in range(num_stages)]


def _lower_end(rejected: Callable[[float], bool], gains: Sequence[float]) -> float:
    """Return the lower end of an interval, below which values are rejected."""
    step = max(gains) - min(gains) or abs(gains[0])
    # zero is one of the two, so that the interval and the test of zero always agree
    low, high = (0.0, step) if rejected(0.0) else (-step, 0.0)
    for _ in range(_MAX_DOUBLINGS):
        if not rejected(high):
            break
        low, high = high, 2 * high
    for _ in range(_MAX_DOUBLINGS):
        if rejected(low):
            break
        low, high = 2 * low, low
    else:
        return -math.inf
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return high

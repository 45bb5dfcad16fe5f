"""The smallest gain that the confirmation of a study can show, before its first pair is trained.

In standard deviations of a pair's difference before there are runs, and in units of the metric afterwards: as
a range whose width follows from the number of runs. Pure: rows in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import stdev, variance
from typing import Literal

import numpy as np

from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.spec.sections import Pairs
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import is_usable
from tempopt.temperature import training_key
from tempopt.verdict.paired_evidence import gains_by_pair
from tempopt.verdict.pairs import values_on_choosing_seeds
from tempopt.verdict.statistics.group_sequential import alpha_spending, boundaries
from tempopt.verdict.statistics.power import POWER, detectable_effect, deviation_interval, min_effect

CONFIDENCE = 0.8
"""Smallest probability that a range contains the smallest gain that can be shown."""

MAX_CORRELATION = 0.75
"""Largest correlation, between two runs with the same seed, that a range allows for.  In recorded trainings
it is 0.03 to 0.66 (benchmarks/README.md, "How small a gain can be shown").
"""

LARGE_GAIN = 2.0
"""Gain in a forecast of runs, in standard deviations of a pair's difference."""

# A race keeps candidates that were lucky on the first seeds, and arms differ in their noise: intervals of
# nominally 80 % covered the truth in only 76 to 83 % of simulated studies.
_CHOOSING_CONFIDENCE = 0.9

Source = Literal["baseline", "choose", "confirm"]

_MIN_RUNS = 2
_NUM_SIMULATIONS = 20_000
_NUM_HALVINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseEstimate:
    """Estimate of the standard deviation of a pair's difference.

    Args:
        source: Kind of the runs: single runs at τ = 1, arms on common seeds, or confirmed pairs.
        runs: Number of these runs.
        deviation: Of single runs, the standard deviation between seeds; otherwise that of a difference.
        freedom: Its degrees of freedom.
    """

    source: Source
    runs: int
    deviation: float
    freedom: int

    @property
    def difference(self) -> tuple[float, float]:
        """Interval of the standard deviation of a difference: of 90 % after ``choose``, else of 80 %."""
        confidence = _CHOOSING_CONFIDENCE if self.source == "choose" else CONFIDENCE
        low, high = deviation_interval(self.deviation, self.freedom, confidence=confidence)
        if self.source != "baseline":
            return low, high
        return low * math.sqrt(2 * (1 - MAX_CORRELATION)), high * math.sqrt(2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectableEffect:
    """The smallest gain that a confirmation shows with a chance of 80 %.

    Args:
        pairs: Largest number of confirming seeds.
        alpha: Two-sided level of the first verdict.
        power: Probability to show the gain.
        comparisons: Comparisons that have to show it: with the baseline, and with a twin that may differ.
        effect: The gain, in standard deviations of a pair's difference.
    """

    pairs: int
    alpha: float
    power: float
    comparisons: int
    effect: float

    @property
    def in_seeds(self) -> tuple[float, float]:
        """The gain in standard deviations between seeds: smallest and largest possible value."""
        return self.effect * math.sqrt(2 * (1 - MAX_CORRELATION)), self.effect * math.sqrt(2.0)

    def range(self, noise: NoiseEstimate) -> tuple[float, float]:
        """Return the range of the gain in units of the metric."""
        low, high = noise.difference
        return self.effect * low, self.effect * high


def detectable(spec: StudySpec) -> DetectableEffect:
    """Return the smallest gain that a study can show in its first verdict.

    By Student's test. If the twin may differ from the baseline, both comparisons have to show the gain, so
    each may miss it with half of the probability.
    """
    comparisons = 2 if spec.has_twin else 1
    alpha = alpha_for_verdict(1)
    single_power = 1 - (1 - POWER) / comparisons
    confirm = spec.study.seeds.confirm
    if confirm.min == confirm.max:
        effect = detectable_effect(confirm.max, alpha=alpha, power=single_power)
    else:
        effect = _sequential_effect(confirm.min, confirm.max, alpha, single_power)
    return DetectableEffect(
        pairs=confirm.max,
        alpha=alpha,
        power=POWER,
        comparisons=comparisons,
        effect=effect,
    )


def expected_pairs(spec: StudySpec, *, gain: bool) -> float:
    """Return the expected number of pairs of a confirmation, which interim looks may end early.

    Without a gain it ends where the winner is behind: the probability to be ahead at the first j of equally
    spaced looks is C(2j, j) / 4^j (Sparre Andersen 1954).

    Args:
        spec: The study's spec, with a confirmation.
        gain: Whether there is a gain, of two standard deviations of a pair's difference.
    """
    confirm = spec.study.seeds.confirm
    if gain and confirm.min < confirm.max:
        return _simulate_confirmations(confirm.min, confirm.max, alpha_for_verdict(1)).outcome(LARGE_GAIN)[1]
    steps = [end - start for start, end in pairwise((0, *confirm.looks))]
    chances = (math.comb(2 * look, look) / float(4**look) for look in range(len(steps)))
    return math.fsum(step * chance for step, chance in zip(steps, chances, strict=True))


@lru_cache(maxsize=16)
def _sequential_effect(first_look: int, max_pairs: int, alpha: float, power: float) -> float:
    """Return the effect that interim looks show with a probability, by simulated confirmations."""
    simulation = _simulate_confirmations(first_look, max_pairs, alpha)
    return min_effect(lambda effect: simulation.outcome(effect)[0], power, halvings=_NUM_HALVINGS)


@lru_cache(maxsize=4)
def _simulate_confirmations(first_look: int, max_pairs: int, alpha: float) -> Simulated:
    """Return simulated confirmations with looks after every ``first_look`` pairs, ``max_pairs`` at most."""
    looks = Pairs(min=first_look, max=max_pairs).looks
    limits = boundaries(tuple((look, alpha_spending(look, max_pairs)) for look in looks), alpha)
    drawn_SN = np.random.default_rng(0).standard_normal((_NUM_SIMULATIONS, max_pairs))
    return Simulated(drawn_SN, looks, limits)


class Simulated:
    """Simulated confirmations without a gain, with interim looks.

    Args:
        drawn_SN: Standard normal differences by study and pair.
        looks: Numbers of pairs at the looks; a confirmation ends at a look whose mean is not above 0.
        limits: Two-sided p below which each look is significant.
    """

    def __init__(self, drawn_SN: np.ndarray, looks: Sequence[int], limits: Sequence[float]) -> None:
        from scipy.special import stdtrit

        samples = [drawn_SN[:, :look] for look in looks]
        self._looks = looks
        self._means = [sample.mean(axis=1) for sample in samples]
        self._margins = [
            sample.std(axis=1, ddof=1) / math.sqrt(look) * float(stdtrit(look - 1, 1 - limit / 2))
            for sample, look, limit in zip(samples, looks, limits, strict=True)
        ]

    def outcome(self, effect: float) -> tuple[float, float]:
        """Return the share of confirmations that show an effect, and their mean number of pairs."""
        shown_S = np.zeros(len(self._means[0]), dtype=bool)
        open_S, pairs_S = ~shown_S, np.full(len(shown_S), self._looks[-1])
        for look, mean_S, margin_S in zip(self._looks, self._means, self._margins, strict=True):
            shown_S |= open_S & (mean_S + effect > margin_S)
            still_S = open_S & ~shown_S & (mean_S + effect > 0)
            pairs_S[open_S & ~still_S] = look
            open_S = still_S
        return float(shown_S.mean()), float(pairs_S.mean())


def estimate_noise(rows: Sequence[TicketRow], spec: StudySpec) -> NoiseEstimate | None:
    """Return the noise of a pair's difference from the runs of a study; None if too few are complete, or all
    equal.

    It uses the differences of confirmed pairs; without these, those of parameter sets on common choosing
    seeds; without these, the values of runs that differ in their seed only.

    Args:
        rows: The study's tickets.
        spec: Its spec.
    """
    noise = _confirmation_noise(rows, spec) or _choosing_noise(rows, spec) or _single_run_noise(rows)
    return noise if noise is not None and noise.deviation > 0 else None


def _confirmation_noise(rows: Sequence[TicketRow], spec: StudySpec) -> NoiseEstimate | None:
    rounds = sorted({row.round for row in rows if row.kind == "confirm"}, reverse=True)
    for of_round in rounds:
        differences = [
            list(gains_by_pair(rows, spec, of_round, reference).values())
            for reference in ("baseline", "twin")
        ]
        varied_gains = [gains for gains in differences if len(gains) > _MIN_RUNS and stdev(gains) > 0]
        if varied_gains:
            # a gain has to hold over both, and the noisier one is decisive
            widest = max(varied_gains, key=stdev)
            return NoiseEstimate(
                source="confirm", runs=2 * len(widest), deviation=stdev(widest), freedom=len(widest) - 1
            )
    return None


def _choosing_noise(rows: Sequence[TicketRow], spec: StudySpec) -> NoiseEstimate | None:
    """Return the residuals of values on common seeds, after the effects of parameters and of seeds."""
    rounds = sorted({row.round for row in rows if row.kind == "choose"}, reverse=True)
    for of_round in rounds:
        values = values_on_choosing_seeds(rows, spec, of_round)
        tables = [
            np.array(
                [
                    [pair_values[pair] for pair in range(pairs)]
                    for pair_values in values.values()
                    if pair_values.keys() >= set(range(pairs))
                ]
            )
            for pairs in range(2, 1 + max((len(pair_values) for pair_values in values.values()), default=0))
        ]
        tables = [table for table in tables if len(table) > 1]
        if tables:
            return _residual(max(tables, key=lambda table: (len(table) - 1) * (table.shape[1] - 1)))
    return None


def _residual(table_CP: np.ndarray) -> NoiseEstimate | None:
    candidates, pairs = table_CP.shape
    freedom = (candidates - 1) * (pairs - 1)
    if freedom < _MIN_RUNS:
        return None
    rest_CP = table_CP - table_CP.mean(axis=1, keepdims=True) - table_CP.mean(axis=0) + table_CP.mean()
    deviation = math.sqrt(2.0 * float((rest_CP**2).sum()) / freedom)
    return NoiseEstimate(source="choose", runs=table_CP.size, deviation=deviation, freedom=freedom)


def _single_run_noise(rows: Iterable[TicketRow]) -> NoiseEstimate | None:
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.kind == "baseline" and is_usable(row) and row.value is not None:
            values.setdefault(training_key(row.parameters or {}), []).append(row.value)
    repeated_values = [run_values for run_values in values.values() if len(run_values) > 1]
    freedom = sum(len(run_values) - 1 for run_values in repeated_values)
    if freedom < _MIN_RUNS:
        return None
    squares = sum((len(run_values) - 1) * variance(run_values) for run_values in repeated_values)
    return NoiseEstimate(
        source="baseline",
        runs=sum(map(len, repeated_values)),
        deviation=math.sqrt(squares / freedom),
        freedom=freedom,
    )

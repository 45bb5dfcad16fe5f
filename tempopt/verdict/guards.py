"""Tests whether the winner, or a simpler alternative, keeps the guards: non-inferiority to the baseline.

Pure: rows and measurements in, results out. Runs count as in paired_evidence.py: a pair with a lost run is
left out, and a diverged run counts with the worst value that any run of the two arms reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from tempopt.spec.guards import GuardSpec
from tempopt.spec.program import guard_name
from tempopt.storage.rows import Kind, Measurement
from tempopt.storage.ticket_queries import is_usable
from tempopt.verdict.inference import eval_runs_by_round
from tempopt.verdict.paired_evidence import Evidence, PairedRuns
from tempopt.verdict.run_evaluations import metric_name_for_kind
from tempopt.verdict.statistics.paired_tests import PairedTest, margin_left

State = Literal["kept", "broken", "not_shown", "not_measured"]

NO_VALUE = "no confirming run has a finite value of it"
NOT_THERE = "it was not measured at that temperature"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult:
    """Result of the confirmation for one guard.

    Args:
        name: The metric.
        text: The guard in the spec.
        state: ``kept``: the winner is shown to stay within the margin; ``broken``: it is shown to exceed it;
            ``not_shown``: neither; ``not_measured``: there are no measurements.
        side: ``most`` or ``least``: the guarded side of the baseline.
        margin: Allowed distance on that side: a share of the baseline's mean if the text has %, else in the
            unit of the metric.
        answer: Distance to the margin by pair, in the unit of the metric; None if not measured.
        baseline: Mean of the baseline over the pairs, None if not measured.
        change: The winner's mean minus the baseline's, None if not measured.
        low: Lower end of the interval of that change by the test of the margin: the guard is kept if the end
            on the guarded side is within the margin. None if not measured, infinite with too few pairs.
        high: Its upper end.
        diverged: Number of pairs on which the winner diverged.
        reference_diverged: Number of pairs on which the baseline diverged.
        why: Why it was not measured, as text; empty if it was.
    """

    name: str
    text: str
    state: State
    side: Literal["most", "least"]
    margin: float
    answer: PairedTest | None = None
    baseline: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    diverged: int = 0
    reference_diverged: int = 0
    why: str = ""

    @property
    def blocks_recommendation(self) -> bool:
        """Whether the tested arm may not be recommended, since it is not shown to keep the guard."""
        return self.state != "kept"

    def relative(self, value: float | None) -> float | None:
        """Return a change as a share of the baseline's absolute mean; None if that is undefined."""
        if value is None or not self.baseline:
            return None
        return value / abs(self.baseline)


def evaluate_guards(
    evidence: Evidence,
    measurements: Iterable[Measurement],
    *,
    arm: str = "search",
    kind: Kind = "confirm",
    reference: str = "baseline",
) -> tuple[GuardResult, ...]:
    """Return the result of each guard of the study over the pairs of a verdict, in the order of the spec.

    Args:
        evidence: The pairs.
        measurements: Measurements of confirm and ablation runs.
        arm: Arm that has to keep the guards.
        kind: Kind of its runs.
        reference: Reference of the arm.
    """
    values_by_name = _group_by_name(measurements)
    guards = []
    for spec in evidence.spec.study.guarded:
        values = values_by_name.get(guard_name(metric_name_for_kind("confirm", evidence.spec), spec.name), {})
        runs = _runs_by_round(evidence, arm, values, kind), _runs_by_round(evidence, reference, values)
        guards.append(_evaluate_guard(spec, evidence, *runs))
    return tuple(guards)


def guards_at_inference(
    evidence: Evidence, measurements: Iterable[Measurement], plan: str
) -> tuple[GuardResult, ...]:
    """Return the result of each guard for models trained at τ = 1 and evaluated under another plan.

    Metrics are compared on the pairs on which the gain under that plan is estimated.

    Args:
        evidence: The pairs.
        measurements: Measurements of confirm runs.
        plan: Name of the plan.
    """
    values_by_name, split = _group_by_name(measurements), evidence.spec.study.confirm_on
    guards = []
    for spec in evidence.spec.study.guarded:
        names = f"{split}:{plan}", metric_name_for_kind("confirm", evidence.spec)
        values = [values_by_name.get(guard_name(name, spec.name), {}) for name in names]
        if not values[0]:
            guards.append(_untested_result(spec, "not_measured", NOT_THERE))
            continue
        runs = [
            eval_runs_by_round(_runs_by_round(evidence, "baseline", metric_values), split)
            for metric_values in values
        ]
        guards.append(_evaluate_guard(spec, evidence, *runs))
    return tuple(guards)


def _group_by_name(measurements: Iterable[Measurement]) -> dict[str, dict[int, float]]:
    values_by_name: dict[str, dict[int, float]] = {}
    for measurement in measurements:
        values_by_name.setdefault(measurement.name, {})[measurement.ticket_id] = measurement.value
    return values_by_name


def _runs_by_round(
    evidence: Evidence, arm: str, values: Mapping[int, float], kind: Kind = "confirm"
) -> list[PairedRuns]:
    """Return the values of a metric in the runs of an arm, by round."""
    runs_by_round = []
    for of_round in evidence.rounds:
        runs = evidence.tickets(kind, arm, of_round)
        pair_values = {
            t.pair: values[t.id]
            for t in runs
            if t.pair is not None and is_usable(t) and math.isfinite(values.get(t.id, math.nan))
        }
        ended_pairs = {t.pair for t in runs if t.pair is not None and t.outcome in ("complete", "diverged")}
        runs_by_round.append(
            PairedRuns(values=pair_values, diverged=frozenset(ended_pairs - pair_values.keys()))
        )
    return runs_by_round


def _untested_result(spec: GuardSpec, state: State, why: str = "") -> GuardResult:
    return GuardResult(
        name=spec.name, text=spec.text, state=state, side=spec.side, margin=spec.margin, why=why
    )


def _evaluate_guard(
    spec: GuardSpec,
    evidence: Evidence,
    winner: Sequence[PairedRuns],
    baseline: Sequence[PairedRuns],
) -> GuardResult:
    pairs = [
        sorted(arm_runs.pairs & reference_runs.pairs)
        for arm_runs, reference_runs in zip(winner, baseline, strict=True)
    ]
    values = [value for round_runs in (*winner, *baseline) for value in round_runs.values.values()]
    if not any(pairs) or not values:
        return _untested_result(spec, "not_measured", NO_VALUE)
    worst = max(values) if spec.side == "most" else min(values)
    of_winner, of_baseline = (
        [
            round_runs.values.get(pair, worst)
            for round_runs, round_pairs in zip(arm, pairs, strict=True)
            for pair in round_pairs
        ]
        for arm in (winner, baseline)
    )
    headrooms = margin_left(
        of_winner, of_baseline, side=spec.side, margin=spec.margin, relative=spec.relative
    )
    headroom_iterator = iter(headrooms)
    answer = evidence.test(
        [{pair: next(headroom_iterator) for pair in round_pairs} for round_pairs in pairs], "maximize"
    )
    assert answer is not None
    diverged, reference_diverged = (
        sum(
            len(round_runs.diverged.intersection(round_pairs))
            for round_runs, round_pairs in zip(arm, pairs, strict=True)
        )
        for arm in (winner, baseline)
    )
    mean = fmean(of_baseline)
    allowed = spec.margin * abs(mean) if spec.relative else spec.margin
    ends = (allowed - answer.ci_low, allowed - answer.ci_high)
    low, high = sorted(ends if spec.side == "most" else (-end for end in ends))
    state: State = "not_shown"
    if answer.significant and diverged <= reference_diverged:
        state = "kept"
    elif answer.is_worse:
        state = "broken"
    return replace(
        _untested_result(spec, state),
        answer=answer,
        baseline=mean,
        change=fmean(of_winner) - mean,
        low=low,
        high=high,
        diverged=diverged,
        reference_diverged=reference_diverged,
    )

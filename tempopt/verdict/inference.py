"""Gain from evaluating trained models at another temperature: measurements in, comparisons out.

For each arm, the plan is selected on validation data and its gain is estimated on the confirmation's data:
for the baseline's models, to find the gain without training at another temperature; for the twin's, to find
the share of the winner's gain; and for the winner's own, which may be tuned at inference too. Without test
data the plan is selected on every second pair, and its gain is estimated on the others.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tempopt.spec.program import GUARD
from tempopt.storage.rows import Measurement
from tempopt.storage.ticket_queries import is_usable, to_maximize
from tempopt.verdict.paired_evidence import Evidence, PairedResult, PairedRuns, test_keeps_share
from tempopt.verdict.run_evaluations import metric_name_for_kind
from tempopt.verdict.statistics.fieller import Ratio, fieller

AS_TRAINED = "as trained"
"""Name of a model's own plan among the compared ones."""

_Pair = tuple[int, int]
_Values = Mapping[str, Mapping[_Pair, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedInference:
    """An arm whose models were evaluated at their best temperature.

    Args:
        plan_name: Name of the selected plan, such as ``constant=0.5``; ``winner`` is the winner's final plan.
        answer: Its gain over the same models as trained.
        curve: Mean on the validation data by plan, including the models as trained.
    """

    plan_name: str
    answer: PairedResult
    curve: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOnly:
    """The part of the gain that needs no training at another temperature.

    Args:
        baseline: The models trained at τ = 1, tuned at inference: the gain without training.
        twin: The models of the winner's twin, tuned at inference; None if they were not measured.
        winner: The winner's own models, tuned at inference.
        share: Gain of the twin's models at inference as a share of the winner's gain over the twin; None
            unless the primary gain is significant.
        difference: The winner against the baseline, both tuned at inference; None if not measured.
        keep_share_result: Whether the baseline tuned at inference keeps ``study.keep_share`` of the gain of
            the winner, tuned in the same way, over the baseline as trained; None if the winner was not
            measured.
    """

    baseline: TunedInference
    twin: TunedInference | None
    winner: TunedInference | None
    share: Ratio | None
    difference: PairedResult | None
    keep_share_result: PairedResult | None

    @property
    def answer(self) -> PairedResult:
        """Gain of the baseline's models at inference."""
        return self.baseline.answer

    @property
    def plan_name(self) -> str:
        """Name of the plan selected for the baseline's models."""
        return self.baseline.plan_name


def inference_only(
    evidence: Evidence, measurements: Iterable[Measurement], primary: PairedResult
) -> InferenceOnly | None:
    """Return the gains at inference; None if there are none, for example if no evaluation reads a
    temperature.

    Args:
        evidence: The pairs of the verdict's round.
        measurements: Measurements of the confirm runs.
        primary: The winner's gain over τ = 1.
    """
    if not evidence.spec.evaluated:
        # the evaluation does not read a temperature of the loss
        return None
    ticket_values: dict[int, dict[str, float]] = {}
    for measurement in measurements:
        if math.isfinite(measurement.value):
            ticket_values.setdefault(measurement.ticket_id, {})[measurement.name] = measurement.value
    tuned_by_arm = {arm: _tune_arm(evidence, arm, ticket_values) for arm in ("baseline", "twin", "search")}
    if tuned_by_arm["baseline"] is None:
        return None
    baseline, runs_of_baseline = tuned_by_arm["baseline"]
    winner, twin = tuned_by_arm["search"], tuned_by_arm["twin"]
    difference, kept_answer, share = None, None, None
    if winner is not None:
        difference = evidence.compare(winner[1], runs_of_baseline)
        kept_answer = test_keeps_share(evidence, runs_of_baseline, winner[1], evidence.runs("baseline"))
    if primary.significant and twin is not None:
        share = share_of(evidence, twin[1], evidence.runs("twin"))
    return InferenceOnly(
        baseline=baseline,
        twin=None if twin is None else twin[0],
        winner=None if winner is None else winner[0],
        share=share,
        difference=difference,
        keep_share_result=kept_answer,
    )


def share_of(evidence: Evidence, simpler: Sequence[PairedRuns], twin: Sequence[PairedRuns]) -> Ratio | None:
    """Return the gain of runs over the twin as a share of the winner's gain over it."""
    winner = evidence.runs("search")
    pairs = [
        simpler_runs.pairs & twin_runs.pairs & winner_runs.pairs
        for simpler_runs, twin_runs, winner_runs in zip(simpler, twin, winner, strict=True)
    ]
    if not any(pairs):
        return None
    reference = _select_pairs(twin, pairs)
    return fieller(
        evidence.gains(_select_pairs(simpler, pairs), reference),
        evidence.gains(_select_pairs(winner, pairs), reference),
        alpha=evidence.alpha,
    )


def _select_pairs(runs: Sequence[PairedRuns], pairs: Sequence[frozenset[int]]) -> list[PairedRuns]:
    return [
        PairedRuns(
            values={pair: value for pair, value in round_runs.values.items() if pair in round_pairs},
            diverged=round_runs.diverged & round_pairs,
        )
        for round_runs, round_pairs in zip(runs, pairs, strict=True)
    ]


def _tune_arm(
    evidence: Evidence, arm: str, ticket_values: Mapping[int, Mapping[str, float]]
) -> tuple[TunedInference, list[PairedRuns]] | None:
    """Select the best plan of inference for an arm; return the result and the arm's runs under that plan."""
    metric_name, split = metric_name_for_kind("confirm", evidence.spec), evidence.spec.study.confirm_on
    plan_values: dict[str, dict[_Pair, float]] = {}
    validation_values: dict[str, dict[_Pair, float]] = {}
    pairs = set()
    for of_round in evidence.rounds:
        for ticket in evidence.tickets("confirm", arm, of_round):
            if not is_usable(ticket) or ticket.pair is None:
                continue
            pairs.add((of_round, ticket.pair))
            for name, value in ticket_values.get(ticket.id, {}).items():
                if GUARD in name:
                    continue
                loader, colon, plan = name.partition(":")
                plan = plan if colon else AS_TRAINED
                if loader == "validate" and (colon or name == "validate"):
                    validation_values.setdefault(plan, {})[of_round, ticket.pair] = value
                if (loader == split) if colon else (name == metric_name):
                    plan_values.setdefault(plan, {})[of_round, ticket.pair] = value
    both = (plan_values, validation_values)
    plans = [plan for plan in plan_values if all(values.get(plan, {}).keys() >= pairs for values in both)]
    if not pairs or AS_TRAINED not in plans:
        return None
    picking_pairs, counting_pairs = _split_pairs(pairs, split)
    if not picking_pairs or not counting_pairs:
        return None
    plan = _best_plan_name(evidence, validation_values, plans, picking_pairs)
    runs = evidence.runs(arm)
    tuned_runs = [
        PairedRuns(
            values={
                pair: plan_values[plan][round_number, pair]
                for round_number, pair in counting_pairs
                if round_number == of_round
            },
            diverged=frozenset(pair for pair in round_runs.diverged if _is_in_split(pair, split)),
        )
        for of_round, round_runs in zip(evidence.rounds, runs, strict=True)
    ]
    answer = evidence.compare(tuned_runs, runs)
    if answer is None:
        return None
    picked_on = sum(
        not _is_in_split(pair, split)
        for round_number in evidence.rounds
        for pair in range(evidence.num_planned_pairs(round_number))
    )
    answer = dataclasses.replace(answer, dropped=answer.dropped - picked_on)
    curve = {candidate: fmean(validation_values[candidate][pair] for pair in pairs) for candidate in plans}
    return TunedInference(plan_name=plan, answer=answer, curve=curve), tuned_runs


def _split_pairs(pairs: set[_Pair], split: str) -> tuple[set[_Pair], set[_Pair]]:
    """Return the pairs for selecting a plan, and those for estimating its gain.

    With test data both are all pairs, since selection uses validation data only. Without test data, every
    second pair is for selection. Selecting for each pair on all others would use each pair many times, so
    that the differences were not independent: a "96 % interval" of that kind covers the truth in 80 %.
    """
    if split == "test":
        return pairs, pairs
    counting_pairs = {pair for pair in pairs if _is_in_split(pair[1], split)}
    return pairs - counting_pairs, counting_pairs


def eval_runs_by_round(runs: Sequence[PairedRuns], split: str) -> list[PairedRuns]:
    """Return the runs on which the gain of a plan of inference is estimated, by round."""
    return _select_pairs(
        runs,
        [frozenset(pair for pair in round_runs.pairs if _is_in_split(pair, split)) for round_runs in runs],
    )


def _is_in_split(pair: int, split: str) -> bool:
    return split == "test" or pair % 2 == 1


def _best_plan_name(
    evidence: Evidence, validation_values: _Values, plans: Sequence[str], pairs: set[_Pair]
) -> str:
    """Return the plan with the best mean on the validation data; if equal, the model's own plan."""

    def mean(plan: str) -> tuple[float, bool]:
        value = fmean(validation_values[plan][pair] for pair in sorted(pairs))
        return to_maximize(value, evidence.spec.study.direction), plan == AS_TRAINED

    return max(plans, key=mean)

"""What evaluating trained models at another temperature gains: measurements in, comparisons out.

The plan is picked on validation data and its gain is estimated on the confirmation's, for each arm by itself:
the baseline's models for what can be had without any training at another temperature, the twin's for the
share of the winner's gain, and the winner's own, for it may be tuned at inference as well. Where there is no
test data the plan for each seed is picked on the other seeds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tempopt.confirmation.comparisons import Answer, Evidence, Runs, keeps
from tempopt.confirmation.evaluations import counted
from tempopt.records.rows import Measurement
from tempopt.records.tickets import oriented, usable
from tempopt.statistics.fieller import Ratio, fieller
from tempopt.workers.messages import GUARD

AS_TRAINED = "as trained"
"""Name of a model's own plan among those that are compared."""

_Pair = tuple[int, int]
_Values = Mapping[str, Mapping[_Pair, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """An arm whose models were evaluated at the temperature that is best for them.

    Args:
        plan: Name of the plan that was picked, as in ``constant=0.5``; ``winner`` is the winner's final one.
        answer: What it gains over the same models as they were trained.
        curve: Mean on the validation data by plan; what they are as trained is among them.
    """

    plan: str
    answer: Answer
    curve: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOnly:
    """How much of the gain needs no training at another temperature.

    Args:
        baseline: The models trained at τ = 1, tuned at inference: what is to be had without training.
        twin: The models of the winner's twin, tuned at inference likewise; None if they were not measured.
        winner: The same of the winner's own models.
        share: What the twin's models gain at inference as a share of the winner's gain over the twin; None
            unless the total gain is significant.
        difference: The winner over the baseline, both tuned at inference; None if it was not measured.
        kept: Whether the baseline, tuned at inference, keeps ``study.keep_share`` of what the winner, tuned
            likewise, gains over the baseline as trained; None if the winner was not measured.
    """

    baseline: Tuned
    twin: Tuned | None
    winner: Tuned | None
    share: Ratio | None
    difference: Answer | None
    kept: Answer | None

    @property
    def answer(self) -> Answer:
        """What the baseline's models gain at inference."""
        return self.baseline.answer

    @property
    def plan(self) -> str:
        """The plan that was picked for the baseline's models."""
        return self.baseline.plan


def inference_only(
    evidence: Evidence, measurements: Iterable[Measurement], total: Answer
) -> InferenceOnly | None:
    """Return the answers about inference; None if there are none, as where no evaluation reads a temperature.

    Args:
        evidence: The pairs of the verdict's round.
        measurements: What the confirm runs measured at their end.
        total: The winner's gain over τ = 1.
    """
    if not evidence.spec.evaluated:
        # what is evaluated does not read a temperature of the loss
        return None
    measured: dict[int, dict[str, float]] = {}
    for each in measurements:
        if math.isfinite(each.value):
            measured.setdefault(each.ticket_id, {})[each.name] = each.value
    tuned = {arm: _tuned(evidence, arm, measured) for arm in ("baseline", "twin", "search")}
    if tuned["baseline"] is None:
        return None
    baseline, runs_of_baseline = tuned["baseline"]
    winner, twin = tuned["search"], tuned["twin"]
    difference = None if winner is None else evidence.compare(winner[1], runs_of_baseline)
    kept = None
    if winner is not None:
        kept = keeps(evidence, runs_of_baseline, winner[1], evidence.runs("baseline"))
    share = None
    if total.significant and twin is not None:
        share = share_of(evidence, twin[1], evidence.runs("twin"))
    return InferenceOnly(
        baseline=baseline,
        twin=None if twin is None else twin[0],
        winner=None if winner is None else winner[0],
        share=share,
        difference=difference,
        kept=kept,
    )


def share_of(evidence: Evidence, simpler: Sequence[Runs], twin: Sequence[Runs]) -> Ratio | None:
    """Return what something gains over the twin as a share of what the winner gains over it."""
    winner = evidence.runs("search")
    pairs = [
        one.pairs & two.pairs & three.pairs for one, two, three in zip(simpler, twin, winner, strict=True)
    ]
    if not any(pairs):
        return None
    reference = _only(twin, pairs)
    return fieller(
        evidence.gains(_only(simpler, pairs), reference),
        evidence.gains(_only(winner, pairs), reference),
        alpha=evidence.alpha,
    )


def _only(runs: Sequence[Runs], pairs: Sequence[frozenset[int]]) -> list[Runs]:
    return [
        Runs(
            values={pair: value for pair, value in each.values.items() if pair in wanted},
            diverged=each.diverged & wanted,
        )
        for each, wanted in zip(runs, pairs, strict=True)
    ]


def _tuned(
    evidence: Evidence, arm: str, measured: Mapping[int, Mapping[str, float]]
) -> tuple[Tuned, list[Runs]] | None:
    """Return an arm at the plans that were picked for it, with the runs that they make of it."""
    own, on = counted("confirm", evidence.spec), evidence.spec.study.confirm_on
    found: dict[str, dict[_Pair, float]] = {}
    picked: dict[str, dict[_Pair, float]] = {}
    pairs = set()
    for of_round in evidence.rounds:
        for ticket in evidence.tickets("confirm", arm, of_round):
            if not usable(ticket) or ticket.pair is None:
                continue
            pairs.add((of_round, ticket.pair))
            for name, value in measured.get(ticket.id, {}).items():
                if GUARD in name:
                    continue
                loader, colon, plan = name.partition(":")
                plan = plan if colon else AS_TRAINED
                if loader == "validate" and (colon or name == "validate"):
                    picked.setdefault(plan, {})[of_round, ticket.pair] = value
                if (loader == on) if colon else (name == own):
                    found.setdefault(plan, {})[of_round, ticket.pair] = value
    plans = [p for p in found if found[p].keys() >= pairs and picked.get(p, {}).keys() >= pairs]
    if not pairs or AS_TRAINED not in plans:
        return None
    picking, counting = _divided(pairs, on)
    if not picking or not counting:
        return None
    plan = _best(evidence, picked, plans, picking)
    runs = evidence.runs(arm)
    tuned = [
        Runs(
            values={pair: found[plan][of, pair] for of, pair in counting if of == of_round},
            diverged=frozenset(pair for pair in each.diverged if _counts(pair, on)),
        )
        for of_round, each in zip(evidence.rounds, runs, strict=True)
    ]
    answer = evidence.compare(tuned, runs)
    if answer is None:
        return None
    picked_on = sum(not _counts(pair, on) for of in evidence.rounds for pair in range(evidence.planned(of)))
    answer = dataclasses.replace(answer, dropped=answer.dropped - picked_on)
    curve = {each: fmean(picked[each][pair] for pair in pairs) for each in plans}
    return Tuned(plan=plan, answer=answer, curve=curve), tuned


def _divided(pairs: set[_Pair], on: str) -> tuple[set[_Pair], set[_Pair]]:
    """Return the pairs on which a plan is picked, and those on which it is counted.

    With test data they are all pairs, for both: picking looks at the validation data alone. Without, every
    other pair is for picking. Picking for each pair on all others would use each pair many times, so that the
    differences were not independent: a "96 % interval" of that kind holds the truth in 80 %.
    """
    if on == "test":
        return pairs, pairs
    counting = {pair for pair in pairs if _counts(pair[1], on)}
    return pairs - counting, counting


def counting(runs: Sequence[Runs], on: str) -> list[Runs]:
    """Return the runs on which a plan of inference is counted, round by round."""
    return _only(runs, [frozenset(pair for pair in each.pairs if _counts(pair, on)) for each in runs])


def _counts(pair: int, on: str) -> bool:
    return on == "test" or pair % 2 == 1


def _best(evidence: Evidence, picked: _Values, plans: Sequence[str], pairs: set[_Pair]) -> str:
    """Return the plan with the best mean on the validation data; a model's own unless another is better."""

    def mean(plan: str) -> tuple[float, bool]:
        value = fmean(picked[plan][pair] for pair in sorted(pairs))
        return oriented(value, evidence.spec.study.direction), plan == AS_TRAINED

    return max(plans, key=mean)

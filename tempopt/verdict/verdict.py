"""Compute the verdict of a confirmation from tickets and measurements.

The primary hypothesis, fixed in advance, is the winner against τ = 1; the others are claimed only if it is
shown (hierarchical testing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tempopt.storage.rows import Measurement, Parameters, TicketRow
from tempopt.storage.ticket_queries import ConfirmationArm, are_over, current_round, of_kind, to_maximize
from tempopt.temperature import is_scheduled, training_key
from tempopt.training.messages import CONTROLLED_CURVE
from tempopt.verdict.explanation import SIMPLEST, ablate, arm_without, round_of_explanation, simplest
from tempopt.verdict.guards import GuardResult, evaluate_guards, guards_at_inference
from tempopt.verdict.inference import InferenceOnly, inference_only
from tempopt.verdict.learned import Ends, Learned, evaluate_learned_arm, final_temperatures
from tempopt.verdict.paired_evidence import (
    Evidence,
    PairedResult,
    PairedRuns,
    baseline_runs,
    gain_over_baseline,
    is_confirmation_complete,
    most_conservative,
    paired_failures,
    test_keeps_share,
)
from tempopt.verdict.pairs import confirmed_arms
from tempopt.verdict.recommendation import Recommendation, recommend
from tempopt.verdict.statistics.failure_rates import FailureRates
from tempopt.verdict.statistics.paired_tests import PairedTest

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


_CONSTANT_ARMS: tuple[ConfirmationArm, ...] = ("constant", "constant_twin")


@dataclass(frozen=True, slots=True, kw_only=True)
class GainPart:
    """Loss of the winner without one of its parts.

    Args:
        name: Name of the part (a key of :data:`tempopt.temperature.GROUPS`) or of a method parameter.
        params: The winner without the part.
        answer: The winner against this.
    """

    name: str
    params: Parameters
    answer: PairedResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Simplest:
    """The simpler plan that was tested.

    Args:
        parts: The winner's parts that it keeps.
        params: The whole parameter set.
        gain: Gain over the baseline, on the same pairs.
        lost: The winner's gain over this plan.
        keep_share_test: Non-inferiority test: gain of this plan minus ``study.keep_share`` times that of
            the winner.
    """

    parts: tuple[str, ...]
    params: Parameters
    gain: PairedResult
    lost: PairedResult
    keep_share_test: PairedTest

    @property
    def holds(self) -> bool:
        """Whether it is shown to keep that share of the gain, and diverges at most as often as the winner."""
        return self.keep_share_test.significant and self.lost.reference_diverged <= self.lost.diverged


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a study on seeds that were used neither for searching nor for choosing.

    Args:
        primary: The primary comparison, winner against τ = 1: the more cautious of ``over_baseline`` and
            ``over_twin``, both of which it has to beat.
        over_baseline: The winner against the best set at τ = 1; None if that has no runs left.
        over_twin: The winner against its own ordinary parameters at τ = 1; None if these have no runs left.
        params: The winner's parameters.
        baseline_params: The baseline's.
        twin_params: The twin's.
        confirmed_on: ``test`` or ``validate``.
        against_constant: The more cautious of ``over_constant`` and ``over_constant_twin``; None if the
            winner is constant or no gain is shown.
        over_constant: The winner against the best known constant.
        over_constant_twin: The winner against itself with the geometric mean in place of its schedule.
        constant_params: Parameters of the best constant; None if it was not trained.
        constant_twin_params: The winner's with the geometric mean in place of its schedule; None if these
            were not trained.
        inference_only: Models evaluated at temperatures other than those of their training.
        learned: Trainings that learn the temperatures; None if there were none.
        parts: Loss of the winner without each of its parts; empty before the ablation.
        simplest: The simpler plan that was tested; None if there was none.
        failures: Rates of failed runs of winner and τ = 1; None if no run failed.
        has_all_pairs: Whether all pairs of the spec are complete, so that failures are tested.
        guards: Results of the guards of the study; empty if the winner is τ = 1 itself.
        guards_by_alternative: Results of the guards for the alternatives ``inference_only``, ``simplest``,
            ``constant`` and ``constant_twin``; missing alternatives are left out.
        round: Number of the round, from 0.
        verdict_number: Number of this verdict, from 1.
        alpha: Two-sided level of this verdict.
        mean_at_one: Mean of the reference runs of ``primary``; None if none is complete.
        controlled: The winner's final temperatures under entropy control; otherwise empty.
        recommendation: The recommendation; None only while the verdict is computed.
    """

    primary: PairedResult
    over_baseline: PairedResult | None
    over_twin: PairedResult | None
    params: dict[str, Any]
    baseline_params: dict[str, Any]
    twin_params: dict[str, Any]
    confirmed_on: str
    against_constant: PairedResult | None
    over_constant: PairedResult | None
    over_constant_twin: PairedResult | None
    constant_params: dict[str, Any] | None
    constant_twin_params: dict[str, Any] | None
    inference_only: InferenceOnly | None
    learned: Learned | None
    parts: tuple[GainPart, ...]
    simplest: Simplest | None
    failures: FailureRates | None
    has_all_pairs: bool
    guards: tuple[GuardResult, ...]
    guards_by_alternative: dict[str, tuple[GuardResult, ...]]
    round: int
    verdict_number: int
    alpha: float
    mean_at_one: float | None = None
    controlled: Ends = field(default_factory=dict)
    recommendation: Recommendation | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the winner's temperature is constant during training."""
        return not is_scheduled(self.params)

    @property
    def schedule_shown(self) -> bool:
        """Whether the winner is shown to be better than every constant that was tested."""
        if self.over_constant is None or self.against_constant is None:
            return False
        return self.primary.significant and self.against_constant.significant and not self.is_constant

    @property
    def at_one(self) -> bool:
        """Whether the search has chosen τ = 1 itself."""
        return training_key(self.params) == training_key(self.twin_params)

    @property
    def is_more_stable(self) -> bool:
        """Whether the winner is shown to fail less often than τ = 1, by McNemar's exact test on all pairs."""
        rates = self.failures
        if rates is None or not self.has_all_pairs:
            return False
        return rates.arm.failed < rates.reference.failed and rates.p_value < self.alpha

    @property
    def has_reference_diverged(self) -> bool:
        """Whether a reference at τ = 1 diverged on every seed, so that the gain is unknown."""
        return any(answer.reference_diverged == answer.paired.n_pairs for answer in self.primary.components)

    @property
    def unvaried(self) -> list[str]:
        """Which of ``winner`` and ``baseline`` have the same value in all runs, so that nothing is shown."""
        flags = {"winner": self.primary.is_unvaried, "baseline": self.primary.is_reference_unvaried}
        return [name for name, is_unvaried in flags.items() if is_unvaried]

    @property
    def guards_kept(self) -> bool:
        """Whether the winner is shown to keep each guard; one that was not measured is not kept."""
        return not any(guard.blocks_recommendation for guard in self.guards)


def compute_verdict(
    tickets: Sequence[TicketRow], measurements: Iterable[Measurement], spec: StudySpec
) -> Verdict | None:
    """Return the newest verdict; None if no round is confirmed yet.

    A verdict is computed only at the planned looks of the spec. Pairs that are added later are another look,
    with its own share of the level.

    Args:
        tickets: All tickets of the study.
        measurements: Measurements of confirm runs; others are ignored.
        spec: The study's spec.
    """
    measurements = list(measurements)
    for of_round in range(current_round(tickets), -1, -1):
        verdict = _conclude_round(of_round, tickets, measurements, spec)
        if verdict is not None:
            return verdict
    return None


def earlier_verdicts(
    tickets: Sequence[TicketRow], measurements: Iterable[Measurement], spec: StudySpec, latest: Verdict
) -> tuple[Verdict, ...]:
    """Return the verdicts of a study before its latest, oldest first, each without tickets of later rounds.

    Args:
        tickets: All tickets of the study.
        measurements: As for :func:`compute_verdict`.
        spec: The study's spec.
        latest: The result of :func:`compute_verdict`.
    """
    measurements = list(measurements)
    verdicts = (
        _conclude_round(
            of_round, [ticket for ticket in tickets if ticket.round <= of_round], measurements, spec
        )
        for of_round in range(latest.round)
    )
    return tuple(verdict for verdict in verdicts if verdict is not None)


def find_valid_earlier_verdict(latest: Verdict, earlier: Sequence[Verdict]) -> Verdict | None:
    """Return the newest earlier verdict that stays valid, if the latest changes nothing.

    All verdicts share one error rate, so a later one without a gain cancels none.

    Args:
        latest: The latest verdict of a study.
        earlier: The verdicts before it, oldest first.
    """
    if latest.recommendation is None or latest.recommendation.action_without_training != "change_nothing":
        return None
    for verdict in reversed(earlier):
        recommendation = verdict.recommendation
        if (
            recommendation is not None
            and recommendation.action_without_training != "change_nothing"
            and not _is_refuted(verdict, latest)
        ):
            return verdict
    return None


def _is_refuted(earlier: Verdict, latest: Verdict) -> bool:
    """Return whether a later verdict refutes a change that an earlier one recommends.

    It does if it is about the same parameters and shows that they are worse, gain less than
    ``study.min_gain``, or break a guard.
    """
    earlier_advice, latest_advice = earlier.recommendation, latest.recommendation
    assert earlier_advice is not None and latest_advice is not None
    if earlier_advice.action_without_training == "inference_only":
        inference = latest.inference_only
        if inference is None or inference.plan_name != earlier_advice.plan_name:
            return False
        answer, guards = inference.answer, latest.guards_by_alternative.get("inference_only", ())
    else:
        if training_key(earlier.params) != training_key(latest.params):
            return False
        answer, guards = latest.primary, latest.guards
    is_too_small = answer.significant and answer.paired.gain < latest_advice.min_gain
    return answer.worse or is_too_small or any(guard.state == "broken" for guard in guards)


def _conclude_round(
    of_round: int, tickets: Sequence[TicketRow], measurements: Sequence[Measurement], spec: StudySpec
) -> Verdict | None:
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    if not confirm or not are_over(confirm) or not is_confirmation_complete(tickets, spec, of_round):
        return None
    evidence, arms = Evidence(tickets, spec, of_round), confirmed_arms(confirm)
    primary = gain_over_baseline(evidence)
    if primary is None or not {"search", "baseline"} <= arms.keys():
        return None
    winner = evidence.runs("search")
    over_baseline = evidence.compare(winner, evidence.runs("baseline"))
    ablation = _ablation_evidence(tickets, evidence)
    inference = inference_only(evidence, measurements, primary)
    explained = ablation if primary.significant else None
    plan = None if explained is None else _test_simplest_plan(explained, arms, tickets)
    is_at_baseline = training_key(arms["search"]) == training_key(arms["baseline"])
    constant_answers = {
        arm: evidence.compare(winner, evidence.runs(arm)) for arm in _CONSTANT_ARMS if arm in arms
    }
    # arms with equal parameters share their runs, and are one reference
    constants = {training_key(arms[arm]): answer for arm, answer in constant_answers.items()}
    verdict = Verdict(
        primary=primary,
        over_baseline=over_baseline,
        over_twin=evidence.compare(winner, evidence.runs("twin")),
        params=arms["search"],
        baseline_params=arms["baseline"],
        twin_params=arms.get("twin", arms["baseline"]),
        confirmed_on=spec.study.confirm_on,
        against_constant=most_conservative(list(constants.values())) if constants else None,
        over_constant=constant_answers.get("constant"),
        over_constant_twin=constant_answers.get("constant_twin"),
        constant_params=arms.get("constant"),
        constant_twin_params=arms.get("constant_twin"),
        inference_only=inference,
        learned=evaluate_learned_arm(evidence, measurements, primary),
        parts=() if ablation is None else _evaluate_parts(ablation, arms),
        simplest=plan,
        failures=_failure_rates(evidence),
        has_all_pairs=evidence.has_all_pairs,
        guards=() if is_at_baseline else evaluate_guards(evidence, measurements),
        guards_by_alternative=_evaluate_alternative_guards(
            evidence, ablation, arms, measurements, inference, plan
        ),
        round=of_round,
        verdict_number=evidence.verdict_number,
        alpha=evidence.alpha,
        mean_at_one=_mean_at_one(evidence),
        controlled=final_temperatures(evidence, measurements, "search", CONTROLLED_CURVE),
    )
    return replace(verdict, recommendation=recommend(verdict, evidence))


def _mean_at_one(evidence: Evidence) -> float | None:
    """Return the mean at τ = 1: of the baseline or the twin, whichever the winner gains less over."""
    winner = evidence.runs("search")
    answers = [(evidence.compare(winner, runs), runs) for runs in baseline_runs(evidence)]
    compared_runs = [(answer.paired.gain, runs) for answer, runs in answers if answer is not None]
    runs = min(compared_runs, key=lambda pair: pair[0])[1] if compared_runs else []
    values = [value for round_runs in runs for value in round_runs.values.values()]
    return fmean(values) if values else None


def _find_runs(
    evidence: Evidence, arms: dict[ConfirmationArm, Parameters], parameters: Parameters, arm: str
) -> list[PairedRuns]:
    """Return the runs of these parameters: of a confirmed arm with equal ones, else of the ablation."""
    confirmed_arm = _find_arm(arms, parameters)
    return evidence.runs(confirmed_arm) if confirmed_arm is not None else evidence.runs(arm, "ablation")


def _find_arm(arms: dict[ConfirmationArm, Parameters], parameters: Parameters) -> ConfirmationArm | None:
    key = training_key(parameters)
    return next((arm for arm in arms if training_key(arms[arm]) == key), None)


def _ablation_evidence(tickets: Sequence[TicketRow], evidence: Evidence) -> Evidence | None:
    """Return the evidence of the ablation; None before it is complete."""
    of_round = round_of_explanation(tickets, evidence.rounds[-1])
    if of_round is None or not are_over(of_kind(tickets, "ablation", of_round=of_round)):
        return None
    return Evidence(tickets, evidence.spec, of_round, include_earlier=False)


def _evaluate_parts(evidence: Evidence, arms: dict[ConfirmationArm, Parameters]) -> tuple[GainPart, ...]:
    parts = []
    for name, parameters in ablate(evidence.spec, arms).items():
        runs = _find_runs(evidence, arms, parameters, arm_without(name))
        answer = evidence.compare(evidence.runs("search"), runs)
        if answer is not None:
            parts.append(GainPart(name=name, params=parameters, answer=answer))
    return tuple(parts)


def _test_simplest_plan(
    evidence: Evidence, arms: dict[ConfirmationArm, Parameters], tickets: Sequence[TicketRow]
) -> Simplest | None:
    plan = simplest(tickets, evidence.spec, arms, evidence.rounds[-1])
    if plan is None:
        return None
    runs = _find_runs(evidence, arms, plan.params, SIMPLEST)
    winner, baseline = evidence.runs("search"), evidence.runs("baseline")
    gain_answer, loss_answer = evidence.compare(runs, baseline), evidence.compare(winner, runs)
    kept_answer = test_keeps_share(evidence, runs, winner, baseline)
    if gain_answer is None or loss_answer is None or kept_answer is None:
        return None
    return Simplest(
        parts=plan.parts,
        params=plan.params,
        gain=gain_answer,
        lost=loss_answer,
        keep_share_test=kept_answer.paired,
    )


def _evaluate_alternative_guards(
    evidence: Evidence,
    ablation: Evidence | None,
    arms: dict[ConfirmationArm, Parameters],
    measurements: Sequence[Measurement],
    inference: InferenceOnly | None,
    simplest: Simplest | None,
) -> dict[str, tuple[GuardResult, ...]]:
    """Return the guard results of the simpler alternatives: inference only, constants, simplest plan."""
    guards_by_name: dict[str, tuple[GuardResult, ...]] = {}
    if not evidence.spec.study.guards:
        return guards_by_name
    if inference is not None:
        guards_by_name["inference_only"] = guards_at_inference(evidence, measurements, inference.plan_name)
    for arm in _CONSTANT_ARMS:
        if arm in arms:
            guards_by_name[arm] = evaluate_guards(evidence, measurements, arm=arm)
    if simplest is not None and ablation is not None:
        confirmed_arm = _find_arm(arms, simplest.params)
        guards_by_name["simplest"] = evaluate_guards(
            ablation,
            measurements,
            arm=confirmed_arm or SIMPLEST,
            kind="confirm" if confirmed_arm else "ablation",
        )
    return guards_by_name


def _failure_rates(evidence: Evidence) -> FailureRates | None:
    """Return failure rates of winner and τ = 1: against baseline or twin, the less favourable comparison."""
    limit, direction = evidence.spec.study.failure, evidence.spec.study.direction

    def has_failed(value: float) -> bool:
        return limit is not None and to_maximize(value - limit, direction) < 0

    winner = evidence.runs("search")
    rates = [
        paired_failures(winner, reference, alpha=evidence.alpha, has_failed=has_failed)
        for reference in baseline_runs(evidence)
    ]
    valid_rates = [rate for rate in rates if rate is not None]
    if len(valid_rates) < len(rates):
        return valid_rates[0] if valid_rates else None
    return max(valid_rates, key=lambda rate: (rate.arm.failed - rate.reference.failed, rate.p_value))

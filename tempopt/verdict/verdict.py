"""The verdict of a confirmation: rows and measurements in, its results out.

One answer is primary and declared so in advance: the winner against τ = 1. All others are claimed only where
that one is.
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
    """What the winner loses without one of its parts.

    Args:
        name: Of the part, as in :data:`tempopt.temperature.GROUPS`, or a parameter that is no temperature.
        parameters: The winner without it.
        answer: The winner against that.
    """

    name: str
    parameters: Parameters
    answer: PairedResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Simplest:
    """The simpler plan that was tested.

    Args:
        parts: The winner's parts that it keeps.
        parameters: The whole parameter set.
        gain: It against the baseline, on the same pairs.
        lost: The winner against it.
        keep_share_test: By pair, its gain less ``study.keep_share`` of the winner's gain over the baseline.
    """

    parts: tuple[str, ...]
    parameters: Parameters
    gain: PairedResult
    lost: PairedResult
    keep_share_test: PairedTest

    @property
    def holds(self) -> bool:
        """Whether it is shown to keep that share of the gain, and does not diverge more often."""
        return self.keep_share_test.significant and self.lost.reference_diverged <= self.lost.diverged


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a study found, on seeds that neither searched nor chose.

    Args:
        total: The winner against τ = 1: against the baseline and its twin, both of which it has to beat.
        over_baseline: The winner against the best that is known at τ = 1; None if none of its runs is left.
        over_twin: The winner against its own other parameters at τ = 1; None if none of these runs is left.
        twin_over_baseline: The twin against the baseline; None if of one of them no run is left.
        params: The winner's parameters.
        baseline_params: The baseline's.
        twin_params: The twin's.
        confirmed_on: ``test`` or ``validate``.
        against_constant: The winner against constants: the best that is known, and the geometric mean of its
            schedule in place of it; None unless a gain is shown of a winner that is no constant itself.
        over_constant: The winner against the best constant that is known, by itself.
        over_constant_twin: The winner against itself with the geometric mean in place of its schedule.
        constant_params: Parameters of the best constant, None if it was not trained.
        constant_twin_params: The winner's with the geometric mean in place of its schedule, None likewise.
        inference_only: Models evaluated at other temperatures than they were trained with.
        learned: Trainings that learn the temperatures; None if there were none.
        parts: What the winner loses without each of its parts; empty unless it was taken apart.
        simplest: The simpler plan that was tested, None if there was none.
        failures: Rates of failed runs of winner and τ = 1, None if no run failed.
        has_all_pairs: Whether all pairs are there that the spec asks for, so that failures are tested.
        guards: What is said of each guard of the study; empty where the winner is τ = 1 itself.
        guards_of: The same for what is simpler than the winner: ``inference_only``, ``simplest``,
            ``constant`` and ``constant_twin``, as far as there are such.
        round: Round of search tickets that it closes, from 0.
        looks: Verdicts that the study has had with this one, >= 1.
        alpha: Its two-sided level.
        mean_at_one: Mean of the runs at τ = 1 that the total gain is over; None: none is complete.
        controlled: The winner's temperatures at the end of training, where they follow a target of the
            entropy; else empty.
        recommendation: What to do; None only while the verdict is being made.
    """

    total: PairedResult
    over_baseline: PairedResult | None
    over_twin: PairedResult | None
    twin_over_baseline: PairedResult | None
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
    guards_of: dict[str, tuple[GuardResult, ...]]
    round: int
    looks: int
    alpha: float
    mean_at_one: float | None = None
    controlled: Ends = field(default_factory=dict)
    recommendation: Recommendation | None = None

    @property
    def is_constant(self) -> bool:
        """Whether the winner's temperature stays as it is during training."""
        return not is_scheduled(self.params)

    @property
    def schedule_shown(self) -> bool:
        """Whether the schedule is shown to be worth more than one constant, the best one included."""
        if self.over_constant is None or self.against_constant is None:
            return False
        return self.total.significant and self.against_constant.significant and not self.is_constant

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
    def untrained(self) -> bool:
        """Whether what the winner has to beat at τ = 1 diverged on every seed: what it gains is not known."""
        return any(answer.reference_diverged == answer.paired.n_pairs for answer in self.total.components)

    @property
    def guards_kept(self) -> bool:
        """Whether the winner is shown to keep each guard of the study; none that was not measured is kept."""
        return not any(guard.blocks_recommendation for guard in self.guards)


def compute_verdict(
    tickets: Sequence[TicketRow], measurements: Iterable[Measurement], spec: StudySpec
) -> Verdict | None:
    """Return the answers of the last round that is confirmed, or None before the first is.

    A verdict is computed only at the planned looks of the spec. Pairs that are added later count as another
    look, with its own share of the level.

    Args:
        tickets: All tickets of the study.
        measurements: What confirm runs measured at their end; others are ignored.
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
    """Return the verdicts of a study before its latest, oldest first.

    Each is what it was when it was made: the tickets of later rounds do not enter it.

    Args:
        tickets: All tickets of the study.
        measurements: As for :func:`compute_verdict`.
        spec: The study's spec.
        latest: What :func:`compute_verdict` returns.
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
    """Return the newest earlier verdict whose recommendation stays valid where the latest changes nothing.

    All verdicts share one error rate, so a later one without a gain cancels no earlier recommendation.

    Args:
        latest: The latest verdict of a study.
        earlier: Those before it, oldest first.
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
    """Return whether a later verdict shows that a change recommended by an earlier one is not worth making.

    The later verdict does so if it is about the same parameters, and shows that they are worse, that they
    gain less than ``study.min_gain``, or that they break a guard.
    """
    earlier_advice, latest_advice = earlier.recommendation, latest.recommendation
    assert earlier_advice is not None and latest_advice is not None
    if earlier_advice.action_without_training == "inference_only":
        inference = latest.inference_only
        if inference is None or inference.plan_name != earlier_advice.plan_name:
            return False
        answer, guards = inference.answer, latest.guards_of.get("inference_only", ())
    else:
        if training_key(earlier.params) != training_key(latest.params):
            return False
        answer, guards = latest.total, latest.guards
    is_too_small = answer.significant and answer.paired.gain < latest_advice.min_gain
    return answer.worse or is_too_small or any(guard.state == "broken" for guard in guards)


def _conclude_round(
    of_round: int, tickets: Sequence[TicketRow], measurements: Sequence[Measurement], spec: StudySpec
) -> Verdict | None:
    confirm = of_kind(tickets, "confirm", of_round=of_round)
    if not confirm or not are_over(confirm) or not is_confirmation_complete(tickets, spec, of_round):
        return None
    # the tickets as of that round
    evidence, arms = Evidence(tickets, spec, of_round), confirmed_arms(confirm)
    total = gain_over_baseline(evidence)
    if total is None or not {"search", "baseline"} <= arms.keys():
        return None
    winner = evidence.runs("search")
    over_baseline = evidence.compare(winner, evidence.runs("baseline"))
    ablation = _ablation_evidence(tickets, evidence)
    inference = inference_only(evidence, measurements, total)
    simplest_plan = None if ablation is None or not total.significant else _simplest(ablation, arms, tickets)
    constant_answers = {
        arm: evidence.compare(winner, evidence.runs(arm)) for arm in _CONSTANT_ARMS if arm in arms
    }
    # arms with equal parameters share their runs, and are one reference
    constants = {training_key(arms[arm]): answer for arm, answer in constant_answers.items()}
    verdict = Verdict(
        total=total,
        over_baseline=over_baseline,
        over_twin=evidence.compare(winner, evidence.runs("twin")),
        twin_over_baseline=evidence.compare(evidence.runs("twin"), evidence.runs("baseline")),
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
        learned=evaluate_learned_arm(evidence, measurements, total),
        parts=() if ablation is None else _parts(ablation, arms),
        simplest=simplest_plan,
        failures=_failures(evidence),
        has_all_pairs=evidence.has_all_pairs,
        guards=()
        if training_key(arms["search"]) == training_key(arms["baseline"])
        else evaluate_guards(evidence, measurements),
        guards_of=_guards_of(evidence, ablation, arms, measurements, inference, simplest_plan),
        round=of_round,
        looks=evidence.verdict_number,
        alpha=evidence.alpha,
        mean_at_one=_mean_at_one(evidence),
        controlled=final_temperatures(evidence, measurements, "search", CONTROLLED_CURVE),
    )
    return replace(verdict, recommendation=recommend(verdict, evidence))


def _mean_at_one(evidence: Evidence) -> float | None:
    """Return the mean at τ = 1: of baseline or twin, the one over which the winner gains less."""
    winner = evidence.runs("search")
    answers = [(evidence.compare(winner, runs), runs) for runs in baseline_runs(evidence)]
    compared_runs = [(answer.paired.gain, runs) for answer, runs in answers if answer is not None]
    runs = min(compared_runs, key=lambda pair: pair[0])[1] if compared_runs else []
    values = [value for round_runs in runs for value in round_runs.values.values()]
    return fmean(values) if values else None


def _runs_with(
    evidence: Evidence, arms: dict[ConfirmationArm, Parameters], parameters: Parameters, arm: str
) -> list[PairedRuns]:
    """Return runs of these parameters: of the confirmed arm with equal ones, else of the ablation."""
    confirmed_arm = _arm_of(arms, parameters)
    return evidence.runs(confirmed_arm) if confirmed_arm is not None else evidence.runs(arm, "ablation")


def _arm_of(arms: dict[ConfirmationArm, Parameters], parameters: Parameters) -> ConfirmationArm | None:
    text = training_key(parameters)
    return next((arm for arm in arms if training_key(arms[arm]) == text), None)


def _ablation_evidence(tickets: Sequence[TicketRow], evidence: Evidence) -> Evidence | None:
    """Return the pairs on which the winner was taken apart, None if it was not, or not yet."""
    of_round = round_of_explanation(tickets, evidence.rounds[-1])
    if of_round is None or not are_over(of_kind(tickets, "ablation", of_round=of_round)):
        return None
    return Evidence(tickets, evidence.spec, of_round, alone=True)


def _parts(evidence: Evidence, arms: dict[ConfirmationArm, Parameters]) -> tuple[GainPart, ...]:
    parts = []
    for name, parameters in ablate(evidence.spec, arms).items():
        runs = _runs_with(evidence, arms, parameters, arm_without(name))
        answer = evidence.compare(evidence.runs("search"), runs)
        if answer is not None:
            parts.append(GainPart(name=name, parameters=parameters, answer=answer))
    return tuple(parts)


def _simplest(
    evidence: Evidence, arms: dict[ConfirmationArm, Parameters], tickets: Sequence[TicketRow]
) -> Simplest | None:
    plan = simplest(tickets, evidence.spec, arms, evidence.rounds[-1])
    if plan is None:
        return None
    runs = _runs_with(evidence, arms, plan.parameters, SIMPLEST)
    winner, baseline = evidence.runs("search"), evidence.runs("baseline")
    gain_answer, loss_answer = evidence.compare(runs, baseline), evidence.compare(winner, runs)
    kept_answer = test_keeps_share(evidence, runs, winner, baseline)
    if gain_answer is None or loss_answer is None or kept_answer is None:
        return None
    return Simplest(
        parts=plan.parts,
        parameters=plan.parameters,
        gain=gain_answer,
        lost=loss_answer,
        keep_share_test=kept_answer.paired,
    )


def _guards_of(
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
        confirmed_arm = _arm_of(arms, simplest.parameters)
        guards_by_name["simplest"] = evaluate_guards(
            ablation,
            measurements,
            arm=confirmed_arm or SIMPLEST,
            kind="confirm" if confirmed_arm else "ablation",
        )
    return guards_by_name


def _failures(evidence: Evidence) -> FailureRates | None:
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

"""Compute the verdict of a confirmation: rows and measurements in, its results out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from tempopt.storage.rows import Measurement, Parameters, TicketRow
from tempopt.storage.ticket_queries import Arm, current_round, finished, of_kind, to_maximize
from tempopt.temperature import training_key
from tempopt.training.messages import CONTROLLED_CURVE
from tempopt.verdict.explanation import SIMPLEST, ablated, arm_without, explained_round, simplest
from tempopt.verdict.final_temperatures import final_temperatures
from tempopt.verdict.guards import GuardResult, evaluate_guards, guards_at_inference
from tempopt.verdict.inference import InferenceOnly, inference_only
from tempopt.verdict.learned import evaluate_learned_arm
from tempopt.verdict.paired_evidence import (
    Evidence,
    PairedResult,
    PairedRuns,
    baseline_runs,
    gain_over_baseline,
    is_confirmation_complete,
    most_conservative,
    paired_failures,
)
from tempopt.verdict.pairs import confirmed_arms
from tempopt.verdict.recommendation import recommend
from tempopt.verdict.statistics.failure_rates import FailureRates
from tempopt.verdict.statistics.paired_tests import non_inferiority_test
from tempopt.verdict.verdict import GainPart, Simplest, Verdict

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


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
            and not _taken_back(verdict, latest)
        ):
            return verdict
    return None


def _taken_back(earlier: Verdict, latest: Verdict) -> bool:
    """Return whether a verdict shows that a change which an earlier one recommends is not worth making.

    The later verdict does so if it is about the same parameters, and shows that they are worse, that they
    gain less than ``study.min_gain``, or that they break a guard.
    """
    earlier_advice, latest_advice = earlier.recommendation, latest.recommendation
    assert earlier_advice is not None and latest_advice is not None
    if earlier_advice.action_without_training == "inference_only":
        inference = latest.inference_only
        if inference is None or inference.plan != earlier_advice.plan:
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
    if not confirm or not finished(confirm) or not is_confirmation_complete(tickets, spec, of_round):
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
    constant_answers = _over_constants(evidence, arms)
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
        test=spec.study.test,
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
        guards=_guards(evidence, arms, measurements),
        guards_of=_guards_of(evidence, ablation, arms, measurements, inference, simplest_plan),
        round=of_round,
        looks=evidence.verdict,
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


def _over_constants(evidence: Evidence, arms: dict[Arm, Parameters]) -> dict[Arm, PairedResult | None]:
    """Return the winner against each constant that is confirmed."""
    winner = evidence.runs("search")
    constants: tuple[Arm, ...] = ("constant", "constant_twin")
    return {arm: evidence.compare(winner, evidence.runs(arm)) for arm in constants if arm in arms}


def _runs_with(
    evidence: Evidence, arms: dict[Arm, Parameters], parameters: Parameters, arm: str
) -> list[PairedRuns]:
    """Return runs of these parameters: of the confirmed arm with equal ones, else of the ablation."""
    confirmed_arm = _arm_of(arms, parameters)
    return evidence.runs(confirmed_arm) if confirmed_arm is not None else evidence.runs(arm, "ablation")


def _arm_of(arms: dict[Arm, Parameters], parameters: Parameters) -> Arm | None:
    text = training_key(parameters)
    return next((arm for arm in arms if training_key(arms[arm]) == text), None)


def _ablation_evidence(tickets: Sequence[TicketRow], evidence: Evidence) -> Evidence | None:
    """Return the pairs on which the winner was taken apart, None if it was not, or not yet."""
    of_round = explained_round(tickets, evidence.rounds[-1])
    if of_round is None or not finished(of_kind(tickets, "ablation", of_round=of_round)):
        return None
    return Evidence(tickets, evidence.spec, of_round, alone=True)


def _parts(evidence: Evidence, arms: dict[Arm, Parameters]) -> tuple[GainPart, ...]:
    parts = []
    for name, parameters in ablated(evidence.spec, arms).items():
        runs = _runs_with(evidence, arms, parameters, arm_without(name))
        answer = evidence.compare(evidence.runs("search"), runs)
        if answer is not None:
            parts.append(GainPart(name=name, parameters=parameters, answer=answer))
    return tuple(parts)


def _simplest(
    evidence: Evidence, arms: dict[Arm, Parameters], tickets: Sequence[TicketRow]
) -> Simplest | None:
    study = evidence.spec.study
    plan = simplest(tickets, evidence.spec, arms, evidence.rounds[-1])
    if plan is None:
        return None
    runs = _runs_with(evidence, arms, plan.parameters, SIMPLEST)
    winner, baseline = evidence.runs("search"), evidence.runs("baseline")
    gain_answer, loss_answer = evidence.compare(runs, baseline), evidence.compare(winner, runs)
    values = [
        {pair: to_maximize(value, study.direction) for pair, value in arm_runs[0].values.items()}
        for arm_runs in (runs, winner, baseline)
    ]
    pairs = sorted(runs[0].pairs & winner[0].pairs & baseline[0].pairs)
    if gain_answer is None or loss_answer is None or not pairs:
        return None
    # a diverged run counts as the worst value, as in every comparison
    worst = min((value for arm_values in values for value in arm_values.values()), default=0.0)
    simple_values, winner_values, baseline_values = (
        [arm_values.get(pair, worst) for pair in pairs] for arm_values in values
    )
    kept_test = non_inferiority_test(
        simple_values,
        winner_values,
        baseline_values,
        keep=study.keep_share,
        test=study.test,
        direction="maximize",
        alpha=evidence.alpha,
    )
    return Simplest(
        parts=plan.parts,
        parameters=plan.parameters,
        gain=gain_answer,
        lost=loss_answer,
        keep_share_test=kept_test,
    )


def _guards(
    evidence: Evidence, arms: dict[Arm, Parameters], measurements: Sequence[Measurement]
) -> tuple[GuardResult, ...]:
    if training_key(arms["search"]) == training_key(arms["baseline"]):
        return ()
    return evaluate_guards(evidence, measurements)


def _guards_of(
    evidence: Evidence,
    ablation: Evidence | None,
    arms: dict[Arm, Parameters],
    measurements: Sequence[Measurement],
    inference: InferenceOnly | None,
    simplest: Simplest | None,
) -> dict[str, tuple[GuardResult, ...]]:
    """Return the guard results of the simpler alternatives: inference only, constants, simplest plan."""
    guards_by_name: dict[str, tuple[GuardResult, ...]] = {}
    if not evidence.spec.study.guards:
        return guards_by_name
    if inference is not None:
        guards_by_name["inference_only"] = guards_at_inference(evidence, measurements, inference.plan)
    constants: tuple[Arm, ...] = ("constant", "constant_twin")
    for arm in constants:
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

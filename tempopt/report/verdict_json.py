"""The verdict, or what evaluating a trained model found, as the data of ``tempopt show --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tempopt.report.formatting import finite
from tempopt.report.guard_text import guards_json
from tempopt.report.learned_text import ends_json
from tempopt.report.recommendation_text import earlier_advice, recommendation_text
from tempopt.verdict.inference import InferenceOnly, TunedInference
from tempopt.verdict.learned import Learned
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.run_evaluations import ConstantPlan
from tempopt.verdict.statistics.fieller import Ratio
from tempopt.verdict.statistics.paired_tests import PairedTest
from tempopt.verdict.verdict import BlockedOption, Recommendation, Simplest, Verdict

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData


def verdict_json(result: StudyData) -> dict[str, Any]:
    """Return the verdict of a study that has one, as plain data without infinities."""
    verdict = result.verdict
    assert verdict is not None
    return {
        "recommendation": verdict.recommendation and _recommendation_json(result, verdict.recommendation),
        **_answer_json(verdict.total),
        "confidence": verdict.total.paired.confidence,
        "n_pairs": verdict.total.paired.n_pairs,
        "params": verdict.params,
        "test": verdict.test,
        "confirmed_on": verdict.confirmed_on,
        "round": verdict.round,
        "looks": verdict.looks,
        "alpha": verdict.alpha,
        "over_baseline": verdict.over_baseline and _answer_json(verdict.over_baseline),
        "baseline_params": verdict.baseline_params,
        "over_twin": verdict.over_twin and _answer_json(verdict.over_twin),
        "twin_params": verdict.twin_params,
        "against_constant": verdict.against_constant and _answer_json(verdict.against_constant),
        "over_constant": verdict.over_constant and _answer_json(verdict.over_constant),
        "over_constant_twin": verdict.over_constant_twin and _answer_json(verdict.over_constant_twin),
        "constant_params": verdict.constant_params,
        "constant_twin_params": verdict.constant_twin_params,
        "inference_only": verdict.inference_only and _inference_json(verdict.inference_only),
        "learned": verdict.learned and _learned_json(verdict.learned),
        "controlled_at_end": ends_json(verdict.controlled),
        "not_learned": result.spec.study.not_learned,
        "parts": [
            {"name": part.name, "params": part.parameters, **_answer_json(part.answer)}
            for part in verdict.parts
        ],
        "simplest": verdict.simplest and _simplest_json(verdict.simplest),
        "failures": verdict.failures and asdict(verdict.failures),
        "guards": guards_json(verdict),
        "guards_kept": verdict.guards_kept,
    }


def earlier_json(result: StudyData, verdict: Verdict) -> dict[str, Any]:
    """Return an earlier verdict of a study as plain data: what it showed, and what it recommended."""
    recommendation = verdict.recommendation
    assert recommendation is not None
    return {
        "verdict": verdict.looks,
        "round": verdict.round,
        "alpha": verdict.alpha,
        **_answer_json(verdict.total),
        "confidence": verdict.total.paired.confidence,
        "n_pairs": verdict.total.paired.n_pairs,
        "params": verdict.params,
        "baseline_params": verdict.baseline_params,
        "recommendation": {
            "action": recommendation.action,
            "why": earlier_advice(result, verdict),
            "now": recommendation.action_without_training,
            "params": recommendation.parameters,
            "at_inference": recommendation.at_inference,
            "gain": recommendation.gain and _answer_json(recommendation.gain),
        },
        "stands": verdict == result.valid_earlier_verdict,
    }


def _learned_json(learned: Learned) -> dict[str, Any]:
    return {
        **_answer_json(learned.answer),
        "share": _ratio_json(learned.share),
        "winner_over_it": learned.winner and _answer_json(learned.winner),
        "params": learned.params,
        "lr_ratio": learned.lr_ratio,
        "at_end": ends_json(learned.ends),
    }


def _inference_json(inference: InferenceOnly) -> dict[str, Any]:
    return {
        **_tuned_json(inference.baseline),
        "share": _ratio_json(inference.share),
        "twin": inference.twin and _tuned_json(inference.twin),
        "winner": inference.winner and _tuned_json(inference.winner),
        "difference": inference.difference and _answer_json(inference.difference),
    }


def _tuned_json(tuned: TunedInference) -> dict[str, Any]:
    curve = dict(sorted(tuned.curve.items(), key=lambda entry: _plan_sort_key(entry[0])))
    return {"plan": tuned.plan, **_answer_json(tuned.answer), "curve": curve}


def _plan_sort_key(plan: str) -> tuple[bool, str, str, float]:
    """Return where a plan of inference stands among others: constants by number, then what is none."""
    constant = ConstantPlan.of(plan)
    if constant is None:
        return True, plan, "", 0.0
    return False, constant.temperature, constant.length_scaling, constant.tau


def _simplest_json(simplest: Simplest) -> dict[str, Any]:
    return {
        "parts": simplest.parts,
        "params": simplest.parameters,
        "holds": simplest.holds,
        "over_baseline": _answer_json(simplest.gain),
        "lost": _answer_json(simplest.lost),
        "kept": _test_json(simplest.keep_share_test),
    }


def _ratio_json(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {name: finite(value) for name, value in asdict(ratio).items()}


def _answer_json(answer: PairedResult) -> dict[str, Any]:
    return {**_test_json(answer.paired), "significant": answer.significant}


def _test_json(test: PairedTest) -> dict[str, Any]:
    return {
        "gain": test.gain,
        "ci_low": finite(test.ci_low),
        "ci_high": finite(test.ci_high),
        "p_value": test.p_value,
    }


def _recommendation_json(result: StudyData, recommendation: Recommendation) -> dict[str, Any]:
    return {
        "action": recommendation.action,
        "why": recommendation_text(result),
        "now": recommendation.action_without_training,
        "stays_valid": None if result.valid_earlier_verdict is None else result.valid_earlier_verdict.looks,
        "params": recommendation.parameters,
        "at_inference": recommendation.at_inference,
        "gain": recommendation.gain and _answer_json(recommendation.gain),
        "winner_over_it": recommendation.winner and _answer_json(recommendation.winner),
        "min_gain": recommendation.min_gain or None,
        "excluded_above": recommendation.excluded,
        "pairs": recommendation.pairs and asdict(recommendation.pairs),
        "widen": [asdict(widening) for widening in recommendation.widen],
        "passed_over": [_passed_over_json(option) for option in recommendation.passed_over],
    }


def _passed_over_json(option: BlockedOption) -> dict[str, Any]:
    return {
        "action": option.action,
        "params": option.parameters,
        "at_inference": option.plan,
        "guards": [{"name": guard.name, "state": guard.state, "why": guard.why} for guard in option.guards],
    }

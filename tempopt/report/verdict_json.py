"""Verdicts, comparisons and guards as the data of ``tempopt show --json``, without infinities."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tempopt.report.formatting import finite
from tempopt.report.recommendation_text import recommendation_text, use_text
from tempopt.verdict.guards import GuardResult
from tempopt.verdict.inference import TunedInference
from tempopt.verdict.learned import Ends
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.recommendation import Recommendation
from tempopt.verdict.run_evaluations import InferenceConstant
from tempopt.verdict.set_comparison import Comparison, Variant
from tempopt.verdict.statistics.fieller import Ratio
from tempopt.verdict.statistics.paired_tests import PairedTest
from tempopt.verdict.verdict import Verdict

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData

_TEST = ("gain", "ci_low", "ci_high", "p_value")
_CHANGE = ("baseline", "change", "low", "high", "diverged", "reference_diverged", "why")
_COUNTS = ("dropped", "diverged", "reference_diverged")
_CONSTANTS = ("against_constant", "over_constant", "over_constant_twin")


def verdict_json(result: StudyData) -> dict[str, Any]:
    """Return the verdict of a study that has one."""
    verdict = result.verdict
    assert verdict is not None
    inference, learned, simplest = verdict.inference_only, verdict.learned, verdict.simplest
    return {
        "recommendation": verdict.recommendation and _recommendation_json(result, verdict.recommendation),
        **_answer_json(verdict.primary),
        **_select_fields(verdict.primary.paired, "confidence", "n_pairs"),
        **_select_fields(verdict, "params", "confirmed_on", "round"),
        "looks": verdict.verdict_number,
        "alpha": verdict.alpha,
        "over_baseline": _to_json_value(verdict.over_baseline),
        "baseline_params": verdict.baseline_params,
        "over_twin": _to_json_value(verdict.over_twin),
        "twin_params": verdict.twin_params,
        **_select_fields(verdict, *_CONSTANTS, "constant_params", "constant_twin_params"),
        "inference_only": inference
        and {
            **_tuned_json(inference.baseline),
            **_select_fields(inference, "share", "twin", "winner", "difference"),
        },
        "learned": learned
        and {
            **_answer_json(learned.answer),
            "share": _to_json_value(learned.share),
            "winner_over_it": _to_json_value(learned.winner_over_it),
            **_select_fields(learned, "params", "lr_ratio"),
            "at_end": _ends_json(learned.ends),
        },
        "controlled_at_end": _ends_json(verdict.controlled),
        "not_learned": result.spec.study.not_learned,
        "parts": [
            {"name": part.name, "params": part.params, **_answer_json(part.answer)} for part in verdict.parts
        ],
        "simplest": simplest
        and {
            "parts": simplest.parts,
            "params": simplest.params,
            "holds": simplest.holds,
            "over_baseline": _to_json_value(simplest.gain),
            "lost": _to_json_value(simplest.lost),
            "kept": _to_json_value(simplest.keep_share_test),
        },
        "failures": verdict.failures and asdict(verdict.failures),
        **_select_fields(verdict, "unvaried"),
        "guards": [_guard_json(guard) for guard in verdict.guards],
        "guards_kept": verdict.guards_kept,
    }


def earlier_json(result: StudyData, verdict: Verdict) -> dict[str, Any]:
    """Return the result and the recommendation of an earlier verdict of a study."""
    recommendation = verdict.recommendation
    assert recommendation is not None
    return {
        "verdict": verdict.verdict_number,
        **_select_fields(verdict, "round", "alpha"),
        **_answer_json(verdict.primary),
        **_select_fields(verdict.primary.paired, "confidence", "n_pairs"),
        **_select_fields(verdict, "params", "baseline_params"),
        "recommendation": {
            "action": recommendation.action,
            "why": f"use {use_text(result.spec, verdict)}",
            "now": recommendation.action_without_training,
            "params": recommendation.params,
            **_select_fields(recommendation, "at_inference", "gain"),
        },
        "stands": verdict == result.valid_earlier_verdict,
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the documented data of a comparison."""
    best = comparison.best
    all_pairs = {
        "take": comparison.recommended_set,
        "unbeaten": comparison.unbeaten,
        "max_loss": finite(comparison.max_loss),
        "pairs": [
            _select_fields(pair, "name", "reference", "winner") | _compared_json(pair.answer)
            for pair in comparison.pairs
        ],
    }
    return {
        "outcome": comparison.outcome,
        "best": best and best.name,
        "better": [variant.name for variant in comparison.variants if variant.better],
        "worse": [variant.name for variant in comparison.variants if variant.worse],
        "reference": {"name": comparison.reference, "params": comparison.reference_params},
        "variants": [_variant_json(variant) for variant in comparison.variants],
        **_select_fields(comparison, "unvaried"),
        "means": dict(comparison.means),
        "all_pairs": all_pairs if comparison.pairs else None,
        **_select_fields(comparison, "confirmed_on", "round"),
        "looks": comparison.verdict_number,
        "alpha": comparison.alpha,
    }


def _variant_json(variant: Variant) -> dict[str, Any]:
    return {
        **_select_fields(variant, "name", "params"),
        "significant": variant.better,
        **_select_fields(variant, "worse", "failed", "reference_failed"),
        "guards": [_guard_json(guard) for guard in variant.guards],
        "guards_kept": variant.keeps_guards,
        **_compared_json(variant.answer),
        **({} if variant.answer_by_values else dict.fromkeys(_TEST)),
    }


def _compared_json(answer: PairedResult | None) -> dict[str, Any]:
    """Return a comparison of two sets; for None, the same keys with null values."""
    numbers = (*_TEST, "confidence", "n_pairs")
    if answer is None:
        return dict.fromkeys((*numbers, *_COUNTS))
    return _select_fields(answer.paired, *numbers) | _select_fields(answer, *_COUNTS)


def _guard_json(guard: GuardResult) -> dict[str, Any]:
    test = guard.answer
    return {
        **_select_fields(guard, "name", "text", "state", *_CHANGE),
        "relative_change": guard.relative(guard.change),
        "headroom": test and _select_fields(test, *_TEST, "n_pairs", "alpha"),
    }


def _recommendation_json(result: StudyData, recommendation: Recommendation) -> dict[str, Any]:
    passed_over = [
        {
            "action": option.action,
            "params": option.params,
            "at_inference": option.plan_name,
            "guards": [_select_fields(guard, "name", "state", "why") for guard in option.blocking_guards],
        }
        for option in recommendation.passed_over
    ]
    return {
        "action": recommendation.action,
        "why": recommendation_text(result),
        "now": recommendation.action_without_training,
        "stays_valid": None
        if result.valid_earlier_verdict is None
        else result.valid_earlier_verdict.verdict_number,
        "params": recommendation.params,
        **_select_fields(recommendation, "at_inference", "gain"),
        "winner_over_it": _to_json_value(recommendation.winner_over_it),
        "min_gain": recommendation.min_gain or None,
        "excluded_above": recommendation.excluded,
        "pairs": recommendation.more_pairs and asdict(recommendation.more_pairs),
        "widen": [asdict(widening) for widening in recommendation.widen],
        "passed_over": passed_over,
    }


def _answer_json(answer: PairedResult) -> dict[str, Any]:
    return {**_select_fields(answer.paired, *_TEST), "significant": answer.significant}


def _tuned_json(tuned: TunedInference) -> dict[str, Any]:
    curve = dict(sorted(tuned.curve.items(), key=lambda entry: _plan_sort_key(entry[0])))
    return {"plan": tuned.plan_name, **_answer_json(tuned.answer), "curve": curve}


def _plan_sort_key(plan: str) -> tuple[bool, str, str, float]:
    """Return a sort key for plans of inference: constants by number, then others."""
    constant = InferenceConstant.of(plan)
    if constant is None:
        return True, plan, "", 0.0
    return False, constant.temperature, constant.length_scaling, constant.tau


def _ends_json(ends: Ends) -> dict[str, dict[str, float]]:
    return {name: {"mean": mean, "low": low, "high": high} for name, (mean, low, high) in ends.items()}


def _select_fields(source: object, *names: str) -> dict[str, Any]:
    """Return attributes of an object as plain data, by name."""
    return {name: _to_json_value(getattr(source, name)) for name in names}


def _to_json_value(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    match value:
        case float():
            return finite(value)
        case PairedResult():
            return _answer_json(value)
        case TunedInference():
            return _tuned_json(value)
        case PairedTest():
            return _select_fields(value, *_TEST)
        case Ratio():
            return _select_fields(value, "ratio", "low", "high")
    return value

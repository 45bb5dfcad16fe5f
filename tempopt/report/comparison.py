"""What a comparison found as plain data, for ``tempopt show --json``; its words are comparison_text.py's."""

from __future__ import annotations

from typing import Any

from tempopt.report.formatting import finite
from tempopt.report.guard_text import guard_json
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.set_comparison import Comparison, SetPair, Variant


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the documented data of a comparison; an end of an interval that nothing bounds is null."""
    best = comparison.best
    return {
        "outcome": comparison.outcome,
        "best": best and best.name,
        "better": [variant.name for variant in comparison.variants if variant.better],
        "worse": [variant.name for variant in comparison.variants if variant.worse],
        "reference": {"name": comparison.reference, "params": comparison.reference_params},
        "variants": [_variant_json(variant) for variant in comparison.variants],
        "means": dict(comparison.means),
        "all_pairs": _all_pairs_json(comparison) if comparison.pairs else None,
        "test": comparison.test,
        "confirmed_on": comparison.confirmed_on,
        "round": comparison.round,
        "looks": comparison.looks,
        "alpha": comparison.alpha,
    }


def _variant_json(variant: Variant) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": variant.name,
        "params": variant.params,
        "significant": variant.better,
        "worse": variant.worse,
        "failed": variant.failed,
        "reference_failed": variant.reference_failed,
        "guards": [guard_json(guard) for guard in variant.guards],
        "guards_kept": variant.keeps_guards,
    }
    return data | _answer_json(variant.answer)


def _all_pairs_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "take": comparison.recommended_set,
        "unbeaten": comparison.unbeaten,
        "max_loss": finite(comparison.max_loss),
        "pairs": [_pair_json(pair) for pair in comparison.pairs],
    }


def _pair_json(pair: SetPair) -> dict[str, Any]:
    names = {"name": pair.name, "reference": pair.reference, "winner": pair.winner}
    return names | _answer_json(pair.answer)


def _answer_json(answer: PairedResult | None) -> dict[str, Any]:
    numbers = ("gain", "ci_low", "ci_high", "p_value", "confidence", "n_pairs")
    counts = ("dropped", "diverged", "reference_diverged")
    if answer is None:
        return dict.fromkeys((*numbers, *counts))
    test_values: dict[str, Any] = {name: finite(getattr(answer.paired, name)) for name in numbers}
    return test_values | {name: getattr(answer, name) for name in counts}

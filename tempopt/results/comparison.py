"""What a comparison found as plain data, for ``tempopt show --json``; its words are comparison_text.py's."""

from __future__ import annotations

import math
from typing import Any

from tempopt.confirmation.compare import Comparison, Variant
from tempopt.results.guard_text import guard_json


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the documented data of a comparison; an end of an interval that nothing bounds is null."""
    best = comparison.best
    return {
        "outcome": comparison.outcome,
        "best": best and best.name,
        "better": [each.name for each in comparison.variants if each.better],
        "worse": [each.name for each in comparison.variants if each.worse],
        "reference": {"name": comparison.reference, "params": comparison.reference_params},
        "variants": [_variant_json(each) for each in comparison.variants],
        "test": comparison.test,
        "confirmed_on": comparison.confirmed_on,
        "round": comparison.round,
        "looks": comparison.looks,
        "alpha": comparison.alpha,
    }


def _variant_json(variant: Variant) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": variant.name,
        "params": variant.params,
        "significant": variant.better,
        "worse": variant.worse,
        "failed": variant.failed,
        "reference_failed": variant.reference_failed,
        "guards": [guard_json(guard) for guard in variant.guards],
        "guards_kept": variant.keeps_guards,
    }
    numbers = ("gain", "ci_low", "ci_high", "p_value", "confidence", "n_pairs")
    counts = ("dropped", "diverged", "reference_diverged")
    answer = variant.answer
    if answer is None:
        return found | dict.fromkeys((*numbers, *counts))
    found |= {name: _finite(getattr(answer.paired, name)) for name in numbers}
    return found | {name: getattr(answer, name) for name in counts}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

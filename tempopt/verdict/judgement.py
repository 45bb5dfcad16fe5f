"""A comparison of existing values: pairing by seed, and the result for each variant.

Pure. A variant with at least two seeds in common with the reference is compared on these seeds by the paired
t-test, otherwise by Welch's test. The choice follows from the seeds only, never from the values. All values
are judged at once, at the level of a study's first verdict, which the variants share evenly as in
set_comparison.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev

from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.verdict.paired_evidence import (
    PairedResult,
    PairedRuns,
    differences_by_pair,
    paired_failures,
    require_noise,
    values_by_pair,
)
from tempopt.verdict.set_comparison import Comparison, Variant
from tempopt.verdict.statistics.failure_rates import unpaired_failure_rates
from tempopt.verdict.statistics.paired_tests import Direction, paired_test
from tempopt.verdict.statistics.power import pairs_needed
from tempopt.verdict.statistics.welch import welch_size_needed, welch_test

ValuesBySeed = Mapping[str, float | None]
"""Value of each run of a variant by its seed; None if the run failed."""


def compare_values(
    values: Mapping[str, ValuesBySeed], reference: str, direction: Direction
) -> tuple[Comparison, dict[str, int | None]]:
    """Return the result for each variant, and the number of seeds that it needs.

    That is the number of seeds, of variant and reference, with which a new test shows a true gain of the
    measured size with probability 80 %. It is None if a difference is already shown, no gain was measured,
    its noise is unknown, the variant fails more often, or the number is above 100,000.

    Args:
        values: Values by variant, at least two variants with at least one seed each.
        reference: Name of the variant that the others are compared with.
        direction: Whether larger or smaller values are better.
    """
    numbers = {
        seed: number for number, seed in enumerate(dict.fromkeys(s for runs in values.values() for s in runs))
    }
    runs_by_name = {
        name: PairedRuns(
            values={numbers[seed]: value for seed, value in runs.items() if value is not None},
            diverged=frozenset(numbers[seed] for seed, value in runs.items() if value is None),
        )
        for name, runs in values.items()
    }
    names = [name for name in values if name != reference]
    alpha, reference_runs = alpha_for_verdict(1), runs_by_name[reference]
    results = {
        name: _compare(name, runs_by_name[name], reference_runs, direction, alpha / len(names))
        for name in names
    }
    comparison = Comparison(
        reference=reference,
        reference_params={},
        variants=tuple(variant for variant, _ in results.values()),
        confirmed_on=None,
        round=0,
        verdict_number=1,
        alpha=alpha,
        means={name: fmean(runs.values.values()) for name, runs in runs_by_name.items() if runs.values},
    )
    return comparison, {name: num_seeds for name, (_, num_seeds) in results.items()}


def _compare(
    name: str, arm: PairedRuns, reference: PairedRuns, direction: Direction, alpha: float
) -> tuple[Variant, int | None]:
    """Return a variant with its result, and the number of seeds that a test needs; None if unknown."""
    common_seeds, failures = arm.pairs & reference.pairs, None
    if is_paired := len(common_seeds) > 1 or arm.pairs == reference.pairs:
        differences = list(differences_by_pair(arm, reference, direction).values())
        test = paired_test(differences, direction=direction, alpha=alpha)
        failures = paired_failures([arm], [reference], alpha=alpha)
        diverged, reference_diverged = arm.diverged & common_seeds, reference.diverged & common_seeds
    else:
        values, reference_values = (
            list(values.values()) for values in values_by_pair(arm, reference, direction)
        )
        test = welch_test(values, reference_values, direction=direction, alpha=alpha)
        diverged, reference_diverged = arm.diverged, reference.diverged
        if diverged or reference_diverged:
            failed, reference_failed = (
                [pair in runs.diverged for pair in runs.pairs] for runs in (arm, reference)
            )
            failures = unpaired_failure_rates(failed, reference_failed, alpha=alpha)
    answer = PairedResult(
        paired=test,
        dropped=len(arm.pairs ^ reference.pairs) if is_paired else 0,
        diverged=len(diverged),
        reference_diverged=len(reference_diverged),
    )
    answer, needed = require_noise(answer, [arm], [reference]), None
    can_compare = bool(arm.values and reference.values)
    if can_compare and _needs_more(answer):
        if not is_paired:
            needed = welch_size_needed(values, reference_values, test.gain, alpha=alpha)
        elif (effect := test.gain / stdev(differences)) > 0:
            needed = pairs_needed(effect, alpha=alpha)
    variant = Variant(
        name=name,
        params={},
        answer=answer if can_compare else None,
        runs=len(common_seeds if is_paired else arm.pairs),
        failures=failures,
        fails_more=bool(reference.values and not arm.values)
        or (failures is not None and failures.p_value < alpha and answer.diverges_more),
    )
    return variant, needed


def _needs_more(answer: PairedResult) -> bool:
    """Return whether more seeds may show a measured gain: its noise is known, and no failures exclude it."""
    test = answer.paired
    is_unclear = test.gain > 0 and test.p_value >= test.alpha and not answer.diverges_more
    return is_unclear and math.isfinite(test.ci_high) and not test.is_equal

"""A comparison of given parameter sets as text, and the exported set; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tempopt.errors import StudyFailed
from tempopt.report.alpha_spending import earlier_seeds, rounds_combined, seeds_text
from tempopt.report.finding import (
    DATA,
    GAIN,
    NO_GAIN,
    PAIRED_TEST,
    WELCH_TEST,
    Finding,
    State,
    comparison_finding,
    facts,
)
from tempopt.report.formatting import (
    confidence,
    duration,
    format_ci_and_p,
    format_effect,
    format_signed,
    limit,
    numbers_of_size,
    parameters_text,
    unsigned_text,
)
from tempopt.report.guard_text import guard_findings
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.set_comparison import Comparison, Outcome, SetPair, Variant
from tempopt.verdict.statistics.paired_tests import PairedTest

if TYPE_CHECKING:
    from tempopt.report.study_data import ComparedData, StudyData
    from tempopt.spec.study_spec import StudySpec

DIFFER, ALIKE = "Difference shown", "No difference shown"
"""Outcome of a comparison of every two sets, as text."""

_STATES: Mapping[Outcome, State] = {"better": "shown", "not_shown": "not_shown", "worse": "worse"}


def comparison_findings(result: StudyData) -> list[Finding]:
    """Return the findings of a comparison, the decision first."""
    comparison = result.comparison
    if comparison is None:
        return [Finding(kind="decision", text=_open_text(result))]
    decision = decision_finding(result, comparison)
    if comparison.pairs:
        return [decision, *_pair_findings(result, comparison)]
    text = f"{_set_line(result, 0)}, the reference."
    findings = [decision, Finding(kind="reference", text=text, params=comparison.reference_params)]
    for index, variant in enumerate(comparison.variants, start=1):
        text = _set_line(result, index)
        if len(comparison.variants) > 1:
            text += f"; gain {variant_text(variant, comparison)}"
        findings.append(comparison_finding("variant", f"{text}.", variant.answer_by_values, variant.params))
    findings += facts("note", [*comparison_notes(result, comparison), *_stopping_notes(result, comparison)])
    for index, variant in enumerate(comparison.variants, start=1):
        findings += facts("caveat", _caveats(variant, comparison.reference, _varied_names(result, index)))
        blocked = f"{variant.name} is not to be taken" if variant.better else ""
        names = (variant.name, comparison.reference)
        findings += guard_findings(variant.guards, *names, prefix=f"{variant.name}: ", blocked=blocked)
    return findings


def decision_finding(result: ComparedData, comparison: Comparison) -> Finding:
    """Return the result of a comparison in one line, as a finding."""
    return Finding(
        kind="decision",
        text=comparison_headline(result),
        state=_STATES[comparison.outcome] if comparison.has_verdict else "fact",
        answer=None if comparison.main is None else comparison.main.answer_by_values,
    )


def comparison_headline(result: ComparedData) -> str:
    """Return the result of a comparison in one line."""
    comparison = result.comparison
    if comparison is None:
        return f"{result.metric}: nothing is compared yet."
    if not comparison.has_verdict:
        return _no_verdict_headline(result, comparison)
    if comparison.pairs:
        return _pairs_headline(result, comparison)
    if len(comparison.variants) == 1:
        return _single_variant_headline(result, comparison, comparison.variants[0])
    reference, variants = comparison.reference, comparison.variants
    better = [variant.name for variant in variants if variant.better]
    worse = [v.name for v in variants if v.answer_by_values and v.answer_by_values.worse]
    outcomes = [f"{_join_verb(worse)} worse"] if worse else []
    outcomes += [failure_text(v, comparison) for v in variants if v.worse and v.answer_by_values is None]
    if better:
        text = f"{GAIN}: in {result.metric} {_join_verb(better)} better than {reference}"
    else:
        names = ", ".join(variant.name for variant in variants)
        text = f"{NO_GAIN}: in {result.metric} none of {names} is shown to be better than {reference}"
    return f"{'; '.join([text, *outcomes])} ({_describe_basis(result, comparison)})."


def _no_verdict_headline(result: ComparedData, comparison: Comparison) -> str:
    """Return that there is nothing to compare with, and what to do."""
    if comparison.means:
        subject, advice = f"{comparison.reference}, the reference,", f"Fix {comparison.reference}"
    else:
        subject, advice = "any set", "Fix the sets"
    failures = "; ".join(failure_text(variant, comparison) for variant in comparison.variants)
    text = f"No verdict: no run of {subject} has a finite value of {result.metric}: {failures}."
    return f"{text} {advice}, and start again."


def _describe_basis(result: ComparedData, comparison: Comparison) -> str:
    answers = [variant.answer for variant in comparison.variants if variant.answer is not None]
    test_names = [WELCH_TEST if answer.paired.sample_sizes else PAIRED_TEST for answer in answers]
    tests = " or ".join(dict.fromkeys(test_names or [PAIRED_TEST]))
    if comparison.confirmed_on is not None:
        return f"{DATA[comparison.confirmed_on]} data, {tests}"
    return f"{tests}; a {'higher' if result.direction == 'maximize' else 'lower'} value is better"


def _seeds_text(result: ComparedData, comparison: Comparison, test: PairedTest) -> str:
    """Return the number of seeds of a test as text."""
    if comparison.confirmed_on is None:
        return _test_seeds(test)
    return seeds_text(test.n_pairs, earlier_seeds(result, comparison.round))


def _test_seeds(test: PairedTest) -> str:
    if test.sample_sizes is not None:
        return "{} and {} seeds, not paired".format(*test.sample_sizes)
    return f"{test.n_pairs} seed{'s' * (test.n_pairs != 1)}"


def _single_variant_headline(result: ComparedData, comparison: Comparison, variant: Variant) -> str:
    reference, answer = comparison.reference, variant.answer_by_values
    if answer is None:
        result_text = f"{variant.name} is worse" if variant.worse else "its values do not count"
        return f"{NO_GAIN}: {failure_text(variant, comparison)}, so {result_text}."
    test = answer.paired
    basis = f"{_seeds_text(result, comparison, test)}, {_describe_basis(result, comparison)}"
    if variant.better or answer.worse:
        higher = variant.better == (result.direction == "maximize")
        change = f"{result.metric} is {'higher' if higher else 'lower'} by {format_effect(test)}"
        verdict = GAIN if variant.better else f"{NO_GAIN}: {variant.name} is worse"
        numbers = f"{numbers_of_size(test)}; {basis}"
        return f"{verdict}: {change} with {variant.name} than with {reference} ({numbers})."
    gain = f"the gain of {variant.name} over {reference} in {result.metric} is {format_signed(test)}"
    return f"{NO_GAIN}: {gain} ({format_ci_and_p(test)}; {basis})."


def _pairs_headline(result: ComparedData, comparison: Comparison) -> str:
    num_seeds = max(variant.runs for variant in comparison.variants)
    seeds = seeds_text(num_seeds, earlier_seeds(result, comparison.round))
    is_first = comparison.recommended_set == comparison.unbeaten[0]
    fewest = "" if is_first else " of those that fail on the fewest seeds"
    set_rank = "the only set" if len(comparison.unbeaten) == 1 else f"the first set{fewest}"
    return (
        f"{pairs_answer(comparison)}: take {comparison.recommended_set}, {set_rank} that none is shown to "
        f"beat in {result.metric} ({seeds}, {_describe_basis(result, comparison)})."
    )


def pairs_answer(comparison: Comparison) -> str:
    """Return the result of a comparison of every two sets in a few words."""
    return DIFFER if comparison.outcome == "better" else ALIKE


def loss_line(result: StudyData, comparison: Comparison) -> str:
    """Return the largest loss from taking the set that a comparison of every two sets recommends."""
    name = comparison.recommended_set
    if math.isinf(comparison.max_loss):
        is_equal = any(pair.answer.paired.is_equal for pair in comparison.pairs if pair.answer is not None)
        reason = "differences are equal" if is_equal else "too few seeds (add --pairs)"
        return f"what {name} may lose against the best set is not bounded: {reason}."
    if comparison.max_loss:
        text = f"against the best set {name} loses at most {limit(comparison.max_loss)} in {result.metric}"
    else:
        text = f"nothing is lost by taking {name}: it is shown to be the best of the sets"
    confidence_text = f"{100 * (1 - comparison.alpha):.4g} % confidence"
    return f"{text} ({confidence_text}, upper end of the simultaneous intervals)."


def _pair_findings(result: StudyData, comparison: Comparison) -> Iterator[Finding]:
    lines = [loss_line(result, comparison)] if comparison.recommended_set is not None else []
    failed = {comparison.reference: comparison.variants[0].reference_failed}
    failed |= {variant.name: variant.failed for variant in comparison.variants}
    for index, name in enumerate(comparison.params_by_name):
        line = _set_line(result, index)
        if failed[name]:
            line += f"; failed or diverged on {failed[name]} of {comparison.variants[0].runs} seeds"
        beaten_note = "" if name in comparison.unbeaten else "; another set is shown to beat it"
        lines.append(f"{line}{beaten_note}.")
    if result.direction == "minimize":
        lines.append(f"a gain with + is better: a lower {result.metric}.")
    yield from facts("note", lines)
    for pair in comparison.pairs:
        yield _pair_finding(pair)
    if len(comparison.pairs) > 1:
        text = _shared_level(comparison, len(comparison.pairs), "comparisons")
        yield Finding(kind="note", text=text)
    yield from facts("note", _seed_notes(result, comparison))


def _shared_level(comparison: Comparison, count: int, noun: str) -> str:
    """Return a sentence on the level of several comparisons, single and joint."""
    alpha = comparison.alpha / count
    single, joint = (f"{100 * (1 - level):.4g} %" for level in (alpha, comparison.alpha))
    return (
        f"the {count} {noun} share the level {100 * comparison.alpha:.3g} %: each interval covers {single}, "
        f"all of them together {joint}, and p has to be below {alpha:.3g}."
    )


def _pair_finding(pair: SetPair) -> Finding:
    answer, names = pair.answer, f"gain of {pair.name} over {pair.reference}"
    if answer is None:
        valueless = (
            "the two" if pair.sole is None else pair.name if pair.sole == pair.reference else pair.reference
        )
        return Finding(kind="pair", text=f"{names}: no run of {valueless} has a finite value.")
    outcomes = {None: "no difference shown", pair.name: "better", pair.reference: "worse"}
    text = f"{names}: {_format_numbers(answer)}: {outcomes[pair.winner]}."
    set_names = (pair.name, pair.reference)
    same_values = same_values_text(answer, *set_names, "what differs between them")
    details = [*filter(None, [same_values]), *pair_caveats(answer, *set_names, "failed or diverged")]
    return comparison_finding("pair", text, answer, details=details)


def _format_numbers(answer: PairedResult) -> str:
    test = answer.paired
    return f"{format_signed(test)} ({format_ci_and_p(test)}; {_test_seeds(test)})"


def variant_text(variant: Variant, comparison: Comparison) -> str:
    """Return the numbers and the result of one of several variants."""
    verb = _failure_verb(comparison)
    failed = f"{verb} on {variant.failed} of {variant.runs} seeds"
    if (answer := variant.answer_by_values) is None:
        return f"does not count: {failed}{', worse' if variant.worse else ''}"
    outcome = "better" if variant.better else "worse" if answer.worse else "no difference shown"
    return f"{_format_numbers(answer)}: {outcome}"


def failure_text(variant: Variant, comparison: Comparison) -> str:
    """Return how often a variant and the reference failed."""
    counts = f"{variant.failed} of {variant.runs} seeds, {comparison.reference} on {variant.reference_failed}"
    if variant.failures is not None and variant.failures.reference.runs != variant.runs:
        counts += f" of {variant.failures.reference.runs}"
    return f"{variant.name} {_failure_verb(comparison)} on {counts}"


def _failure_verb(comparison: Comparison) -> str:
    return "failed" if comparison.confirmed_on is None else "failed or diverged"


def failure_verb(spec: StudySpec) -> str:
    """Return how the runs of a study fail that count as failed in its verdict."""
    return "failed or diverged" if spec.counts_failures else "diverged"


def diverges_too_often(answer: PairedResult) -> bool:
    """Return whether a gain does not count, since the arm fails more often than the reference."""
    return answer.diverges_more and answer.paired.significant


def comparison_notes(result: ComparedData, comparison: Comparison) -> Iterator[str]:
    """Yield notes on the comparison as a whole."""
    if len(comparison.variants) > 1:
        yield _shared_level(comparison, len(comparison.variants), "variants")
    elif (answer := comparison.variants[0].answer_by_values) and comparison.outcome == "not_shown":
        test = answer.paired
        if not answer.reference_diverged and test.ci_low < test.ci_high < math.inf:
            upper_bound = unsigned_text(max(test.ci_high, 0.0), test)
            yield f"a gain above {upper_bound} is excluded ({confidence(test)})."
    yield from _seed_notes(result, comparison)


def _seed_notes(result: ComparedData, comparison: Comparison) -> Iterator[str]:
    if comparison.unvaried:
        yield unvaried_text(comparison.unvaried)
    yield from rounds_combined(result, comparison.round)
    if comparison.verdict_number > 1:
        level = f"{100 * comparison.alpha:.3g} %"
        yield f"verdict {comparison.verdict_number} of this study: its level is {level}."
    if comparison.confirmed_on == "validate":
        yield "compared on the validation data."


def _stopping_notes(result: StudyData, comparison: Comparison) -> Iterator[str]:
    """Yield what several looks mean for the numbers of the first round."""
    confirm = result.spec.study.seeds.confirm
    answers = [variant.answer_by_values for variant in comparison.variants]
    tests = [answer.paired for answer in answers if answer and math.isfinite(answer.paired.ci_low)]
    if not tests or confirm.min == confirm.max or comparison.round:
        return
    is_early = any(test.n_pairs < confirm.max for test in tests)
    bias = "; a difference that is shown early is too large on average" if is_early else ""
    yield f"interval and p are corrected for a test after every {confirm.min} pairs{bias}."


def unvaried_text(names: Sequence[str]) -> str:
    """Return why nothing is shown of sets whose runs all have the same value, and what to do."""
    subject = f"{names[0]} has" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} each have"
    return (
        f"{subject} a single value on all seeds, as if the seed were ignored, so nothing is shown. Pass the "
        "seed to the program's random generator; if it uses none, one run of each decides."
    )


def pair_caveats(answer: PairedResult, name: str, reference: str, failed: str = "diverged") -> Iterator[str]:
    """Yield on which seeds runs failed or were lost, and how those count.

    Args:
        answer: The comparison.
        name: Name of the arm.
        reference: Name of its reference.
        failed: How its runs fail, as a verb.
    """
    for part in answer.components:
        if part.diverged or part.reference_diverged:
            end = "; so its gain does not count" if diverges_too_often(part) else ""
            counts = (
                f"{part.diverged} of {part.paired.n_pairs} seeds, {reference} on {part.reference_diverged}"
            )
            yield f"{name} {failed} on {counts} (counted with the worst value reached){end}."
    if answer.dropped:
        lost = f"a run of theirs having failed on every attempt: {answer.dropped}"
        yield f"seeds of {name} left out, {lost}."


def noise_text(answer: PairedResult, name: str) -> str:
    """Return what the seeds do not show of a difference, and whether more would help; empty if nothing."""
    test = answer.paired
    is_without_effect = test.is_equal and test.gain == 0
    if is_without_effect or answer.is_unvaried or answer.is_reference_unvaried:
        return ""
    advice = "; give more seeds" if math.isinf(test.ci_low) else ""
    if test.is_equal:
        return f"{name} differs by the same amount on every seed, so only the sign is tested{advice}"
    return f"too few seeds for an interval of {name}{advice}" if advice else ""


def same_values_text(answer: PairedResult, name: str, reference: str, cause: str) -> str:
    """Return that two sets have equal values on every seed, and so their cause no effect; else empty."""
    test = answer.paired
    if not test.is_equal or test.gain != 0 or answer.diverged == test.n_pairs:
        return ""
    return f"{name} and {reference} have the same value on every seed: {cause} has no effect on it."


def _varied_names(result: StudyData, index: int) -> str:
    """Return the names of the parameters in which a set differs from the reference."""
    sets = result.spec.compared_sets
    names = {**sets[0].parameters, **sets[index].parameters}
    changed = [n for n in names if sets[0].parameters.get(n) != sets[index].parameters.get(n)]
    return " with ".join(changed)


def _caveats(variant: Variant, reference: str, varied_names: str) -> Iterator[str]:
    if (answer := variant.answer) is None:
        return
    if text := same_values_text(answer, variant.name, reference, varied_names):
        yield text
    yield from pair_caveats(answer, variant.name, reference, "failed or diverged")
    if text := noise_text(answer, variant.name):
        yield f"{text}."


def _open_text(result: StudyData) -> str:
    if result.state == "done":
        return f"No verdict: {result.name} is over, and nothing could be compared."
    progress_text = f"{result.num_ended} of {result.tickets['confirm'].requested or 0} runs are over"
    return f"No verdict yet: the comparison on fresh seeds is not over ({progress_text})."


def cost_line(result: StudyData) -> str:
    """Return the cost of the runs of a comparison."""
    gpu = result.cost.gpu_seconds
    cards = "" if gpu is None else f"; {duration(gpu)} of GPUs"
    return f"cost: {duration(result.cost.train_seconds)} of training in {result.num_ended} runs{cards}."


def exported_set(result: StudyData) -> str:
    """Return the name of the recommended set, which is exported.

    Raises:
        StudyFailed: There is no recommended set.
    """
    comparison = result.comparison
    if comparison is None:
        raise StudyFailed(
            f'The comparison "{result.name}" is not over, so there is nothing to export yet. Continue it: '
            f"tempopt resume {result.name}"
        )
    if comparison.recommended_set is None:
        guards = " and to keep the guards" if result.spec.study.guards else ""
        raise StudyFailed(
            f'The comparison "{result.name}" has shown no parameter set to be better than '
            f"{comparison.reference}{guards}, so there is nothing to export. Keep {comparison.reference}: "
            f"{_set_text(result, 0)}."
        )
    return comparison.recommended_set


def _set_text(result: StudyData, index: int) -> str:
    """Return a set in its given form."""
    parameters: dict[str, Any] = result.spec.compared_sets[index].parameters
    return parameters_text(parameters) if parameters else "the spec as it stands"


def _set_line(result: StudyData, index: int) -> str:
    """Return the name of a set, its parameters unless they are in the name, and its mean."""
    assert result.comparison is not None
    name, text = result.spec.compared_sets[index].name, _set_text(result, index)
    mean = result.comparison.means.get(name)
    label = name if _contains_parameters(name, text) else f"{name} ({text})"
    return f"{label}: {'no complete run' if mean is None else f'mean {mean:.5g}'}"


def _contains_parameters(name: str, text: str) -> bool:
    return text.replace(", ", ",") == name


def _join_verb(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"

"""A comparison of given parameter sets in plain words, and which set is exported; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.errors import StudyFailed
from tempopt.report.alpha_spending import earlier_seeds, rounds_combined, seeds_text
from tempopt.report.finding import DATA, TESTS, Finding, State, state_of
from tempopt.report.formatting import (
    confidence,
    duration,
    format_ci_and_p,
    format_effect,
    format_signed,
    limit,
    numbers_of_size,
    parameters_text,
)
from tempopt.report.guard_text import guard_line, not_kept
from tempopt.verdict.set_comparison import Comparison, Outcome, SetPair, Variant

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData

DIFFER, ALIKE = "Difference shown", "No difference shown"
"""Outcome of a comparison of each two sets, in a few words."""

_STATES: Mapping[Outcome, State] = {"better": "shown", "not_shown": "not_shown", "worse": "worse"}


def comparison_findings(result: StudyData) -> list[Finding]:
    """Return what a comparison found, the decision first."""
    comparison = result.comparison
    if comparison is None:
        return [Finding(kind="decision", text=line) for line in _open_lines(result)]
    is_compared = any(variant.answer for variant in comparison.variants)
    decision = Finding(
        kind="decision",
        text=comparison_headline(result),
        state=_STATES[comparison.outcome] if is_compared else "fact",
        answer=None if comparison.main is None else comparison.main.answer,
    )
    if comparison.pairs:
        return [decision, *_findings_of_pairs(result, comparison)]
    has_several = len(comparison.variants) > 1
    reference = _called(result, 0, comparison.reference, ", the reference")
    findings = [decision, Finding(kind="reference", text=reference, params=comparison.reference_params)]
    for index, variant in enumerate(comparison.variants, start=1):
        text = _called(result, index, variant.name)
        findings.append(
            Finding(
                kind="variant",
                text=f"{text}: {_of_variant(variant)}." if has_several else text,
                state="fact" if variant.answer is None else state_of(variant.answer),
                answer=variant.answer,
                params=variant.params,
            )
        )
    findings += [Finding(kind="note", text=line) for line in _notes(result, comparison)]
    for variant in comparison.variants:
        findings += [Finding(kind="caveat", text=line) for line in _caveats(variant, comparison.reference)]
        findings += [Finding(kind="guard", text=line) for line in _of_guards(variant, comparison)]
    return findings


def comparison_headline(result: StudyData) -> str:
    """Return what a comparison found in one line."""
    comparison = result.comparison
    if comparison is None:
        return f"{result.metric}: nothing is compared yet."
    if comparison.pairs:
        return _headline_of_pairs(result, comparison)
    if len(comparison.variants) == 1:
        return _headline_of_one(result, comparison, comparison.variants[0])
    basis = f"({DATA[comparison.confirmed_on]} data, {TESTS[comparison.test]})"
    better = [variant.name for variant in comparison.variants if variant.better]
    worse = [
        variant.name
        for variant in comparison.variants
        if variant.answer and variant.answer.worse and not variant.fails_more
    ]
    failing = [
        _failing(variant, comparison.reference) for variant in comparison.variants if variant.fails_more
    ]
    if better:
        text = f"Gain shown: in {result.metric} {_are(better)} better than {comparison.reference}"
    else:
        names = ", ".join(variant.name for variant in comparison.variants)
        text = (
            f"No gain shown: in {result.metric} none of {names} is shown to be better than "
            f"{comparison.reference}"
        )
    outcomes = [f"{_are(worse)} worse", *failing] if worse else failing
    return f"{'; '.join([text, *outcomes])} {basis}."


def _headline_of_one(result: StudyData, comparison: Comparison, variant: Variant) -> str:
    if variant.answer is None:
        reason = f": {_failing(variant, comparison.reference)}" if variant.fails_more else ""
        sets = f"{variant.name} and {comparison.reference}"
        return f"No verdict: no pair of runs of {sets} could be compared{reason}."
    test = variant.answer.paired
    seeds = seeds_text(test.n_pairs, earlier_seeds(result, comparison.round))
    basis = f"{seeds}, {DATA[comparison.confirmed_on]} data, {TESTS[comparison.test]}"
    details = f"({format_ci_and_p(test)}; {basis})"
    if variant.fails_more:
        return f"No gain shown: {_failing(variant, comparison.reference)} {details}."
    if variant.better or variant.answer.worse:
        higher = variant.better == (result.direction == "maximize")
        change = f"{result.metric} is {'higher' if higher else 'lower'} by {format_effect(test)}"
        verdict = "Gain shown" if variant.better else f"No gain shown: {variant.name} is worse"
        return (
            f"{verdict}: {change} with {variant.name} than with {comparison.reference} "
            f"({numbers_of_size(test)}; {basis})."
        )
    change = (
        f"the gain of {variant.name} over {comparison.reference} in {result.metric} is {format_signed(test)}"
    )
    return f"No gain shown: {change} {details}."


def _headline_of_pairs(result: StudyData, comparison: Comparison) -> str:
    if comparison.recommended_set is None:
        return "No verdict: no pair of runs of any two sets could be compared."
    num_seeds = max(pair.answer.paired.n_pairs for pair in comparison.pairs if pair.answer is not None)
    seeds = seeds_text(num_seeds, earlier_seeds(result, comparison.round))
    basis = f"({seeds}, {DATA[comparison.confirmed_on]} data, {TESTS[comparison.test]})"
    is_first = comparison.recommended_set == comparison.unbeaten[0]
    fewest = "" if is_first else " of those that diverge on the fewest seeds"
    set_rank = "the only set" if len(comparison.unbeaten) == 1 else f"the first set{fewest}"
    return (
        f"{pairs_answer(comparison)}: take {comparison.recommended_set}, {set_rank} that none is shown to "
        f"beat in {result.metric} {basis}."
    )


def pairs_answer(comparison: Comparison) -> str:
    """Return in a few words what a comparison of each two sets found."""
    return DIFFER if comparison.outcome == "better" else ALIKE


def loss_line(result: StudyData, comparison: Comparison) -> str:
    """Return what may be lost by taking the set that a comparison of each two names."""
    confidence_text = (
        f"{100 * (1 - comparison.alpha):.4g} % confidence, upper end of the simultaneous intervals"
    )
    if math.isinf(comparison.max_loss):
        is_equal = any(pair.answer.paired.is_equal for pair in comparison.pairs if pair.answer is not None)
        reason = "differences are equal" if is_equal else "too few seeds"
        return (
            f"what {comparison.recommended_set} may lose against the best set is not bounded: {reason} "
            "(add --pairs)."
        )
    if not comparison.max_loss:
        return (
            f"nothing is lost by taking {comparison.recommended_set}: it is shown to be the best of the sets "
            f"({confidence_text})."
        )
    return (
        f"against the best set {comparison.recommended_set} loses at most {limit(comparison.max_loss)} in "
        f"{result.metric} ({confidence_text})."
    )


def _findings_of_pairs(result: StudyData, comparison: Comparison) -> list[Finding]:
    lines = [loss_line(result, comparison)] if comparison.recommended_set is not None else []
    failed = {comparison.reference: comparison.variants[0].reference_failed}
    failed |= {variant.name: variant.failed for variant in comparison.variants}
    for index, name in enumerate(comparison.params_by_name):
        mean = f"mean {comparison.means[name]:.5g}" if name in comparison.means else "no complete run"
        failures = (
            f"; diverged on {failed[name]} of {comparison.variants[0].runs} seeds" if failed[name] else ""
        )
        beaten_note = "" if name in comparison.unbeaten else "; another set is shown to beat it"
        text = _set_text(result, index)
        label = name if _names_itself(name, text) else f"{name} ({text})"
        lines.append(f"{label}: {mean}{failures}{beaten_note}.")
    if result.direction == "minimize":
        lines.append(f"a gain with + is better: a lower {result.metric}.")
    findings = [Finding(kind="note", text=line) for line in lines]
    findings += [_finding_of_pair(pair) for pair in comparison.pairs]
    lines = []
    if len(comparison.pairs) > 1:
        pair_confidence, joint_confidence = (
            f"{100 * (1 - alpha):.4g} %"
            for alpha in (comparison.alpha / len(comparison.pairs), comparison.alpha)
        )
        lines.append(
            f"the {len(comparison.pairs)} comparisons share the level {100 * comparison.alpha:.3g} %: p has "
            f"to be below {comparison.alpha / len(comparison.pairs):.3g}; each interval covers "
            f"{pair_confidence}, all of them together {joint_confidence}."
        )
    return [
        *findings,
        *(Finding(kind="note", text=line) for line in (*lines, *_notes_on_looks(result, comparison))),
    ]


def _finding_of_pair(pair: SetPair) -> Finding:
    answer, names = pair.answer, f"gain of {pair.name} over {pair.reference}"
    if answer is None:
        return Finding(kind="pair", text=f"{names}: no pair of runs could be compared.")
    test = answer.paired
    outcome = (
        "no difference shown" if pair.winner is None else "better" if pair.winner == pair.name else "worse"
    )
    details = []
    if answer.diverged or answer.reference_diverged:
        details.append(
            f"{pair.name} diverged on {answer.diverged} of {test.n_pairs} seeds, {pair.reference} on "
            f"{answer.reference_diverged} (counted with the worst value reached)."
        )
    if answer.dropped:
        details.append(f"seeds left out, a run of theirs having failed on every attempt: {answer.dropped}.")
    return Finding(
        kind="pair",
        text=f"{names}: {format_signed(test)} ({format_ci_and_p(test)}; {test.n_pairs} seeds): {outcome}.",
        details=tuple(details),
        state=state_of(answer),
        answer=answer,
    )


def _of_variant(variant: Variant) -> str:
    if variant.answer is None:
        return (
            f"no pair of runs could be compared{f'; {_diverged_text(variant)}' if variant.fails_more else ''}"
        )
    test = variant.answer.paired
    outcome = "better" if variant.better else "worse" if variant.answer.worse else "no difference shown"
    outcome = _diverged_text(variant) if variant.fails_more else outcome
    return f"{format_signed(test)} ({format_ci_and_p(test)}; {test.n_pairs} seeds): {outcome}"


def _diverged_text(variant: Variant) -> str:
    return f"diverged on {variant.failed} of {variant.runs} seeds"


def _failing(variant: Variant, reference: str) -> str:
    """Return how often a variant and the reference diverged."""
    return f"{variant.name} {_diverged_text(variant)}, {reference} on {variant.reference_failed}"


def _of_guards(variant: Variant, comparison: Comparison) -> list[str]:
    """Return what is said of each guard for a variant, and whether it is to be taken."""
    guard_texts = (guard_line(guard, variant.name, comparison.reference) for guard in variant.guards)
    lines = [f"{variant.name}: {line}" for line in guard_texts]
    if variant.better and not variant.keeps_guards:
        lines.append(f"{variant.name} is not to be taken: it {not_kept(variant.guards)}.")
    return lines


def _notes(result: StudyData, comparison: Comparison) -> list[str]:
    """Return what is to be said of the comparison as a whole."""
    lines = []
    num_variants = len(comparison.variants)
    if num_variants > 1:
        interval_confidence, joint_confidence = (
            f"{100 * (1 - alpha):.4g} %" for alpha in (comparison.alpha / num_variants, comparison.alpha)
        )
        lines.append(
            f"the {num_variants} variants share the level {100 * comparison.alpha:.3g} %: each interval "
            f"covers {interval_confidence}, all of them together {joint_confidence}, and p has to be below "
            f"{comparison.alpha / num_variants:.3g}."
        )
    elif (answer := comparison.variants[0].answer) is not None and comparison.outcome == "not_shown":
        test = answer.paired
        if not answer.reference_diverged and test.ci_low < test.ci_high < math.inf:
            upper_bound = limit(max(test.ci_high, 0.0), test)
            lines.append(f"a gain above {upper_bound} is excluded ({confidence(test)}).")
    return [*lines, *_notes_on_looks(result, comparison)]


def _notes_on_looks(result: StudyData, comparison: Comparison) -> list[str]:
    lines = rounds_combined(result, comparison.round)
    if comparison.looks > 1:
        lines.append(
            f"verdict {comparison.looks} of this study: its level is {100 * comparison.alpha:.3g} %."
        )
    if comparison.confirmed_on == "validate":
        lines.append("compared on the validation data.")
    return lines


def _caveats(variant: Variant, reference: str) -> list[str]:
    answer = variant.answer
    if answer is None:
        return []
    lines = []
    test = answer.paired
    if test.gain == 0 and test.is_equal:
        lines.append(f"{variant.name} and {reference} have the same value on every seed.")
    if answer.diverged or answer.reference_diverged:
        counts = (
            f"{answer.diverged} of {test.n_pairs} seeds, {reference} on {answer.reference_diverged} (counted "
            "with the worst value reached)"
        )
        diverges_more = answer.diverged > answer.reference_diverged and test.significant
        lines.append(
            f"{variant.name} diverged on {counts}{'; so its gain does not count' if diverges_more else ''}."
        )
    if answer.dropped:
        lines.append(
            f"seeds of {variant.name} left out, a run of theirs having failed on every attempt: "
            f"{answer.dropped}."
        )
    if math.isinf(test.ci_low):
        reason = "the differences are equal" if test.is_equal else "too few seeds"
        lines.append(f"{reason}: no finite interval of {variant.name}; give more seeds (--pairs).")
    return lines


def _open_lines(result: StudyData) -> list[str]:
    if result.state == "done":
        return [f"No verdict: {result.name} is over, and nothing could be compared."]
    runs = result.tickets["confirm"]
    progress_text = f"{runs.done + runs.failed} of {runs.requested or 0} runs are over"
    return [f"No verdict yet: the comparison on fresh seeds is not over ({progress_text})."]


def cost_line(result: StudyData) -> str:
    """Return what the runs of a comparison took."""
    runs = sum(count.done + count.failed for count in result.tickets.values())
    gpu = result.cost.gpu_seconds
    cards = "" if gpu is None else f"; {duration(gpu)} of GPUs"
    return f"cost: {duration(result.cost.train_seconds)} of training in {runs} runs{cards}."


def exported(result: StudyData) -> str:
    """Return the name of the set that is exported: the one to take.

    Raises:
        StudyFailed: There is none.
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


def export_header(result: StudyData) -> list[str]:
    """Return what an export of a comparison begins with."""
    return [
        f"{exported(result)} of tempopt's comparison {result.name!r}, as written by tempopt export.",
        comparison_headline(result),
    ]


def _set_text(result: StudyData, index: int) -> str:
    """Return a set as it was given."""
    parameters: dict[str, Any] = result.spec.compared_sets[index].parameters
    return parameters_text(parameters) if parameters else "the spec as it stands"


def _called(result: StudyData, index: int, name: str, role: str = "") -> str:
    """Return a set's name, and its parameters unless the name has them."""
    text = _set_text(result, index)
    return f"{name}{role}" if _names_itself(name, text) else f"{name}{role}: {text}"


def _names_itself(name: str, text: str) -> bool:
    return text.replace(", ", ",") == name


def _are(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"

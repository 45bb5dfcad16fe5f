"""A comparison of given parameter sets in plain words, and which set is exported; computes nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tempopt.confirmation.compare import Comparison, SetPair, Variant
from tempopt.errors import StudyFailed
from tempopt.results.findings import DATA, TESTS, Finding, state_of
from tempopt.results.guard_text import guard_line, not_kept
from tempopt.results.wording import (
    confidence,
    duration,
    numbers,
    numbers_of_size,
    parameters_text,
    signed,
    size,
    unsigned,
)

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult

DIFFER, ALIKE = "Difference shown", "No difference shown"
"""What a comparison of each two sets comes to, in a few words."""


def comparison_findings(result: StudyResult) -> list[Finding]:
    """Return what a comparison found, the decision first."""
    found = result.comparison
    if found is None:
        return [Finding(kind="decision", text=line) for line in _open_lines(result)]
    decision = Finding(kind="decision", text=comparison_headline(result))
    if found.pairs:
        return [decision, *_findings_of_pairs(result, found)]
    several = len(found.variants) > 1
    reference = _called(result, 0, found.reference, ", the reference")
    findings = [decision, Finding(kind="reference", text=reference, params=found.reference_params)]
    for place, variant in enumerate(found.variants, start=1):
        text = _called(result, place, variant.name)
        findings.append(
            Finding(
                kind="variant",
                text=f"{text}: {_of_variant(variant)}." if several else text,
                state="fact" if variant.answer is None else state_of(variant.answer),
                answer=variant.answer,
                params=variant.params,
            )
        )
    findings += [Finding(kind="note", text=line) for line in _notes(found)]
    for variant in found.variants:
        findings += [Finding(kind="caveat", text=line) for line in _caveats(variant, found.reference)]
        findings += [Finding(kind="guard", text=line) for line in _of_guards(variant, found)]
    return findings


def comparison_headline(result: StudyResult) -> str:
    """Return what a comparison found in one line."""
    found = result.comparison
    if found is None:
        return f"{result.metric}: nothing is compared yet."
    if found.pairs:
        return _headline_of_pairs(result, found)
    if len(found.variants) == 1:
        return _headline_of_one(result, found, found.variants[0])
    where = f"({DATA[found.confirmed_on]} data, {TESTS[found.test]})"
    better = [each.name for each in found.variants if each.better]
    worse = [
        each.name for each in found.variants if each.answer and each.answer.worse and not each.fails_more
    ]
    failing = [_failing(each, found.reference) for each in found.variants if each.fails_more]
    if better:
        text = f"Gain shown: in {result.metric} {_are(better)} better than {found.reference}"
    else:
        names = ", ".join(each.name for each in found.variants)
        text = (
            f"No gain shown: in {result.metric} none of {names} is shown to be better than {found.reference}"
        )
    also = [f"{_are(worse)} worse", *failing] if worse else failing
    return f"{'; '.join([text, *also])} {where}."


def _headline_of_one(result: StudyResult, found: Comparison, variant: Variant) -> str:
    if variant.answer is None:
        why = f": {_failing(variant, found.reference)}" if variant.fails_more else ""
        return f"No verdict: no pair of runs of {variant.name} and {found.reference} could be compared{why}."
    test = variant.answer.paired
    where = f"{test.n_pairs} fresh seeds, {DATA[found.confirmed_on]} data, {TESTS[found.test]}"
    told = f"({numbers(test)}; {where})"
    if variant.fails_more:
        return f"No gain shown: {_failing(variant, found.reference)} {told}."
    if variant.better or variant.answer.worse:
        higher = variant.better == (result.direction == "maximize")
        change = f"{result.metric} is {'higher' if higher else 'lower'} by {size(test)}"
        verdict = "Gain shown" if variant.better else f"No gain shown: {variant.name} is worse"
        return (
            f"{verdict}: {change} with {variant.name} than with {found.reference} ({numbers_of_size(test)}; "
            f"{where})."
        )
    change = f"the gain of {variant.name} over {found.reference} in {result.metric} is {signed(test)}"
    return f"No gain shown: {change} {told}."


def _headline_of_pairs(result: StudyResult, found: Comparison) -> str:
    if found.taken is None:
        return "No verdict: no pair of runs of any two sets could be compared."
    seeds = max(pair.answer.paired.n_pairs for pair in found.pairs if pair.answer is not None)
    where = f"({seeds} fresh seeds, {DATA[found.confirmed_on]} data, {TESTS[found.test]})"
    is_first = found.taken == found.unbeaten[0]
    fewest = "" if is_first else " of those that diverge on the fewest seeds"
    which = "the only set" if len(found.unbeaten) == 1 else f"the first set{fewest}"
    return (
        f"{pairs_answer(found)}: take {found.taken}, {which} that none is shown to beat in {result.metric} "
        f"{where}."
    )


def pairs_answer(found: Comparison) -> str:
    """Return in a few words what a comparison of each two sets found."""
    return DIFFER if found.outcome == "better" else ALIKE


def loss_line(result: StudyResult, found: Comparison) -> str:
    """Return what may be lost by taking the set that a comparison of each two names."""
    sure = f"{100 * (1 - found.alpha):.4g} % confidence, upper end of the simultaneous intervals"
    if math.isinf(found.max_loss):
        is_equal = any(pair.answer.paired.is_equal for pair in found.pairs if pair.answer is not None)
        why = "differences are equal" if is_equal else "too few seeds"
        return f"what {found.taken} may lose against the best set is not bounded: {why} (add --pairs)."
    if not found.max_loss:
        return f"nothing is lost by taking {found.taken}: it is shown to be the best of the sets ({sure})."
    return (
        f"against the best set {found.taken} loses at most {found.max_loss:.3g} in {result.metric} ({sure})."
    )


def _findings_of_pairs(result: StudyResult, found: Comparison) -> list[Finding]:
    lines = [loss_line(result, found)] if found.taken is not None else []
    failed = {found.reference: found.variants[0].reference_failed}
    failed |= {variant.name: variant.failed for variant in found.variants}
    for place, name in enumerate(found.params_by_name):
        mean = f"mean {found.means[name]:.5g}" if name in found.means else "no complete run"
        fails = f"; diverged on {failed[name]} of {found.variants[0].runs} seeds" if failed[name] else ""
        beaten = "" if name in found.unbeaten else "; another set is shown to beat it"
        text = _set_text(result, place)
        called = name if _names_itself(name, text) else f"{name} ({text})"
        lines.append(f"{called}: {mean}{fails}{beaten}.")
    if result.direction == "minimize":
        lines.append(f"a gain with + is better: a lower {result.metric}.")
    findings = [Finding(kind="note", text=line) for line in lines]
    findings += [_finding_of_pair(pair) for pair in found.pairs]
    lines = []
    if len(found.pairs) > 1:
        of_one, together = (f"{100 * (1 - a):.4g} %" for a in (found.alpha / len(found.pairs), found.alpha))
        lines.append(
            f"the {len(found.pairs)} comparisons share the level {100 * found.alpha:.3g} %: p has to be "
            f"below {found.alpha / len(found.pairs):.3g}; each interval covers {of_one}, all of them "
            f"together {together}."
        )
    return [*findings, *(Finding(kind="note", text=line) for line in (*lines, *_notes_on_looks(found)))]


def _finding_of_pair(pair: SetPair) -> Finding:
    answer, names = pair.answer, f"gain of {pair.name} over {pair.reference}"
    if answer is None:
        return Finding(kind="pair", text=f"{names}: no pair of runs could be compared.")
    test = answer.paired
    shown = (
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
        text=f"{names}: {signed(test)} ({numbers(test)}; {test.n_pairs} seeds): {shown}.",
        details=tuple(details),
        state=state_of(answer),
        answer=answer,
    )


def _of_variant(variant: Variant) -> str:
    if variant.answer is None:
        return f"no pair of runs could be compared{f'; {_fails(variant)}' if variant.fails_more else ''}"
    test = variant.answer.paired
    shown = "better" if variant.better else "worse" if variant.answer.worse else "no difference shown"
    shown = _fails(variant) if variant.fails_more else shown
    return f"{signed(test)} ({numbers(test)}; {test.n_pairs} seeds): {shown}"


def _fails(variant: Variant) -> str:
    return f"diverged on {variant.failed} of {variant.runs} seeds"


def _failing(variant: Variant, reference: str) -> str:
    """Return how often a variant and the reference diverged."""
    return f"{variant.name} {_fails(variant)}, {reference} on {variant.reference_failed}"


def _of_guards(variant: Variant, found: Comparison) -> list[str]:
    """Return what is said of each guard for a variant, and whether it is to be taken."""
    told = (guard_line(guard, variant.name, found.reference) for guard in variant.guards)
    lines = [f"{variant.name}: {line}" for line in told]
    if variant.better and not variant.keeps_guards:
        lines.append(f"{variant.name} is not to be taken: it {not_kept(variant.guards)}.")
    return lines


def _notes(found: Comparison) -> list[str]:
    """Return what is to be said of the comparison as a whole."""
    lines = []
    several = len(found.variants)
    if several > 1:
        each, together = (f"{100 * (1 - alpha):.4g} %" for alpha in (found.alpha / several, found.alpha))
        lines.append(
            f"the {several} variants share the level {100 * found.alpha:.3g} %: each interval covers {each}, "
            f"all of them together {together}, and p has to be below {found.alpha / several:.3g}."
        )
    elif (answer := found.variants[0].answer) is not None and found.outcome == "not_shown":
        test = answer.paired
        if not answer.reference_diverged and test.ci_low < test.ci_high < math.inf:
            above = unsigned(max(test.ci_high, 0.0), test)
            lines.append(f"a gain above {above} is excluded ({confidence(test)}).")
    return [*lines, *_notes_on_looks(found)]


def _notes_on_looks(found: Comparison) -> list[str]:
    lines = []
    if found.looks > 1:
        lines.append(f"verdict {found.looks} of this study: its level is {100 * found.alpha:.3g} %.")
    if found.confirmed_on == "validate":
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
        more = answer.diverged > answer.reference_diverged and test.significant
        lines.append(f"{variant.name} diverged on {counts}{'; so its gain does not count' if more else ''}.")
    if answer.dropped:
        lines.append(
            f"seeds of {variant.name} left out, a run of theirs having failed on every attempt: "
            f"{answer.dropped}."
        )
    if math.isinf(test.ci_low):
        why = "the differences are equal" if test.is_equal else "too few seeds"
        lines.append(f"{why}: no finite interval of {variant.name}; give more seeds (--pairs).")
    return lines


def _open_lines(result: StudyResult) -> list[str]:
    if result.state == "done":
        return [f"No verdict: {result.name} is over, and nothing could be compared."]
    runs = result.tickets["confirm"]
    over = f"{runs.done + runs.failed} of {runs.requested or 0} runs are over"
    return [f"No verdict yet: the comparison on fresh seeds is not over ({over})."]


def cost_line(result: StudyResult) -> str:
    """Return what the runs of a comparison took."""
    runs = sum(count.done + count.failed for count in result.tickets.values())
    gpu = result.cost.gpu_seconds
    cards = "" if gpu is None else f"; {duration(gpu)} of GPUs"
    return f"cost: {duration(result.cost.train_seconds)} of training in {runs} runs{cards}."


def exported(result: StudyResult) -> str:
    """Return the name of the set that is exported: the one to take.

    Raises:
        StudyFailed: There is none.
    """
    found = result.comparison
    if found is None:
        raise StudyFailed(
            f'The comparison "{result.name}" is not over, so there is nothing to export yet. Continue it: '
            f"tempopt resume {result.name}"
        )
    if found.taken is None:
        guards = " and to keep the guards" if result.spec.study.guards else ""
        raise StudyFailed(
            f'The comparison "{result.name}" has shown no parameter set to be better than '
            f"{found.reference}{guards}, so there is nothing to export. Keep {found.reference}: "
            f"{_set_text(result, 0)}."
        )
    return found.taken


def export_header(result: StudyResult) -> list[str]:
    """Return what an export of a comparison begins with."""
    return [
        f"{exported(result)} of tempopt's comparison {result.name!r}, as written by tempopt export.",
        comparison_headline(result),
    ]


def _set_text(result: StudyResult, place: int) -> str:
    """Return a set as it was given."""
    assert result.spec.compare is not None
    given: dict[str, Any] = result.spec.compare[place].parameters
    return parameters_text(given) if given else "the spec as it stands"


def _called(result: StudyResult, place: int, name: str, role: str = "") -> str:
    """Return a set's name, and its parameters unless the name has them."""
    text = _set_text(result, place)
    return f"{name}{role}" if _names_itself(name, text) else f"{name}{role}: {text}"


def _names_itself(name: str, text: str) -> bool:
    return text.replace(", ", ",") == name


def _are(names: list[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"

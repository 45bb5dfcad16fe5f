"""A comparison of the values of a parameter in plain words and as plain data; computes nothing."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from tempopt.confirmation.values import ConfirmedValue, ValuePair, ValuesCompared, earlier_values
from tempopt.errors import StudyFailed
from tempopt.results.verdict_text import DATA, TESTS
from tempopt.results.wording import numbers, parameters_text, signed
from tempopt.statistics.paired_tests import ALPHA

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult

DIFFER, ALIKE = "Difference shown", "No difference shown"
"""What a comparison of values comes to, in a few words."""


def value_lines(result: StudyResult, storage: str = "") -> list[str]:
    """Return what a comparison of values found, one statement a line.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
    """
    found = result.values_compared
    if found is None:
        return [values_headline(result)]
    lines = [loss_line(result), *(_value_line(each, found) for each in found.values)]
    lines += [f"not confirmed, since no trial of it is complete: {name}." for name in found.unconfirmed]
    if result.direction == "minimize":
        lines.append(f"a gain with + is better: a lower {result.metric}.")
    lines += [line for each in found.pairs for line in _pair_lines(each)]
    lines += _notes(found)
    lines += [_earlier_line(each) for each in earlier_values(result.runs, result.spec)]
    if found.at_most_lost > found.least:
        more = f"tempopt resume {shlex.quote(result.name)} --pairs +{_more(found)}{storage}"
        lines.append(f"more pairs narrow the intervals: {more}")
    return [values_headline(result), *(f"  {line}" for line in lines if line)]


def values_headline(result: StudyResult) -> str:
    """Return what a comparison of values found in one line."""
    found = result.values_compared
    if found is None:
        return _open_line(result)
    best = found.recommended
    if best is None:
        return "No verdict: no pair of runs of any two values could be compared."
    seeds = max(each.answer.paired.n_pairs for each in found.pairs if each.answer is not None)
    where = f"({seeds} fresh seeds, {DATA[found.confirmed_on]} data, {TESTS[found.test]})"
    return f"{values_answer(found)}: take {best.name}, {_reason(found, best)} in {result.metric} {where}."


def values_answer(found: ValuesCompared) -> str:
    """Return in a few words what a comparison of values found."""
    return DIFFER if found.shown else ALIKE


def _reason(found: ValuesCompared, best: ConfirmedValue) -> str:
    by = f" by more than {found.least:.4g}" if found.least else ""
    if len(found.candidates) == 1:
        return f"the only value of which no other is shown to be better{by}"
    order = "smallest" if _ordered(found) else "first"
    fewest = " of those that fail on the fewest seeds" if best != found.candidates[0] else ""
    return f"the {order} value{fewest} of which no other is shown to be better{by}"


def _ordered(found: ValuesCompared) -> bool:
    return all(isinstance(e.value, int | float) and not isinstance(e.value, bool) for e in found.values)


def loss_line(result: StudyResult) -> str:
    """Return what may be lost by taking the recommended value; empty where none is recommended."""
    found = result.values_compared
    if found is None or found.recommended is None:
        return ""
    name, lost = found.recommended.name, found.at_most_lost
    bound = f"{100 * (1 - found.alpha):.4g} % confidence, upper end of the simultaneous intervals"
    if math.isinf(lost):
        return f"what {name} may lose against the best value is not bounded: too few seeds (add --pairs)."
    if not lost:
        return f"nothing is lost by taking {name}: it is shown to be the best of the values ({bound})."
    return f"against the best of the values {name} loses at most {lost:.3g} in {result.metric} ({bound})."


def value_to_take(result: StudyResult, storage: str = "") -> str:
    """Return what to do: train with the recommended value; empty where none is recommended."""
    best = None if result.values_compared is None else result.values_compared.recommended
    if best is None:
        return ""
    as_code = f"tempopt export {shlex.quote(result.name)}{storage}"
    return f"Train with {parameters_text(best.params)}. As code: {as_code}"


def _value_line(each: ConfirmedValue, found: ValuesCompared) -> str:
    mean = "no complete run" if each.mean is None else f"mean {each.mean:.5g}"
    failed = f"; failed on {each.failed} of {each.runs} seeds" if each.failed else ""
    beaten = "; another is shown to be better" if found.is_beaten(each.name) else ""
    others = {name: value for name, value in each.params.items() if name != found.parameter}
    return f"with {each.name}: {mean}{failed}{beaten} (trained with {parameters_text(others)})."


def _pair_lines(each: ValuePair) -> list[str]:
    answer = each.answer
    names = f"gain of {each.name} over {each.reference}"
    if answer is None:
        return [f"{names}: no pair of runs could be compared."]
    test = answer.paired
    shown = "better" if answer.significant else "worse" if answer.worse else "no difference shown"
    lines = [f"{names}: {signed(test)} ({numbers(test)}; {test.n_pairs} seeds): {shown}."]
    if answer.diverged or answer.reference_diverged:
        lines.append(
            f"  {each.name} diverged on {answer.diverged} of {test.n_pairs} seeds, {each.reference} on "
            f"{answer.reference_diverged} (counted with the worst value reached)."
        )
    if answer.dropped:
        lines.append(f"  pairs left out, a run of theirs having failed on every attempt: {answer.dropped}.")
    return lines


def _notes(found: ValuesCompared) -> list[str]:
    lines = []
    if found.comparisons > 1:
        each, together = (f"{100 * (1 - a):.4g} %" for a in (found.alpha / found.comparisons, found.alpha))
        lines.append(
            f"the {found.comparisons} comparisons share the {100 * found.alpha:.3g} % that this verdict may "
            f"spend: each interval covers {each}, all of them together {together}, and p is scaled so that "
            "0.05 is the limit."
        )
    if found.looks > 1:
        lines.append(
            f"verdict {found.looks} of this study: of the 5 % that all its verdicts share, this one may "
            f"spend {100 * found.alpha:.2g} %, so p is multiplied by {ALPHA / found.alpha:.3g}."
        )
    if found.confirmed_on == "validate":
        lines.append("compared on the validation data.")
    return lines


def _earlier_line(found: ValuesCompared) -> str:
    """Return what an earlier verdict said."""
    shown = [each if each.better_by(0.0) else each.turned() for each in found.pairs if each.decided]
    told = ", ".join(f"{each.name} is better than {each.reference}" for each in shown) or "no difference"
    best = "none" if found.recommended is None else found.recommended.name
    return f"verdict {found.looks} (round {found.round}) recommended {best}, and has shown: {told}."


def _more(found: ValuesCompared) -> int:
    """Return how many pairs more are suggested: as many as there were."""
    return max(2, *(each.runs for each in found.values))


def _open_line(result: StudyResult) -> str:
    name = result.spec.compared_name
    if result.state == "done":
        return f"No verdict: {result.name} is over, and fewer than two values of {name} could be confirmed."
    runs = result.tickets["confirm"]
    if runs.requested:
        over = f"{runs.done + runs.failed} of {runs.requested} runs are over"
        return f"No verdict yet: the values of {name} are being compared on fresh seeds ({over})."
    return f"No verdict yet: each value of {name} is searched, and none is confirmed."


# ---- what is exported


def recommended_value(result: StudyResult) -> ConfirmedValue:
    """Return the value whose configuration is exported.

    Raises:
        StudyFailed: None is recommended.
    """
    found = result.values_compared
    best = None if found is None else found.recommended
    if best is None:
        raise StudyFailed(
            f'Study "{result.name}" recommends no value of {result.spec.compared_name} yet, so there is '
            f"nothing to export. Continue it: tempopt resume {result.name}"
        )
    return best


def value_header(result: StudyResult) -> list[str]:
    """Return what an export of a comparison of values begins with."""
    name = recommended_value(result).name
    return [
        f"{name}, as tempopt's study {result.name!r} recommends it, as written by tempopt export.",
        values_headline(result),
        loss_line(result),
    ]


# ---- as plain data


def values_json(found: ValuesCompared) -> dict[str, Any]:
    """Return the documented data of a comparison of values; an end that nothing bounds is null."""
    best = found.recommended
    return {
        "parameter": found.parameter,
        "recommended": best and {"name": best.name, "value": best.value, "params": best.params},
        "at_most_lost": _finite(found.at_most_lost),
        "min_gain": found.least,
        "values": [
            {
                "name": each.name,
                "value": each.value,
                "params": each.params,
                "mean": each.mean,
                "runs": each.runs,
                "failed": each.failed,
                "beaten": found.is_beaten(each.name),
            }
            for each in found.values
        ],
        "unconfirmed": list(found.unconfirmed),
        "pairs": [_pair_json(each) for each in found.pairs],
        "comparisons": found.comparisons,
        "test": found.test,
        "confirmed_on": found.confirmed_on,
        "round": found.round,
        "looks": found.looks,
        "alpha": found.alpha,
        "still_shown": [list(each) for each in sorted(found.still_shown)],
    }


def _pair_json(each: ValuePair) -> dict[str, Any]:
    told: dict[str, Any] = {"name": each.name, "reference": each.reference}
    names = ("gain", "ci_low", "ci_high", "p_value", "confidence", "n_pairs")
    counts = ("dropped", "diverged", "reference_diverged", "significant", "worse")
    answer = each.answer
    if answer is None:
        return told | dict.fromkeys((*names, *counts))
    told |= {name: _finite(getattr(answer.paired, name)) for name in names}
    return told | {name: getattr(answer, name) for name in counts}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

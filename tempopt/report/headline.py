"""What report, dashboard and note lead with: the verdict in two words and in a sentence, and what to do."""

from __future__ import annotations

from tempopt.results.comparison_text import pairs_answer
from tempopt.results.recommendation_text import HEAD, recommendation_text
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import GAIN, NO_GAIN, answer_of, verdict_lines
from tempopt.results.wording import baseline_name
from tempopt.temperature import registered_path

_INDENT = 2
"""How far the statements of a verdict are indented."""


def answer(result: StudyResult) -> str:
    """Return in a few words what the study found."""
    if result.comparison is not None:
        if result.comparison.pairs:
            return pairs_answer(result.comparison)
        return GAIN if result.comparison.outcome == "better" else NO_GAIN
    if result.verdict is None:
        return "No verdict" if result.state == "done" else "No verdict yet"
    return answer_of(result, result.verdict)


def verdict(result: StudyResult, storage: str = "") -> tuple[str, list[tuple[str, list[str]]]]:
    """Return the verdict in a line, and what is to be said besides: each statement with what is below it.

    What to do is not among them.

    Args:
        result: The study.
        storage: As for :func:`what_to_do`.
    """
    first, *rest = verdict_lines(result, storage)
    rest = [line for line in rest if not line.strip().startswith(HEAD)]
    prefix = f"{answer(result)}: "
    if first.startswith(prefix):
        first = first.removeprefix(prefix)
        first = first if first.startswith(result.metric) else _sentence(first)
    told: list[tuple[str, list[str]]] = []
    for line in rest:
        text = _sentence(line.strip())
        if told and is_below(line):
            told[-1][1].append(text)
        else:
            told.append((text, []))
    return first, told


def _sentence(text: str) -> str:
    """Return a text that begins with a capital; τ stays small, its capital is a T."""
    return text if text.startswith("τ") else text[0].upper() + text[1:]


def is_below(line: str) -> bool:
    """Return whether a line of the verdict belongs to the statement before it."""
    return len(line) - len(line.lstrip()) > _INDENT


def what_to_do(result: StudyResult, storage: str = "") -> str:
    """Return the recommendation; empty without a verdict.

    Args:
        result: The study.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
    """
    if result.verdict is None:
        return ""
    return _sentence(recommendation_text(result, storage))


def terms(result: StudyResult) -> list[str]:
    """Return what the words of a verdict mean, a sentence each, for somebody who has read nothing else."""
    told = []
    if result.spec.attends:
        told.append(
            "τ is the temperature of attention, softmax(q·k / (√d · τ)): 1 is usual, below 1 attention is "
            "sharper, above 1 softer."
        )
    for name, each in result.spec.temperatures.items():
        found = "" if each.as_found is None else f"; the module has {each.as_found:.4g}"
        told.append(f"{name} is the temperature at {each.value or registered_path(name)}{found}.")
    if result.verdict is None:
        return told
    advice = result.recommendation
    shown = [result.verdict.params, *((advice.parameters, advice.at_inference or {}) if advice else ())]
    if any(each.get("length_scaling", "none") != "none" for each in shown):
        told.append(
            "Length scaling changes 1/τ with n, the number of keys that a query sees; log_n multiplies it by "
            "ln n / ln n0, so n0 is the number of keys at which nothing changes."
        )
    told.append(
        "Fresh seeds neither searched nor chose, so the luck of the search is not in the gain. Each makes a "
        f"pair: it is trained with the winner and at {baseline_name(result.spec)}, from the same initial "
        "weights, in the same order of data. A gain with + is better, also where less of the metric is. p is "
        "how likely a difference this large is if there is none."
    )
    return told
